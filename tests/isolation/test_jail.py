# SPDX-License-Identifier: Apache-2.0
"""Each layer of the monitor's jail (docs/threat-model.md): seen from outside, and tried from inside."""
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

import inject
from conftest import running
from vmm import Forked, VmmError, marked_processes

UID_BASE = 0x70000000
LAYERS = ("descriptors", "environment", "no page merging", "capabilities", "no new privileges", "not dumpable", "limits", "own user",
          "empty root", "net namespace", "pid namespace", "ipc namespace", "uts namespace", "cgroup namespace", "landlock",
          "seccomp")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="looks into processes as root")


def status(pid: int) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def namespaces(pid: int | str) -> dict[str, str]:
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in ("mnt", "net", "ipc", "uts", "cgroup", "pid", "user")}


def descriptors(pid: int) -> list[str]:
    return [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]


def layers(report: dict) -> dict[str, bool]:
    return {layer["name"]: layer["on"] for layer in report["layers"]}


def ids(text: str) -> set[int]:
    return {int(n) for n in text.split()}


# --- seen from outside -------------------------------------------------------------------------------------------

@needs_root
def test_user_and_rights(who, monitor):
    of = status(monitor.process.pid)
    own = UID_BASE + monitor.process.pid if who.root else who.uid
    assert ids(of["Uid"]) == ids(of["Gid"]) == {own} and not of["Groups"].strip()
    assert {int(of[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert of["NoNewPrivs"].strip() == "1"


@needs_root
def test_namespaces(who, monitor, request):
    ours, its = namespaces("self"), namespaces(monitor.process.pid)
    shared = {name for name in ours if ours[name] == its[name]}
    forked = "exec" not in request.node.name
    assert shared == ({"user"} if who.root else set()) | (set() if forked else {"pid"})


@needs_root
def test_first_of_its_pid_namespace(monitor, request):
    if "exec" in request.node.name:
        pytest.skip("started by this test, not by the client")
    numbers = status(monitor.process.pid)["NSpid"].split()
    assert numbers[-1] == "1" and int(numbers[0]) == monitor.process.pid, "the zygote reports the host's number"


@needs_root
def test_empty_root(monitor):
    pid = monitor.process.pid
    mounts = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    assert len(mounts) == 1 and " / / ro,nosuid,nodev,noexec" in mounts[0] and " - tmpfs " in mounts[0]
    assert os.listdir(f"/proc/{pid}/root") == []
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


@needs_root
def test_no_network(monitor):
    lines = Path(f"/proc/{monitor.process.pid}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]
    assert len(Path(f"/proc/{monitor.process.pid}/net/route").read_text().splitlines()) <= 1
    assert set(Path(f"/proc/{monitor.process.pid}/net/fib_trie").read_text().split()) <= {"Main:", "Local:"}, "lo is down"


@needs_root
def test_limits(who, monitor):
    limits = dict(re.findall(r"^(Max [a-z ]+?)  +\S+ +(\S+)", Path(f"/proc/{monitor.process.pid}/limits").read_text(), re.M))
    assert limits["Max core file size"] == "0" and int(limits["Max open files"]) <= 4096
    assert int(limits["Max file size"]) == (64 << 20) + 4096, "the largest file is a snapshot's memory"
    assert int(limits["Max processes"]) <= 128
    if who.root:
        assert int(limits["Max locked memory"]) <= 1 << 20


@needs_root
def test_descriptors(monitor):
    """No directory, by which there would be a way to all others; nothing but what a machine needs."""
    known = re.compile(r"/dev/null|pipe:|socket:|anon_inode:|/dev/kvm|.*/snapshot/(memory|disk)$|.*/disk\.img$|.*\(deleted\)$")
    pid = monitor.process.pid
    strange = [name for name in descriptors(pid) if not known.match(name)]
    directories = [fd for fd in os.listdir(f"/proc/{pid}/fd") if os.path.isdir(f"/proc/{pid}/fd/{fd}")]
    mine = os.readlink("/proc/self/fd/1")
    assert [name for name in strange if name != mine] == [] and directories == []


@needs_root
def test_inherited_descriptor_is_closed(who):
    with open(who.folder / "secret", "w+") as file:
        os.set_inheritable(file.fileno(), True)
        child = who.popen([who.programs / "thawbox-vmm", "--control-fd", "0"], stdin=socket_end(who), close_fds=False)
        try:
            until = time.monotonic() + 10
            while "thawbox-vmm" not in Path(f"/proc/{child.pid}/comm").read_text() and time.monotonic() < until:
                time.sleep(0.01)
            report = ask(who)
            assert layers(report)["descriptors"] and file.name not in descriptors(child.pid)
        finally:
            child.kill()
            child.wait()
            who.ours.close()


def socket_end(who) -> socket.socket:
    who.ours, theirs = socket.socketpair()
    return theirs


def ask(who) -> dict:
    who.ours.sendall(b'{"cmd":"isolation"}\n')
    who.ours.settimeout(20)
    return json.loads(who.ours.makefile().readline())


@needs_root
def test_environment_is_wiped(who, monitor):
    assert who.env["THAWBOX_SECRET"] == "hunter2-of-the-host"
    environ = Path(f"/proc/{monitor.process.pid}/environ").read_bytes()
    words = [word for word in environ.split(b"\0") if word]
    assert all(word.startswith(b"THAWBOX_TEST_MARK=") for word in words), words
    assert b"hunter2" not in stack_of(monitor.process.pid)


def stack_of(pid: int) -> bytes:
    line = next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith("[stack]"))
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
        mem.seek(start)
        return mem.read(end - start)


@needs_root
def test_two_sandboxes_share_nothing(who, zygote, frozen):
    """What forks of one zygote have in common is the empty root, the empty network, and names."""
    with zygote.member("shell", frozen) as a, zygote.member("shell", frozen) as b:
        one, other = namespaces(a.process.pid), namespaces(b.process.pid)
        assert {name for name in one if one[name] == other[name]} == {"mnt", "net", "ipc", "uts", "cgroup", "user"}
        if who.root:
            assert not ids(status(a.process.pid)["Uid"]) & ids(status(b.process.pid)["Uid"])


# --- tried from inside ---------------------------------------------------------------------------------------------

def thread_roles(pid: int) -> list[int]:
    """The loop's thread and the vCPU's, not the kernel's own of the VM, which never make a system call."""
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text() == "thawbox-vmm\n"]


ATTEMPTS = {
    "open a file of the host": ("open", b"/etc/passwd\0", 0),
    "open it by the way up": ("open", b"../../../../etc/passwd\0", 0),
    "open a process's files": ("open", b"/proc/self/maps\0", 0),
    "open a device": ("open", b"/dev/kvm\0", 2),
    "list the root": ("open", b"/\0", 0o200000),
    "make a folder": ("mkdir", b"/x\0", 0o755),
    "make a link": ("symlink", b"/etc\0", b"/x\0"),
    "execute": ("execve", b"/bin/true\0", 0, 0),
    "become root": ("setuid", 0),  # of its own namespace a user is that already, and has nothing of it
    "become another user": ("setresuid", 1000, 1000, 1000),
    "mount": ("mount", b"none\0", b"/\0", b"tmpfs\0", 0, 0),
    "change root": ("chroot", b"/\0"),
    "leave the mount namespace": ("unshare", 0x00020000),
    "kill the first process": ("kill", None, 0),
    "trace another sandbox": ("ptrace", 0x4206, None, 0, 0),
}


@needs_root
@pytest.mark.parametrize("what", ATTEMPTS)
def test_refused_inside(who, monitor, zygote, frozen, what):
    name, *args = ATTEMPTS[what]
    with zygote.member("shell", frozen) as other:
        args = [other.process.pid if arg is None else arg for arg in args]
        for tid in thread_roles(monitor.process.pid):
            found = inject.outcome(tid, name, *args)
            print(f"{'root' if who.root else 'user'}: {what}: {found}")
            assert found.startswith("E") or "SIGSYS" in found or (what == "become root" and not who.root), found
        of = status(monitor.process.pid)
        assert "CapEff" not in of or int(of["CapEff"], 16) == 0


@needs_root
def test_connections_refused_inside(who, monitor):
    """A server on the host's loopback, and one on an abstract Unix socket, are out of reach."""
    with socket.create_server(("127.0.0.1", 0)) as inet, socket.socket(socket.AF_UNIX) as abstract:
        name = f"\0thawbox-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        unix = b"\x01\x00" + name.encode()
        for domain, address in ((2, inject.inet(inet.getsockname()[1])), (1, unix)):
            fd = inject.outcome(monitor.process.pid, "socket", domain, 1, 0)
            found = inject.outcome(monitor.process.pid, "connect", int(fd), address, len(address)) if fd.isdigit() else fd
            print(f"{'root' if who.root else 'user'}: connect, domain {domain}: {found}")
            assert found.startswith("E") or "SIGSYS" in found


@needs_root
def test_not_dumpable(monitor):
    found = inject.outcome(monitor.process.pid, "prctl", 3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
    assert found == "0" or "SIGSYS" in found


PR_SET_MEMORY_MERGE = 67


def merge_all() -> None:
    """As a service manager that has KSM on for its services (MemoryKSM=yes): inherited by what is started."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "PR_SET_MEMORY_MERGE")


def mergeable(pid: int) -> list[str]:
    """Mappings that KSM may look at."""
    name, found = "", []
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            name = line
        elif line.startswith("VmFlags:") and "mg" in line.split():
            found.append(name)
    return found


@needs_root
@pytest.mark.parametrize("way", ["exec", "fork", "shell", "standby"])
def test_no_page_is_merged(who, frozen, way):
    """KSM is asked for nothing, also when the starter has it on for its children."""
    try:
        control = subprocess.Popen(["sleep", "60"], preexec_fn=merge_all)
    except subprocess.SubprocessError:
        pytest.skip("this kernel merges no page unless a program asks for it page by page (no PR_SET_MEMORY_MERGE)")
    until = time.monotonic() + 20
    while not mergeable(control.pid) and time.monotonic() < until:
        time.sleep(0.01)
    seen = mergeable(control.pid)
    control.kill()
    control.wait()
    assert seen, "the control: a child of such a starter is merged"
    popen = who.popen
    who.popen = lambda args, **kwargs: popen(args, preexec_fn=merge_all, **kwargs)
    with running(way, who, frozen) as m:
        assert mergeable(m.process.pid) == []
        pages = Path(f"/proc/{m.process.pid}/ksm_merging_pages")
        assert not pages.exists() or pages.read_text().strip() == "0"


# --- started by the command ---------------------------------------------------------------------------------------------

def child_of(pid: int, timeout: float = 20) -> int:
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "thawbox-vmm":
            return int(children[0])
        time.sleep(0.02)
    raise TimeoutError("no monitor")


def run(who, *args: str, env: dict | None = None) -> tuple[int, str, str]:
    process = who.thawbox(*args, env={**who.env, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_doctor(who):
    code, out, err = run(who, "doctor", "--isolation", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["level"] == "full" and set(layers(report)) >= set(LAYERS)
    assert all(layers(report)[name] for name in LAYERS), [layer for layer in report["layers"] if not layer["on"]]
    code, out, _ = run(who, "doctor", "--isolation")
    print(out)
    assert code == 0 and re.search(r"^own user +user +on ", out, re.M) and "level: full" in out


@needs_root
def test_command_gives_a_pid_namespace(who, kernel):
    boot = who.thawbox("boot", "--kernel", str(kernel), "--require-isolation", "full", stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        pid = child_of(boot.pid)
        until = time.monotonic() + 20
        while not is_inside(pid) and time.monotonic() < until:
            time.sleep(0.02)
        assert status(pid)["NSpid"].split()[-1] == "1"
        own = UID_BASE + pid if who.root else who.uid
        assert ids(status(pid)["Uid"]) == {own}
    finally:
        boot.kill()
        boot.communicate()


def is_inside(pid: int) -> bool:
    return int(status(pid)["CapEff"], 16) == 0 and status(pid)["NoNewPrivs"].strip() == "1"


def test_less_than_required_is_refused(who, kernel):
    for least, most, layer in (("full", "user", "pid namespace"), ("user", "vm", "own user"), ("vm", "none", "descriptors")):
        code, out, err = run(who, "boot", "--kernel", str(kernel), "--require-isolation", least, "--isolation", most)
        assert code == 3 and f'"{least}" is required' in err and layer in err and "remedy" in err, err
    code, out, err = run(who, "boot", "--kernel", str(kernel), "--require-isolation", "high")
    assert code == 2 and "none, vm, user or full" in err
    code, _, err = run(who, "boot", "--kernel", str(kernel), "--isolation", "user",
                       env={"THAWBOX_REQUIRE_ISOLATION": "full"})
    assert code == 3 and '"full" is required' in err, "by the environment too"


def test_started_directly_there_is_no_pid_namespace(who, kernel):
    with who.vmm("--require-isolation", "full") as m:
        with pytest.raises(VmmError, match="pid namespace"):
            m.call("boot", kernel=str(kernel), memory_mb=64)


@needs_root
def test_none_is_none(who, kernel):
    """For measuring: nothing of it is there."""
    with who.vmm("--isolation", "none") as m:
        m.call("boot", kernel=str(kernel), memory_mb=64)
        m.event("parked", 20)
        assert namespaces(m.process.pid) == namespaces("self")
        assert status(m.process.pid)["NoNewPrivs"].strip() == "0"
        report = m.call("isolation")
        assert report["level"] == "none" and not any(layers(report).values())


# --- what the host does not grant -----------------------------------------------------------------------------------------

@needs_root
def test_without_namespaces(who, kernel, tmp_path):
    """As on a host that forbids them: what needs none is there, and more is refused when it is required."""
    script = ("echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all "
              f"{who.programs}/thawbox boot --kernel {kernel} \"$@\"")
    if who.root:
        pytest.skip("root has namespaces without a user namespace")
    for least, code in (("vm", None), ("user", 3)):
        boot = who.popen(["unshare", "-Ur", "sh", "-c", script, "sh", "--require-isolation", least],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            if code is None:
                pid = child_of(boot.pid)
                until = time.monotonic() + 20
                while not is_inside(pid) and time.monotonic() < until:
                    time.sleep(0.02)
                assert is_inside(pid) and namespaces(pid)["net"] == namespaces("self")["net"]
            else:
                _, err = boot.communicate(timeout=30)
                assert boot.returncode == code and '"user" is required' in err, err
        finally:
            boot.kill()
            boot.communicate()


# --- ways that need something of the host -----------------------------------------------------------------------------------

def test_vsock_folder_is_all_there_is(who, frozen):
    """A machine with a vsock socket keeps its caller's user, for that folder; the rest is as ever."""
    path = who.folder / "private-tmp" / "v.sock"
    with who.vmm("--seccomp", "off") as m:
        m.thaw(frozen, "1+1", vsock=str(path), overlay_dir=str(who.folder)).answer()
        report = m.call("isolation")
        assert report["level"] == ("vm" if who.root else "user"), report
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(path))
        if os.geteuid() == 0:
            assert set(os.listdir(f"/proc/{m.process.pid}/root")) == {"0"}
            assert set(os.listdir(f"/proc/{m.process.pid}/root/0")) == {"v.sock"}
            assert ids(status(m.process.pid)["Uid"]) == {who.uid}
            up = inject.outcome(m.process.pid, "open", b"/0/../../etc/passwd\0", 0)
            assert up.startswith("E") or "SIGSYS" in up
    assert not path.exists(), "removed from inside"


def test_vsock_of_a_monitor_inside_is_refused(who, zygote, frozen):
    with zygote.member("shell", frozen) as m:
        with pytest.raises(VmmError, match="in its jail already"):
            m.thaw(frozen, None, vsock=str(who.folder / "v.sock"))


def test_freeze_and_connect_from_inside(who, zygote, frozen):
    with zygote.member("fork", frozen) as m:
        m.call("pause")
        m.snapshot(who.folder / "again")
    with who.vmm() as m:
        m.thaw(who.folder / "again", None, overlay_dir=str(who.folder))
        stream = m.connect(2000)  # nobody listens in this guest: it is the line and its descriptor that count
        stream.close()


def test_links_are_not_followed(who, frozen):
    """Neither as a part of a snapshot, nor in the place of a trace that is to be written."""
    victim = who.folder / "victim"
    victim.write_text("mine")
    (frozen / "memory").rename(frozen / "real")
    (frozen / "memory").symlink_to("real")
    with who.vmm() as m:
        with pytest.raises(VmmError, match="memory.*[Ss]ymbolic"):
            m.thaw(frozen, "1+1", overlay_dir=str(who.folder))
    (frozen / "real").rename(frozen / "memory")
    trace = who.folder / "trace"
    (who.folder / "trace.tmp").symlink_to(victim)
    with who.vmm("--trace", str(trace)) as m:
        m.first_cell(frozen, overlay_dir=str(who.folder))
        m.call("quit")
        m.process.wait(20)
    assert victim.read_text() == "mine" and json.loads(trace.read_text())["traceEvents"]


# --- nothing is left --------------------------------------------------------------------------------------------------------

@needs_root
def test_nothing_is_left_after_the_death_of_all(who, frozen, kernel):
    """Monitor, client and zygote killed at one moment: no process, namespace, mount or cgroup of theirs."""
    mounts = set(Path("/proc/self/mountinfo").read_text().splitlines())
    groups = cgroups()
    boot = who.thawbox("boot", "--kernel", str(kernel), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    z = who.vmm("--zygote")
    z.call("open", dir=str(frozen), overlay_dir=str(who.folder))
    members = [Forked(z), Forked(z)]
    for m in members:
        m.call("shell", overlay_dir=str(who.folder))
    pids = [child_of(boot.pid), *(m.process.pid for m in members), z.process.pid, boot.pid]
    theirs = {link for pid in pids[:-1] for link in namespaces(pid).values()} - set(namespaces("self").values())
    assert len(theirs) >= 9
    for pid in pids:
        os.kill(pid, 9)
    for process in (boot, z.process, *(m.process for m in members)):
        process.wait(20)
    for m in (z, *members):
        m.sock.close()
        m.process.stderr.close()
    mark = next(f"{name}={value}" for name, value in who.env.items() if name == "THAWBOX_TEST_MARK")
    until = time.monotonic() + 10
    while marked_processes(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert not marked_processes(mark)
    assert not theirs & set(all_namespaces())
    assert set(Path("/proc/self/mountinfo").read_text().splitlines()) == mounts and cgroups() == groups


def cgroups() -> set[str]:
    return {str(path) for path in Path("/sys/fs/cgroup").rglob("thawbox-*")}


def all_namespaces() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found += namespaces(entry.name).values()
            except OSError:
                continue
    return found
