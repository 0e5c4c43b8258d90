# SPDX-License-Identifier: Apache-2.0
"""Sandboxes, asynchronously: what _sandbox has, awaited. Both are thin over _wire and _state."""
from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Literal, TypeVar, cast, overload

from . import _daemon, _envd, _exit, _state, _wire
from ._errors import HostNotReady, NotFound, ThawboxError
from ._http import AsyncHttp
from ._models import (
    CommandResult,
    Execution,
    ExecutionError,
    FileEntry,
    FileEvent,
    Metrics,
    Result,
    SandboxInfo,
    SandboxUsage,
)
from ._state import TEMPLATE, TIMEOUT_SECONDS, TTL_SECONDS, Defaults, State
from ._wire import DEFAULT_CONTEXT, Call, Cut, Handle, Limits, Stream

T = TypeVar("T")
Entries = list[FileEntry]
Events = list[FileEvent]
Infos = list[SandboxInfo]
OnText = Callable[[str], Any]


class _Line:
    """A sandbox's own line to the daemon: sends for it, and tells a sandbox that is gone from a line that broke."""

    def __init__(self, http: AsyncHttp, state: State) -> None:
        self.http = http
        self.handle = state.handle
        self._state = state

    async def is_alive(self) -> bool:
        if self._state.is_closed:
            return False
        try:
            await self.http.send(_wire.info(self.handle.id))
        except (ThawboxError, Cut) as error:
            return not (isinstance(error, Cut) or _state.is_lost(error))
        return True

    async def send(self, call: Call[T]) -> T:
        self._state.check_open()
        try:
            return await self.http.send(call)
        except Cut:
            raise await self.broken(None) from None

    async def broken(self, partial: Any, *, late: bool = False) -> ThawboxError:
        if await self.is_alive():
            return _state.cut_off(self.handle, partial)
        return _state.gone(self.handle, partial, late=late)

    async def run(self, stream: Stream[T], callbacks: Mapping[str, Any], timeout: float = 0) -> T:
        """Reads a stream to its end; what it says goes to the callbacks as it comes."""
        self._state.check_open()
        begin, sink = time.monotonic(), stream.sink
        try:
            async with self.http.stream(stream) as pieces:
                async for piece in pieces:
                    for name, value in sink.feed(piece):
                        if (callback := callbacks.get(name)) and inspect.isawaitable(answer := callback(value)):
                            await answer
            return sink.finish()
        except Cut:
            late = 0 < timeout < time.monotonic() - begin
            raise await self.broken(sink.partial(), late=late) from None

    @asynccontextmanager
    async def events(self, stream: Stream[None]) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
        """A stream whose events somebody takes one by one; how it ends is told to him."""
        self._state.check_open()
        try:
            async with self.http.stream(stream) as pieces, aclosing(self._told(pieces, stream)) as events:
                yield events
        except Cut:
            raise await self.broken(None) from None

    async def _told(self, pieces: AsyncIterator[bytes], stream: Stream[None]) -> AsyncGenerator[tuple[str, Any], None]:
        try:
            async for piece in pieces:
                for event in stream.sink.feed(piece):
                    yield event
            stream.sink.finish()
        except Cut:
            raise await self.broken(None) from None


