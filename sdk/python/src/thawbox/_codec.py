# SPDX-License-Identifier: Apache-2.0
"""Values as text between host and guest, by value and without pickle. The guest is given this file as it is.

In the JSON an object is always a tagged node, {"t": kind, "v": content}; so no value of a user can be taken for one.
The reader trusts nothing: kinds that it knows, bounded depth and size, arrays of plain types, pictures in PNG alone.
"""
from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import json
import math
import pathlib
import sys
import uuid
from typing import Any

TEXT_MAX = 8 << 20
DEPTH_MAX = 64
PIXELS_MAX = 64 << 20
PLAIN_DTYPES = "biufcUSMm"


class CodecError(TypeError):
    """A value that cannot be passed, or text that is none."""


def dumps(value: Any) -> str:
    """The value as text of at most TEXT_MAX characters. CodecError: it cannot be passed by value."""
    text = json.dumps(encode(value), separators=(",", ":"), allow_nan=False)
    if len(text) > TEXT_MAX:
        raise CodecError(f"the value is too large to be passed by value ({len(text)} bytes, at most {TEXT_MAX}): write it "
                         "to a file and pass its path")
    return text


def loads(text: str) -> Any:
    if len(text) > TEXT_MAX:
        raise CodecError("the text of a value is too long")
    try:
        return decode(json.loads(text))
    except CodecError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RecursionError, MemoryError) as error:
        raise CodecError(f"the text of a value is not valid: {type(error).__name__}") from None


def _b64(data: Any) -> str:
    return base64.b64encode(data).decode("ascii")


def _node(kind: str, content: Any) -> dict[str, Any]:
    return {"t": kind, "v": content}


