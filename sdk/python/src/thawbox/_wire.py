# SPDX-License-Identifier: Apache-2.0
"""What is said to thawboxd and how its answers are read: requests as values, parsers without I/O.

The API is E2B's (docs/e2b.md) with members of thawbox's own (docs/openapi.yaml, docs/e2b.md "Beyond E2B").
The synchronous and the asynchronous layer send these requests and feed these readers; neither knows more.
"""
from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from ._errors import HostNotReady, InvalidInput, LimitExceeded, NotFound, SandboxGone, ThawboxError, TimeoutError_
from ._models import (
    CommandResult,
    Execution,
    ExecutionError,
    FileChange,
    FileEntry,
    FileEvent,
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
OUTPUT_BYTES = 8 << 20
"""Bound on the output of a command, where none is given."""
WIRE_BYTES = 64 << 20
"""Longest line or message that is read."""


@dataclass(frozen=True)
class Answer:
    """A response that has come whole."""

    status: int
    content: bytes

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

_RPC_KINDS: dict[str, type[ThawboxError]] = {
    "invalid_argument": InvalidInput, "unauthenticated": InvalidInput, "permission_denied": InvalidInput,
    "failed_precondition": InvalidInput, "already_exists": InvalidInput, "not_found": NotFound,
    "resource_exhausted": LimitExceeded, "deadline_exceeded": TimeoutError_, "unavailable": HostNotReady,
    "unimplemented": InvalidInput,
}
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


def rpc_error(error: Mapping[str, Any], partial: Any = None) -> ThawboxError:
    """The error of a Connect stream's end."""
    name, message = str(error.get("code", "unknown")), str(error.get("message", "the call failed"))
    cause, remedy = split_remedy(message)
    code = "not_offered" if name == "unimplemented" else None
    return _RPC_KINDS.get(name, ThawboxError)(cause, remedy, code=code, partial=partial)


def check(answer: Answer) -> Answer:
    if not 200 <= answer.status < 300:
        raise error_of(answer)
    return answer


def _whole(parse: Callable[[Any], T]) -> Callable[[Answer], T]:
    """A parser of a JSON answer; what has not the shape that it expects is an error of the protocol."""

    def run(answer: Answer) -> T:
        body = check(answer).json()
        try:
            return parse(body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ThawboxError(f"the daemon's answer lacks {error}", "is this address thawboxd's?", code="protocol") from error

    return run


def _nothing(answer: Answer) -> None:
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
    ttl = int(seconds(ttl_seconds, "ttl_seconds"))
    for name, given in (("env", env), ("metadata", metadata)):
        if any(not isinstance(k, str) or not isinstance(v, str) for k, v in (given or {}).items()):
            raise InvalidInput(f"{name} must map strings to strings")
    body: dict[str, Any] = {"templateID": template, "timeout": max(ttl, 1), "secure": True}
    if env:
        body["envVars"] = dict(env)
    if metadata:
        body["metadata"] = dict(metadata)
    if network is not None:
        body["network"] = dict(network)
    if limits.body():
        body["limits"] = limits.body()
    return Call("POST", "/sandboxes", _whole(_handle), body=body)


def _handle(body: Any) -> Handle:
    return Handle(str(body["sandboxID"]), str(body["templateID"]), body.get("envdAccessToken") or "",
                  body.get("trafficAccessToken") or "")


def connect(sandbox_id: str) -> Call[Handle]:
    return Call("POST", f"/sandboxes/{quote(sandbox_id, safe='')}/connect", _whole(_handle), body={"timeout": 1})


def kill(sandbox_id: str) -> Call[bool]:
    def parse(answer: Answer) -> bool:
        if answer.status == 404:
            return False
        check(answer)
        return True

    return Call("DELETE", f"/sandboxes/{quote(sandbox_id, safe='')}", parse)


def set_ttl(sandbox_id: str, ttl: float) -> Call[None]:
    if ttl < 0:
        raise InvalidInput("a time to live is 0 seconds or more")
    return Call("POST", f"/sandboxes/{quote(sandbox_id, safe='')}/timeout", _nothing, body={"timeout": int(ttl)})


def _info(body: Any) -> SandboxInfo:
    return SandboxInfo(body["sandboxID"], body["templateID"], dict(body.get("metadata") or {}),
                       parse_time(body["startedAt"]), parse_time(body["endAt"]), int(body["cpuCount"]),
                       int(body["memoryMB"]), int(body["diskSizeMB"]), body["state"])


def info(sandbox_id: str) -> Call[SandboxInfo]:
    return Call("GET", f"/sandboxes/{quote(sandbox_id, safe='')}", _whole(_info))


def listing() -> Call[list[SandboxInfo]]:
    return Call("GET", "/v2/sandboxes", _whole(lambda body: [_info(item) for item in body]))


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
    return Call("GET", f"/sandboxes/{quote(sandbox_id, safe='')}/metrics", _whole(_sample))


# ---- contexts and cells ----

DEFAULT_CONTEXT = "default"


def check_language(language: str) -> None:
    if language.lower() not in ("python", "python3", "py"):
        raise InvalidInput(f"there is no interpreter for {language!r}: the language is python",
                           "run other programs with Sandbox.exec()", code="not_offered")


def create_context(handle: Handle, cwd: str | None) -> Call[str]:
    body = {"language": "python", **({"cwd": cwd} if cwd else {})}
    return Call("POST", "/contexts", _whole(lambda answer: str(answer["id"])), handle.interpreter(), body)


def restart_context(handle: Handle, context: str) -> Call[None]:
    return Call("POST", f"/contexts/{quote(context, safe='')}/restart", _nothing, handle.interpreter())


def remove_context(handle: Handle, context: str) -> Call[None]:
    return Call("DELETE", f"/contexts/{quote(context, safe='')}", _nothing, handle.interpreter())


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
            ex.truncated = Truncation(int(cut.get("stdout") or 0), int(cut.get("stderr") or 0))
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


# ---- Connect ----

def envelope(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return b"\0" + len(data).to_bytes(4, "big") + data


class Envelopes:
    """Takes a Connect stream apart."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[bool, dict[str, Any]]]:
        """Messages as (is the last, content)."""
        self._rest += data
        messages = []
        while len(self._rest) >= 5:
            size = int.from_bytes(self._rest[1:5], "big")
            if size > WIRE_BYTES:
                raise ThawboxError("a message of the daemon is too long", code="protocol")
            if len(self._rest) < 5 + size:
                break
            flags, content = self._rest[0], self._rest[5:5 + size]
            self._rest = self._rest[5 + size:]
            try:
                message = json.loads(content)
            except ValueError as error:
                raise ThawboxError("a message of the daemon is not JSON", code="protocol") from error
            messages.append((bool(flags & 2), message if isinstance(message, dict) else {}))
        return messages


class Bounded:
    """Text that is kept up to a number of bytes: its beginning and its end; how much is missing is counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> str:
        """Keeps it; returns it as text, as far as characters are complete."""
        text = self._decoder.decode(data)
        room = max(self._limit // 2 - len(self._head), 0)
        self._head += data[:room]
        self._tail += data[room:]
        over = len(self._tail) - (self._limit - self._limit // 2)
        if over > 0:
            self.dropped += over
            del self._tail[:over]
        return text

    def text(self) -> str:
        if not self.dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        note = f"\n[thawbox: {self.dropped} bytes are missing here]\n"
        return self._head.decode("utf-8", "replace") + note + self._tail.decode("utf-8", "replace")


class CommandSink:
    """Reads the events of a process."""

    def __init__(self, max_output: int, timeout: float) -> None:
        self._envelopes = Envelopes()
        self._out = {"stdout": Bounded(max_output), "stderr": Bounded(max_output)}
        self._result = CommandResult()
        self._timeout = timeout
        self._has_ended = False
        self.pid = 0

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        events: list[tuple[str, Any]] = []
        for is_last, message in self._envelopes.feed(data):
            if is_last:
                self._last(message)
            else:
                events += self._event(message.get("event") or {})
        return events

    def _event(self, event: Mapping[str, Any]) -> list[tuple[str, Any]]:
        if "start" in event:
            self.pid = int(event["start"].get("pid") or 0)
        elif "data" in event:
            return [(name, text) for name in ("stdout", "stderr") if event["data"].get(name)
                    if (text := self._out[name].add(base64.b64decode(event["data"][name])))]
        elif "end" in event:
            end = event["end"]
            self._has_ended = True
            self._result.exit_code = int(end.get("exitCode") or 0)
            self._result.status = str(end.get("status") or "")
        return []

    def _last(self, message: Mapping[str, Any]) -> None:
        error = message.get("error")
        if not error:
            return
        if error.get("code") != "deadline_exceeded":
            raise rpc_error(error)
        value = f"the command ran longer than {self._timeout:g} s: killed, with all that it had started"
        self._has_ended = self._result.timed_out = True
        self._result.status = "its deadline has passed"
        self._result.error = ExecutionError("TimeoutError", value, f"TimeoutError: {value}")

    def partial(self) -> CommandResult:
        out, err = self._out["stdout"], self._out["stderr"]
        self._result.stdout, self._result.stderr = out.text(), err.text()
        self._result.truncated = Truncation(out.dropped, err.dropped)
        return self._result

    def finish(self) -> CommandResult:
        if not self._has_ended:
            raise Cut
        return self.partial()


def _user(user: str | None) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()} if user else {}


def run_command(handle: Handle, command: str | Sequence[str], *, timeout: float, env: Mapping[str, str] | None,
                cwd: str | None, user: str | None, max_output: int | None) -> Stream[CommandResult]:
    argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
    if not argv or any(not isinstance(word, str) for word in argv):
        raise InvalidInput("a command is a line for the shell, or a list of strings: the program and its arguments")
    process: dict[str, Any] = {"cmd": argv[0], "args": argv[1:]}
    if env:
        process["envs"] = dict(env)
    if cwd:
        process["cwd"] = cwd
    limit = OUTPUT_BYTES if max_output is None else max_output
    if limit < 2:
        raise InvalidInput("max_output_bytes must be above 1")
    timeout = seconds(timeout, "timeout_seconds")
    headers = {**handle.envd(), **_user(user), "Content-Type": "application/connect+json",
               "Connect-Timeout-Ms": str(max(1, round(1000 * timeout))), "Keepalive-Ping-Interval": "20"}
    return Stream("POST", "/process.Process/Start", CommandSink(limit, timeout), headers,
                  envelope({"process": process, "stdin": False}))


# ---- files ----

def _entry(body: Mapping[str, Any]) -> FileEntry:
    kind = {"FILE_TYPE_FILE": "file", "FILE_TYPE_DIRECTORY": "dir"}.get(str(body.get("type")), "other")
    return FileEntry(str(body["name"]), str(body["path"]), kind, int(body.get("size") or 0), int(body.get("mode") or 0),
                     str(body.get("permissions") or ""), str(body.get("owner") or ""), str(body.get("group") or ""),
                     parse_time(body["modifiedTime"]) if body.get("modifiedTime") else None, body.get("symlinkTarget"))


def _rpc(handle: Handle, method: str, message: Mapping[str, Any], parse: Callable[[Any], T]) -> Call[T]:
    headers = {**handle.envd(), "Content-Type": "application/json", "Connect-Protocol-Version": "1"}
    return Call("POST", f"/filesystem.Filesystem/{method}", _whole(parse), headers, message)


def stat(handle: Handle, path: str) -> Call[FileEntry]:
    return _rpc(handle, "Stat", {"path": path}, lambda body: _entry(body["entry"]))


def list_files(handle: Handle, path: str, depth: int) -> Call[list[FileEntry]]:
    # The SDKs of E2B take "." for the home, as a relative path is relative to it.
    return _rpc(handle, "ListDir", {"path": path, "depth": depth},
                lambda body: [_entry(one) for one in body.get("entries") or []])


def mkdir(handle: Handle, path: str) -> Call[bool]:
    def parse(answer: Answer) -> bool:
        if answer.status == 409:
            return False
        check(answer)
        return True

    headers = {**handle.envd(), "Content-Type": "application/json"}
    return Call("POST", "/filesystem.Filesystem/MakeDir", parse, headers, {"path": path})


def rename(handle: Handle, path: str, to: str) -> Call[FileEntry]:
    return _rpc(handle, "Move", {"source": path, "destination": to}, lambda body: _entry(body["entry"]))


def remove(handle: Handle, path: str) -> Call[None]:
    return _rpc(handle, "Remove", {"path": path}, lambda _: None)


def write(handle: Handle, path: str, content: Any) -> Call[str]:
    """`content`: bytes, or an iterable of them. Answers the absolute path."""
    headers = {**handle.envd(), "Content-Type": "application/octet-stream"}
    return Call("POST", f"/files?path={quote(path, safe='/')}", _whole(lambda body: str(body[0]["path"])), headers,
                content=content)


def read(handle: Handle, path: str) -> Stream[bytes]:
    return Stream("GET", f"/files?path={quote(path, safe='/')}", BytesSink(), handle.envd())


class BytesSink:
    """Keeps all of it, or hands it on: events of "data"."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.keep = True

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        if self.keep:
            self._parts.append(data)
        return [("data", data)]

    def partial(self) -> bytes:
        return b"".join(self._parts)

    def finish(self) -> bytes:
        return self.partial()


class WatchSink:
    """Reads changes of a folder: events of "start" and "change"."""

    def __init__(self) -> None:
        self._envelopes = Envelopes()

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        events: list[tuple[str, Any]] = []
        for is_last, message in self._envelopes.feed(data):
            if is_last and message.get("error"):
                raise rpc_error(message["error"])
            change = message.get("filesystem")
            if isinstance(change, dict):
                kind = str(change.get("type", "")).removeprefix("EVENT_TYPE_").lower()
                events.append(("change", FileEvent(kind, str(change.get("name", "")))))
            elif "start" in message:
                events.append(("start", None))
        return events

    def partial(self) -> None:
        return None

    def finish(self) -> None:
        return None


def watch(handle: Handle, path: str, recursive: bool) -> Stream[None]:
    headers = {**handle.envd(), "Content-Type": "application/connect+json", "Keepalive-Ping-Interval": "20"}
    return Stream("POST", "/filesystem.Filesystem/WatchDir", WatchSink(), headers,
                  envelope({"path": path, "recursive": recursive}))


def chunks(file: Any, size: int = 1 << 16) -> Iterable[bytes]:
    """The content of an open file, in pieces."""
    while True:
        data = file.read(size)
        if not data:
            return
        yield data.encode() if isinstance(data, str) else bytes(data)
