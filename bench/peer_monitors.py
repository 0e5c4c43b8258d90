# SPDX-License-Identifier: Apache-2.0
"""Drives other monitors by their public interfaces, for bench/peers.py: boots thawbox's guest in one, snapshots it
once, restores it as often as wanted, each time in a new process.

A machine lives in a folder of its own, its process's working directory: disks, sockets and console have the same
names in all of them. A writable disk belongs to one machine, so each restore has a copy, made before the clock starts.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from common import BenchError, Cell, Stream, now_ns

PORT = 2000
"""vsock port of the default interpreter."""
GUEST_KERNEL = Path(__file__).with_name("peer_kernel.py")
READY_S = 3600
"""How long a boot may take: minutes on software KVM."""
CALL_S = 120
"""How long one answer of a monitor or of the guest may take."""
SETTLE_S = 3
"""How long the guest comes to rest before it is saved."""
POLL_S = 0.0003
BROKEN = (OSError, EOFError, ValueError, AssertionError)
"""What the sockets and the frames on them raise when the other end is not what it should be."""
BAKE = 1
"""Raise it when a change here makes another snapshot."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Guest:
    """What every peer boots. `cmdline` is what the host needs, without a console."""

    kernel: Path
    root: Path
    scratch: Path
    memory_mb: int
    cmdline: str


@dataclass
class Clock:
    """Phases of one run in ms, each from the end of the one before. CLOCK_MONOTONIC."""

    start_ns: int = field(default_factory=now_ns)
    last_ns: int = 0
    phases: dict[str, float] = field(default_factory=dict)

    def reach(self, phase: str) -> None:
        """Ends a phase now."""
        now = now_ns()
        self.phases[phase] = (now - (self.last_ns or self.start_ns)) / 1e6
        self.last_ns = now

    @property
    def total_ms(self) -> float:
        """From the start to the end of the last phase."""
        return (self.last_ns - self.start_ns) / 1e6


class Interrupts:
    """Makes SIGINT, SIGTERM and SIGHUP one KeyboardInterrupt, which does not come while `held`: what has just been
    started is then known to those who end it. Later ones are ignored: the way out ends by itself."""

    SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

    def __init__(self) -> None:
        self._held = self._pending = False

    def listen(self) -> None:
        """From now on; a signal that is ignored, as nohup has it, stays so. Main thread."""
        for number in self.SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._come)

    def _come(self, number: int, where: object) -> None:
        for other in self.SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        self._pending = self._held
        if not self._held:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Signals wait for the end of this block. Only the main thread gets any: others pass through."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt


interrupts = Interrupts()


class Machine:
    """One process of a peer. Whoever started it ends it; end_all() is for the way out of all of them."""

    _live: ClassVar[set[Machine]] = set()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _closed: ClassVar[bool] = False

    def __init__(self, argv: list[str], folder: Path, fds: tuple[int, ...] = ()) -> None:
        """Starts it with these descriptors inherited; its words go to folder/output. Raises BenchError."""
        self.folder = folder
        self.sockets: list[socket.socket] = []
        self.state_fd = -1
        with interrupts.held(), self._lock:
            if self._closed:
                raise BenchError("interrupted")
            self.folder_fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            try:
                with open(folder / "output", "wb") as output:
                    # A group of its own: Ctrl-C is for us, and we end it.
                    self.process = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
                                                    stderr=output, pass_fds=fds, process_group=0)
            except OSError as e:
                os.close(self.folder_fd)
                raise BenchError(f"cannot start {argv[0]}: {e.strerror}", "give the path of the program") from e
            self._live.add(self)

    def end(self) -> None:
        """Kills and reaps it, closes what we have of it. Once."""
        self.process.kill()
        self.process.wait()
        for sock in self.sockets:
            sock.close()
        os.close(self.folder_fd)
        with self._lock:
            self._live.discard(self)

    @classmethod
    def end_all(cls) -> None:
        """Kills and reaps every one, and lets none start any more: what threads still do with them fails."""
        with cls._lock:
            cls._closed = True
            left = list(cls._live)
        for machine in left:
            machine.process.kill()
            machine.process.wait()

    def said(self) -> str:
        """The last lines of its output and of the guest's console."""
        text = ""
        for name in ("output", "console"):
            path = self.folder / name
            if path.exists():
                text += path.read_text(errors="replace")
        return "\n".join("    " + line for line in text.strip().splitlines()[-12:])

    def lost(self, what: str) -> BenchError:
        """What to raise when it does not answer any more."""
        try:
            state = f"ended with status {self.process.wait(1)}"
        except subprocess.TimeoutExpired:
            state = "still runs"
        return BenchError(f"{what}; the process {state}, its last words:\n{self.said() or '    (none)'}")

    def connect(self, name: str) -> socket.socket:
        """Connects to the Unix socket of this name as soon as the process has made it. Raises BenchError."""
        path = f"/proc/self/fd/{self.folder_fd}/{name}"  # short: a socket's path has at most 107 bytes
        end = time.monotonic() + CALL_S
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                if self.process.poll() is not None or time.monotonic() > end:
                    raise self.lost(f"no socket {name}") from None
                time.sleep(POLL_S)
                continue
            sock.settimeout(CALL_S)
            self.sockets.append(sock)
            return sock


