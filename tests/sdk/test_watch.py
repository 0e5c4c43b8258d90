# SPDX-License-Identifier: Apache-2.0
"""Folders that are watched: how the daemon's answers are read (without one), then changes in real sandboxes."""
from __future__ import annotations

import concurrent.futures
import json

import httpx
import pytest
from thawbox import AsyncFiles, AsyncSandbox, Files, LimitExceeded, NotFound, Sandbox, SandboxGone, ThawboxError, TimeoutError_
from thawbox._async import _Line as AsyncLine
from thawbox._daemon import Endpoint
from thawbox._envd import WatchSink, envelope
from thawbox._http import AsyncHttp, SyncHttp
from thawbox._sandbox import _Line
from thawbox._state import Defaults, State
from thawbox._wire import Cut, Handle

URL = "http://127.0.0.1:1"
HANDLE = Handle("iabc", "code-interpreter", "tok", "")
ENTRY = {"name": "a", "path": "/home/user/a", "type": "FILE_TYPE_FILE", "size": "3", "modifiedTime": "2026-01-02T03:04:05Z"}
START = envelope({"start": {}})
INFO = {"sandboxID": "iabc", "templateID": "t", "startedAt": "2026-01-02T03:04:05Z", "endAt": "2026-01-02T03:04:05Z",
        "cpuCount": 1, "memoryMB": 512, "diskSizeMB": 8192, "state": "running"}


def change(kind: str, name: str, **more: object) -> bytes:
    return envelope({"filesystem": {"type": f"EVENT_TYPE_{kind}", "name": name, **more}})


def end(**error: object) -> bytes:
    text = json.dumps({"error": error} if error else {}).encode()
    return b"\2" + len(text).to_bytes(4, "big") + text


class Answers:
    """What a daemon says: a stream of these pieces to who watches, and whether the sandbox lives to who asks."""

    def __init__(self, *pieces: bytes | Exception, is_alive: bool = True) -> None:
        self.pieces = pieces
        self.is_alive = is_alive
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.url.path.startswith("/sandboxes/"):
            return httpx.Response(200, json=INFO) if self.is_alive else httpx.Response(404, json={"message": "no"})
        return httpx.Response(200, content=self._said())

    def _said(self):
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def files(self) -> Files:
        http = SyncHttp(Endpoint(URL))
        http._client = httpx.Client(transport=httpx.MockTransport(self), base_url=URL)
        return Files(_Line(http, State(HANDLE, Defaults())))


class AsyncAnswers(Answers):
    async def _said(self):
        for piece in super()._said():
            yield piece

    def files(self) -> AsyncFiles:
        http = AsyncHttp(Endpoint(URL))
        http._client = httpx.AsyncClient(transport=httpx.MockTransport(self), base_url=URL)
        return AsyncFiles(AsyncLine(http, State(HANDLE, Defaults())))


# ---- how answers are read ----

@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events(size):
    data = START + change("CREATE", "a", entry=ENTRY) + envelope({"keepalive": {}}) + change("REMOVE", "d/b") + end()
    sink, seen = WatchSink(), []
    for at in range(0, len(data), size):
        seen += sink.feed(data[at:at + size])
    sink.finish()
    assert [name for name, _ in seen] == ["start", "change", "change"]
    first, second = seen[1][1], seen[2][1]
    assert (first.type, first.name, first.entry.path, first.entry.size) == ("create", "a", "/home/user/a", 3)
    assert (second.type, second.name, second.entry) == ("remove", "d/b", None)


def test_events_without_an_end():
    sink = WatchSink()
    sink.feed(START)
    with pytest.raises(Cut):
        sink.finish()


def test_what_was_told_before_an_error_is_not_lost():
    answers = Answers(START + change("WRITE", "a") + end(code="deadline_exceeded", message="it is over"))
    with answers.files().watch("d", recursive=True, entries=True, timeout_seconds=2) as events:
        assert next(events).name == "a"
        with pytest.raises(TimeoutError_, match="it is over"):
            next(events)
    request = answers.asked[0]
    assert request.headers["Connect-Timeout-Ms"] == "2000" and request.url.path == "/filesystem.Filesystem/WatchDir"
    assert json.loads(request.content[5:]) == {"path": "d", "recursive": True, "includeEntry": True}


def test_a_folder_that_is_not_there():
    with pytest.raises(NotFound, match="no d"), Answers(end(code="not_found", message="no d")).files().watch("d"):
        raise AssertionError("it was not entered")


@pytest.mark.parametrize("is_alive, kind", [(False, SandboxGone), (True, ThawboxError)])
def test_a_line_that_breaks(is_alive, kind):
    for pieces in ((START, httpx.RemoteProtocolError("cut")), (START,)):
        with Answers(*pieces, is_alive=is_alive).files().watch() as events, pytest.raises(kind) as caught:
            next(events)
        assert type(caught.value) is kind
    with pytest.raises(kind), Answers(httpx.ReadError("cut"), is_alive=is_alive).files().watch():
        raise AssertionError("it was not entered")


