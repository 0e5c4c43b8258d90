# SPDX-License-Identifier: Apache-2.0
"""Every method of the synchronous Python SDKs: it works, or says that it is not offered."""
import datetime
import gzip
import io
import time
import urllib.request

import pytest
from e2b import (CommandExitException, FileNotFoundException, FilesystemEventType, RateLimitException, SandboxException,
                 SandboxQuery, Secret, Template, TimeoutException, Volume)
from e2b.exceptions import InvalidArgumentException, NotFoundException
from e2b_code_interpreter import Sandbox

# ---- the sandbox ----


def test_life(daemon):
    box = Sandbox.create(timeout=60, metadata={"who": "a b&c=d"}, envs={"GREETING": "hé llo"})
    try:
        assert box.is_running()
        assert box.run_code("import os; os.environ['GREETING']").text == "hé llo"
        info = box.get_info()
        assert info.sandbox_id == box.sandbox_id and info.metadata == {"who": "a b&c=d"}
        assert info.cpu_count >= 1 and info.memory_mb >= 128
        assert (info.end_at - info.started_at).total_seconds() == pytest.approx(60, abs=1)
        box.set_timeout(600)
        later = box.get_info()
        assert later.end_at - info.end_at > datetime.timedelta(seconds=400)
        again = Sandbox.connect(box.sandbox_id, timeout=10)
        assert again.get_info().end_at == later.end_at, "connect never shortens"
        assert again.run_code("os.environ['GREETING']").text == "hé llo", "variables are the sandbox's"
    finally:
        assert box.kill()
    assert not box.is_running()
    assert not box.kill()
    with pytest.raises(SandboxException):
        Sandbox.connect(box.sandbox_id)


def test_list(daemon):
    boxes = [Sandbox.create(metadata={"set": "x y", "n": str(n)}) for n in range(3)]
    try:
        pages = Sandbox.list(query=SandboxQuery(metadata={"set": "x y"}), limit=2)
        first, second = pages.next_items(), pages.next_items()
        assert not pages.has_next
        assert [item.sandbox_id for item in first + second] == [box.sandbox_id for box in reversed(boxes)]
        only = Sandbox.list(query=SandboxQuery(metadata={"set": "x y", "n": "1"})).next_items()
        assert [item.sandbox_id for item in only] == [boxes[1].sandbox_id]
        assert Sandbox.list(query=SandboxQuery(metadata={"set": "x"})).next_items() == []
    finally:
        for box in boxes:
            assert Sandbox.kill(box.sandbox_id)


def test_metrics_and_logs(daemon, sandbox):
    sandbox.run_code("sum(range(10**6))")
    (sample,) = sandbox.get_metrics()
    assert sample.cpu_used_pct > 0 and 0 < sample.mem_used <= sample.mem_total
    status, body = daemon.get(f"/sandboxes/{sandbox.sandbox_id}/logs")
    assert status == 200 and b"created from template code-interpreter" in body and b"thawed in" in body


def test_expires(daemon):
    box = Sandbox.create(timeout=60)
    box.set_timeout(0)
    assert not box.is_running()


@pytest.mark.parametrize("call", [
    lambda box: box.pause(),
    lambda box: box.beta_pause(),
    lambda box: box.create_snapshot(),
    lambda box: box.fork(),
    lambda box: box.update_network({"allow_out": ["example.com"]}),
    lambda box: Sandbox.create(mcp={"duckduckgo": {}}),
    lambda box: Sandbox.create(lifecycle={"on_timeout": "pause"}),
    lambda box: Sandbox.create(network={"allow_out": ["example.com"]}),
    lambda box: Sandbox.list_snapshots().next_items(),
    lambda box: box.run_code("1", language="java"),
    lambda box: box.create_code_context(language="r"),
])
def test_not_offered(sandbox, call):
    with pytest.raises(SandboxException, match="thawbox"):
        call(sandbox)


