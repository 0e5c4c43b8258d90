# SPDX-License-Identifier: Apache-2.0
"""What is said to thawboxd and how its answers are read: requests as values, parsers without I/O.

The API is E2B's (docs/e2b.md) with members of thawbox's own (docs/openapi.yaml, docs/e2b.md "Beyond E2B").
The synchronous and the asynchronous layer send these requests and feed these readers; neither knows more. Here: the
control plane, contexts and cells; _envd has commands and files.
"""
from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from ._errors import HostNotReady, InvalidInput, LimitExceeded, NotFound, SandboxGone, ThawboxError
from ._models import (
    Execution,
    ExecutionError,
    FileChange,
    Logs,
    Metrics,
    Result,
    SandboxInfo,
    Truncation,
    Usage,
    parse_time,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ENVD_PORT = 49983
INTERPRETER_PORT = 49999
READ_SECONDS = 120.0
"""How long an answer of the daemon may take; cells and commands are kept alive by lines of their own."""
WIRE_BYTES = 64 << 20
"""Longest line or message that is read."""


@dataclass(frozen=True)
class Answer:
    """A response that has come whole."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        try:
            return json.loads(self.content) if self.content else None
        except ValueError as error:
            raise ThawboxError("the daemon's answer is not JSON", "is this address thawboxd's?", code="protocol") from error


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request with one answer, and what makes a value of it."""

    method: str
    path: str
    parse: Callable[[Answer], T]
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content: Any = None
    """Raw content instead of a JSON body: bytes, or a file that is open for reading."""


class Sink(Protocol[T_co]):
    """Reads a stream: takes bytes as they come, says what they mean, and what it all was at the end."""

    def feed(self, data: bytes) -> list[tuple[str, Any]]: ...

    def finish(self) -> T_co: ...

    def partial(self) -> T_co: ...


@dataclass(frozen=True)
class Stream(Generic[T]):
    """A request whose answer is a stream, and who reads it."""

    method: str
    path: str
    sink: Sink[T]
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


@dataclass(frozen=True)
class Handle:
    """What a client needs to talk to a sandbox."""

    id: str
    template: str
    token: str = ""
    traffic_token: str = ""

    def envd(self) -> dict[str, str]:
        headers = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(ENVD_PORT)}
        return {**headers, "X-Access-Token": self.token} if self.token else headers

    def interpreter(self) -> dict[str, str]:
        headers = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(INTERPRETER_PORT)}
        return {**headers, "E2B-Traffic-Access-Token": self.traffic_token} if self.traffic_token else headers


# ---- errors ----

_STATUS_KINDS: dict[int, tuple[type[ThawboxError], str]] = {
    400: (InvalidInput, ""), 401: (InvalidInput, "unauthorized"), 403: (InvalidInput, "forbidden"),
    404: (NotFound, ""), 405: (InvalidInput, ""), 409: (InvalidInput, "conflict"), 413: (LimitExceeded, ""),
    415: (InvalidInput, ""), 429: (LimitExceeded, ""), 501: (InvalidInput, "not_offered"),
    502: (SandboxGone, ""), 503: (HostNotReady, ""), 507: (LimitExceeded, "no_space"),
}


def split_remedy(message: str) -> tuple[str, str]:
    """Cause and remedy, which the daemon writes with a semicolon or a colon between them."""
    cause, semicolon, remedy = message.partition("; ")
    if semicolon:
        return cause, remedy
    return message, ""


def error_of(answer: Answer) -> ThawboxError:
    """The error that an answer stands for whose status is not 2xx."""
    try:
        body = json.loads(answer.content)
    except ValueError:
        body = None
    message = body.get("message") if isinstance(body, dict) else None
    text = message if isinstance(message, str) and message else answer.content.decode("utf-8", "replace")[:500]
    kind, code = _STATUS_KINDS.get(answer.status, (ThawboxError, f"http_{answer.status}"))
    cause, remedy = split_remedy(text or f"the daemon answered with status {answer.status}")
    if kind is SandboxGone:
        cause, remedy = "the sandbox is gone: it was killed, or its time to live has ended", "create another one"
    return kind(cause, remedy, code=code or None)


def check(answer: Answer) -> Answer:
    if not 200 <= answer.status < 300:
        raise error_of(answer)
    return answer


def whole(parse: Callable[[Any], T]) -> Callable[[Answer], T]:
    """A parser of a JSON answer; what has not the shape that it expects is an error of the protocol."""

    def run(answer: Answer) -> T:
        body = check(answer).json()
        try:
            return parse(body)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ThawboxError(f"the daemon's answer lacks {error}", "is this address thawboxd's?", code="protocol") from error

    return run


def nothing(answer: Answer) -> None:
    check(answer)


