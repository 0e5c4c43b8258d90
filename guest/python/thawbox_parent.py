# SPDX-License-Identifier: Apache-2.0
"""The kernel parent: imports once, warms up once, forks every interpreter kernel, reaps them.

Order (docs/kernel.md): imports, warm-up, spares, then the default kernel, which warms up once more
and parks last. The parent keeps root and never runs a user's code; a kernel drops to the
user before it serves.
"""
from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib.util
import json
import os
import pwd
import select
import signal
import site
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import _thawbox

IMPORTS = ("numpy", "pandas", "IPython", "matplotlib.pyplot", "scipy.stats", "PIL.Image",
           "requests")


class Failure(Exception):
    """The bake cannot go on; the text says what to change."""


def options(argv: list[str]) -> argparse.Namespace:
    """Returns the arguments; what is not given comes from the template's description."""
    p = argparse.ArgumentParser(prog="kernel.py", description=__doc__)
    p.add_argument("--template", default="/etc/thawbox/template.json")
    p.add_argument("--spares", type=int, help="kernels beside the default one")
    p.add_argument("--imports", default=",".join(IMPORTS),
                   help="modules to import, those that are installed; default %(default)s")
    p.add_argument("--warmup", help="cells to run before the freeze, separated by lines '# %%'")
    p.add_argument("--listen", default="vsock", help="'vsock', or 'unix:DIR' for DIR/PORT.sock")
    p.add_argument("--doorbell", default="mmio",
                   help="'mmio', 'fake:SHM,TO,FROM' (descriptors of a test), or 'none'")
    p.add_argument("--ctl", type=int, default=3, help="descriptor of the agent")
    p.add_argument("--user", default="user", help="who kernels run as; '' to stay as we are")
    p.add_argument("--port", type=int, default=2000, help="of the default kernel")
    args = p.parse_args(argv)
    template: dict[str, Any] = {}
    if os.path.exists(args.template):
        with open(args.template, encoding="utf-8") as f:
            template = json.load(f)
    if args.spares is None:
        args.spares = template.get("kernels", 1)
    if args.warmup is None and template.get("warmup"):
        args.warmup = os.path.join(os.path.dirname(args.template), template["warmup"])
    args.env = template.get("env", {})
    return args


def split_cells(text: str) -> list[tuple[str, str]]:
    """Splits a warm-up file at lines that start with '# %%'; returns (rest of that line, cell)."""
    cells = []
    title, lines = "", []
    for line in text.splitlines(keepends=True) + ["# %%"]:
        if not line.startswith("# %%"):
            lines.append(line)
            continue
        if "".join(lines).strip():
            cells.append((title, "".join(lines)))
        title, lines = line[4:].strip(), []
    return cells


# What the monitor says about the host's CPU: libraries must not use registers that the guest's kernel
# cannot keep (docs/guest.md).
HOST_ENVIRONMENT = ("GLIBC_TUNABLES", "NPY_DISABLE_CPU_FEATURES", "OPENBLAS_CORETYPE",
                    "OPENSSL_ia32cap", "GNUTLS_CPUID_OVERRIDE")