class AsyncWatcher:
    """Keeps the changes below a folder until they are asked for. It ends with its `async with` block, or its sandbox."""

    def __init__(self, line: _Line, id: str, path: str) -> None:
        self._line = line
        self._is_closed = False
        self.id = id
        self.path = path

    async def events(self) -> Events:
        """What has happened up to now and was not told yet. After thousands of events the rest is the next call's."""
        return await self._line.send(_envd.watcher_events(self._line.handle, self.id))

    async def close(self) -> None:
        """Ends it. Idempotent, also when its sandbox is gone."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(ThawboxError):
            await self._line.send(_envd.remove_watcher(self._line.handle, self.id))

    async def __aenter__(self) -> AsyncWatcher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        tb: TracebackType | None) -> None:
        await self.close()


class AsyncFiles:
    """Files of a sandbox. Relative paths are relative to /home/user."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._handle = line.handle

    async def write(self, path: str, data: Any) -> str:
        """Writes text, bytes or the content of an open file; answers the absolute path."""
        return await self._line.send(_envd.write(self._handle, path, _state.as_content(data)))

    @overload
    async def read(self, path: str, format: Literal["text"]) -> str: ...
    @overload
    async def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    @overload
    async def read(self, path: str, format: Literal["auto"] = "auto") -> str | bytes: ...
    async def read(self, path: str, format: Literal["auto", "text", "bytes"] = "auto") -> str | bytes:
        """The content: as text where it is UTF-8, else as bytes; or as `format` says."""
        data = await self._line.run(_envd.read(self._handle, path), {})
        if format == "auto":
            return _state.as_text(data)
        return data if format == "bytes" else data.decode()

    async def list(self, path: str = ".", depth: int = 1) -> Entries:
        """Entries by name; with `depth` those of folders in it, too."""
        return await self._line.send(_envd.list_files(self._handle, path, depth))

    async def stat(self, path: str) -> FileEntry:
        return await self._line.send(_envd.stat(self._handle, path))

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def remove(self, path: str) -> None:
        """A file, or a folder with all in it; what is not there is no error."""
        await self._line.send(_envd.remove(self._handle, path))

    async def rename(self, path: str, to: str) -> FileEntry:
        return await self._line.send(_envd.rename(self._handle, path, to))

    async def mkdir(self, path: str) -> bool:
        """With its parents. False: it was there."""
        return await self._line.send(_envd.mkdir(self._handle, path))

    @asynccontextmanager
    async def watch(self, path: str = ".", recursive: bool = False, *, entries: bool = False,
                    timeout_seconds: float | None = None) -> AsyncIterator[AsyncIterator[FileEvent]]:
        """Changes in a folder, as they happen: `async with sb.files.watch() as events: async for event in events: ...`.

        All that changes after the block has begun is told. `recursive`: and in all folders below it. `entries`: with what has
        the name now. The loop has no end; at `timeout_seconds` from its begin it raises TimeoutError_.
        """
        async with self._line.events(_envd.watch(self._handle, path, recursive, entries, timeout_seconds)) as events:
            async for name, _ in events:
                if name == "start":
                    break
            yield (event async for name, event in events if name == "change")

    async def watcher(self, path: str = ".", recursive: bool = False, *, entries: bool = False) -> AsyncWatcher:
        """The same for who does not want to wait: `async with await sb.files.watcher() as watcher: ...; await watcher.events()`."""
        id = await self._line.send(_envd.create_watcher(self._handle, path, recursive, entries))
        return AsyncWatcher(self._line, id, path)


