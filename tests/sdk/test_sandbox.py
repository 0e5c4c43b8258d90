# SPDX-License-Identifier: Apache-2.0
"""Sandboxes by the synchronous layer: cells, contexts, commands, files, deadlines, limits, usage."""
from __future__ import annotations

import concurrent.futures
import io
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from conftest import BIN
from thawbox import (
    InvalidInput,
    LimitExceeded,
    NotFound,
    Pricing,
    Sandbox,
    SandboxGone,
    ThawboxError,
    TimeoutError_,
)

# ---- cells and contexts ----


def test_first_program(daemon):
    with Sandbox.create(template="code-interpreter", ttl_seconds=1800, env={"WHO": "me"}, network=None,
                        metadata={"task": "7"}) as sb:
        ctx = sb.create_code_context(language="python", cwd="/home/user")
        seen: list[str] = []
        ex = ctx.run_code("import os\nprint(os.environ['WHO'], os.getcwd())\n40 + 2", timeout_seconds=120,
                          on_stdout=seen.append, max_output_bytes=8000)
        assert ex.text == "42" and ex.error is None and not ex.truncated
        assert ex.logs.stdout == "me /home/user\n" == ex.logs["stdout"] and ex.logs.get("stderr", "") == ""
        assert "".join(seen) == ex.logs.stdout
        info = sb.info()
        assert info.metadata == {"task": "7"} and info.state == "running" and info.template == "code-interpreter"
        assert [one.id for one in Sandbox.list()] == [sb.id]
    with pytest.raises(SandboxGone):
        ctx.run_code("1")
    sb.close()
    assert sb.kill() is False


def test_results(sb):
    ex = sb.run_code("import pandas as pd, matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n"
                     "pd.DataFrame({'a': [1]})")
    assert ex.error is None, ex.error
    assert ex.results[0].png and ex.results[0].bytes_of("png").startswith(b"\x89PNG") and not ex.results[0].is_main_result
    assert ex.result.html and "text/html" in ex._repr_mimebundle_() and "a" in ex.text


def test_errors_are_told_and_state_stays(sb):
    assert sb.run_code("x = {'a': 1}").error is None
    ex = sb.run_code("print('before')\nx['b']")
    assert ex.error.name == "KeyError" and ex.error.value == "'b'" and "Traceback" in ex.error.traceback
    assert ex.logs.stdout == "before\n" and "\x1b" not in ex.error.traceback
    assert sb.run_code("x['a']").text == "1"
    assert sb.run_code("!echo shell").logs.stdout.strip() == "shell"


def test_contexts_share_nothing(sb):
    """The first one has the interpreter of the thaw, the sandbox's own cells another."""
    one = sb.create_code_context()
    one.run_code("v = 'one'")
    sb.run_code("v = 'main'")
    assert [c.run_code("v").text for c in (one, sb)] == ["one", "main"]
    one.close()
    one.close()
    with pytest.raises(NotFound):
        one.run_code("v")


def test_first_cells_of_two_threads_are_of_one_context(sb):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(sb.run_code, ("a = 1", "b = 2")))
    assert sb.run_code("a + b").text == "3"


def test_env_of_a_cell(sb):
    assert sb.run_code("import os; os.environ.get('A')", env={"A": "1"}).text == "1"
    assert sb.run_code("os.environ.get('A')").text is None


def test_connect(sb):
    sb.run_code("x = 5")
    other = Sandbox.connect(sb.id)
    assert other.run_code("x").text == "5"
    assert other.kill() is True
    with pytest.raises(SandboxGone):
        sb.run_code("x")
    with pytest.raises(NotFound):
        Sandbox.connect("inone")


def test_killed_while_a_cell_runs(sb):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        started: concurrent.futures.Future[str] = concurrent.futures.Future()
        cell = pool.submit(sb.run_code, "import time\nprint('go', flush=True)\ntime.sleep(600)",
                           on_stdout=lambda text: started.done() or started.set_result(text))
        started.result(120)
        sb.kill()
        with pytest.raises(SandboxGone) as caught:
            cell.result(120)
    assert caught.value.partial.logs.stdout == "go\n" and caught.value.remedy