@pytest.mark.parametrize("call", [
    lambda: Volume.create("v"), lambda: Volume.list(), lambda: Volume.get_info("v"), lambda: Volume.connect("v"),
    lambda: Volume.destroy("v"),
    lambda: Secret.create("s", "v"), lambda: Secret.list().next_items(), lambda: Secret.get_info("s"), lambda: Secret.exists("s"),
    lambda: Secret.update("s", "v"), lambda: Secret.destroy("s"),
    lambda: Template.build(Template().from_base_image(), "t"), lambda: Template.build_in_background(Template().from_base_image(), "t"),
    lambda: Template.exists("t"), lambda: Template.alias_exists("t"), lambda: Template.get_tags("t"),
    lambda: Template.assign_tags("t:a", "b"), lambda: Template.remove_tags("t", "a"), lambda: Sandbox.delete_snapshot("s"),
])
def test_not_offered_at_all(daemon, call):
    """The error says whose it is, and that it is not there."""
    with pytest.raises(Exception, match="thawbox"):
        call()


def test_without_mcp(sandbox):
    with pytest.raises(FileNotFoundException):
        sandbox.get_mcp_token()
    assert sandbox.get_mcp_url().endswith("/mcp")


def test_unknown_template(daemon):
    with pytest.raises(SandboxException, match="thawboxd with --template nonesuch"):
        Sandbox.create("nonesuch")


# ---- code ----

def test_results(sandbox):
    seen = []
    cell = sandbox.run_code("""
import sys
print("out")
print("errs", file=sys.stderr)
from IPython.display import display, HTML
display(HTML("<b>é</b>"))
display({"text/latex": "$x$"}, raw=True)
"a" + "b"
""", on_stdout=lambda m: seen.append(m.line), on_stderr=lambda m: seen.append(m.line),
        on_result=lambda r: seen.append(r.formats()))
    assert cell.text == "ab" and cell.error is None
    assert cell.logs.stdout == ["out\n"] and cell.logs.stderr == ["errs\n"]
    assert cell.results[0].html == "<b>é</b>" and cell.results[1].formats() == ["latex"]
    assert seen[0] == "out\n" and seen[1] == "errs\n" and len(seen) == 5
    assert cell.execution_count == 1
    assert sandbox.run_code("1").execution_count == 2


def test_plot(sandbox):
    cell = sandbox.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()\n'text'")
    import base64

    assert base64.b64decode(cell.results[0].png).startswith(b"\x89PNG")
    assert cell.results[0].extra == {} and cell.text == "text"


def test_error(sandbox):
    seen = []
    cell = sandbox.run_code("def f():\n    nope\nf()", on_error=seen.append)
    assert cell.error.name == "NameError" and cell.error.value == "name 'nope' is not defined"
    assert "line 2" in cell.error.traceback or "f()" in cell.error.traceback
    assert seen == [cell.error]


def test_environment_of_one_cell(sandbox):
    read = "import os; os.environ.get('ONE')"
    assert sandbox.run_code(read, envs={"ONE": "uno \"ó\" \\ \n"}).text is not None
    assert sandbox.run_code("print(os.environ.get('ONE'))").logs.stdout == ["None\n"]


@pytest.mark.slow
def test_contexts(sandbox):
    sandbox.run_code("x = 1")
    other = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.run_code("import os; os.getcwd()", context=other).text == "/tmp"
    assert sandbox.run_code("x", context=other).error.name == "NameError"
    assert sandbox.run_code("y = 2; y", context=other).text == "2"
    assert [c.id for c in sandbox.list_code_contexts()][-1] == other.id
    sandbox.restart_code_context(other)
    cell = sandbox.run_code("y", context=other)
    assert cell.error.name == "NameError" and cell.execution_count == 1
    assert sandbox.run_code("os.getcwd()", context=other).error.name == "NameError"
    assert sandbox.run_code("import os; os.getcwd()", context=other).text == "/tmp"
    sandbox.remove_code_context(other)
    with pytest.raises(SandboxException):
        sandbox.run_code("1", context=other)
    assert sandbox.run_code("x").text == "1"


@pytest.mark.slow
def test_restart_of_the_default_context(sandbox):
    sandbox.run_code("x = 1")
    default = sandbox.list_code_contexts()[0]
    sandbox.restart_code_context(default)
    assert sandbox.run_code("x").error.name == "NameError"


