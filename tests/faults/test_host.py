# SPDX-License-Identifier: Apache-2.0
"""Hosts that run short, and processes that are stopped: real limits, full file systems and signals."""
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from conftest import BIN, told, unchanged
from tiny import HALT, elf
from vmm import Vmm, VmmError


@pytest.fixture
def in_tmpfs(tmp_path, thawbox):
    """in_tmpfs(size) -> (a monitor in a mount namespace of its own, a folder that is a full-able tmpfs there)."""
    folder = tmp_path / "small"
    folder.mkdir()
    script = tmp_path / "vmm.sh"
    namespace = "-m" if os.geteuid() == 0 else "-rm"

    def start(size: str, *args: str) -> tuple[Vmm, Path]:
        script.write_text(f"#!/bin/sh\nexec unshare {namespace} --propagation private sh -c 'mount -t tmpfs -o size={size} "
                          f'none "{folder}" && exec "{BIN}/thawbox-vmm" "$@"\' vmm "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return Vmm(script, *args, env=thawbox.env), folder

    return start


def test_disk_overlay_that_is_full(in_tmpfs, template):
    """The guest's write fails in the guest; its interpreter goes on."""
    monitor, folder = in_tmpfs("128k")
    with monitor as m:
        stream = m.thaw(template, "import os", overlay_dir=str(folder))
        assert stream.answer().result["status"] == "ok"
        cell = stream.run("fd = os.open('/home/user/f', os.O_CREAT | os.O_WRONLY)\n"
                          "os.write(fd, b'x' * (1 << 19)); os.fsync(fd)")
        assert cell.result["error"]["name"] == "OSError", cell
        assert stream.run("20 + 22").text == "42"
        m.call("pause")


@pytest.mark.skipif(os.geteuid() != 0, reason="looks into another mount namespace")
def test_disk_full_while_freezing(in_tmpfs, vmm, template, tmp_path):
    """A sandbox in the middle of its session: the freeze is refused in words, the one of before is as it was, the session goes
    on, and where there is room it can be frozen."""
    monitor, folder = in_tmpfs("2m", "--isolation", "none", "--seccomp", "off")
    with monitor as m:
        stream = m.thaw(template, "kept = [20]")
        assert stream.answer().result["status"] == "ok"
        assert stream.run("kept.append(22)").result["status"] == "ok"
        inside = Path(f"/proc/{m.process.pid}/root{folder}")
        (inside / "before").mkdir()
        (inside / "before" / "state").write_bytes(b"s" * 4096)
        with unchanged(inside / "before"):
            for _ in range(2):
                with pytest.raises(VmmError, match="No space left") as error:
                    m.snapshot(inside / "now")
                told(error.value)
                assert [path.name for path in inside.iterdir()] == ["before"]
                m.call("resume")  # a snapshot leaves it paused, whether it came about or not
                assert stream.run("sum(kept)").text == "42"
        m.snapshot(tmp_path / "frozen")
    with vmm() as m:
        m.thaw(tmp_path / "frozen", None)
        assert m.connect(m.thawed["port"]).run("sum(kept)").text == "42"


def limited(**limits):
    def apply():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))
    return apply


class Limited(Vmm):
    """A monitor under resource limits."""

    def __init__(self, env: dict[str, str], **limits: int):
        self.limits = limits
        super().__init__(BIN / "thawbox-vmm", env=env)

    def _start(self, child, program, *args, env):
        return subprocess.Popen([program, "--control-fd", str(child.fileno()), *args], pass_fds=[child.fileno()],
                                stderr=subprocess.PIPE, env=env, preexec_fn=limited(**self.limits))


def test_too_few_descriptors(thawbox, frozen):
    """From none to enough: an error in words each time until it works."""
    works = 0
    with unchanged(frozen):
        for nr in range(6, 64):
            try:
                with Limited(thawbox.env, RLIMIT_NOFILE=nr) as m:
                    m.thaw(frozen, "1+1")
                works += 1
                if works == 3:
                    return
            except VmmError as error:
                assert not works, f"{nr} descriptors are too few, {nr - 1} were not: {error}"
                if "closed" in str(error):  # too few for the control socket itself
                    assert m.process.returncode > 0 and nr < 12, f"{nr}: died of {m.process.returncode}"
                else:
                    told(error)
    raise AssertionError("63 descriptors are not enough")