def test_a_callback_that_fails_ends_its_cell(sb):
    """The error is the caller's own, the cell is interrupted, and its context goes on."""
    def fail(text: str) -> None:
        raise RuntimeError(f"not {text!r}")

    sb.run_code("x = 1")
    with pytest.raises(RuntimeError, match="not 'go"):
        sb.run_code("print('go')\nwhile True: pass", on_stdout=fail)
    assert sb.run_code("x").text == "1"


# ---- deadlines and output ----

def test_deadline_keeps_context_and_output(sb):
    sb.run_code("x = 7")
    ex = sb.run_code("print('so far')\nwhile True: pass", timeout_seconds=1)
    assert ex.timed_out and ex.error.name == "TimeoutError" and not ex.context_restarted
    assert ex.logs.stdout == "so far\n" and sb.run_code("x").text == "7"
    with pytest.raises(TimeoutError) as caught:
        sb.run_code("print('again')\nwhile True: pass", timeout_seconds=1, raise_on_timeout=True)
    assert isinstance(caught.value, TimeoutError_) and caught.value.partial.logs.stdout == "again\n"
    ex = sb.run_code("raise TimeoutError('mine')")
    assert ex.error.name == "TimeoutError" and not ex.timed_out


def test_deadline_of_one_that_does_not_listen(sb):
    sb.run_code("x = 7")
    ex = sb.run_code("import signal\nprint('deaf')\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
                     timeout_seconds=1)
    assert ex.timed_out and ex.context_restarted and "variables are gone" in ex.error.value
    assert ex.logs.stdout == "deaf\n"
    assert sb.run_code("'x' in globals()").text == "False", "another interpreter has taken its place"


def test_memory_and_death_are_told(sb):
    """What the guest's kernel kills for want of memory is tests/e2e/test_limits.py's: it takes minutes on software KVM."""
    ex = sb.run_code("x = bytearray(1 << 40)")
    assert ex.error.name == "MemoryError" and not ex.context_restarted
    ex = sb.run_code("import os; os._exit(3)")
    assert ex.error.name == "KernelDied" and "exited with code 3" in ex.error.value
    assert ex.context_restarted and not ex.timed_out
    assert sb.run_code("1 + 1").text == "2"


def test_output_is_cut_and_told(sb):
    ex = sb.run_code("print('begin')\nfor i in range(10000): print(i)\nprint('the end')", max_output_bytes=8000)
    assert ex.truncated and ex.truncated.stdout > 30_000
    assert ex.logs.stdout.startswith("begin\n") and ex.logs.stdout.endswith("the end\n")
    assert len(ex.logs.stdout) <= 8000 and "too long" in ex.logs.stderr
    assert not sb.run_code("print('short')", max_output_bytes=8000).truncated


def test_defaults_of_a_sandbox(daemon):
    with Sandbox.create(timeout_seconds=1, raise_on_timeout=True, max_output_bytes=100) as sb:
        assert sb.run_code("print('x' * 1000)", timeout_seconds=60).truncated
        with pytest.raises(TimeoutError_):
            sb.run_code("while True: pass")


# ---- commands ----

def test_commands(sb):
    result = sb.exec("echo out; echo err >&2; exit 3", timeout_seconds=120)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3) and not result.ok
    assert sb.exec(["python3", "-c", "print('a b')"], env={"A": "1"}, cwd="/tmp").stdout == "a b\n"
    assert sb.exec("id -un; pwd", user="root").stdout == "root\n/root\n"
    seen: list[str] = []
    result = sb.exec("for i in $(seq 3000); do echo line $i; done", on_stdout=seen.append, max_output_bytes=1000)
    assert result.truncated.stdout > 10_000 and "line 1\n" in result.stdout and "line 3000\n" in result.stdout
    assert "".join(seen).count("\n") == 3000
    with pytest.raises(InvalidInput):
        sb.exec("true", cwd="/nowhere")