@pytest.mark.slow
def test_interpreter_that_dies(sandbox):
    cell = sandbox.run_code("print('last words', flush=True)\nimport os; os._exit(3)")
    assert cell.error.name == "KernelDied" and "exited with code 3" in cell.error.value
    assert sandbox.run_code("1 + 1").text == "2"


def test_client_that_leaves_interrupts(sandbox):
    sandbox.run_code("x = 5")
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time; time.sleep(300)", timeout=2)
    assert sandbox.run_code("x", timeout=60).text == "5", "the context is kept"


# ---- files ----

def test_files(sandbox):
    files = sandbox.files
    info = files.write("notes/a.txt", "hällo")
    assert (info.path, info.name, info.type.value) == ("/home/user/notes/a.txt", "a.txt", "file")
    assert files.read("notes/a.txt") == "hällo"
    assert files.read("/home/user/notes/a.txt", format="bytes") == "hällo".encode()
    entry = files.get_info("notes/a.txt")
    assert (entry.size, entry.mode, entry.permissions, entry.owner) == (6, 0o644, "-rw-r--r--", "user")
    assert files.exists("notes") and not files.exists("nothing")
    assert files.make_dir("deep/er") and not files.make_dir("deep/er")
    assert files.rename("notes/a.txt", "deep/er/b.txt").path == "/home/user/deep/er/b.txt"
    assert [e.path for e in files.list("deep", depth=2)] == ["/home/user/deep/er", "/home/user/deep/er/b.txt"]
    files.remove("deep")
    assert not files.exists("deep")
    with pytest.raises(FileNotFoundException):
        files.read("deep/er/b.txt")
    with pytest.raises(InvalidArgumentException, match="is a directory"):
        files.read("notes")
    with pytest.raises(InvalidArgumentException):
        files.list("/etc/hostname")
    assert files.write("/root/x", "1", user="root").path == "/root/x"
    assert files.get_info("/root/x", user="root").owner == "root"


def test_many_files(sandbox):
    names = {"one.txt": "1", 'with "quotes" é.txt': "2", "sub/dir/three": b"\x00\xff" * 10, "empty": ""}
    written = sandbox.files.write_files([{"path": path, "data": data} for path, data in names.items()])
    assert [info.path for info in written] == [f"/home/user/{path}" for path in names]
    for path, data in names.items():
        assert bytes(sandbox.files.read(path, format="bytes")) == (data if isinstance(data, bytes) else data.encode())


@pytest.mark.slow
def test_large_file(sandbox):
    """Larger than every buffer on the way, both ways, plain and packed."""
    data = bytes(range(256)) * 4096 * 3
    sandbox.files.write("big", io.BytesIO(data), request_timeout=120)
    assert sandbox.files.get_info("big").size == len(data)
    assert bytes(sandbox.files.read("big", format="bytes", request_timeout=120)) == data
    sandbox.files.write("packed", data, gzip=True, request_timeout=120)
    assert sandbox.files.get_info("packed").size == len(data)
    total = sum(len(piece) for piece in sandbox.files.read("big", format="stream", request_timeout=120))
    assert total == len(data)


def test_signed_urls(daemon, sandbox):
    put = sandbox.upload_url("signed.txt")
    body = b"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nsigned\r\n--edge--\r\n"
    request = urllib.request.Request(put, body, {"Content-Type": "multipart/form-data; boundary=edge"})
    assert urllib.request.urlopen(request).status == 200
    url = sandbox.download_url("signed.txt")
    assert urllib.request.urlopen(url).read() == b"signed"
    for wrong, text in ((url.replace("signature=v1_", "signature=v1_x"), b"invalid signature"),
                        (sandbox.download_url("signed.txt", use_signature_expiration=-10), b"already expired"),
                        (url.split("&signature")[0], b"missing signature")):
        status, body = daemon.get(wrong.removeprefix(daemon.url))
        assert status == 401 and text in body