def test_errors_of_the_block_are_its_own():
    """Of a program that uses httpx itself, too."""
    for error in (httpx.ConnectError("its own"), ValueError("its own")):
        with pytest.raises(type(error), match="its own"), Answers(START, change("WRITE", "a")).files().watch() as events:
            next(events)
            raise error


async def test_the_same_awaited():
    answers = AsyncAnswers(START, change("WRITE", "a"), end(code="internal", message="events were lost"))
    async with answers.files().watch() as events:
        assert (await anext(events)).name == "a"
        with pytest.raises(ThawboxError, match="lost"):
            await anext(events)
    async with AsyncAnswers(START, httpx.RemoteProtocolError("cut"), is_alive=False).files().watch() as events:
        with pytest.raises(SandboxGone):
            await anext(events)
    with pytest.raises(httpx.ConnectError):
        async with AsyncAnswers(START, change("WRITE", "a")).files().watch():
            raise httpx.ConnectError("its own")


# ---- in sandboxes ----

CHANGES = ("import os\nwith open('seen/a', 'a') as f: f.write('y')\nos.rename('seen/a', 'seen/b')\nos.remove('seen/b')\n"
           "os.mkdir('seen/d')\nopen('seen/d/unseen', 'w').close()")


def test_watcher(sb):
    """Asked, it has told all that happened before."""
    sb.files.mkdir("seen")
    with sb.files.watcher("seen", entries=True) as watcher:
        assert watcher.events() == []
        sb.files.write("seen/a", "xyz")
        events = watcher.events()
        assert [(e.type, e.name) for e in events] == [("create", "a"), ("chmod", "a"), ("write", "a")]
        assert events[2].entry.path == "/home/user/seen/a" and events[2].entry.size == 3
        assert watcher.events() == []
        assert sb.run_code(CHANGES).error is None
        assert [(e.type, e.name) for e in watcher.events()] == [
            ("write", "a"), ("rename", "a"), ("create", "b"), ("remove", "b"), ("create", "d")]
    watcher.close()
    with pytest.raises(NotFound, match="no such watcher"):
        watcher.events()
    for path, kind in (("nothing", NotFound), ("/etc/passwd", ThawboxError)):
        with pytest.raises(kind):
            sb.files.watcher(path)


def test_watch(sb):
    """One thread looks on while another works; what is below a folder that is new is seen, too."""
    sb.run_code("import os; os.makedirs('seen')")
    with sb.files.watch("seen", recursive=True, timeout_seconds=600) as events, \
            concurrent.futures.ThreadPoolExecutor() as pool:
        work = pool.submit(sb.run_code, "os.makedirs('seen/new')\nopen('seen/new/f', 'w').write('x')\n"
                                        "open('seen/last', 'w').close()")
        seen = []
        while not seen or seen[-1] != ("create", "last"):
            event = next(events)
            seen.append((event.type, event.name))
        assert work.result().error is None
    assert seen[0] == ("create", "new") and ("write", "new/f") in seen
    with pytest.raises(NotFound), sb.files.watch("nothing"):
        raise AssertionError("it was not entered")


def test_a_watch_has_a_deadline(sb):
    with pytest.raises(TimeoutError), sb.files.watch("/tmp", timeout_seconds=1) as events:  # on a slow machine before it began
        next(events)
    assert sb.run_code("1 + 1").text == "2"


def test_a_watch_ends_with_its_sandbox(daemon):
    with Sandbox.create() as sb, sb.files.watch() as events, sb.files.watcher() as watcher:
        Sandbox.connect(sb.id).kill()
        with pytest.raises(SandboxGone):
            next(events)
        with pytest.raises(SandboxGone):
            watcher.events()


def test_there_may_be_64(sb):
    """And those that were left behind by their block do not count."""
    for _ in range(3):
        with sb.files.watch("/tmp"), sb.files.watcher("/tmp"):
            pass
    watchers = [sb.files.watcher("/tmp") for _ in range(64)]
    with pytest.raises(LimitExceeded, match="stop one"):
        sb.files.watcher("/tmp")
    with pytest.raises(LimitExceeded), sb.files.watch("/tmp"):
        raise AssertionError("it was not entered")
    watchers[0].close()
    sb.files.watcher("/tmp").close()


async def test_async(daemon):
    async with await AsyncSandbox.create() as sb:
        await sb.files.mkdir("seen")
        async with sb.files.watch("seen", timeout_seconds=600) as events:
            await sb.files.write("seen/a", "x")
            assert [((event := await anext(events)).type, event.name) for _ in range(3)] == [
                ("create", "a"), ("chmod", "a"), ("write", "a")]
        async with await sb.files.watcher("seen", entries=True) as watcher:
            await sb.run_code("import os; os.remove('seen/a')")
            assert [(e.type, e.name, e.entry) for e in await watcher.events()] == [("remove", "a", None)]
        with pytest.raises(NotFound):
            await watcher.events()
        with pytest.raises(TimeoutError):
            async with sb.files.watch("seen", timeout_seconds=1) as events:
                await anext(events)
