# SPDX-License-Identifier: Apache-2.0
"""Values as DISPLAY frames carry them (docs/protocol.md section 2), within what the host reads."""
from __future__ import annotations

import base64
import json
from typing import Any

DISPLAY = 0x14
VALUE_MAX = 10 << 20
"""Longest MIME value or error text in bytes (of UTF-8 or base64)."""
ESCAPED = 6
"""Bytes of JSON for a character that is not ASCII, or a half of one."""
PAYLOAD_MAX = 22 << 20
"""Longest DISPLAY in bytes; the host reads 24 MiB."""
DISPLAYS_MAX = 40 << 20
"""What a cell display()s, in bytes; with its value the host reads 64 MiB."""


def clean(text: str) -> str:
    """Returns text that JSON readers accept: lone surrogates become backslash escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(text: str, what: str) -> str:
    """Returns text cut to VALUE_MAX bytes as JSON, with a note of what was cut and how much."""
    if len(text) <= VALUE_MAX // ESCAPED or len(text) <= VALUE_MAX and text.isascii():
        return text
    kept = VALUE_MAX if text.isascii() else VALUE_MAX // ESCAPED
    return f"{text[:kept]}\n[thawbox: {len(text) - kept} characters of {what} cut: " \
           f"over {VALUE_MAX >> 20} MiB]"


def mime_text(mime: str, value: Any) -> str:
    """Returns a MIME value as protocol section 2 carries it: text, base64 of bytes, JSON text.

    Raises TypeError or ValueError for JSON data that cannot be written.
    """
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, str):
        return clean(value)
    return json.dumps(value, allow_nan=False)


def bundle(kind: str, data: dict[str, Any], metadata: dict[str, Any] | None) -> bytes:
    """Returns the payload of a DISPLAY frame; values that are too large leave a note instead."""
    out: dict[str, str] = {}
    notes = []
    for mime, value in data.items():
        try:
            text = mime_text(mime, value)
        except (TypeError, ValueError) as e:
            notes.append(f"[thawbox: {mime} dropped: {e}]")
            continue
        if mime == "text/plain":
            out[mime] = shorten(text, mime)
        elif len(text) <= VALUE_MAX:
            out[mime] = text
        else:
            notes.append(f"[thawbox: {mime} dropped: {len(text)} bytes, over "
                         f"{VALUE_MAX >> 20} MiB]")
    if notes:
        out["text/plain"] = "\n".join([out.get("text/plain", "")] + notes).lstrip("\n")
    try:
        about = json.dumps(metadata or {}, allow_nan=False)
    except (TypeError, ValueError):
        about = "{}"
    payload = f'{{"kind":"{kind}","data":{json.dumps(out)},"metadata":{about}}}'.encode("ascii")
    return payload if len(payload) <= PAYLOAD_MAX else too_large(kind, len(payload), PAYLOAD_MAX)


def too_large(kind: str, n: int, limit: int) -> bytes:
    """Returns the payload of a DISPLAY frame that stands for one of n bytes."""
    return json.dumps({"kind": kind, "metadata": {}, "data": {"text/plain": (
        f"[thawbox: a display of {n} bytes dropped: over {limit >> 20} MiB]")}}).encode("ascii")