def test_metadata(sandbox):
    files, wanted = sandbox.files, {"author": "mish", "purpose": "a b"}
    assert files.write("m/a", "x", metadata=wanted).metadata == wanted
    assert files.get_info("m/a").metadata == wanted
    assert files.write("m/b", "x", metadata=wanted, use_octet_stream=True).metadata == wanted
    assert [entry.metadata for entry in files.list("m")] == [wanted, wanted]
    assert files.rename("m/b", "m/c").metadata == wanted
    assert files.write("m/a", "y").metadata is None and files.get_info("m/a").metadata is None
    sandbox.commands.run("""python3 -c "import os; os.setxattr('m/a', 'user.e2b.from', b'inside')" """, timeout=0)
    assert files.get_info("m/a").metadata == {"from": "inside"}
    with pytest.raises(InvalidArgumentException):
        files.write("m/a", "x", metadata={"k": "v" * 5000})


def test_watch(sandbox):
    files, kind = sandbox.files, FilesystemEventType
    files.make_dir("seen")
    watch = files.watch_dir("seen", include_entry=True, allow_network_mounts=True)
    files.write("seen/a", "x")
    events = watch.get_new_events()
    assert [(e.type, e.name) for e in events] == [(kind.CREATE, "a"), (kind.CHMOD, "a"), (kind.WRITE, "a")]
    assert events[2].entry.path == "/home/user/seen/a" and events[2].entry.size == 1
    assert watch.get_new_events() == []
    sandbox.commands.run("cd seen; echo y >>a; mv a b; rm b; mkdir d; echo >d/unseen", timeout=0)
    assert [(e.type, e.name) for e in watch.get_new_events()] == [
        (kind.WRITE, "a"), (kind.RENAME, "a"), (kind.CREATE, "b"), (kind.REMOVE, "b"), (kind.CREATE, "d")]
    watch.stop()
    with pytest.raises(SandboxException):
        watch.get_new_events()
    below = files.watch_dir("seen", recursive=True)
    files.make_dir("seen/new")
    files.write("seen/new/f", "x")
    events = [(e.type, e.name) for e in below.get_new_events()]
    assert events[0] == (kind.CREATE, "new") and (kind.WRITE, "new/f") in events
    for path, error in (("nothing", FileNotFoundException), ("seen/new/f", InvalidArgumentException)):
        with pytest.raises(error):
            files.watch_dir(path)
    below.stop()
    with pytest.raises(SandboxException, match="no such watcher"):
        below._closed = False
        below.get_new_events()


@pytest.mark.slow
def test_watch_that_nobody_asks(sandbox):
    """What is written again and again is one event; what is more than the guest's kernel keeps is told."""
    sandbox.set_timeout(1800)  # thousands of system calls take minutes where KVM is software
    sandbox.commands.run("echo 16 > /proc/sys/fs/inotify/max_queued_events", user="root", timeout=0)  # as of 16,384
    sandbox.files.make_dir("busy")
    watch = sandbox.files.watch_dir("busy")
    sandbox.commands.run("python3 - <<'END'\nf = open('busy/log', 'w')\nfor _ in range(200): f.write('x'); f.flush()\nEND",
                         timeout=0)
    assert len(watch.get_new_events()) == 2
    sandbox.files.write("busy/other", "")
    # At a priority that leaves the agent no turn to read them meanwhile.
    sandbox.commands.run("python3 - <<'END'\nimport os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))\nfor n in range(50):\n"
                         "    os.chmod('busy/log', 0o600 + n % 2); os.chmod('busy/other', 0o600 + n % 2)\nEND", user="root",
                         cwd="/home/user", timeout=0)
    with pytest.raises(SandboxException, match="events were lost"):
        while events := watch.get_new_events():
            assert len(events) <= 4096


def test_too_many_watches(sandbox):
    watches = [sandbox.files.watch_dir("/tmp") for _ in range(64)]
    with pytest.raises(RateLimitException):
        sandbox.files.watch_dir("/tmp")
    watches[0].stop()
    sandbox.files.watch_dir("/tmp")


# ---- commands ----

def test_commands(sandbox):
    done = sandbox.commands.run("echo out; echo errs >&2; echo $A $USER; pwd", envs={"A": "1"}, cwd="/tmp")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n1 user\n/tmp\n", "errs\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("exit 3")
    assert failed.value.exit_code == 3
    assert sandbox.commands.run("id -un", user="root").stdout == "root\n"
    with pytest.raises(SandboxException, match="does not exist"):
        sandbox.commands.run("true", cwd="/no/where")