def test_too_little_address_space(thawbox, frozen):
    with Limited(thawbox.env, RLIMIT_AS=48 << 20) as m, unchanged(frozen):
        with pytest.raises(VmmError, match="Cannot allocate memory|out of memory") as error:
            m.thaw(frozen, "1+1")
        told(error.value)


def test_snapshot_over_the_limit_of_file_sizes(thawbox, frozen, tmp_path):
    """RLIMIT_FSIZE comes with a signal that must not end the monitor."""
    with Limited(thawbox.env, RLIMIT_FSIZE=2 << 20) as m, unchanged(frozen):
        m.thaw(frozen, None, paused=True)
        with pytest.raises(VmmError, match="File too large") as error:
            m.snapshot(tmp_path / "snapshot")
        told(error.value)
        m.call("resume")
    assert not list(tmp_path.glob("snapshot*"))


@pytest.fixture
def cgroup(request):
    """cgroup(controller, file, value) -> a new control group (v1 or v2) with that limit; processes end before it does."""
    made = []

    def make(controller: str, v1: tuple[str, str], v2: tuple[str, str]) -> Path:
        top = Path("/sys/fs/cgroup")
        controllers = top / "cgroup.controllers"
        unified = controllers.exists() and controller in controllers.read_text().split()
        for parent, (name, value) in ((top, v2),) if unified else ((top / controller, v1),):
            group = parent / f"thawbox-test-{os.getpid()}"
            try:
                group.mkdir()
                made.append(group)
                (group / name).write_text(value)
                return group
            except OSError:
                continue
        pytest.skip(f"no cgroup with a {controller} controller can be made here")

    yield make
    for group in made:
        end = time.monotonic() + 10
        while group.exists() and time.monotonic() < end:
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.05)
        assert not group.exists(), f"{group} is left"


class Grouped(Vmm):
    def __init__(self, env: dict[str, str], group: Path):
        self.group = group
        super().__init__(BIN / "thawbox-vmm", env=env)

    def _start(self, child, program, *args, env):
        def join():
            (self.group / "cgroup.procs").write_text(str(os.getpid()))

        return subprocess.Popen([program, "--control-fd", str(child.fileno()), *args], pass_fds=[child.fileno()],
                                stderr=subprocess.PIPE, env=env, preexec_fn=join)


def test_no_more_threads(thawbox, frozen, cgroup):
    """pids.max of 1: the vCPU's thread cannot be made."""
    group = cgroup("pids", ("pids.max", "1"), ("pids.max", "1"))
    with Grouped(thawbox.env, group) as m, unchanged(frozen):
        with pytest.raises(VmmError) as error:
            m.thaw(frozen, "1+1")
        told(error.value)
        assert "pids" in str(error.value)


def test_monitor_over_its_memory(thawbox, cgroup, tmp_path):
    """A guest that touches 60 MiB in a group of 16 MiB: the kernel kills the monitor, which is seen at once."""
    group = cgroup("memory", ("memory.limit_in_bytes", str(16 << 20)), ("memory.max", str(16 << 20)))
    fill = (b"\xb8\x01\x00\x00\x00\xbf\x00\x00\x30\x00\xb9\x00\x00\xe0\x00\xfc\xf3\xab" + HALT)  # 56 MiB of ones from 3 MiB
    (tmp_path / "kernel").write_bytes(elf(fill, pvh=True))
    with Grouped(thawbox.env, group) as m:
        m.call("boot", kernel=str(tmp_path / "kernel"), memory_mb=64)
        assert m.process.wait(60) == -signal.SIGKILL
        with pytest.raises(VmmError, match="closed"):
            m.event("exit", 10)