# ---- disks ----

def copy_sparse(source: Path, target: Path) -> None:
    """Copies a file's data and keeps its holes. Raises OSError."""
    with open(source, "rb") as old, open(target, "wb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        at = 0
        while at < size:
            try:
                start = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # ENXIO: only a hole is left
            at = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            while start < at:
                start += os.copy_file_range(old.fileno(), new.fileno(), at - start, start, start)


def lay_over(disk: Path, file: Path, path: str) -> None:
    """Puts a file where the guest's overlay shows it at `path`: into an ext4 image's /upper. Raises BenchError."""
    commands = []
    parts = ("/upper" + path).split("/")[1:]
    for n in range(1, len(parts)):
        commands.append("mkdir /" + "/".join(parts[:n]))
    commands.append(f"write {file} /{'/'.join(parts)}")
    try:
        done = subprocess.run(["debugfs", "-w", "-f", "-", str(disk)], input="\n".join(commands), text=True,
                              capture_output=True, check=False, env={**os.environ, "PATH": "/usr/sbin:/sbin:" +
                                                                     os.environ.get("PATH", "")})
    except FileNotFoundError:
        raise BenchError("debugfs is not installed", "apt-get install e2fsprogs") from None
    # debugfs reports a failed command on standard error, after its version, and ends with 0.
    words = [line for line in done.stderr.splitlines() if not line.startswith("debugfs ")]
    if done.returncode or words:
        raise BenchError(f"debugfs cannot write to {disk}: {' '.join(words)}")


def settle_disks(guest: Guest, folder: Path, scratch: Path) -> None:
    """Gives a machine's folder its disks: the shared root, and a copy of `scratch`."""
    (folder / "root.img").symlink_to(guest.root)
    copy_sparse(scratch, folder / "scratch.img")


# ---- peers ----

class Peer:
    """A monitor that is compared. A subclass drives one."""

    name = ""
    vsock = False
    console = "output"
    """File with what the guest says, in the machine's folder."""

    def __init__(self, program: Path) -> None:
        """Raises BenchError when there is no such program."""
        found = shutil.which(program)
        if not found:
            raise BenchError(f"{program}: no such program", f"give the path of {self.name}'s program")
        self.program = Path(found).resolve()

    def version(self) -> str:
        """What the program says it is. Raises BenchError."""
        try:
            done = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True, timeout=20)
        except (OSError, subprocess.SubprocessError) as e:
            raise BenchError(f"{self.program} --version: {e}", f"is this {self.name}?") from e
        return done.stdout.splitlines()[0].strip() if done.stdout else "unknown"

    def key(self, guest: Guest, more: str) -> str:
        """Hash of all that a snapshot is made from; `more` is what the caller did to the guest."""
        parts = [str(BAKE), self.name, guest.cmdline, str(guest.memory_mb), os.uname().release, more]
        for path in (self.program, guest.kernel, guest.root, GUEST_KERNEL):
            with open(path, "rb") as file:
                parts.append(hashlib.file_digest(file, "sha256").hexdigest())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def snapshot_files(self, snapshot: Path) -> list[Path]:
        """What a restore reads of a snapshot."""
        return [snapshot / "memory", snapshot / "state"]

    def bake(self, guest: Guest, folder: Path, warm: list[str], say: Say) -> None:
        """Boots the guest in an empty folder, runs the cells `warm` in it and saves it there: memory, state,
        scratch.img. Raises BenchError."""
        settle_disks(guest, folder, guest.scratch)
        lay_over(folder / "scratch.img", GUEST_KERNEL, "/usr/lib/thawbox/kernel.py")
        machine = self.boot(guest, folder)
        try:
            wait_ready(machine, self.console, say)
            say("cells over its own stream")
            stream = self.stream(machine)
            for code in warm:
                stream.run(code)
            if self.vsock:
                stream.close()
            say("the guest comes to rest")
            time.sleep(SETTLE_S)
            say("save")
            self.save(machine)
        except BROKEN as e:
            raise machine.lost(f"{self.name}: {e or type(e).__name__}") from e
        finally:
            machine.end()
        for name in ("root.img", "output", "console", "api.sock", "v.sock"):
            (folder / name).unlink(missing_ok=True)

    def run(self, guest: Guest, snapshot: Path, folder: Path, request: bytes) -> tuple[Clock, Cell]:
        """Restores a machine in a folder that has its disks, sends a request and returns the phases and the
        answer. Its process has ended when this returns. Raises BenchError."""
        clock = Clock()
        machine = self.spawn(guest, snapshot, folder)
        try:
            stream = self.restore(machine, snapshot, clock)
            stream.sock.sendall(request)
            cell = stream.answer()
            clock.reach("result")
            return clock, cell
        except BROKEN as e:
            raise machine.lost(f"{self.name}: {e or type(e).__name__}") from e
        finally:
            machine.end()

    def boot(self, guest: Guest, folder: Path) -> Machine:
        """Starts the guest from its kernel."""
        raise NotImplementedError

    def stream(self, machine: Machine) -> Stream:
        """Connects to the interpreter of a booted guest."""
        raise NotImplementedError

    def save(self, machine: Machine) -> None:
        """Saves the machine into its folder; it need not go on."""
        raise NotImplementedError

    def spawn(self, guest: Guest, snapshot: Path, folder: Path) -> Machine:
        """Starts the process of a restore."""
        raise NotImplementedError

    def restore(self, machine: Machine, snapshot: Path, clock: Clock) -> Stream:
        """Brings the snapshot to life in it: phases api, restored and, where there is one, connected."""
        raise NotImplementedError


