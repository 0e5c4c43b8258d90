# SPDX-License-Identifier: Apache-2.0
"""How answers are read, without a daemon: a transport that answers what the test wants."""
from __future__ import annotations

import json
import pickle
import socket

import httpx
import pytest
from thawbox import (
    HostNotReady,
    InvalidInput,
    LimitExceeded,
    Logs,
    NotFound,
    Sandbox,
    SandboxGone,
    ThawboxError,
    TimeoutError_,
    _daemon,
)
from thawbox import _envd as envd
from thawbox import _wire as wire
from thawbox._daemon import Endpoint, parse_url
from thawbox._envd import Bounded, CommandSink, Envelopes
from thawbox._http import AsyncHttp, SyncHttp
from thawbox._models import ExecutionError, Pricing, Result, SandboxUsage, Truncation, Usage, parse_time
from thawbox._sandbox import _Line
from thawbox._state import Defaults, State
from thawbox._wire import Cut, ExecutionSink, Handle

HANDLE = Handle("iabc", "code-interpreter", "tok", "")


def http_with(handler) -> SyncHttp:
    http = SyncHttp(Endpoint("http://127.0.0.1:1"))
    http._client = httpx.Client(transport=httpx.MockTransport(handler), base_url="http://127.0.0.1:1")
    return http


def ndjson(*items: dict) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


# ---- errors ----

@pytest.mark.parametrize("status, kind, code", [
    (400, InvalidInput, "invalid_input"), (401, InvalidInput, "unauthorized"), (404, NotFound, "not_found"),
    (413, LimitExceeded, "limit_exceeded"), (429, LimitExceeded, "limit_exceeded"), (501, InvalidInput, "not_offered"),
    (502, SandboxGone, "sandbox_gone"), (503, HostNotReady, "host_not_ready"), (507, LimitExceeded, "no_space"),
    (500, ThawboxError, "http_500"),
])
def test_errors_of_statuses(status, kind, code):
    http = http_with(lambda _: httpx.Response(status, json={"code": status, "message": "it is so; do this"}))
    with pytest.raises(kind) as caught:
        http.send(wire.info("iabc"))
    assert type(caught.value) is kind and caught.value.code == code
    if status != 502:
        assert (caught.value.cause, caught.value.remedy) == ("it is so", "do this")
    assert "; " in str(caught.value)


def test_error_of_an_answer_that_is_no_json():
    http = http_with(lambda _: httpx.Response(500, text="<html>oops"))
    with pytest.raises(ThawboxError, match="<html>oops"):
        http.send(wire.info("iabc"))
    http = http_with(lambda _: httpx.Response(200, text="<html>"))
    with pytest.raises(ThawboxError, match="not JSON"):
        http.send(wire.info("iabc"))
    http = http_with(lambda _: httpx.Response(200, json={"nothing": 1}))
    with pytest.raises(ThawboxError, match="lacks") as caught:
        http.send(wire.info("iabc"))
    assert caught.value.code == "protocol"


def test_times_to_live():
    """A part of a second is a second: it does not end what it was to keep."""
    assert wire.set_ttl("i", 0.5).body == {"timeout": 1} and wire.set_ttl("i", 0).body == {"timeout": 0}
    for wrong in (-1, float("nan"), "5", True):
        with pytest.raises(InvalidInput):
            wire.set_ttl("i", wrong)
    call = wire.create("t", 1.2, env=None, metadata=None, network=None, limits=wire.Limits())
    assert call.body["timeout"] == 2


