# SPDX-License-Identifier: Apache-2.0
"""What the benchmark programs share, without a machine."""
import argparse
import csv
import json
import mmap
import os
import socket
import sys
import threading
import time

import common
import pytest
from common import END, RESULT, STDOUT, BenchError, Monitor, Outcome, Sandboxes, Stream, VmmError, frame


# ---- statistics ----

@pytest.mark.parametrize("n, percent, want", [
    (1, 50, 1), (2, 50, 1), (3, 50, 2), (10, 50, 5), (10, 90, 9), (10, 99, 10), (100, 99, 99), (101, 99, 100),
    (200, 99, 198), (10, 0, 1), (10, 100, 10)])
def test_nearest_rank(n, percent, want):
    assert common.rank(list(range(1, n + 1)), percent) == want


@pytest.mark.parametrize("n", [1, 7, 40, 99, 100, 101, 1000])
def test_rank_is_that_of_the_c_program(n):
    for percent in (50, 90, 99):
        at = (n * percent + 99) // 100
        assert common.rank(list(range(n)), percent) == (at - 1 if at else 0)


@pytest.mark.parametrize("values, percent", [([], 50), ([1.0], 101), ([1.0], -1)])
def test_rank_of_nothing(values, percent):
    with pytest.raises(ValueError):
        common.rank(values, percent)


def test_figures_of_values_in_any_order():
    found = common.figures(float(x) for x in [3, 1, 2, 10])
    assert found == common.Figures(n=4, p50=2.0, p90=10.0, p99=10.0, max=10.0)


# ---- the host ----

def test_meminfo_is_in_kib():
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    info = common.meminfo()
    assert info["MemTotal"] == pages and 0 < info["MemAvailable"] < pages and info["SUnreclaim"] > 0


def test_own_memory_counts():
    before = common.smaps_rollup(os.getpid())["Private_Dirty"]
    with mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held.write(b"x" * (8 << 20))
        assert 8 << 10 <= common.smaps_rollup(os.getpid())["Private_Dirty"] - before < 12 << 10


def test_cpu_of_all_threads():
    def spin():
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    before = common.cpu_ms(os.getpid())
    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()
    assert 150 <= common.cpu_ms(os.getpid()) - before < 1000


def test_switches_of_each_thread():
    before = common.switches(os.getpid())
    for _ in range(5):
        time.sleep(0.001)
    after = common.switches(os.getpid())
    assert after[os.getpid()] - before[os.getpid()] >= 5
    assert set(after) == set(map(int, os.listdir("/proc/self/task")))


def test_template_in_the_page_cache(tmp_path):
    path = tmp_path / "memory"
    with open(path, "wb") as file:
        file.write(b"x" * (1 << 20))
        os.fsync(file.fileno())
        cached, size = common.template_kib(tmp_path)
        assert size >= 1024 and cached == 1024
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert common.template_kib(tmp_path)[0] < 1024


def test_conditions_are_one_line(tmp_path):
    (tmp_path / "memory").write_bytes(b"x" * 4096)
    line = common.conditions(tmp_path)
    assert "\n" not in line
    assert all(word in line for word in (os.uname().release, "CPUs", "KVM", "load", "page cache", "pool"))


# ---- streams and monitors ----

def test_answer_is_put_together_and_timed(monkeypatch):
    """The rest is not sent before the first byte has its time."""
    stamped = threading.Event()
    times = iter([10_000_000, 30_000_000])
    monkeypatch.setattr(common, "now_ns", lambda: stamped.set() or next(times))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        def send():
            theirs.sendall(frame(STDOUT, b"part, ")[:3])
            stamped.wait(10)
            theirs.sendall(frame(STDOUT, b"part, ")[3:] + frame(common.DATA, b"raw") + frame(END, b"")
                           + frame(STDOUT, b"rest") + frame(RESULT, b'{"status":"ok"}'))

        thread = threading.Thread(target=send)
        thread.start()
        reply = common.collect(Stream(ours, 5), 0)
        thread.join()
    assert (reply.cell.stdout, reply.data, reply.cell.result) == (b"part, rest", b"raw", {"status": "ok"})
    assert (reply.first_byte_ms, reply.ms) == (10.0, 30.0)


@pytest.mark.parametrize("sent", [b"", frame(STDOUT, b"x")])
def test_stream_that_ends_too_early(sent):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(sent)
        with pytest.raises(EOFError):
            common.collect(Stream(ours, 10), common.now_ns())


def program(tmp_path, source: str):
    path = tmp_path / "monitor"
    path.write_text(f"#!{sys.executable}\nimport socket, sys\n{source}\n")
    path.chmod(0o755)
    return path