def wait_ready(machine: Machine, console: str, say: Say) -> None:
    """Waits until the guest says on its console that its interpreter is ready. Raises BenchError."""
    path, seen, end = machine.folder / console, 0, time.monotonic() + READY_S
    while True:
        ended = machine.process.poll() is not None
        text = path.read_bytes() if path.exists() else b""
        whole = text.rfind(b"\n") + 1
        for line in text[seen:whole].decode(errors="replace").splitlines():
            _, mark, words = line.partition("thawbox: ")
            words = words.removeprefix("phase ").strip()
            if mark and words == "ready":
                return
            if mark and words.startswith("failed: "):
                raise BenchError(f"the guest's interpreter does not start: {words}")
            if mark:
                say(words)
        seen = whole
        if ended:
            raise machine.lost("the guest did not start")
        if time.monotonic() > end:
            raise machine.lost(f"the guest was not ready within {READY_S} s")
        time.sleep(0.2)


class Firecracker(Peer):
    """By its HTTP API on a Unix socket; the interpreter's stream is a vsock connection."""

    name = "Firecracker"
    vsock = True

    def start(self, folder: Path) -> Machine:
        return Machine([str(self.program), "--api-sock", "api.sock"], folder)

    def boot(self, guest: Guest, folder: Path) -> Machine:
        machine = self.start(folder)
        try:
            api = machine.connect("api.sock")
            self.call(api, "PUT", "/boot-source", kernel_image_path=str(guest.kernel),
                      boot_args=f"console=ttyS0 {guest.cmdline}")
            self.call(api, "PUT", "/machine-config", vcpu_count=1, mem_size_mib=guest.memory_mb)
            for name, read_only in (("root", True), ("scratch", False)):
                self.call(api, "PUT", f"/drives/{name}", drive_id=name, path_on_host=f"{name}.img",
                          is_root_device=False, is_read_only=read_only)
            self.call(api, "PUT", "/vsock", guest_cid=3, uds_path="v.sock")
            self.call(api, "PUT", "/actions", action_type="InstanceStart")
        except BaseException:
            machine.end()
            raise
        return machine

    def stream(self, machine: Machine) -> Stream:
        return self.handshake(machine)

    def save(self, machine: Machine) -> None:
        api = machine.connect("api.sock")
        self.call(api, "PATCH", "/vm", state="Paused")
        self.call(api, "PUT", "/snapshot/create", snapshot_type="Full", snapshot_path="state", mem_file_path="memory")

    def spawn(self, guest: Guest, snapshot: Path, folder: Path) -> Machine:
        return self.start(folder)

    def restore(self, machine: Machine, snapshot: Path, clock: Clock) -> Stream:
        api = machine.connect("api.sock")
        clock.reach("api")
        self.call(api, "PUT", "/snapshot/load", snapshot_path=str(snapshot / "state"), resume_vm=True,
                  mem_backend={"backend_type": "File", "backend_path": str(snapshot / "memory")})
        clock.reach("restored")
        stream = self.handshake(machine)
        clock.reach("connected")
        return stream

    def handshake(self, machine: Machine) -> Stream:
        """Connects to the interpreter's port. Raises BenchError when nobody listens there."""
        sock = machine.connect("v.sock")
        sock.sendall(b"CONNECT %d\n" % PORT)
        answer = b""
        while not answer.endswith(b"\n"):
            piece = sock.recv(64)
            if not piece:
                raise machine.lost(f"nobody listens on the guest's vsock port {PORT} (answer {answer!r})")
            answer += piece
        if not answer.startswith(b"OK "):
            raise BenchError(f"Firecracker's vsock answers {answer!r} to CONNECT")
        return Stream(sock, CALL_S)

    @staticmethod
    def call(api: socket.socket, method: str, path: str, **members: object) -> None:
        """One request of the API. Raises BenchError with its words when it refuses."""
        body = json.dumps(members).encode()
        api.sendall(b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (method.encode(), path.encode(), len(body), body))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += some(api)
        head, _, rest = answer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = lines[0].split(" ", 2)[1]
        fields = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:])}
        while len(rest) < int(fields.get("content-length", "0")):
            rest += some(api)
        if status[0] != "2":
            try:
                words = json.loads(rest)["fault_message"]
            except (ValueError, KeyError, TypeError):
                words = rest.decode(errors="replace")
            raise BenchError(f"Firecracker refuses {method} {path} ({status}): {words}")