def test_a_list_has_pages(monkeypatch):
    """All of them, though the daemon tells a hundred at a time."""
    info = {"templateID": "t", "startedAt": "2026-01-02T03:04:05Z", "endAt": "2026-01-02T03:04:05Z", "cpuCount": 1,
            "memoryMB": 512, "diskSizeMB": 8192, "state": "running"}
    pages = {"": (["a", "b"], "one"), "one": (["c"], "t&wo"), "t&wo": (["d"], "")}

    def answer(request: httpx.Request) -> httpx.Response:
        ids, token = pages[request.url.params.get("nextToken", "")]
        return httpx.Response(200, json=[{**info, "sandboxID": id} for id in ids], headers={"X-Next-Token": token} if token else {})

    monkeypatch.setattr("thawbox._sandbox.shared", lambda _: http_with(answer))
    assert [one.id for one in Sandbox.list(url="http://127.0.0.1:1")] == ["a", "b", "c", "d"]


def test_the_tree_of_errors():
    import builtins

    error = TimeoutError_("late", "more time", partial=1)
    assert isinstance(error, builtins.TimeoutError) and isinstance(error, ThawboxError)
    assert str(error) == "late; more time" and error.partial == 1
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is TimeoutError_ and (again.cause, again.remedy, again.code) == ("late", "more time", "timeout")
    for kind in (SandboxGone, NotFound, LimitExceeded, InvalidInput, HostNotReady):
        assert issubclass(kind, ThawboxError) and kind("x").code != "error"


def test_nobody_listens(unused_tcp_port):
    with pytest.raises(HostNotReady, match="no daemon answers") as caught:
        SyncHttp(Endpoint(f"http://127.0.0.1:{unused_tcp_port}")).send(wire.info("i"))
    assert caught.value.code == "no_daemon" and caught.value.remedy


async def test_nobody_listens_async(unused_tcp_port):
    http = AsyncHttp(Endpoint(f"http://127.0.0.1:{unused_tcp_port}"))
    with pytest.raises(HostNotReady, match="no daemon answers"):
        await http.send(wire.info("i"))
    await http.close()


def test_addresses():
    assert parse_url("unix:/run/x.sock", "k").uds == "/run/x.sock"
    assert parse_url("unix:///run/x.sock", "k").uds == "/run/x.sock"
    assert parse_url("http://h:1/", "k") == Endpoint("http://h:1", None, "k")
    assert not parse_url("https://h", "k").is_local and parse_url("http://127.0.0.1:8", "k").is_local
    with pytest.raises(InvalidInput):
        parse_url("ftp://h", "k")