def seconds(value: float, name: str) -> float:
    """A time that must be above 0."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e9:
        raise InvalidInput(f"{name} must be a number of seconds above 0, not {value!r}")
    return float(value)


# ---- control plane ----

@dataclass(frozen=True)
class Limits:
    """What a sandbox is held to; None: no limit beside the template's."""

    cpu: float | None = None
    disk_rate: int | None = None
    disk_ops: int | None = None
    vsock_rate: int | None = None

    def body(self) -> dict[str, Any]:
        given = {"cpu": self.cpu, "diskBytesPerSecond": self.disk_rate, "diskOpsPerSecond": self.disk_ops,
                 "vsockBytesPerSecond": self.vsock_rate}
        for name, value in given.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
                raise InvalidInput(f"the limit {name} must be a number above 0, not {value!r}")
        return {name: value for name, value in given.items() if value is not None}


def create(template: str, ttl_seconds: float, *, env: Mapping[str, str] | None, metadata: Mapping[str, str] | None,
           network: Mapping[str, Any] | None, limits: Limits) -> Call[Handle]:
    ttl = math.ceil(seconds(ttl_seconds, "ttl_seconds"))
    for name, given in (("env", env), ("metadata", metadata)):
        if any(not isinstance(k, str) or not isinstance(v, str) for k, v in (given or {}).items()):
            raise InvalidInput(f"{name} must map strings to strings")
    body: dict[str, Any] = {"templateID": template, "timeout": ttl, "secure": True}
    if env:
        body["envVars"] = dict(env)
    if metadata:
        body["metadata"] = dict(metadata)
    if network is not None:
        body["network"] = dict(network)
    if limits.body():
        body["limits"] = limits.body()
    return Call("POST", "/sandboxes", whole(_handle), body=body)


def _handle(body: Any) -> Handle:
    return Handle(str(body["sandboxID"]), str(body["templateID"]), body.get("envdAccessToken") or "",
                  body.get("trafficAccessToken") or "")


def connect(sandbox_id: str) -> Call[Handle]:
    return Call("POST", f"/sandboxes/{quote(sandbox_id, safe='')}/connect", whole(_handle), body={"timeout": 1})


def kill(sandbox_id: str) -> Call[bool]:
    def parse(answer: Answer) -> bool:
        if answer.status == 404:
            return False
        check(answer)
        return True

    return Call("DELETE", f"/sandboxes/{quote(sandbox_id, safe='')}", parse)


def set_ttl(sandbox_id: str, ttl: float) -> Call[None]:
    if ttl != 0:
        ttl = seconds(ttl, "a time to live (0 ends it)")
    return Call("POST", f"/sandboxes/{quote(sandbox_id, safe='')}/timeout", nothing, body={"timeout": math.ceil(ttl)})


def _info(body: Any) -> SandboxInfo:
    return SandboxInfo(body["sandboxID"], body["templateID"], dict(body.get("metadata") or {}),
                       parse_time(body["startedAt"]), parse_time(body["endAt"]), int(body["cpuCount"]),
                       int(body["memoryMB"]), int(body["diskSizeMB"]), body["state"])


def info(sandbox_id: str) -> Call[SandboxInfo]:
    return Call("GET", f"/sandboxes/{quote(sandbox_id, safe='')}", whole(_info))


def listing(token: str = "") -> Call[tuple[list[SandboxInfo], str]]:
    """A page, and the token of the next one; "": that was the last."""
    read = whole(lambda body: [_info(item) for item in body])
    query = f"?nextToken={quote(token, safe='')}" if token else ""
    return Call("GET", f"/v2/sandboxes{query}", lambda answer: (read(answer), answer.headers.get("x-next-token") or ""))


@dataclass(frozen=True)
class Sample:
    """A look at what a sandbox uses, and its meter since it was created."""

    metrics: Metrics
    vcpu_seconds: float | None
    gib_seconds: float | None


def _sample(body: Any) -> Sample:
    one = body[-1]
    return Sample(Metrics(parse_time(one["timestamp"]), int(one["cpuCount"]), float(one["cpuUsedPct"]),
                          int(one["memUsed"]), int(one["memTotal"]), int(one["diskTotal"])),
                  one.get("vcpuSeconds"), one.get("memGiBSeconds"))


def metrics(sandbox_id: str) -> Call[Sample]:
    return Call("GET", f"/sandboxes/{quote(sandbox_id, safe='')}/metrics", whole(_sample))


# ---- contexts and cells ----

DEFAULT_CONTEXT = "default"


PYTHON = "python"
LANGUAGES = {PYTHON: ("python3", "py"), "bash": ("sh", "shell"), "javascript": ("js", "node"), "typescript": ("ts",)}
"""Of cells, each with its other names."""


