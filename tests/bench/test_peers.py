# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py without a VM: its figures, options and cells, its driver of Firecracker against a program that only
speaks its API, and the guest's kernel that it lays over ours, run on the host. No test looks at a time."""
from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
for folder in ("tests/guest", "bench"):
    sys.path.insert(0, str(TOP / folder))

import harness  # noqa: E402
import host  # noqa: E402
import peer_monitors  # noqa: E402
import peers  # noqa: E402
from common import BenchError  # noqa: E402
from peer_monitors import Guest, Machine  # noqa: E402
from vmm import Cell, marked_processes  # noqa: E402

FAKE = Path(__file__).with_name("fake_firecracker.py")


# ---- figures ----

def series(at_once: int = 1) -> peers.Series:
    return peers.Series("Peer", "v1", "lean", "sum", "hot", at_once)


def test_rate_is_results_by_the_time_of_a_round() -> None:
    def run(number: int, start_ms: int, end_ms: int) -> peers.Run:
        return peers.Run(series(2), number, float(end_ms - start_ms), {"result": float(number)},
                         start_ms * 1_000_000, end_ms * 1_000_000)

    rounds = [run(0, 0, 90), run(1, 10, 100), run(2, 500, 600), run(3, 500, 900), run(4, 1000, 1010),
              run(5, 1000, 1020)]
    row = peers.row(rounds)
    assert row["per_second"] == pytest.approx(2 / 0.1)  # 20, 5 and 100: the median
    assert (row["n"], row["p50_ms"], row["phases"]) == (6, 90, {"result": 2})


def test_one_at_a_time_has_no_rate() -> None:
    assert peers.row([peers.Run(series(), 0, 5.0, {"result": 5.0}, 0, 5_000_000)])["per_second"] is None


# ---- cells ----

def run_here(code: str) -> Cell:
    """What a guest would answer, for cells whose last line is an expression."""
    cell, names, out = Cell(result={"status": "ok"}), {}, io.StringIO()
    *body, last = code.split("\n")
    try:
        with redirect_stdout(out):
            exec("\n".join(body), names)
            value = eval(last, names)
        if value is not None:
            cell.displays.append({"kind": "result", "data": {"text/plain": repr(value)}})
    except Exception as e:
        cell.result["error"] = {"name": type(e).__name__, "traceback": traceback.format_exc() + code}
    cell.stdout = out.getvalue().encode()
    return cell


@pytest.mark.parametrize("name", ["sum", "numpy", "pandas", "print", "traceback"])
def test_cells_know_their_answer_and_no_other(name: str) -> None:
    if name in ("numpy", "pandas"):
        pytest.importorskip(name)
    one, other = peers.CELLS[name](), peers.CELLS[name]()
    assert one.code != other.code
    assert one.is_right(run_here(one.code))
    assert not one.is_right(run_here(other.code))
    assert not one.is_right(Cell(result={"status": "ok"}))


def test_a_plot_must_be_a_png() -> None:
    def shown(data: bytes) -> Cell:
        encoded = peers.base64.b64encode(data).decode()
        return Cell(displays=[{"kind": "display", "data": {"text/plain": "<Figure>", "image/png": encoded}}])

    cell = peers.plot_cell()
    assert cell.is_right(shown(b"\x89PNG\r\n..."))
    assert not cell.is_right(shown(b"GIF89a"))
    assert not cell.is_right(Cell())


# ---- options ----