def test_monitor_over_descriptor_1023(tmp_path):
    source = "s = socket.socket(fileno=int(sys.argv[2]))\ns.recv(99)\ns.sendall(b'{\"ok\":true,\"n\":7}\\n')"
    if common.room_for_sandboxes() < 500:
        pytest.skip("ulimit -Hn is too low")
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1030)]
    try:
        with Monitor(program(tmp_path, source)) as monitor:
            assert monitor.sock.fileno() > 1023
            assert monitor.call("quit")["n"] == 7
    finally:
        for fd in held:
            os.close(fd)


@pytest.mark.parametrize("source", ["sys.exit('out of luck')",
                                    "socket.socket(fileno=int(sys.argv[2])).recv(99); sys.exit('out of luck')"])
def test_monitor_that_dies_leaves_its_words(tmp_path, source):
    with Monitor(program(tmp_path, source)) as monitor, pytest.raises(VmmError, match="out of luck"):
        for _ in range(2):
            monitor.call("stats")


def test_monitor_that_says_nothing(tmp_path):
    source = "s = socket.socket(fileno=int(sys.argv[2]))\nwhile s.recv(99): pass"
    with Monitor(program(tmp_path, source)) as monitor, pytest.raises(TimeoutError, match=r"0\.2 s"):
        monitor.call("stats", timeout=0.2)


# ---- sandboxes ----

def places(fake):
    return common.find_programs(fake[1]), common.find_template(fake[3])


def test_sandboxes_answer_and_are_gone(fake):
    with Sandboxes(*places(fake)) as sandboxes:
        begun = [sandboxes.first_sum() for _ in range(3)]
        assert sandboxes.processes() == 3 and all(reply.ms > 0 for _, reply in begun)
        assert begun[0][0].warm_sum().cell.result["status"] == "ok"
        assert sandboxes.end(begun[0][0]) > 0
        assert sandboxes.processes() == 2
        folder = sandboxes.folder
        assert folder.is_dir()
    assert sandboxes.processes() == 0 and not folder.exists()


@pytest.mark.parametrize("wrong, error", [("wrong-sum", "which should be"), ("refuse", "not today"),
                                          ("die", "no such luck")])
def test_sandbox_that_fails_is_gone(fake, monkeypatch, wrong, error):
    monkeypatch.setenv("FAKE_VMM", wrong)
    with Sandboxes(*places(fake)) as sandboxes:
        with pytest.raises(BenchError, match=error) as e:
            sandboxes.first_sum()
        assert not sandboxes.live and sandboxes.processes() == 0
    assert e.value.remedy == ("come back tomorrow" if wrong == "refuse" else "")


def test_sandbox_that_is_lost_says_why(fake, monkeypatch):
    monkeypatch.setenv("FAKE_VMM", "crash")
    with Sandboxes(*places(fake)) as sandboxes, pytest.raises(BenchError, match="lost: guest-panic: as it was told"):
        sandboxes.first_sum()


def test_sandbox_whose_monitor_is_killed_is_lost(fake):
    with Sandboxes(*places(fake)) as sandboxes:
        sandbox, _ = sandboxes.first_sum()
        sandboxes.kill()
        with pytest.raises(BenchError, match=r"lost: .*exit -9"):
            sandbox.warm_sum()


def test_sandbox_that_hangs(fake, monkeypatch):
    monkeypatch.setenv("FAKE_VMM", "hang")
    with Sandboxes(*places(fake), answer_s=0.3) as sandboxes:
        with pytest.raises(TimeoutError, match=r"no answer for 0\.3 s"):
            sandboxes.first_sum()
    assert sandboxes.processes() == 0


def test_random_sums_differ_and_are_right():
    sums = {common.random_sum() for _ in range(20)}
    assert len(sums) > 15 and all(eval(code) == int(want) for code, want in sums)


# ---- places and options ----

def test_template_of_a_name_and_of_a_path(tmp_path, monkeypatch):
    snapshot = tmp_path / "templates" / "mine" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "manifest").touch()
    (tmp_path / "templates" / "mine" / "current").symlink_to("1")
    monkeypatch.setenv("THAWBOX_HOME", str(tmp_path))
    assert common.find_template("mine") == common.find_template(str(snapshot)) == snapshot
    with pytest.raises(BenchError, match="no template other") as e:
        common.find_template("other")
    assert "thawbox template build other" in e.value.remedy


def test_programs_by_option_then_environment(tmp_path, monkeypatch, fake):
    assert common.find_programs(fake[1]).name == "thawbox-vmm"
    monkeypatch.setenv("THAWBOX_BIN", fake[1])
    assert common.find_programs(None) == common.find_programs(fake[1])
    with pytest.raises(BenchError, match="is missing"):
        common.find_programs(str(tmp_path))


@pytest.mark.parametrize("parse, text, want", [
    (common.count(1, 9), "9", 9), (common.seconds, "0.5", 0.5), (common.size(1, 1 << 30), "3", 3),
    (common.size(1, 1 << 30), "64K", 65536), (common.size(1, 1 << 30), "2M", 2 << 20)])