def test_deadline_of_a_command(sb):
    result = sb.exec("echo so far; sleep 600 & sleep 601", timeout_seconds=15)
    assert result.timed_out and result.stdout == "so far\n" and result.error.name == "TimeoutError"
    assert sb.exec("pgrep -c sleep").stdout == "0\n", "what it had started has ended with it"
    with pytest.raises(TimeoutError) as caught:
        sb.exec("echo here; sleep 600", timeout_seconds=10, raise_on_timeout=True)
    assert caught.value.partial.stdout == "here\n"


# ---- files ----

def test_files(sb, tmp_path):
    assert sb.files.write("a/b.txt", "text é") == "/home/user/a/b.txt"
    assert sb.files.read("a/b.txt") == "text é" and sb.files.read("a/b.txt", "bytes") == "text é".encode()
    sb.files.write("raw", b"\x89PNG\0\xff")
    assert sb.files.read("raw") == b"\x89PNG\0\xff"
    names = {entry.name: entry for entry in sb.files.list(".")}
    assert names["a"].type == "dir" and names["raw"].type == "file" and names["raw"].size == 6
    assert names["raw"].owner == "user" and names["raw"].modified.year >= 2024
    assert {e.path for e in sb.files.list("/home/user", depth=2)} >= {"/home/user/a/b.txt"}
    assert sb.files.stat("a/b.txt").size == 7 and sb.files.exists("raw") and not sb.files.exists("none")
    assert sb.files.rename("raw", "moved/raw2").path == "/home/user/moved/raw2"
    assert sb.files.mkdir("d") is True and sb.files.mkdir("d") is False
    sb.files.remove("d")
    sb.files.remove("d")
    with pytest.raises(NotFound):
        sb.files.read("d/none")
    with pytest.raises(NotFound):
        sb.files.stat("none")
    with pytest.raises(InvalidInput):
        sb.files.read("a")
    data = bytes(range(256)) * 8192
    (tmp_path / "big file.bin").write_bytes(data)
    with open(tmp_path / "big file.bin", "rb") as f:
        assert (path := sb.upload_file(f)) == "/home/user/big file.bin"
    assert sb.upload_file(tmp_path / "big file.bin", "other") == "/home/user/other"
    assert sb.upload_file(io.BytesIO(b"x"), "x") == "/home/user/x" and sb.upload_file(b"y", "y") == "/home/user/y"
    sb.download(path, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    with pytest.raises(NotFound):
        sb.download("none", tmp_path / "none")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(("back", "none"))) == ["back"]
    for wrong in (io.BytesIO(b"x"), b"x", tmp_path / "none", 5):
        with pytest.raises(InvalidInput):
            sb.upload_file(wrong)


# ---- life, limits ----

def test_ttl(daemon):
    sb = Sandbox.create(ttl_seconds=60)
    sb.set_ttl(1)
    with pytest.raises(SandboxGone):
        sb.run_code("import time; time.sleep(600)")
    with pytest.raises((NotFound, SandboxGone)):
        sb.info()
    sb.close()


def test_what_is_not_offered_is_refused(daemon):
    for options, word in (({"template": "none"}, "no template"), ({"network": {"allowOut": ["pypi.org"]}}, "network"),
                          ({"disk_mb": 0}, "disk"), ({"disk_mb": 9000}, "disk"),
                          ({"memory_mb": 1234}, "template build"), ({"memory_mb": 1}, "memory_mb"),
                          ({"cpu": 0}, "cpu"), ({"cpu": 0.5}, "THAWBOX_CGROUP"), ({"ttl_seconds": 0}, "ttl_seconds"),
                          ({"ttl_seconds": 10**8}, "max-ttl"), ({"timeout_seconds": -1}, "timeout_seconds"),
                          ({"env": {"A": 1}}, "env")):
        with pytest.raises(ThawboxError, match=word) as caught:
            Sandbox.create(**options)
        assert isinstance(caught.value, (InvalidInput, NotFound, LimitExceeded)), options
    with Sandbox.create(memory_mb=512) as sb:
        assert sb.info().memory_mb == 512
        with pytest.raises(InvalidInput, match="python"):
            sb.create_code_context(language="r")
        with pytest.raises(InvalidInput):
            sb.run_code("1", on_stdout="no")