def test_which_address_is_taken(monkeypatch, tmp_path):
    """The argument, the environment, the user's socket; and the key in the same way."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("THAWBOX_URL", "http://127.0.0.1:2")
    monkeypatch.setenv("THAWBOX_API_KEY", "of-the-environment")
    assert _daemon.find("t", "http://127.0.0.1:1", "k") == Endpoint("http://127.0.0.1:1", None, "k")
    assert _daemon.find("t") == Endpoint("http://127.0.0.1:2", None, "of-the-environment")
    assert not _daemon.is_own() and not _daemon.is_own("http://127.0.0.1:1")
    monkeypatch.delenv("THAWBOX_URL")
    monkeypatch.delenv("THAWBOX_API_KEY")
    (tmp_path / "thawbox").mkdir()
    assert not _daemon.is_served("/run/thawbox/thawboxd.sock") and _daemon.is_own()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "thawbox" / "thawboxd.sock"))
        server.listen()
        assert _daemon.find("t") == Endpoint("http://thawboxd", str(tmp_path / "thawbox" / "thawboxd.sock"), _daemon.API_KEY)
        assert not _daemon.is_own()
        assert _daemon.find("t", "unix:/a").uds == "/a", "an argument goes first"


def test_where_the_program_is(monkeypatch, tmp_path):
    for folder in ("given", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "thawboxd").write_text("")
        (tmp_path / folder / "thawboxd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("THAWBOX_BIN", str(tmp_path / "given"))
    assert _daemon.find_program() == str(tmp_path / "given" / "thawboxd")
    monkeypatch.setenv("THAWBOX_BIN", str(tmp_path / "given" / "thawboxd"))
    assert _daemon.find_program() == str(tmp_path / "given" / "thawboxd")
    monkeypatch.delenv("THAWBOX_BIN")
    assert _daemon.find_program() == str(tmp_path / "path" / "thawboxd")


# ---- cells ----

def test_a_line_that_breaks_after_a_deadline():
    """A guest that does not answer is ended, and that is said; before its deadline something else has happened."""
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/execute":
            return httpx.Response(404, json={"message": "gone"})
        return httpx.Response(200, content=say())

    def say():
        yield ndjson({"type": "stdout", "text": "so far"})
        raise httpx.RemoteProtocolError("cut")

    for timeout, words in ((1e-9, "did not answer after a deadline"), (100, "killed, its time to live")):
        line = _Line(http_with(answer), State(HANDLE, Defaults()))
        with pytest.raises(SandboxGone, match=words) as caught:
            line.run(wire.run_code(HANDLE, "1", context="c", timeout=1, max_output=None, env=None, files_changed=False,
                                   full_usage=False), {}, timeout)
        assert caught.value.partial.logs.stdout == "so far"
    assert Defaults().timeout_seconds == 300 and Defaults().max_output_bytes is None


END = {"type": "end_of_execution", "ended": "done", "context_restarted": False}


def read(data: bytes, size: int = 0):
    sink = ExecutionSink()
    events = []
    for at in range(0, len(data), size or len(data)):
        events += sink.feed(data[at:at + (size or len(data))])
    return sink, events


@pytest.mark.parametrize("size", [0, 1, 7])
def test_cell(size):
    data = ndjson({"type": "number_of_executions", "execution_count": 3}, {"type": "stdout", "text": "a\n"},
                  {"type": "stderr", "text": "e"}, {"type": "stdout", "text": "b"}, {"type": "keepalive"},
                  {"type": "result", "text": "2", "is_main_result": True, "extra": {}},
                  {"type": "result", "png": "aGk=", "is_main_result": False, "extra": {"x/y": "z"}},
                  {"type": "error", "name": "KeyError", "value": "'k'", "traceback": "Traceback"},
                  {**END, "usage": {"wall_ms": 1.5, "peak_kib": 7, "new": 1}, "truncated": {"stdout": 4, "files_changed": 3},
                   "files_changed": [{"path": "/home/user/a", "size": 2}]})
    sink, events = read(data, size)
    ex = sink.finish()
    assert [name for name, _ in events] == ["stdout", "stderr", "stdout", "result", "result", "error"]
    assert ex.logs.stdout == "a\nb" == ex.logs["stdout"] and ex.logs.get("stderr", "") == "e"
    assert ex.text == "2" and ex.execution_count == 3 and ex.results[1].bytes_of("png") == b"hi"
    assert ex.results[1].formats() == ["png", "x/y"]
    assert ex.error.name == "KeyError" and str(ex.error) == "KeyError: 'k'"
    assert ex.usage == Usage(wall_ms=1.5, peak_kib=7)
    assert ex.truncated and "4 bytes of stdout" in ex.truncated.note and ex.truncated.files_changed == 3
    assert [(f.path, f.size) for f in ex.files_changed] == [("/home/user/a", 2)]
    assert not ex.timed_out and not ex.context_restarted


def test_cell_of_a_daemon_without_extras():
    ex = read(ndjson({"type": "stdout", "text": "x"}, {"type": "end_of_execution"}))[0].finish()
    assert ex.usage is None and ex.files_changed is None and not ex.truncated and not ex.timed_out
    note = "thawbox: the output was too long: of its middle 12 bytes of stdout and 3 of stderr are missing\n"
    ex = read(ndjson({"type": "stderr", "text": note}, {"type": "end_of_execution"}))[0].finish()
    assert ex.truncated == Truncation(12, 3)


def test_cell_that_is_cut_or_wrong():
    sink, _ = read(ndjson({"type": "stdout", "text": "so far"}))
    with pytest.raises(Cut):
        sink.finish()
    assert sink.partial().logs.stdout == "so far"
    for data in (b"x\n", b"[]\n", b"{}\n"):
        with pytest.raises(ThawboxError, match="cannot be read"):
            read(data)


def test_timeout_of_a_cell():
    ex = read(ndjson({"type": "error", "name": "TimeoutError", "value": "late", "traceback": "t"},
                     {**END, "ended": "timeout", "context_restarted": True}))[0].finish()
    assert ex.timed_out and ex.context_restarted
    ex = read(ndjson({"type": "error", "name": "TimeoutError", "value": "the user's", "traceback": "t"}, END))[0].finish()
    assert not ex.timed_out, "one that the code raised is not a deadline"
    assert ExecutionError("TimeoutError", "late", "KeyboardInterrupt:").report == "KeyboardInterrupt:\nTimeoutError: late"
    assert ExecutionError("KeyError", "'k'", "KeyError: 'k'").report == "KeyError: 'k'"


def test_request_of_a_cell():
    stream = wire.run_code(HANDLE, "1", context="default", timeout=1.5, max_output=8000, env={"A": "1"},
                           files_changed=True, full_usage=True)
    assert json.loads(stream.content) == {"code": "1", "context_id": "default", "timeout_ms": 1500, "max_output": 8000,
                                          "env_vars": {"A": "1"}, "files_changed": True, "usage": True}
    assert stream.headers["E2b-Sandbox-Port"] == "49999" and "X-Access-Token" not in stream.headers
    for wrong in ({"timeout": 0}, {"timeout": -1}, {"timeout": True}, {"max_output": 0}, {"max_output": 1.5}):
        with pytest.raises(InvalidInput):
            wire.run_code(HANDLE, "1", **{"context": "default", "timeout": 1, "max_output": None, "env": None,
                                          "files_changed": False, "full_usage": False, **wrong})
    with pytest.raises(InvalidInput, match="surrogates"):
        wire.run_code(HANDLE, "'\ud800'", context="d", timeout=1, max_output=None, env=None, files_changed=False,
                      full_usage=False)


# ---- Connect ----

def events(*messages: dict, last: dict | None = None) -> bytes:
    data = b"".join(envd.envelope(m) for m in messages)
    if last is not None:
        end = json.dumps(last).encode()
        data += b"\2" + len(end).to_bytes(4, "big") + end
    return data


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_command(size):
    data = events({"event": {"start": {"pid": 5}}}, {"event": {"data": {"stdout": "w6k="}}}, {"event": {"keepalive": {}}},
                  {"event": {"data": {"stderr": "YQ=="}}}, {"event": {"end": {"exitCode": 3, "status": "exit status 3"}}}, last={})
    sink, seen = CommandSink(1000, 5), []
    for at in range(0, len(data), size):
        seen += sink.feed(data[at:at + size])
    result = sink.finish()
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("é", "a", 3, False)
    assert seen == [("stdout", "é"), ("stderr", "a")] and sink.pid == 5
    assert result.logs == {"stdout": "é", "stderr": "a"}


def test_command_that_was_late():
    sink = CommandSink(1000, 5)
    sink.feed(events({"event": {"data": {"stdout": "YQ=="}}}, last={"error": {"code": "deadline_exceeded", "message": "m"}}))
    result = sink.finish()
    assert result.timed_out and result.stdout == "a" and result.error.name == "TimeoutError" and not result.ok


def test_errors_of_streams():
    for code, kind in (("invalid_argument", InvalidInput), ("not_found", NotFound), ("resource_exhausted", LimitExceeded),
                       ("unimplemented", InvalidInput), ("internal", ThawboxError)):
        with pytest.raises(kind, match="why"):
            CommandSink(10, 1).feed(events(last={"error": {"code": code, "message": "why; so"}}))
    with pytest.raises(ThawboxError, match="not JSON"):
        Envelopes().feed(b"\0\0\0\0\1x")
    with pytest.raises(ThawboxError, match="too long"):
        Envelopes().feed(b"\0\xff\xff\xff\xff")


def test_bounded_text():
    text = Bounded(10)
    assert text.add(b"0123456789") == "0123456789" and text.text() == "0123456789" and not text.dropped
    text.add(b"abc")
    assert text.dropped == 3 and text.text() == "01234\n[thawbox: 3 bytes are missing here]\n89abc"
    text = Bounded(100)
    assert text.add("é".encode()[:1]) == "" and text.add("é".encode()[1:]) == "é"


def test_commands_and_limits_that_are_wrong():
    for command in ([], [1], ["a", None]):
        with pytest.raises(InvalidInput):
            envd.run_command(HANDLE, command, timeout=1, env=None, cwd=None, user=None, max_output=None)
    for limits in (wire.Limits(cpu=0), wire.Limits(disk_rate=-1), wire.Limits(disk_ops=True), wire.Limits(vsock_rate="1")):
        with pytest.raises(InvalidInput):
            wire.create("t", 1, env=None, metadata=None, network=None, limits=limits)
    with pytest.raises(InvalidInput, match="metadata"):
        wire.create("t", 1, env=None, metadata={"a": 1}, network=None, limits=wire.Limits())


# ---- values ----

def test_logs_are_a_mapping():
    logs = Logs("o", "e")
    assert dict(logs) == {"stdout": "o", "stderr": "e"} and len(logs) == 2 and logs.get("other", "") == ""
    with pytest.raises(KeyError):
        logs["other"]


def test_results_display_themselves():
    result = Result.from_json({"type": "result", "text": "t", "html": "<b>", "png": "aGk=", "is_main_result": True,
                               "json": {"a": 1}, "extra": {"x/y": "z"}})
    assert result._repr_mimebundle_() == {"text/plain": "t", "text/html": "<b>", "image/png": "aGk=",
                                          "application/json": {"a": 1}, "x/y": "z"}
    ex = read(ndjson({"type": "stdout", "text": "out\n"}, {"type": "result", "text": "t", "html": "<b>",
                                                          "is_main_result": True}, END))[0].finish()
    assert ex._repr_mimebundle_() == {"text/plain": "out\nt", "text/html": "<b>"}
    with pytest.raises(KeyError):
        result.bytes_of("jpeg")


def test_usage_adds_up_and_has_a_price():
    total = Usage(wall_ms=1, peak_kib=10, output_bytes=5) + Usage(wall_ms=2, peak_kib=4, pages_dirtied=3)
    assert total == Usage(wall_ms=3, peak_kib=10, output_bytes=5, pages_dirtied=3)
    usage = SandboxUsage(10, vcpu_seconds=3600, gib_seconds=7200, cell_count=1, cells=total)
    assert usage.cost(Pricing(vcpu_hour=0.1, gib_hour=0.01)) == pytest.approx(0.12)


def test_times():
    assert parse_time("2026-01-02T03:04:05.123456Z").microsecond == 123456
    assert parse_time("2026-01-02T03:04:05.1Z").microsecond == 100000
    assert parse_time("2026-01-02T03:04:05Z").tzinfo is not None


def test_the_two_surfaces_are_the_same():
    import inspect

    from thawbox import AsyncContext, AsyncFiles, AsyncSandbox, Context, Files, Sandbox

    for one, other in ((Sandbox, AsyncSandbox), (Context, AsyncContext), (Files, AsyncFiles)):
        names = {name for name in dir(one) if not name.startswith("_")}
        assert names == {name for name in dir(other) if not name.startswith("_")} - ({"files"} if one is Sandbox else set())
        for name in names:
            mine, its = inspect.getattr_static(one, name), inspect.getattr_static(other, name)
            if callable(getattr(one, name)):
                mine, its = getattr(mine, "__func__", mine), getattr(its, "__func__", its)
                assert list(inspect.signature(mine).parameters.items())[1:] == \
                    list(inspect.signature(its).parameters.items())[1:], name