def test_option_values(parse, text, want):
    assert parse(text) == want


@pytest.mark.parametrize("parse, text", [
    (common.count(1, 9), "0"), (common.count(1, 9), "10"), (common.count(1, 9), "-1"), (common.count(1, 9), "x"),
    (common.seconds, "-1"), (common.seconds, "nan"), (common.seconds, "3601"), (common.seconds, "soon"),
    (common.size(4, 1 << 20), "3"), (common.size(4, 1 << 20), "2M"), (common.size(4, 1 << 20), "1T"),
    (common.size(4, 1 << 20), "1 K"), (common.output_file, "/no/such/folder/x.csv"), (common.output_file, "/tmp"),
    (common.plot_file, "/tmp/x.pdf"), (common.plot_file, "/no/such/folder/x.svg")])
def test_wrong_option_values(parse, text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"must|cannot"):
        parse(text)


# ---- output ----

def test_table_is_aligned():
    assert common.table(["name", "ms"], [["a", 1.0], ["longer", None], ["c", 20]]) == \
        "name      ms\na       1.00\nlonger     -\nc         20"


def test_csv_has_a_line_for_each_row(tmp_path):
    common.write_csv(tmp_path / "x.csv", [{"a": 1, "b": 0.5}, {"a": 2, "c": "text, more"}])
    with open(tmp_path / "x.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": "0.5000", "c": ""},
                                              {"a": "2", "b": "", "c": "text, more"}]


@pytest.mark.parametrize("ending, magic", [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_same_figures_same_plot(tmp_path, ending, magic):
    for name in ("one", "two"):
        figure, (axes,) = common.new_figure()
        common.draw_shares(axes, {"a": [3, 1, 2]}, "ms", "runs")
        common.save_figure(figure, tmp_path / f"{name}.{ending}")
    data = (tmp_path / f"one.{ending}").read_bytes()
    assert data.startswith(magic) and data == (tmp_path / f"two.{ending}").read_bytes()


def test_progress_waits_two_seconds(capsys):
    progress = common.Progress("it")
    progress("too early")
    progress._said -= common.PROGRESS_S
    progress("long enough")
    progress("too early again")
    assert capsys.readouterr().err == "it: long enough\n"


# ---- a program ----

def arguments(fake, *more):
    return common.make_parser("test", "", "").parse_args([*fake, *more])


def outcome(failed=()):
    return Outcome({"n": 1, "ms": common.figures([1.0])}, [{"ms": 1.0}], "the table",
                   lambda: common.new_figure()[0], list(failed))


def test_program_publishes_all_that_was_asked_for(fake, tmp_path, capsys):
    args = arguments(fake, "--csv", str(tmp_path / "x.csv"), "--plot", str(tmp_path / "x.svg"))
    assert common.run_program("test", args, lambda *_: outcome()) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert os.uname().release in first and "the table" in rest
    assert (tmp_path / "x.csv").read_text() == "ms\n1.0000\n" and (tmp_path / "x.svg").stat().st_size > 1000


def test_program_as_json(fake, capsys):
    assert common.run_program("test", arguments(fake, "--json"), lambda *_: outcome()) == 0
    result = json.loads(capsys.readouterr().out)
    assert os.uname().release in result["host"] and result["ms"]["p50"] == 1.0


def test_program_with_figures_that_failed(fake, capsys):
    assert common.run_program("test", arguments(fake), lambda *_: outcome(["it grew"])) == 1
    said = capsys.readouterr()
    assert "the table" in said.out and said.err == "test: it grew\n"


@pytest.mark.parametrize("error, code, said", [
    (BenchError("it broke", "mend it"), 1, "test: it broke\nmend it\n"), (EOFError("it ended"), 1, "test: it ended\n"),
    (KeyboardInterrupt(), 130, "test: interrupted\n")])
def test_program_that_fails_leaves_nothing(fake, capsys, error, code, said):
    seen = []

    def measure(args, sandboxes, progress):
        seen.append(sandboxes)
        sandboxes.first_sum()
        raise error

    assert common.run_program("test", arguments(fake), measure) == code
    assert capsys.readouterr().err == said
    assert seen[0].processes() == 0 and not seen[0].folder.exists()


def test_program_without_template(fake, capsys):
    args = arguments(fake[:2], "--template", "/no/such/")
    assert common.run_program("test", args, lambda *_: outcome()) == 1
    assert "build it" in capsys.readouterr().err


def test_make_bench_replaces_what_stands_between_its_marks(tmp_path):
    import bench
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- figures begin: make bench -->\nold\n<!-- figures end -->\nz\n")
    bench.put(page, "figures", "new")
    assert page.read_text() == "a\n<!-- figures begin: make bench -->\nnew\n<!-- figures end -->\nz\n"
    with pytest.raises(SystemExit, match="lacks the marks"):
        bench.put(page, "more", "new")