def language_of(name: str) -> str:
    """One of LANGUAGES, of a name of any of them."""
    for language, others in LANGUAGES.items():
        if name.lower() == language or name.lower() in others:
            return language
    raise InvalidInput(f"there is no interpreter for {name!r}: languages are {', '.join(LANGUAGES)}",
                       "run other programs with Sandbox.exec()", code="not_offered")


def create_context(handle: Handle, language: str, cwd: str | None) -> Call[str]:
    body = {"language": language, **({"cwd": cwd} if cwd else {})}
    return Call("POST", "/contexts", whole(lambda answer: str(answer["id"])), handle.interpreter(), body)


def restart_context(handle: Handle, context: str) -> Call[None]:
    return Call("POST", f"/contexts/{quote(context, safe='')}/restart", nothing, handle.interpreter())


def remove_context(handle: Handle, context: str) -> Call[None]:
    return Call("DELETE", f"/contexts/{quote(context, safe='')}", nothing, handle.interpreter())


def run_code(handle: Handle, code: str, *, context: str, timeout: float, max_output: int | None,
             env: Mapping[str, str] | None, files_changed: bool, full_usage: bool) -> Stream[Execution]:
    if not isinstance(code, str):
        raise InvalidInput(f"code must be a string, not {type(code).__name__}")
    body: dict[str, Any] = {"code": code, "context_id": context,
                            "timeout_ms": max(1, round(1000 * seconds(timeout, "timeout_seconds")))}
    if max_output is not None:
        if isinstance(max_output, bool) or not isinstance(max_output, int) or max_output < 1:
            raise InvalidInput(f"max_output_bytes must be an integer above 0, not {max_output!r}")
        body["max_output"] = max_output
    if env:
        body["env_vars"] = dict(env)
    if files_changed:
        body["files_changed"] = True
    if full_usage:
        body["usage"] = True
    try:
        content = json.dumps(body).encode()
        code.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("code must be text without lone surrogates") from error
    headers = {**handle.interpreter(), "Content-Type": "application/json"}
    return Stream("POST", "/execute", ExecutionSink(), headers, content)


_CUT_NOTE = re.compile(r"thawbox: the output was too long: of its middle (\d+) bytes of stdout and (\d+) of stderr")


class ExecutionSink:
    """Reads the lines of a cell: output, results, error, end."""

    def __init__(self) -> None:
        self._rest = b""
        self._out: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._ex = Execution()
        self._has_ended = False

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > WIRE_BYTES:
            raise ThawboxError("a line of the daemon's answer is too long", code="protocol")
        events = []
        for line in lines:
            if line.strip():
                events += self._line(line)
        return events

    def _line(self, line: bytes) -> list[tuple[str, Any]]:
        try:
            item = json.loads(line)
            kind = item["type"]
        except (ValueError, TypeError, KeyError) as error:
            raise ThawboxError("the daemon's answer to a cell cannot be read", code="protocol") from error
        if kind in ("stdout", "stderr"):
            text = str(item.get("text", ""))
            self._out[kind].append(text)
            if kind == "stderr" and (found := _CUT_NOTE.search(text)):
                self._ex.truncated = Truncation(int(found[1]), int(found[2]))
            return [(kind, text)]
        if kind == "result":
            result = Result.from_json(item)
            self._ex.results.append(result)
            return [("result", result)]
        if kind == "error":
            self._ex.error = ExecutionError(str(item.get("name", "Error")), str(item.get("value", "")),
                                            str(item.get("traceback", "")))
            return [("error", self._ex.error)]
        if kind == "number_of_executions":
            self._ex.execution_count = item.get("execution_count")
        elif kind == "end_of_execution":
            self._end(item)
        return []

    def _end(self, item: Mapping[str, Any]) -> None:
        self._has_ended = True
        ex, cut = self._ex, item.get("truncated")
        ex.timed_out = item.get("ended") == "timeout"
        ex.context_restarted = item.get("context_restarted") is True
        if isinstance(item.get("usage"), dict):
            ex.usage = Usage.from_json(item["usage"])
        if isinstance(cut, dict):
            ex.truncated = Truncation(*(int(cut.get(name) or 0) for name in ("stdout", "stderr", "files_changed")))
        if isinstance(item.get("files_changed"), list):
            ex.files_changed = [FileChange(str(f["path"]), int(f.get("size") or 0)) for f in item["files_changed"]]

    def partial(self) -> Execution:
        self._ex.logs = Logs("".join(self._out["stdout"]), "".join(self._out["stderr"]))
        return self._ex

    def finish(self) -> Execution:
        if not self._has_ended:
            raise Cut
        return self.partial()


class Cut(Exception):
    """A stream ended before it was complete: its sandbox may be gone."""