class Parent:
    """Main thread only."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ctl = socket.socket(fileno=args.ctl)
        self.user = pwd.getpwnam(args.user) if args.user and os.geteuid() == 0 else None
        self.cells: list[tuple[str, str]] = []
        self.children: dict[int, int] = {}  # pidfd -> pid
        self.is_ready = False
        self.default_news = -1  # read end of a pipe from the default kernel, until it parks

    def tell(self, **message: Any) -> None:
        """Sends one packet to the agent."""
        self.ctl.send(json.dumps(message).encode())

    def phase(self, text: str) -> None:
        """Reports progress of the bake."""
        self.tell(event="phase", text=text)

    # ---- making ----

    def become_user(self) -> None:
        """Takes the environment of a login of the user, and the user's rights over files, so that
        caches made by imports belong to the right one; root can come back. Standard input becomes
        empty: a read must end at once instead of waiting for the console."""
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.umask(0o022)
        if self.user:
            host = {name: os.environ[name] for name in HOST_ENVIRONMENT if name in os.environ}
            os.environ.clear()
            os.environ.update(
                host,
                HOME=self.user.pw_dir, USER=self.user.pw_name, LOGNAME=self.user.pw_name,
                SHELL=self.user.pw_shell, LANG="C.UTF-8", TERM="dumb",
                PATH=f"{self.user.pw_dir}/.local/bin:/usr/local/bin:/usr/bin:/bin"
                     ":/usr/local/sbin:/usr/sbin:/sbin")
            try:
                os.chdir(self.user.pw_dir)
            except OSError as e:
                raise Failure(f"home of {self.user.pw_name}: {e}; make it in the image") from e
            os.initgroups(self.user.pw_name, self.user.pw_gid)
            os.setegid(self.user.pw_gid)
            os.seteuid(self.user.pw_uid)
        os.environ.update(self.args.env)
        # Debian refuses pip outside a virtual environment; a sandbox is one.
        os.environ.setdefault("PIP_BREAK_SYSTEM_PACKAGES", "1")
        os.environ["PWD"] = os.getcwd()

    def prepare_path(self) -> None:
        """Makes sys.path and sys.argv a user's: the working directory first, `pip install --user`
        last, no arguments."""
        sys.path[0] = ""
        sys.argv[:] = [""]
        site.ENABLE_USER_SITE, site.USER_BASE, site.USER_SITE = True, None, None
        packages = site.getusersitepackages()
        os.makedirs(packages, exist_ok=True)  # an absent directory would be cached as absent
        if packages not in sys.path:
            sys.path.append(packages)

    def build(self) -> None:
        """Makes the shell, then imports what the template has: what each cell touches is made first, and so
        lies close together."""
        self.phase("make the shell")
        self.server = importlib.import_module("thawbox_server")
        shell = importlib.import_module("thawbox_shell")
        self.shell = shell.Shell.instance(
            ipython_dir=os.path.join(os.environ.get("HOME", "/tmp"), ".ipython"))
        for name in filter(None, self.args.imports.split(",")):
            if importlib.util.find_spec(name.partition(".")[0]):
                self.phase(f"import {name}")
                importlib.import_module(name)
        if "matplotlib" in sys.modules:
            self.shell.enable_matplotlib("inline")
        if "pandas" in sys.modules:
            # As in a notebook: pandas takes us for a terminal and would hide columns to fit it.
            sys.modules["pandas"].set_option("display.max_columns", 20)
            importlib.import_module("thawbox_chart")
        if "PIL.Image" in sys.modules:
            rich = importlib.import_module("thawbox_rich")
            rich.show_saved_pictures(sys.modules["PIL.Image"].Image)
        shell.take_streams()
        self.shell.settle_in()

    def enlarge_text(self) -> None:
        """Puts the interpreter's program in large pages: on software KVM each page of it that a cell touches
        costs a fault of 13 us, a large one as much as a small one."""
        self.phase("large pages for the interpreter's program")
        errno = _thawbox.large_text()
        if errno:
            self.phase(f"the program stays in small pages: {os.strerror(errno)}")

    def read_cells(self) -> None:
        """Reads the warm-up."""
        if not self.args.warmup:
            return
        try:
            with open(self.args.warmup, encoding="utf-8") as f:
                self.cells = split_cells(f.read())
        except OSError as e:
            raise Failure(f"warm-up {self.args.warmup}: {e.strerror}; name a readable file") from e

    def warm_up(self, report: Callable[[str], None], first_only: bool = False) -> None:
        """Runs the template's cells as a user's, then forgets them; with first_only those that are marked as
        what first cells do, if there are some. Descriptors 1 and 2 are captured."""
        cells = [(title.split(), code) for title, code in self.cells]
        if first_only:
            cells = [(marks, code) for marks, code in cells if "first" in marks] or cells
        for i, (marks, code) in enumerate(cells):
            report(f"warm-up {i + 1}/{len(cells)} {' '.join(marks)}")
            _thawbox.begin(1)
            error = self.shell.run(code, False)
            _thawbox.end()
            if bool(error) != ("raises" in marks):
                raise Failure(f"warm-up {self.args.warmup}, cell {i + 1}: "
                              + (error["traceback"] if error else "expected to raise"))
        self.shell.stop_loops()
        self.shell.forget()
        if threading.active_count() > 1:
            raise Failure(f"warm-up {self.args.warmup}: {threading.enumerate()[1:]} still run; "
                          "a thread does not survive the fork of the kernels: end it in its cell")

    def warm_up_for_all(self) -> None:
        """Runs the warm-up in this process: its modules and caches are every kernel's."""
        _thawbox.capture()
        try:
            self.warm_up(self.phase)
        finally:
            _thawbox.release()
        # Else the first collection of each kernel would write to every object, and so take a copy
        # of every page.
        gc.collect()
        gc.freeze()

    # ---- kernels ----

    def listen(self, port: int) -> socket.socket:
        """Returns a listening socket for a kernel."""
        if self.args.listen == "vsock":
            listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
            listener.bind((socket.VMADDR_CID_ANY, port))
        else:
            path = f"{self.args.listen.removeprefix('unix:')}/{port}.sock"
            if os.path.exists(path):
                os.unlink(path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(path)
        listener.listen(16)
        return listener

    def spawn(self, port: int, role: str, is_polyglot: bool = False) -> None:
        """Forks a kernel that listens on a port, and says so. One that is_polyglot starts the interpreters of other
        languages first."""
        listener = self.listen(port)
        news, say = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(news)
            self.ctl.close()
            for fd in self.children:
                os.close(fd)
            self.server.run_kernel(self, listener, role, port, say, is_polyglot)
        os.close(say)
        listener.close()
        if role == "default":
            self.default_news = news
        else:
            if is_polyglot:
                os.read(news, 1)  # until it is closed
            os.close(news)
        self.children[os.pidfd_open(pid)] = pid
        self.tell(event="kernel", pid=pid, port=port, role=role)

    def reap(self, pidfd: int) -> None:
        """Reports a kernel that ended."""
        pid = self.children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self.tell(event="exit", pid=pid,
                  signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
                  code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0)

    def command(self) -> bool:
        """Does what the agent asks; False when the agent is gone."""
        try:
            packet = self.ctl.recv(65536)
        except ConnectionResetError:  # it went with messages of ours unread
            return False
        if not packet:
            return False
        try:
            message = json.loads(packet)
            if message["op"] != "fork":
                raise ValueError(f"unknown op {message['op']!r}")
            self.spawn(int(message["port"]), "spare")
        except (ValueError, KeyError, TypeError, OSError) as e:
            self.phase(f"command refused: {packet[:200]!r}: {e}")
        return True

    def news(self) -> None:
        """Passes on what the default kernel says on its way to the freeze point."""
        data = os.read(self.default_news, 4096)
        for line in data.decode().splitlines():
            if line == "ready":
                self.is_ready = True
                self.tell(event="ready")
            else:
                self.phase(line)
        if not data:
            os.close(self.default_news)
            self.default_news = -1
            if not self.is_ready and self.args.doorbell != "none":
                raise Failure("the default kernel ended before the freeze; the console says why")

    def loop(self) -> None:
        """Waits for the agent, the kernels' ends and the default kernel's news."""
        while True:
            poll = select.poll()
            for fd in [self.ctl.fileno(), *self.children]:
                poll.register(fd, select.POLLIN)
            if self.default_news >= 0:
                poll.register(self.default_news, select.POLLIN)
            for fd, _ in poll.poll():
                if fd in self.children:
                    self.reap(fd)
                elif fd == self.default_news:
                    self.news()
                elif not self.command():
                    return


def main(argv: list[str]) -> int:
    """Runs the parent until the agent is gone. Returns the exit status."""
    args = options(argv)
    faulthandler.enable()  # a crash of the parent says where, on the console
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = Parent(args)
    try:
        parent.become_user()
        parent.build()
        parent.prepare_path()
        parent.read_cells()
        parent.warm_up_for_all()
        parent.enlarge_text()
        for i in range(args.spares):
            if i == 0:
                parent.phase("interpreters of other languages")
            parent.spawn(args.port + 1 + i, "spare", is_polyglot=i == 0)
        parent.spawn(args.port, "default")
        parent.loop()
    except Failure as e:
        parent.phase(f"failed: {e}")
        os.write(2, f"kernel.py: {e}\n".encode())
        return 1
    except Exception:  # sys.stderr may be a kernel's already
        os.write(2, traceback.format_exc().encode())
        return 1
    return 0