class AsyncContext:
    """An interpreter whose variables and imports stay from one cell to the next."""

    def __init__(self, sandbox: AsyncSandbox, id: str, language: str, cwd: str | None) -> None:
        self._sandbox = sandbox
        self.id = id
        self.cwd = cwd or _state.HOME
        self.language = language
        self._is_closed = False

    async def run_code(self, code: str, *, timeout_seconds: float | None = None, on_stdout: OnText | None = None,
                       on_stderr: OnText | None = None, on_result: Callable[[Result], Any] | None = None,
                       on_error: Callable[[ExecutionError], Any] | None = None, max_output_bytes: int | None = None,
                       env: Mapping[str, str] | None = None, files_changed: bool | None = None,
                       full_usage: bool | None = None,
                       raise_on_timeout: bool | None = None) -> Execution:
        """Runs a cell here; see AsyncSandbox.run_code()."""
        if self._is_closed:
            raise NotFound(f"the context {self.id} was closed", "make another one")
        return await self._sandbox._run(self.id, code, timeout_seconds, max_output_bytes, env, files_changed,
                                        full_usage, raise_on_timeout,
                                        {"stdout": on_stdout, "stderr": on_stderr, "result": on_result, "error": on_error})

    async def restart(self) -> None:
        """A new interpreter in its place: variables are gone."""
        await self._sandbox._line.send(_wire.restart_context(self._sandbox._state.handle, self.id))

    async def close(self) -> None:
        """Ends it. Idempotent, also when its sandbox is gone."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._sandbox._close_context(self.id)

    async def __aenter__(self) -> AsyncContext:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        tb: TracebackType | None) -> None:
        await self.close()


class AsyncSandbox:
    """A microVM with a Python interpreter, files and commands, on this machine. It ends with its `async with` block.

    It belongs to the event loop that it was made in; cells of one context run one after another. Callbacks may be
    coroutine functions.
    """

    _state: State
    _line: _Line
    files: AsyncFiles

    @classmethod
    async def create(cls, template: str = TEMPLATE, *, ttl_seconds: float = TTL_SECONDS,
                     env: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None,
                     memory_mb: int | None = None, cpu: float | None = None, disk_mb: int | None = None,
                     disk_rate: int | None = None, disk_ops: int | None = None, vsock_rate: int | None = None,
                     network: Mapping[str, Any] | None = None, timeout_seconds: float = TIMEOUT_SECONDS,
                     max_output_bytes: int | None = None, raise_on_timeout: bool = False, files_changed: bool = False,
                     full_usage: bool = False,
                     bake: bool = False, url: str | None = None, api_key: str | None = None) -> AsyncSandbox:
        """Creates one: see Sandbox."""
        defaults = Defaults(_wire.seconds(timeout_seconds, "timeout_seconds"), max_output_bytes, raise_on_timeout,
                            files_changed, full_usage)
        _state.check_disk(disk_mb)
        limits = Limits(cpu, disk_rate, disk_ops, vsock_rate)

        def call(name: str) -> Call[Handle]:
            return _wire.create(name, ttl_seconds, env=env, metadata=metadata, network=network, limits=limits)

        try:
            http, handle = await _create(template, memory_mb, url, api_key, call)
        except ThawboxError as error:
            if not (bake and _state.may_bake(error) and _daemon.is_own(url)):
                raise
            await asyncio.to_thread(_daemon.bake, template, memory_mb)
            http, handle = await _create(template, memory_mb, url, api_key, call)
        self = cls.__new__(cls)
        self._attach(http, handle, defaults)
        self._state.metadata = dict(metadata or {})
        _exit.note(self.id, http.endpoint)
        await self._hold_disk(disk_mb)
        return self

    @classmethod
    async def connect(cls, sandbox_id: str, *, timeout_seconds: float = TIMEOUT_SECONDS,
                      max_output_bytes: int | None = None,
                      raise_on_timeout: bool = False, files_changed: bool = False, full_usage: bool = False,
                      url: str | None = None,
                      api_key: str | None = None) -> AsyncSandbox:
        """One that runs, by its id, at the daemon that has it."""
        http = AsyncHttp(await asyncio.to_thread(_daemon.find, TEMPLATE, url, api_key))
        try:
            handle = await _sent(http, _wire.connect(sandbox_id))
        except BaseException:
            await http.close()
            raise
        self = cls.__new__(cls)
        self._attach(http, handle, Defaults(
            _wire.seconds(timeout_seconds, "timeout_seconds"), max_output_bytes, raise_on_timeout, files_changed,
            full_usage))
        self._state.contexts.main = DEFAULT_CONTEXT
        self._state.contexts.is_default_taken = True
        return self

    @classmethod
    async def list(cls, *, url: str | None = None, api_key: str | None = None) -> Infos:
        """Those that run at the daemon, newest first."""
        http = AsyncHttp(await asyncio.to_thread(_daemon.find, TEMPLATE, url, api_key))
        try:
            found, token = await _sent(http, _wire.listing())
            while token:
                page, token = await _sent(http, _wire.listing(token))
                found += page
            return found
        finally:
            await http.close()

    def _attach(self, http: AsyncHttp, handle: Handle, defaults: Defaults) -> None:
        self._state = State(handle, defaults)
        self._line = _Line(http, self._state)
        self._lock = asyncio.Lock()
        self.files = AsyncFiles(self._line)

    async def _hold_disk(self, disk_mb: int | None) -> None:
        if (command := _state.disk_command(disk_mb)) is None:
            return
        try:
            _state.check_disk_made(await self.exec(command, user="root"), disk_mb)
        except BaseException:
            await self.kill()
            raise

    @property
    def id(self) -> str:
        return self._state.handle.id

    @property
    def template(self) -> str:
        return self._state.handle.template

    # ---- cells ----

    async def run_code(self, code: str, *, timeout_seconds: float | None = None, on_stdout: OnText | None = None,
                       on_stderr: OnText | None = None, on_result: Callable[[Result], Any] | None = None,
                       on_error: Callable[[ExecutionError], Any] | None = None, max_output_bytes: int | None = None,
                       env: Mapping[str, str] | None = None, files_changed: bool | None = None,
                       full_usage: bool | None = None,
                       raise_on_timeout: bool | None = None) -> Execution:
        """Runs a cell in the sandbox's own context, and waits for its end.

        An exception of the cell is in the answer's `error`, not raised. At `timeout_seconds` it is interrupted; if that
        does not help its interpreter is killed and replaced; the answer has a TimeoutError and the output until then,
        or TimeoutError_ is raised with it (`raise_on_timeout`). Of more output than `max_output_bytes` the middle is cut
        and that is told, in `truncated` and at the end of stderr. `files_changed` asks for the files that it has changed,
        `full_usage` for what the interpreter alone knows of its use; both cost some milliseconds.
        """
        self._state.check_open()
        async with self._lock:  # two first cells at once are of one context
            contexts = self._state.contexts
            if contexts.main is None:
                contexts.main = await self._take_context(_wire.PYTHON, None)
        return await self._run(contexts.main, code, timeout_seconds, max_output_bytes, env, files_changed, full_usage,
                               raise_on_timeout,
                         {"stdout": on_stdout, "stderr": on_stderr, "result": on_result, "error": on_error})

    async def create_code_context(self, language: str = "python", cwd: str | None = None) -> AsyncContext:
        """A context of its own: variables stay in it, and nobody else sees them. Languages are python, bash, javascript and
        typescript; but for Python, an interpreter starts with the first cell."""
        self._state.check_open()
        language = _wire.language_of(language)
        async with self._lock:
            return AsyncContext(self, await self._take_context(language, cwd), language, cwd)

    async def _take_context(self, language: str, cwd: str | None) -> str:
        contexts, handle = self._state.contexts, self._state.handle
        if language == _wire.PYTHON and cwd in (None, _state.HOME) and contexts.take_default():
            if contexts.needs_restart:
                await self._line.send(_wire.restart_context(handle, DEFAULT_CONTEXT))
                contexts.needs_restart = False
            return DEFAULT_CONTEXT
        return await self._line.send(_wire.create_context(handle, language, cwd))

    async def _close_context(self, context: str) -> None:
        if context == DEFAULT_CONTEXT:
            self._state.contexts.give_back(context)
        elif not self._state.is_closed:
            with suppress(ThawboxError):
                await self._line.send(_wire.remove_context(self._state.handle, context))

    async def _run(self, context: str, code: str, timeout_seconds: float | None, max_output_bytes: int | None,
                   env: Mapping[str, str] | None, files_changed: bool | None, full_usage: bool | None,
                   raise_on_timeout: bool | None,
                   callbacks: Mapping[str, Any]) -> Execution:
        self._state.check_open()
        _state.check_callback(callbacks)
        defaults = self._state.defaults
        timeout = defaults.timeout_seconds if timeout_seconds is None else timeout_seconds
        ex = await self._line.run(_wire.run_code(
            self._state.handle, code, context=context, timeout=timeout,
            max_output=defaults.max_output_bytes if max_output_bytes is None else max_output_bytes, env=env,
            files_changed=defaults.files_changed if files_changed is None else files_changed,
            full_usage=defaults.full_usage if full_usage is None else full_usage), callbacks, timeout)
        self._state.note(ex)
        if ex.timed_out and (defaults.raise_on_timeout if raise_on_timeout is None else raise_on_timeout):
            raise _state.timeout_of(ex)
        return ex

    # ---- commands ----

    async def exec(self, command: str | Sequence[str], *, timeout_seconds: float | None = None,
                   env: Mapping[str, str] | None = None, cwd: str | None = None, user: str | None = None,
                   on_stdout: OnText | None = None, on_stderr: OnText | None = None, max_output_bytes: int | None = None,
                   raise_on_timeout: bool | None = None) -> CommandResult:
        """Runs a command: a line for bash, or a program and its arguments. Its exit code is in the answer, not raised.

        At `timeout_seconds` it is killed with all that it has started.
        """
        self._state.check_open()
        _state.check_callback({"stdout": on_stdout, "stderr": on_stderr})
        defaults = self._state.defaults
        timeout = defaults.timeout_seconds if timeout_seconds is None else timeout_seconds
        result = await self._line.run(_envd.run_command(
            self._state.handle, command, timeout=timeout, env=env, cwd=cwd, user=user,
            max_output=defaults.max_output_bytes if max_output_bytes is None else max_output_bytes),
            {"stdout": on_stdout, "stderr": on_stderr}, timeout)
        if result.timed_out and (defaults.raise_on_timeout if raise_on_timeout is None else raise_on_timeout):
            raise _state.timeout_of(result)
        return result

    async def install(self, packages: Sequence[str], *, wheels: str | os.PathLike[str] | None = None,
                      timeout_seconds: float = 600) -> CommandResult:
        """Installs packages with pip, from wheels of a folder of this machine; without one only what is there will do."""
        names = [packages] if isinstance(packages, str) else [*packages]
        folder = f"/tmp/wheels-{time.monotonic_ns()}"
        await self.files.mkdir(folder)
        for wheel in _state.wheels_in(wheels) if wheels is not None else []:
            await self.upload_file(wheel, f"{folder}/{wheel.name}")
        result = await self.exec(_state.pip_line(names, folder), user="root", timeout_seconds=timeout_seconds,
                           raise_on_timeout=True)
        await self.files.remove(folder)
        _state.installed(result, names)
        return result

    # ---- files in and out ----

    async def upload_file(self, file: Any, path: str | None = None) -> str:
        """Uploads an open file, the path of one, or bytes; answers where it is in the sandbox."""
        self._state.check_open()
        source, to = _state.upload_source(file, path)
        if isinstance(source, os.PathLike):
            with open(source, "rb") as opened:
                return await self.files.write(to, opened)
        return await self.files.write(to, source)

    async def download(self, path: str, local: str | os.PathLike[str]) -> None:
        """Copies a file of the sandbox to this machine. It appears there when it is complete."""
        self._state.check_open()
        stream = _envd.read(self._state.handle, path)
        cast(_envd.BytesSink, stream.sink).keep = False
        part = f"{os.fspath(local)}.part"
        try:
            with open(part, "wb") as out:
                await self._line.run(stream, {"data": out.write})
            os.replace(part, local)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)

    # ---- life ----

    async def set_ttl(self, seconds: float) -> None:
        """It ends so many seconds from now; 0 ends it."""
        await self._line.send(_wire.set_ttl(self.id, seconds))

    async def info(self) -> SandboxInfo:
        return await self._line.send(_wire.info(self.id))

    async def metrics(self) -> Metrics:
        """What it uses now."""
        return (await self._line.send(_wire.metrics(self.id))).metrics

    async def usage(self) -> SandboxUsage:
        """What it has used since it was created, for `SandboxUsage.cost(Pricing(...))`."""
        return self._state.usage(await self._line.send(_wire.metrics(self.id)))

    async def kill(self) -> bool:
        """Ends it. False: it was gone. Idempotent."""
        self._state.is_closed = True
        _exit.forget(self.id)
        if self._line.http.is_closed:
            return False
        try:
            return await self._line.http.send(_wire.kill(self.id))
        except (Cut, HostNotReady):  # the daemon is gone, and its sandboxes with it
            return False
        finally:
            await self._line.http.close()

    async def close(self) -> None:
        """Ends it, as kill() does."""
        if not self._state.is_closed:
            await self.kill()

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        tb: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSandbox {self.id} of {self.template}{', closed' if self._state.is_closed else ''}>"


async def _sent(http: AsyncHttp, call: Call[T]) -> T:
    try:
        return await http.send(call)
    except Cut as error:
        raise HostNotReady("the daemon closed the connection", "look at its log", code="no_daemon") from error


async def _create(template: str, memory_mb: int | None, url: str | None, api_key: str | None,
                  call: Callable[[str], Call[Handle]]) -> tuple[AsyncHttp, Handle]:
    names = _state.template_names(template, memory_mb)
    for name in names:
        http = None
        try:
            http = AsyncHttp(await asyncio.to_thread(_daemon.find, name, url, api_key))
            handle = await _sent(http, call(name))
            if memory_mb is None or (await _sent(http, _wire.info(handle.id))).memory_mb == memory_mb:
                kept, http = http, None
                return kept, handle
            await _sent(http, _wire.kill(handle.id))
        except (NotFound, HostNotReady) as error:
            if memory_mb is None or not (isinstance(error, NotFound) or error.code == "no_template"):
                raise
            if name == names[-1]:
                raise _state.wrong_memory(template, memory_mb, error) from None
        finally:
            if http is not None:
                await http.close()
    raise _state.wrong_memory(template, memory_mb)