def test_template_removed_under_running_sandboxes(vmm, template, tmp_path):
    """Its files live on as long as somebody has them open: cells, disk reads and a freeze go on."""
    copy = tmp_path / "template"
    subprocess.run(["cp", "-a", "--sparse=always", "--reflink=auto", template, copy], check=True)
    with vmm() as m:
        stream = m.thaw(copy, "1+1")
        assert stream.answer().text == "2"
        shutil.rmtree(copy)
        assert stream.run("import os; os.listdir('/usr/lib/python3/dist-packages')[:1] != [None]").text == "True"
        m.snapshot(tmp_path / "frozen")
    with vmm() as m:
        m.thaw(tmp_path / "frozen", None)
        assert m.connect(m.thawed["port"]).run("20 + 22").text == "42"


def monitor_of(thawbox) -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for pid, command in thawbox.processes():
            if "thawbox-vmm" in command:
                return pid
    raise TimeoutError("no monitor")


@pytest.mark.parametrize("who", ["monitor", "client"])
def test_stopped_and_continued(thawbox, who):
    """In the middle of a cell: it ends as if nothing had been."""
    process = thawbox.popen("run", "--json", "-c", "import time; time.sleep(0.5); sum(range(10 ** 6))",
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pid = monitor_of(thawbox) if who == "monitor" else process.pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["results"][-1]["data"]["text/plain"] == str(sum(range(10 ** 6)))


def test_monitor_stopped_for_good(thawbox):
    """The deadline is kept by the client: it ends, and the monitor with it."""
    process = thawbox.popen("run", "--timeout", "1", "-c", "import time; time.sleep(60)", stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)
    os.kill(monitor_of(thawbox), signal.SIGSTOP)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (124, 125) and err
    assert not thawbox.left_behind()


def test_storm_of_signals_during_thaws(vmm, frozen):
    """Stopped and continued all the time: system calls are interrupted, and gone on with."""
    for _ in range(5):
        with vmm() as m:
            done = threading.Event()

            def storm():
                while not done.is_set():
                    os.kill(m.process.pid, signal.SIGSTOP)
                    os.kill(m.process.pid, signal.SIGCONT)
                    time.sleep(0.0005)

            thread = threading.Thread(target=storm)
            thread.start()
            try:
                assert m.thaw(frozen, "1+1").answer().result["status"] == "ok"
                m.call("pause")
            finally:
                done.set()
                thread.join()


@pytest.mark.parametrize("step", [-400 * 86400, 400 * 86400])
def test_host_whose_clock_was_set(vmm, faults, template, step):
    """The guest takes the host's time, forwards and backwards; its MONOTONIC goes on."""
    env = faults("none:EIO:1:0", FAULT_REALTIME_S=str(step))
    with vmm(env=env) as m:
        stream = m.thaw(template, "import time; a = time.monotonic(); time.sleep(0.01); time.time(), time.monotonic() > a")
        now, forward = json.loads(stream.answer().text.replace("(", "[").replace(")", "]").replace("True", "true"))
        assert abs(now - time.time() - step) < 120 and forward


def test_openssl_right_after_a_bake(vmm, faults, template):
    """OpenSSL's generator reseeds itself when minutes have gone by: here none has, since the template was frozen."""
    frozen_at = json.loads((template / "template.json").read_text())["built"]
    env = faults("none:EIO:1:0", FAULT_REALTIME_S=str(int(frozen_at - time.time()) + 5))
    seen = []
    for _ in range(2):
        with vmm(env=env) as m:
            text = m.thaw(template, "import ssl, time; f'{ssl.RAND_bytes(32).hex()} {time.time()}'").answer().text
            random, now = text.strip("'").split()
            assert abs(float(now) - frozen_at) < 120, "the guest's clock is that of the bake"
            seen.append(random)
    assert len(seen[0]) == 64 and seen[0] != seen[1]


def test_monotonic_clock_of_another_host(thawbox):
    """A time namespace whose MONOTONIC is a year ahead: timers and deadlines count from there."""
    command = ["unshare", "-T" if os.geteuid() == 0 else "-rT", "--monotonic", "31536000", "--boottime", "31536000",
               BIN / "thawbox", "run", "--timeout", "30", "-c", "import time; time.sleep(0.1); 20 + 22"]
    done = subprocess.run(command, env=thawbox.env, capture_output=True, timeout=120)
    if b"unshare" in done.stderr:
        pytest.skip(done.stderr.decode())
    assert done.returncode == 0 and done.stdout == b"42\n", done.stderr