def test_languages(daemon):
    with Sandbox.create() as sb, sb.create_code_context(language="sh", cwd="/tmp") as bash:
        assert bash.language == "bash"
        assert bash.run_code("x=5; pwd").logs.stdout == "/tmp\n"
        ex = bash.run_code("echo $x; false")
        assert ex.logs.stdout == "5\n" and (ex.error.name, ex.error.value) == ("ExitStatus", "1")
        assert sb.run_code("1 + 1").text == "2", "the default context is Python's"


def test_limit_of_sandboxes(start):
    start("--max-sandboxes", "1")
    with Sandbox.create(), pytest.raises(LimitExceeded, match="max-sandboxes"):
        Sandbox.create()


def test_rates_are_kept(daemon):
    """What is over a limit takes its time, on any machine: each time here is a bound from below, and a third of what it must be."""
    write = ("import os, time\nfd = os.open('/home/user/f', os.O_CREAT | os.O_RDWR | os.O_DSYNC)\nbegin = time.monotonic()\n"
             "for i in range({n}): os.pwrite(fd, os.urandom({size}), i * {size})\ntime.monotonic() - begin")
    with Sandbox.create(disk_rate=1 << 20) as sb:
        assert float(sb.run_code(write.format(n=6, size=1 << 20)).text) > 2
    with Sandbox.create(disk_ops=20) as sb:
        assert float(sb.run_code(write.format(n=120, size=4096)).text) > 2
    with Sandbox.create(vsock_rate=1 << 20) as sb:
        begin = time.monotonic()
        sb.files.write("in", bytes(6 << 20))
        assert time.monotonic() - begin > 2
        begin = time.monotonic()
        assert len(sb.files.read("in", "bytes")) == 6 << 20 and time.monotonic() - begin > 2


def test_space_on_the_disk(daemon):
    """More than it may have is ENOSPC, at once, for root too; what is removed may be had again."""
    with Sandbox.create(disk_mb=2) as sb:
        write = "import os\nwith open('{name}', 'wb') as f: f.write(bytes({mb} << 20))"
        assert sb.run_code(write.format(name="a", mb=1)).error is None
        ex = sb.run_code(write.format(name="b", mb=4))
        assert ex.error.name == "OSError" and "No space left" in ex.error.value
        assert sb.run_code("s = os.statvfs('/')\ns.f_bavail * s.f_frsize <= 2 << 20").text == "True"
        result = sb.exec("head -c 4M /dev/zero >/var/tmp/x", user="root")
        assert not result.ok and "No space left" in result.stderr
        sb.run_code("os.remove('b')\nos.remove('a')")
        sb.files.remove("/var/tmp/x")
        assert sb.run_code(write.format(name="c", mb=1)).error is None