@pytest.mark.parametrize("argv, words", [
    ([], "no peer is given"),
    (["--qemu", "q", "--runs", "0"], "must be a whole number from 1 to 10000"),
    (["--qemu", "q", "--runs", "ten"], "must be a whole number from 1 to 10000"),
    (["--qemu", "q", "--at-once", "-1"], "--at-once"),
    (["--qemu", "q", "--cells", "sum,product"], "'product' is none of sum, pandas"),
    (["--qemu", "q", "--cache", "warm"], "'warm' is none of hot, cold"),
    (["--qemu", "q", "--interpreters", ""], "'' is none of run_cell, lean"),
    (["--qemu", "q", "--cells", "plot", "--cache", "cold"], "nothing to measure"),
    (["--cloud-hypervisor", "c"], "unrecognized arguments"),
])
def test_wrong_options_end_with_2_and_say_why(argv: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        peers.main(argv)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_help_ends_with_0_and_has_examples(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        peers.main(["--help"])
    assert end.value.code == 0
    assert "Examples:" in capsys.readouterr().out


def test_the_store_is_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert peers.parse(["--qemu", "q"]).store == Path("/cache/thawbox/peers")


def test_only_the_sum_is_measured_cold_and_together() -> None:
    args = peers.parse(["--qemu", "q", "--interpreters", "lean", "--cells", "sum,plot"])
    assert [(s.cell, s.cache, s.at_once) for s in peers.plan("QEMU", "v", args)] == [
        ("sum", "hot", 1), ("sum", "cold", 1), ("sum", "hot", 8), ("plot", "hot", 1)]


def test_command_line_is_the_monitors_without_console_and_doubles(tmp_path: Path) -> None:
    fake = tmp_path / "thawbox"
    fake.write_text("#!/bin/sh\n[ \"$*\" = 'exec -- cat /proc/cmdline' ] && echo 'a=1 console=uart8250 quiet a=1 b'\n")
    fake.chmod(0o755)
    assert peers.host_cmdline(fake) == "a=1 quiet b"
    with pytest.raises(BenchError) as e:
        peers.host_cmdline(tmp_path / "none")
    assert "make build" in e.value.remedy


# ---- page cache ----

def test_a_dropped_file_is_not_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # the machine's whole cache stays as it is
    path = tmp_path / "file"
    with open(path, "wb") as file:
        file.write(b"x" * 100_000)
        os.fsync(file.fileno())
    cached, total = host.resident([path])
    assert cached == 25 * 4096 and total >= 100_000
    try:
        host.drop([path])
    except OSError:
        pytest.skip("this file system keeps its files in memory")
    assert host.resident([path])[0] == 0
    path.read_bytes()
    assert host.resident([path, path])[0] == 2 * 25 * 4096


def test_a_file_that_stays_in_the_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
    monkeypatch.setattr(host, "DROP_TRIES", 2)
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(OSError, match="stay in the page cache"):
        host.drop([path])


def test_host_line_names_kernel_and_load() -> None:
    assert f"Linux {os.uname().release}, " in host.host_line() and ", load " in host.host_line()


# ---- disks ----

def test_copies_keep_their_holes(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with open(old, "wb") as file:
        file.seek(8 << 20)
        file.write(b"data" * 2048)
        file.truncate(64 << 20)
    peer_monitors.copy_sparse(old, new)
    assert new.stat().st_size == 64 << 20
    assert new.stat().st_blocks * 512 < 1 << 20
    with open(new, "rb") as file:
        file.seek((8 << 20) - 4)
        assert file.read(8) == b"\0\0\0\0data"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty ext4 file system, as scratch.img is."""
    tool = shutil.which("mke2fs", path="/usr/sbin:/sbin:" + os.environ["PATH"])
    if not tool:
        pytest.skip("mke2fs is not there: apt-get install e2fsprogs")
    path = tmp_path / "scratch.img"
    path.write_bytes(b"")
    os.truncate(path, 8 << 20)
    subprocess.run([tool, "-q", "-t", "ext4", "-F", path], check=True)
    return path


def read_from(disk: Path, path: str) -> bytes:
    return subprocess.run(["/usr/sbin/debugfs", "-R", f"cat {path}", disk], capture_output=True, check=True).stdout


def test_a_file_is_laid_over_the_guests(tmp_path: Path, disk: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"print()\n")
    peer_monitors.lay_over(disk, source, "/usr/lib/thawbox/kernel.py")
    assert read_from(disk, "/upper/usr/lib/thawbox/kernel.py") == b"print()\n"
    with pytest.raises(BenchError, match="debugfs cannot write"):
        peer_monitors.lay_over(source, source, "/x")


# ---- Firecracker's driver, against a program that speaks its API ----

class Bench:
    """peers.main() with the fake peer and a guest of a few bytes."""

    def __init__(self, tmp: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tmp, self.log = tmp, tmp / "log"
        for name in ("vmlinux", "root.img"):
            (tmp / name).write_bytes(name.partition(".")[0].encode())
        (tmp / "room").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp / "room"))
        monkeypatch.setattr(peers.tempfile, "tempdir", None)
        monkeypatch.setenv("FAKE_LOG", str(self.log))
        self.log.touch()
        self.argv = ["--firecracker", str(FAKE), "--kernel", str(tmp / "vmlinux"), "--rootfs", str(tmp),
                     "--cmdline", "quiet", "--store", str(tmp / "store"), "--cells", "sum", "--cache", "hot",
                     "--interpreters", "lean"]

    def __call__(self, *more: str) -> int:
        Machine._closed = False  # as in a new process
        return peers.main([*self.argv, *more])

    def asked(self, what: str) -> list[dict]:
        """Bodies of the requests that went to this method and path."""
        lines = [line.split(" ", 2) for line in self.log.read_text().splitlines()]
        return [json.loads(body) for method, path, body in lines if f"{method} {path}" == what]

    def left(self) -> list[str]:
        """Files of machines and processes of the fake that are still there."""
        found = [str(path) for path in (self.tmp / "room").rglob("*")]
        found += [str(path) for path in (self.tmp / "store").glob(".*")]
        found += [command for _, command in marked_processes(f"FAKE_LOG={self.log}")]
        return found


@pytest.fixture
def bench(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(Machine, "_closed", False)
    monkeypatch.setattr(peer_monitors, "SETTLE_S", 0)
    monkeypatch.setattr(peers.os, "access", lambda *_: True)  # /dev/kvm, which the fake does not need
    handlers = {number: signal.getsignal(number) for number in peer_monitors.Interrupts.SIGNALS}
    made = Bench(tmp_path, disk, monkeypatch)
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert not made.left()


def test_measures_and_prints_a_table(bench: Bench, capsys: pytest.CaptureFixture) -> None:
    assert bench("--runs", "3", "--at-once", "2", "--csv", str(bench.tmp / "runs.csv")) == 0
    out = capsys.readouterr().out.splitlines()
    assert f"Linux {os.uname().release}" in out[0]
    rows = [re.split("  +", line) for line in out if line.startswith("Firecracker")]
    assert [row[:2] for row in rows[:2]] == [["Firecracker, lean: sum, hot", "3"],
                                             ["Firecracker, lean: sum, hot, 2 at once", "4"]]
    assert rows[0][7] == "-" and float(rows[1][7]) > 0
    for totals, phases in zip(rows[:2], rows[2:], strict=True):
        assert 0 < float(totals[5]) <= float(totals[2]) <= float(totals[6])
        assert phases[0] == totals[0] and len(phases) == 5
    with open(bench.tmp / "runs.csv", newline="") as file:
        runs = list(csv.DictReader(file))
    assert [run["run"] for run in runs] == ["0", "1", "2", "0", "1", "2", "3"]
    for run in runs:
        phases = [float(run[f"{name}_ms"]) for name in ("api", "restored", "connected", "result")]
        assert sum(phases) == pytest.approx(float(run["total_ms"]), abs=0.01)


def test_json_is_one_object(bench: Bench, capsys: pytest.CaptureFixture) -> None:
    assert bench("--runs", "2", "--at-once", "0", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["host"].count(", ") >= 3
    [row] = made["rows"]
    assert (row["peer"], row["version"], row["n"], row["at_once"]) == ("Firecracker", "Fakecracker v0", 2, 1)
    assert set(row["phases"]) == {"api", "restored", "connected", "result"}


def test_the_guest_is_ours_and_is_baked_once(bench: Bench) -> None:
    assert bench("--runs", "1", "--at-once", "0") == 0
    assert bench("--runs", "1", "--at-once", "0") == 0
    assert bench.asked("PUT /boot-source") == [
        {"kernel_image_path": str(bench.tmp / "vmlinux"), "boot_args": "console=ttyS0 quiet"}]
    assert bench.asked("PUT /machine-config") == [{"vcpu_count": 1, "mem_size_mib": 512}]
    assert bench.asked("PATCH /vm") == [{"state": "Paused"}]
    assert len(bench.asked("PUT /snapshot/load")) == 4
    [snapshot] = (bench.tmp / "store").iterdir()
    assert {path.name for path in snapshot.iterdir()} == {"memory", "state", "scratch.img"}
    laid = read_from(snapshot / "scratch.img", "/upper/usr/lib/thawbox/kernel.py")
    assert laid == peer_monitors.GUEST_KERNEL.read_bytes()


def test_another_kernel_is_another_snapshot(bench: Bench) -> None:
    assert bench("--runs", "1", "--at-once", "0") == 0
    (bench.tmp / "vmlinux").write_bytes(b"another")
    assert bench("--runs", "1", "--at-once", "0") == 0
    assert len(list((bench.tmp / "store").iterdir())) == 2


def test_a_refusal_is_told_in_the_apis_words(bench: Bench, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("FAKE_REFUSE", "/snapshot/create")
    assert bench() == 1
    assert "refuses PUT /snapshot/create (400): not today..." in capsys.readouterr().err
    assert not list((bench.tmp / "store").iterdir())


@pytest.mark.parametrize("at_once", ["0", "4"])
def test_a_wrong_result_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
                                    at_once: str) -> None:
    assert bench("--runs", "1", "--at-once", at_once) == 0
    monkeypatch.setenv("FAKE_WRONG", "1")
    assert bench("--runs", "1", "--at-once", at_once) == 1
    assert "gave '" in capsys.readouterr().err


def test_what_was_measured_before_a_failure_is_printed(bench: Bench, monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture) -> None:
    rounds = peers.Bench.round

    def fails_together(self: peers.Bench, of: peers.Series, first: int) -> list[peers.Run]:
        if of.at_once > 1:
            raise BenchError("the second series fails")
        return rounds(self, of, first)

    monkeypatch.setattr(peers.Bench, "round", fails_together)
    assert bench("--runs", "2", "--at-once", "2", "--csv", str(bench.tmp / "runs.csv")) == 1
    out, err = capsys.readouterr()
    assert "the second series fails" in err and "Firecracker, lean: sum, hot  2" in re.sub("  +", "  ", out)
    assert "at once" not in out
    assert len((bench.tmp / "runs.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_process_that_dies_leaves_its_last_words(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                   at_once: int) -> None:
    assert bench("--runs", "1", "--at-once", "0") == 0
    Machine._closed = False
    monkeypatch.setenv("FAKE_DIE", "1")
    [snapshot] = (tmp_path / "store").iterdir()
    guest = Guest(tmp_path / "vmlinux", tmp_path / "root.img", tmp_path / "scratch.img", 512, "quiet")
    peer = peers.Firecracker(FAKE)
    with pytest.raises(BenchError, match=r"(?s)ended with status 3.*out of cheese"):
        peers.Bench(peer, guest, snapshot, tmp_path / "room").round(series(at_once), 0)


@pytest.mark.parametrize("name, remedy", [("vmlinux", "make kernel"), ("root.img", "make rootfs")])
def test_a_missing_part_names_its_remedy(bench: Bench, capsys: pytest.CaptureFixture, name: str, remedy: str) -> None:
    (bench.tmp / name).unlink()
    assert bench() == 1
    assert remedy in capsys.readouterr().err


def test_no_such_program(bench: Bench, capsys: pytest.CaptureFixture) -> None:
    assert bench("--firecracker", "/no/such/firecracker") == 1
    assert "/no/such/firecracker: no such program" in capsys.readouterr().err


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    others = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        peer_monitors.Interrupts().listen()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != others[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)
        for number, handler in others.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at_once", ["0", "3"])
def test_a_signal_leaves_nothing(bench: Bench, number: int, at_once: str) -> None:
    assert bench("--runs", "1", "--at-once", "0") == 0
    hang = bench.tmp / "hangs"
    # Only the series of several: the fake would hang in the one before it.
    code = ("import sys; sys.path.insert(0, sys.argv.pop(1)); import peers; plan = peers.plan; "
            "peers.plan = lambda *a: plan(*a)[-1:]; peers.os.access = lambda *_: True; "
            "sys.exit(peers.main(sys.argv[1:]))")
    process = subprocess.Popen([sys.executable, "-c", code, str(TOP / "bench"), *bench.argv, "--at-once", at_once],
                               env={**os.environ, "FAKE_HANG": str(hang)}, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    try:
        while not hang.exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(number)
        _, words = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert words.splitlines()[-1] == "peers: interrupted"


# ---- QEMU's monitor protocol ----

def qmp_that_says(*messages: dict) -> tuple[peer_monitors.Qmp, socket.socket]:
    """A connection to a QEMU that has said all this already, after its greeting; and QEMU's end of it."""
    ours, theirs = socket.socketpair()
    greeting = {"QMP": {"version": {}, "capabilities": []}}
    theirs.sendall(b"".join(json.dumps(m).encode() + b"\r\n" for m in (greeting, {"return": {}}, *messages)))
    return peer_monitors.Qmp(ours), theirs


def test_events_on_the_way_to_an_answer_are_kept() -> None:
    qmp, theirs = qmp_that_says({"event": "MIGRATION", "data": {"status": "setup"}}, {"event": "STOP"},
                                {"return": {"n": 1}}, {"event": "MIGRATION", "data": {"status": "completed"}})
    assert qmp.call("migrate", uri="x") == {"n": 1}
    assert [qmp.event("MIGRATION")["status"] for _ in range(2)] == ["setup", "completed"]
    sent = [json.loads(line) for line in theirs.recv(65536).splitlines()]
    assert sent == [{"execute": "qmp_capabilities", "arguments": {}},
                    {"execute": "migrate", "arguments": {"uri": "x"}}]


def test_a_command_that_is_refused_is_told_in_qemus_words() -> None:
    qmp, theirs = qmp_that_says({"error": {"class": "GenericError", "desc": "no such thing"}})
    with pytest.raises(BenchError, match="QEMU refuses migrate: no such thing"):
        qmp.call("migrate", uri="x")
    theirs.recv(65536)
    theirs.close()
    with pytest.raises(EOFError):
        qmp.event("RESUME")


# ---- the guest's kernel, on the host ----

@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Callable[..., harness.Guest]]:
    """Starts peer_kernel.py in the place of kernel.py."""
    if not os.path.exists("/usr/lib/python3/dist-packages/IPython"):
        pytest.skip(f"{harness.PYTHON} lacks IPython: apt-get install --no-install-recommends python3-ipython")
    begun: list[harness.Guest] = []

    def begin(*args: str) -> harness.Guest:
        (tmp_path / "kernel").mkdir()
        kernel = harness.build(tmp_path / "kernel")
        shutil.copy(peer_monitors.GUEST_KERNEL, kernel)
        begun.append(harness.Guest(kernel, tmp_path, "--doorbell", "mmio", "--imports", "IPython", *args))
        return begun[-1]

    yield begin
    for g in begun:
        g.close()


def test_the_peers_kernel_rehearses_and_serves(guest: Callable[..., harness.Guest]) -> None:
    g = guest()
    g.until("ready")
    assert "rehearse the first cell" in g.phases
    drawn = set()
    for suffix in peers.INTERPRETERS.values():
        stream = g.connect()
        cell = peers.sum_cell()
        answer = stream.run(cell.code + suffix)
        assert cell.is_right(Cell(displays=answer.displays, result=answer.result))
        assert answer.result["execution_count"] == 1
        drawn.add(stream.run("import random; random.random()").text)
        stream.close()
    assert len(drawn) == 2


def test_the_columns_run_by_different_ways(guest: Callable[..., harness.Guest]) -> None:
    g = guest()
    g.until("ready")
    stream = g.connect()
    how = "import sys\nany(f.f_code.co_name == 'run_cell' for f in iter_frames())"
    stream.run("def iter_frames():\n    import sys\n    f = sys._getframe()\n    while f:\n        yield f\n"
               "        f = f.f_back")
    ways = {name: stream.run(how + suffix).text for name, suffix in peers.INTERPRETERS.items()}
    assert ways == {"run_cell": "True", "lean": "False"}
    stream.close()
