# SPDX-License-Identifier: Apache-2.0
"""What is said to a sandbox's envd: commands, files and watches, over Connect (see _wire)."""
from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from ._errors import HostNotReady, InvalidInput, LimitExceeded, NotFound, ThawboxError, TimeoutError_
from ._models import CommandResult, ExecutionError, FileEntry, FileEvent, Truncation, parse_time
from ._wire import WIRE_BYTES, Answer, Call, Cut, Handle, Stream, check, seconds, split_remedy, whole

T = TypeVar("T")

OUTPUT_BYTES = 8 << 20
"""Bound on the output of a command, where none is given."""

_RPC_KINDS: dict[str, type[ThawboxError]] = {
    "invalid_argument": InvalidInput, "unauthenticated": InvalidInput, "permission_denied": InvalidInput,
    "failed_precondition": InvalidInput, "already_exists": InvalidInput, "not_found": NotFound,
    "resource_exhausted": LimitExceeded, "deadline_exceeded": TimeoutError_, "unavailable": HostNotReady,
    "unimplemented": InvalidInput,
}


def rpc_error(error: Mapping[str, Any], partial: Any = None) -> ThawboxError:
    """The error of a Connect stream's end."""
    name, message = str(error.get("code", "unknown")), str(error.get("message", "the call failed"))
    cause, remedy = split_remedy(message)
    code = "not_offered" if name == "unimplemented" else None
    return _RPC_KINDS.get(name, ThawboxError)(cause, remedy, code=code, partial=partial)


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
    return Call("POST", f"/filesystem.Filesystem/{method}", whole(parse), headers, message)


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
    return Call("POST", f"/files?path={quote(path, safe='/')}", whole(lambda body: str(body[0]["path"])), headers,
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


# ---- watches ----

def _change(body: Mapping[str, Any]) -> FileEvent:
    kind = str(body.get("type", "")).removeprefix("EVENT_TYPE_").lower()
    entry = body.get("entry")
    return FileEvent(kind, str(body.get("name", "")), _entry(entry) if isinstance(entry, dict) else None)


class WatchSink:
    """Reads changes of a folder: events of "start" and "change". An error at its end is finish()'s, after all of these."""

    def __init__(self) -> None:
        self._envelopes = Envelopes()
        self._has_ended = False
        self._error: ThawboxError | None = None

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        events: list[tuple[str, Any]] = []
        for is_last, message in self._envelopes.feed(data):
            if is_last:
                self._has_ended = True
                self._error = rpc_error(message["error"]) if message.get("error") else None
            elif isinstance(message.get("filesystem"), dict):
                events.append(("change", _change(message["filesystem"])))
            elif "start" in message:
                events.append(("start", None))
        return events

    def partial(self) -> None:
        return None

    def finish(self) -> None:
        if not self._has_ended:
            raise Cut
        if self._error:
            raise self._error


def _watched(path: str, recursive: bool, entries: bool) -> dict[str, Any]:
    return {"path": path, "recursive": recursive, "includeEntry": entries}


def watch(handle: Handle, path: str, recursive: bool, entries: bool, timeout: float | None) -> Stream[None]:
    headers = {**handle.envd(), "Content-Type": "application/connect+json", "Keepalive-Ping-Interval": "20"}
    if timeout is not None:
        headers["Connect-Timeout-Ms"] = str(max(1, round(1000 * seconds(timeout, "timeout_seconds"))))
    return Stream("POST", "/filesystem.Filesystem/WatchDir", WatchSink(), headers, envelope(_watched(path, recursive, entries)))


def create_watcher(handle: Handle, path: str, recursive: bool, entries: bool) -> Call[str]:
    return _rpc(handle, "CreateWatcher", _watched(path, recursive, entries), lambda body: str(body["watcherId"]))


def watcher_events(handle: Handle, watcher: str) -> Call[list[FileEvent]]:
    return _rpc(handle, "GetWatcherEvents", {"watcherId": watcher},
                lambda body: [_change(one) for one in body.get("events") or []])


def remove_watcher(handle: Handle, watcher: str) -> Call[None]:
    return _rpc(handle, "RemoveWatcher", {"watcherId": watcher}, lambda _: None)


def chunks(file: Any, size: int = 1 << 16) -> Iterable[bytes]:
    """The content of an open file, in pieces."""
    while True:
        data = file.read(size)
        if not data:
            return
        yield data.encode() if isinstance(data, str) else bytes(data)