def delegated_cgroup() -> Path | None:
    """A directory of cgroup v2 whose `cpu` we may give to groups below it."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        top = Path(where)
        if kind == "cgroup2" and os.access(top, os.W_OK) and "cpu" in (top / "cgroup.controllers").read_text().split():
            return top
    return None


@pytest.mark.skipif(delegated_cgroup() is None, reason="no cgroup v2 with the cpu controller is ours here")
def test_share_of_a_processor(start):
    """What the kernel holds its monitor to, by the words of the kernel."""
    top = delegated_cgroup()
    start(env={"THAWBOX_CGROUP": str(top)})
    before = set(top.rglob("cpu.max"))
    with Sandbox.create(cpu=0.25) as sb:
        assert sb.run_code("1 + 1").text == "2"
        assert "25000 100000" in [path.read_text().strip() for path in set(top.rglob("cpu.max")) - before]
        with Sandbox.create() as other:
            assert other.run_code("1 + 1").text == "2"


def test_keys_of_a_daemon(start, tmp_path, monkeypatch):
    """By argument or by the environment; a key sees its own sandboxes alone."""
    keys = [subprocess.run([BIN / "thawbox", "key", "create", "--keys", tmp_path / "keys.json", name], check=True, text=True,
                           capture_output=True).stdout.strip() for name in ("alice", "bob")]
    start("--keys", str(tmp_path / "keys.json"))
    with pytest.raises(InvalidInput) as caught:
        Sandbox.create()
    assert caught.value.code == "unauthorized"
    with Sandbox.create(api_key=keys[0]) as sb:
        assert sb.run_code("1 + 1").text == "2"
        monkeypatch.setenv("THAWBOX_API_KEY", keys[1])
        assert Sandbox.list() == []
        with pytest.raises(NotFound):
            Sandbox.connect(sb.id)
        assert [one.id for one in Sandbox.list(api_key=keys[0])] == [sb.id]


# ---- usage ----

def test_meter(sb):
    sb.run_code("sum(i * i for i in range(300_000))")
    first = sb.usage()
    assert first.cell_count == 1 and first.vcpu_seconds > 0 and first.gib_seconds > 0
    pricing = Pricing(vcpu_hour=0.05, gib_hour=0.01)
    time.sleep(4)  # its model thinks
    second = sb.usage()
    assert second.seconds - first.seconds > 3.9
    assert second.vcpu_seconds - first.vcpu_seconds < 0.1 * (second.seconds - first.seconds), "waiting costs near nothing"
    assert second.gib_seconds > first.gib_seconds
    assert 0 < second.cost(pricing) < 0.01
    metrics = sb.metrics()
    assert metrics.cpus == 1 and 0 < metrics.memory_bytes <= metrics.memory_total_bytes == 512 << 20


def test_usage_of_a_cell(sb):
    """As the host sees it always, as the interpreter sees itself when asked."""
    ex = sb.run_code("print('x' * 1000)\nsum(range(1000))")
    assert ex.usage.wall_ms > 0 and ex.usage.cpu_ms > 0 and ex.usage.pages_dirtied > 0 and ex.usage.output_bytes >= 1001
    assert ex.usage.peak_kib is None and ex.usage.cpu_user_ms is None
    code = ("import os\nfd = os.open('f', os.O_CREAT | os.O_WRONLY)\nos.write(fd, bytes(1 << 20))\nos.fsync(fd)\n"
            "b = bytearray(b'x') * (8 << 20)")
    full = sb.run_code(code, full_usage=True)
    assert full.error is None
    assert full.usage.peak_kib > 8 << 10 and full.usage.write_bytes >= 1 << 20 and full.usage.read_bytes is not None
    assert full.usage.cpu_user_ms + full.usage.cpu_system_ms > 0 and full.usage.pages_dirtied >= 2048
    total = sb.usage().cells
    assert total.wall_ms == pytest.approx(ex.usage.wall_ms + full.usage.wall_ms)
    assert total.pages_dirtied == ex.usage.pages_dirtied + full.usage.pages_dirtied and total.write_bytes == full.usage.write_bytes


def test_files_changed(sb):
    sb.files.write("old.txt", "as it was")
    sb.files.write("grown.txt", "1")
    tick = "import time; time.sleep(0.1)"  # of the clock by which files get their times: what was before it is not the cell's
    sb.run_code(tick)
    ex = sb.run_code("open('made.txt', 'w').write('12345')\nopen('grown.txt', 'a').write('23')\nopen('old.txt').read()",
                     files_changed=True)
    assert {(f.path, f.size) for f in ex.files_changed} == {("/home/user/made.txt", 5), ("/home/user/grown.txt", 3)}
    assert sb.run_code("1").files_changed is None, "not asked for"
    sb.run_code(tick)
    assert sb.run_code("1", files_changed=True).files_changed == []


def test_more_files_changed_than_are_listed(sb):
    ex = sb.run_code("import os\nos.mkdir('many')\nfor n in range(300): open(f'many/{n}', 'w').close()", files_changed=True)
    assert len(ex.files_changed) == 256 and ex.truncated.files_changed >= 44 and not ex.truncated


def test_both_are_asked_for_once_and_for_all(daemon):
    with Sandbox.create(files_changed=True, full_usage=True) as sb:
        ex = sb.run_code("open('made.txt', 'w').write('1')")
        assert [f.path for f in ex.files_changed] == ["/home/user/made.txt"] and ex.usage.peak_kib > 0
        ex = sb.run_code("1", files_changed=False)
        assert ex.files_changed is None


# ---- packages ----

def make_wheel(folder, name: str, body: str):
    """A wheel by hand: an archive with a module and what pip wants to know."""
    import zipfile

    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", body)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_install(sb, tmp_path):
    sb.run_code("x = 1")
    make_wheel(tmp_path, "tiny_package", "answer = 42\n")
    sb.install(["tiny-package"], wheels=tmp_path)
    assert sb.run_code("import tiny_package; tiny_package.answer").text == "42"
    with pytest.raises(ThawboxError, match="bake") as caught:
        sb.install(["not-there-package"])
    assert caught.value.code == "install" and "pip download" in caught.value.remedy
    with pytest.raises(InvalidInput, match="no wheels"):
        sb.install(["x"], wheels=tmp_path / "none")


# ---- the host ----

REACH = """
import socket
found = []
for host in %r:
    try:
        socket.create_connection((host, %d), timeout=5).close()
        found.append(host)
    except OSError:
        pass