def encode(value: Any, depth: int = 0) -> Any:
    """The value as JSON has it."""
    if depth > DEPTH_MAX:
        raise CodecError(f"the value is nested deeper than {DEPTH_MAX}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    plain = _encode_scalar(value)
    if plain is not None:
        return plain
    if isinstance(value, list):
        return [encode(item, depth + 1) for item in value]
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return _node(kind.__name__, [encode(item, depth + 1) for item in value])
    if isinstance(value, dict):
        return _node("dict", [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()])
    node = _encode_other(value, depth)
    if node is None:
        raise CodecError(f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be passed by value: "
                         "pass numbers, text, lists, dictionaries, arrays, tables or pictures made of it")
    return node


def _encode_scalar(value: Any) -> Any:
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 63 else _node("int", hex(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _node("float", repr(float(value)))
    if isinstance(value, complex):
        return _node("complex", [repr(value.real), repr(value.imag)])
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _node("bytes", _b64(value))
    if isinstance(value, datetime.datetime) and value != value:  # pandas' NaT
        return _node("na", None)
    if hasattr(value, "to_pydatetime"):  # a pandas Timestamp, whose nanoseconds Python does not read
        value = value.to_pydatetime(warn=False)
    for kind in (datetime.datetime, datetime.date, datetime.time):  # a datetime is a date
        if isinstance(value, kind):
            return _node(kind.__name__, value.isoformat())
    if isinstance(value, datetime.timedelta):
        return _node("timedelta", [value.days, value.seconds, value.microseconds])
    for other in (decimal.Decimal, uuid.UUID):
        if isinstance(value, other):
            return _node(other.__name__, str(value))
    return _node("Path", str(value)) if isinstance(value, pathlib.PurePath) else None


def _encode_other(value: Any, depth: int) -> Any:
    """What comes from libraries, which are asked only where they are loaded: else the value is not theirs."""
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    pil, figures = sys.modules.get("PIL.Image"), sys.modules.get("matplotlib.figure")
    if pandas is not None:
        if value is pandas.NA:
            return _node("na", None)
        if isinstance(value, pandas.DataFrame):
            columns = [_column(value.iloc[:, i], depth) for i in range(value.shape[1])]
            return _node("dataframe", [encode(list(value.columns), depth + 1), _column(value.index, depth), columns])
        if isinstance(value, pandas.Series):
            return _node("series", [encode(value.name, depth + 1), _column(value.index, depth), _column(value, depth)])
        if isinstance(value, pandas.Index):
            return _column(value, depth)
    if numpy is not None:
        if isinstance(value, numpy.generic):
            return encode(value.item(), depth + 1)
        if isinstance(value, numpy.ndarray):
            return _array(value, depth)
    if pil is not None and isinstance(value, pil.Image):
        return _node("png", _png(value))
    if figures is not None and isinstance(value, figures.Figure):
        return _node("png", _png(value, "savefig"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return encode({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, depth + 1)
    return None


def _png(value: Any, method: str = "save") -> str:
    import io

    out = io.BytesIO()
    getattr(value, method)(out, format="png")
    return _b64(out.getvalue())


def _array(value: Any, depth: int) -> Any:
    if value.dtype.kind in PLAIN_DTYPES:
        return _node("ndarray", [value.dtype.str, list(value.shape), _b64(value.tobytes())])
    if value.dtype.kind != "O":
        raise CodecError(f"an array of {value.dtype} cannot be passed by value")
    return _node("objects", [list(value.shape), [encode(item, depth + 1) for item in value.reshape(-1).tolist()]])


def _column(values: Any, depth: int) -> Any:
    """A column or an index: an array where it is one of plain numbers or times, else a list."""
    kind = getattr(values.dtype, "kind", "O")
    if kind in "biufcMm" and type(values.dtype).__module__.startswith("numpy"):
        return _array(values.to_numpy(), depth)
    return [encode(item, depth + 1) for item in values.tolist()]


# ---- back ----

def decode(node: Any, depth: int = 0) -> Any:
    """The value of what encode() made. Anything else: an error of loads()."""
    if depth > 2 * DEPTH_MAX:
        raise CodecError("the text of a value is nested too deep")
    if node is None or isinstance(node, (bool, str, int, float)):
        return node
    if isinstance(node, list):
        return [decode(item, depth + 1) for item in node]
    if not isinstance(node, dict) or set(node) != {"t", "v"} or not isinstance(node["t"], str):
        raise CodecError("the text of a value has a node that is none")
    kind, content = node["t"], node["v"]
    if kind == "dict":
        return {_key(decode(k, depth + 1)): decode(v, depth + 1) for k, v in content}
    if kind in ("tuple", "set", "frozenset"):
        items = [decode(item, depth + 1) for item in content]
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
    if kind in _SCALARS:
        return _SCALARS[kind](content)
    if kind in _OTHERS:
        return _OTHERS[kind](content, depth + 1)
    raise CodecError(f"the text of a value has a node of kind {kind[:40]!r}, which is not known")


def _key(value: Any) -> Any:
    hash(value)
    return value


def _text(content: Any, most: int = 1 << 20) -> str:
    if not isinstance(content, str) or len(content) > most:
        raise CodecError("a scalar of a value is no text, or too long")
    return content


_SCALARS: dict[str, Any] = {
    "na": lambda _: None,
    "int": lambda v: int(_text(v, TEXT_MAX), 16),
    "float": lambda v: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[v],
    "complex": lambda v: complex(float(_text(v[0], 40)), float(_text(v[1], 40))),
    "bytes": lambda v: base64.b64decode(_text(v, TEXT_MAX), validate=True),
    "datetime": lambda v: datetime.datetime.fromisoformat(_text(v, 64)),
    "date": lambda v: datetime.date.fromisoformat(_text(v, 64)),
    "time": lambda v: datetime.time.fromisoformat(_text(v, 64)),
    "timedelta": lambda v: datetime.timedelta(int(v[0]), int(v[1]), int(v[2])),
    "Decimal": lambda v: decimal.Decimal(_text(v, 1 << 16)),
    "UUID": lambda v: uuid.UUID(_text(v, 64)),
    "Path": lambda v: pathlib.Path(_text(v, 1 << 14)),
}


def _shape(content: Any, count: int | None) -> tuple[int, ...]:
    shape = tuple(int(n) for n in content)
    if len(shape) > 32 or any(n < 0 for n in shape) or (count is not None and math.prod(shape) != count):
        raise CodecError("an array of a value has not the size that it says")
    return shape


def _decode_array(content: Any, depth: int) -> Any:
    del depth
    import numpy

    dtype = numpy.dtype(_text(content[0], 40))
    if dtype.kind not in PLAIN_DTYPES or dtype.names or dtype.subdtype or not dtype.itemsize:
        raise CodecError("an array of a value is of no plain type")
    data = base64.b64decode(_text(content[2], TEXT_MAX), validate=True)
    shape = _shape(content[1], len(data) // dtype.itemsize)
    return numpy.frombuffer(data, dtype).reshape(shape).copy()


def _decode_objects(content: Any, depth: int) -> Any:
    import numpy

    items = [decode(item, depth) for item in content[1]]
    array: Any = numpy.empty(len(items), object)
    array[:] = items
    return array.reshape(_shape(content[0], len(items)))


def _decode_frame(content: Any, depth: int) -> Any:
    """A DataFrame; where there is no pandas, a dictionary of columns."""
    names, index = decode(content[0], depth), decode(content[1], depth)
    columns = [decode(column, depth) for column in content[2]]
    if len(names) != len(columns):
        raise CodecError("a table of a value has not as many columns as names")
    try:
        import pandas
    except ImportError:
        return {name: list(column) for name, column in zip(names, columns, strict=True)}
    frame = pandas.DataFrame(dict(enumerate(columns)), index=index if len(index) else None)
    frame.columns = pandas.Index(names)
    return frame


def _decode_series(content: Any, depth: int) -> Any:
    name, index, values = (decode(part, depth) for part in content)
    try:
        import pandas
    except ImportError:
        return list(values)
    return pandas.Series(values, index=index if len(index) else None, name=name)


def _decode_png(content: Any, depth: int) -> Any:
    del depth
    import io

    import PIL.Image

    data = base64.b64decode(_text(content, TEXT_MAX), validate=True)
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR" or not 0 < width * height <= PIXELS_MAX:
        raise CodecError("a picture of a value is no PNG, or too large")
    try:
        image = PIL.Image.open(io.BytesIO(data), formats=["PNG"])
        image.load()
    except Exception as error:  # of whatever kind: the bytes are not ours
        raise CodecError(f"a picture of a value cannot be read: {type(error).__name__}") from None
    return image


_OTHERS: dict[str, Any] = {
    "ndarray": _decode_array, "objects": _decode_objects, "dataframe": _decode_frame, "series": _decode_series,
    "png": _decode_png,
}