def test_background_command(sandbox):
    handle = sandbox.commands.run("read a; echo got $a; read b; echo got $b; sleep 1000", background=True, stdin=True,
                                  timeout=0)
    listed = sandbox.commands.list()
    assert [p.pid for p in listed] == [handle.pid] and listed[0].cmd == "/bin/bash"
    sandbox.commands.send_stdin(handle.pid, "one\n")
    lines = iter(handle)
    assert next(lines)[0] == "got one\n"
    handle.disconnect()
    assert [p.pid for p in sandbox.commands.list()] == [handle.pid], "a client that leaves does not kill"
    again = sandbox.commands.connect(handle.pid, timeout=0)
    sandbox.commands.stream_input(handle.pid, ["t", "wo\n"])
    assert next(iter(again))[0] == "got two\n"
    assert sandbox.commands.kill(handle.pid)
    with pytest.raises(CommandExitException):
        again.wait()
    assert sandbox.commands.list() == [] and not sandbox.commands.kill(handle.pid)
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(handle.pid, "x")


def test_end_of_input(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "abc")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "abc"


@pytest.mark.slow
def test_deadline_of_a_command(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 1000", timeout=20)
    end = time.monotonic() + 60  # the SDK's clock and the daemon's do not strike at once
    while sandbox.commands.list() and time.monotonic() < end:
        time.sleep(0.1)
    assert sandbox.commands.list() == []
    assert "sleep" not in sandbox.commands.run("ps -eo comm", timeout=0).stdout


@pytest.mark.slow
def test_terminal(sandbox):
    from e2b import PtySize

    handle = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0)
    sandbox.pty.resize(handle.pid, PtySize(rows=30, cols=90))
    sandbox.pty.send_stdin(handle.pid, b"echo $((20+22)); stty size; exit\n")
    seen = b"".join(data for _, _, data in handle if data)
    assert b"42\r\n" in seen and b"30 90" in seen


@pytest.mark.slow
def test_git(sandbox):
    """What needs no network is the guest's git; what does says that there is none."""
    git, patient = sandbox.git, {"timeout": 0}
    git.configure_user("A", "a@example.com", **patient)
    assert git.get_config("user.name", **patient).strip() == "A"
    git.init("repo", initial_branch="main", **patient)
    sandbox.files.write("repo/a.txt", "1")
    assert [entry.name for entry in git.status("repo", **patient).file_status] == ["a.txt"]
    git.add("repo", **patient)
    git.commit("repo", "first", **patient)
    git.create_branch("repo", "other", **patient)
    branches = git.branches("repo", **patient)
    assert (branches.current_branch, sorted(branches.branches)) == ("other", ["main", "other"])
    git.checkout_branch("repo", "main", **patient)
    git.delete_branch("repo", "other", **patient)
    git.remote_add("repo", "origin", "https://example.com/r.git", **patient)
    assert git.remote_get("repo", "origin", **patient).strip() == "https://example.com/r.git"
    sandbox.files.write("repo/a.txt", "2")
    git.restore("repo", ["a.txt"], **patient)
    assert sandbox.files.read("repo/a.txt") == "1"
    for call in (lambda: git.clone("https://example.com/r.git", **patient), lambda: git.pull("repo", "origin", "main", **patient)):
        with pytest.raises(Exception, match="[Cc]ould not resolve|unable to access"):
            call()


# ---- all of it together ----

def test_program_of_an_agent(sandbox):
    """A table goes in, a chart comes out."""
    sandbox.files.write("data.csv", "month,sales\n" + "".join(f"{n},{n * n}\n" for n in range(1, 13)))
    cell = sandbox.run_code("""
import pandas as pd, matplotlib.pyplot as plt
df = pd.read_csv("data.csv")
df.plot(x="month", y="sales")
plt.savefig("chart.png")
int(df.sales.sum())
""", timeout=0)
    assert cell.error is None and cell.text == "650"
    assert {"data.csv", "chart.png"} <= {entry.name for entry in sandbox.files.list(".")}
    picture = bytes(sandbox.files.read("chart.png", format="bytes"))
    assert picture.startswith(b"\x89PNG\r\n") and picture.rstrip().endswith(b"IEND\xaeB`\x82")