for port in (%d, 1024, 2000):
    try:
        with socket.socket(socket.AF_VSOCK) as sock:
            sock.settimeout(5)
            sock.connect((2, port))
        found.append(port)
    except OSError:
        pass
found, [name for _, name in socket.if_nameindex()]
"""


def test_the_hosts_services_are_out_of_reach(sb):
    """A container reaches what listens on its host by host.docker.internal; here there is no way, by name, number or vsock."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        hosts = ["host.docker.internal", socket.gethostname(), "10.0.2.2", "172.17.0.1", "192.168.0.1", "169.254.169.254",
                 socket.gethostbyname(socket.gethostname())]
        ex = sb.run_code(REACH % (hosts, port, port))
        assert ex.error is None and ex.text == "([], ['lo'])"
        with pytest.raises(BlockingIOError):
            server.accept()


# ---- many ----

def test_ten_at_once(daemon):
    """Each with a variable and a file of its own; none sees another's."""
    def one(number: int) -> tuple[str, list[str]]:
        with Sandbox.create(env={"N": str(number)}) as sb:
            sb.run_code(f"secret = {number}\nopen('mine-{number}', 'w').write('{number}')")
            ex = sb.run_code("import glob, os\nsecret, os.environ['N'], sorted(glob.glob('mine-*'))")
            return ex.text, [e.name for e in sb.files.list() if e.name.startswith("mine")]

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        for number, (text, names) in enumerate(pool.map(one, range(10))):
            assert text == f"({number}, '{number}', ['mine-{number}'])" and names == [f"mine-{number}"]


@pytest.mark.parametrize("path, body", [
    ("/execute", {"code": "1", "timeout_ms": 0}), ("/execute", {"code": "1", "timeout_ms": "5"}),
    ("/execute", {"code": "1", "max_output": -1}), ("/sandboxes", {"templateID": "base", "limits": {"cpu": 0}}),
    ("/sandboxes", {"templateID": "base", "limits": {"memory": 5}}), ("/sandboxes", {"templateID": "base", "limits": 5}),
    ("/sandboxes", {"templateID": "base", "limits": {"diskBytesPerSecond": 1.5}}),
])
def test_members_that_are_wrong(daemon, sb, path, body):
    """The daemon's own answer, without the package's checks before it."""
    headers = {"E2b_Sandbox_Id": sb.id, "E2b_Sandbox_Port": "49999"} if path == "/execute" else {}
    status, text = daemon.request("POST", path, body, **headers)
    assert status == 400 and text