def some(sock: socket.socket) -> bytes:
    """At least one byte. Raises EOFError at the end."""
    piece = sock.recv(65536)
    if not piece:
        raise EOFError("the monitor closed its socket")
    return piece


class Qemu(Peer):
    """Its microvm machine, by QMP. Memory is a file that the snapshot shares and a restore maps privately; the
    interpreter's stream is a virtio-serial port, as vsock needs vhost of the host. QMP, port and, in a
    restore, the state are inherited descriptors."""

    name = "QEMU"
    console = "console"
    CAPABILITIES: ClassVar = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]

    def start(self, guest: Guest, folder: Path, memory: str, state: int | None, more: list[str]) -> Machine:
        """Starts QEMU with both sockets connected, and the state's descriptor when there is one."""
        pairs = [socket.socketpair(), socket.socketpair()]
        try:
            fds = [pairs[0][1].fileno(), pairs[1][1].fileno()]
            machine = Machine([
                str(self.program), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-accel", "kvm", "-cpu", "host,arch-capabilities=off", "-smp", "1", "-m", str(guest.memory_mb),
                "-M", "microvm,acpi=off,pit=off,pic=off,rtc=off,memory-backend=ram",
                "-object", f"memory-backend-file,id=ram,size={guest.memory_mb}M,{memory}",
                "-drive", "id=root,file=root.img,format=raw,if=none,readonly=on",
                "-device", "virtio-blk-device,drive=root",
                "-drive", "id=scratch,file=scratch.img,format=raw,if=none",
                "-device", "virtio-blk-device,drive=scratch",
                "-chardev", f"socket,id=qmp,fd={fds[0]}", "-mon", "chardev=qmp,mode=control",
                "-chardev", f"socket,id=port,fd={fds[1]}", "-device", "virtio-serial-device",
                "-device", "virtserialport,chardev=port,name=thawbox", *more],
                folder, (*fds, state) if state is not None else tuple(fds))
        except BaseException:
            for pair in pairs:
                pair[0].close()
            raise
        finally:
            for pair in pairs:
                pair[1].close()
        machine.sockets = [pair[0] for pair in pairs]
        for sock in machine.sockets:
            sock.settimeout(CALL_S)
        return machine

    def boot(self, guest: Guest, folder: Path) -> Machine:
        return self.start(guest, folder, "mem-path=memory,share=on", None, [
            "-serial", "file:console", "-kernel", str(guest.kernel), "-append", f"console=ttyS0 {guest.cmdline}"])

    def stream(self, machine: Machine) -> Stream:
        return Stream(machine.sockets[1], CALL_S)

    def save(self, machine: Machine) -> None:
        qmp = Qmp(machine.sockets[0])
        qmp.call("migrate-set-capabilities", capabilities=self.CAPABILITIES)
        qmp.call("migrate", uri="exec:cat >state")
        while (status := qmp.event("MIGRATION")["status"]) != "completed":
            if status == "failed":
                raise BenchError(f"QEMU cannot save: {qmp.call('query-migrate').get('error-desc', 'no reason given')}")

    def spawn(self, guest: Guest, snapshot: Path, folder: Path) -> Machine:
        with open(snapshot / "state", "rb") as state:
            machine = self.start(guest, folder, f"mem-path={snapshot}/memory,share=off", state.fileno(), [
                "-serial", "null", "-incoming", "defer"])
            machine.state_fd = state.fileno()
            return machine

    def restore(self, machine: Machine, snapshot: Path, clock: Clock) -> Stream:
        qmp = Qmp(machine.sockets[0])
        clock.reach("api")
        qmp.call("migrate-set-capabilities", capabilities=self.CAPABILITIES)
        qmp.call("migrate-incoming", uri=f"fd:{machine.state_fd}")
        qmp.event("RESUME")
        clock.reach("restored")
        return self.stream(machine)


class Qmp:
    """QEMU's monitor protocol on a connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        """Reads the greeting. Raises EOFError when QEMU ended first."""
        self.sock = sock
        self.buffer = b""
        self.events: list[dict] = []
        self.line()
        self.call("qmp_capabilities")

    def line(self) -> dict:
        """The next message."""
        while b"\n" not in self.buffer:
            self.buffer += some(self.sock)
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def call(self, command: str, **arguments: object) -> dict:
        """Runs a command, returns its answer. Raises BenchError with QEMU's words when it refuses."""
        self.sock.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            message = self.line()
            if "event" in message:
                self.events.append(message)
            elif "error" in message:
                raise BenchError(f"QEMU refuses {command}: {message['error']['desc']}")
            elif "return" in message:
                return message["return"]

    def event(self, name: str) -> dict:
        """Waits for an event, returns its data; events before it are forgotten."""
        while True:
            message = self.events.pop(0) if self.events else self.line()
            if message.get("event") == name:
                return message.get("data", {})
