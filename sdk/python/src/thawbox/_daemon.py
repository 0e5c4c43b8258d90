# SPDX-License-Identifier: Apache-2.0
"""Finds thawboxd, or starts one for this process.

In this order: the address that is given, $THAWBOX_URL, the user's socket where a daemon listens there, a daemon
of this process's own on a Unix socket in a private folder. The own one ends with this process, however that
ends: it holds the reading end of a pipe as its standard input (`thawboxd --exit-with-stdin`).
"""
from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ._errors import HostNotReady, InvalidInput

API_KEY = "e2b_" + "0" * 40
"""What is sent where there is no key: a daemon without keys takes any."""
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Endpoint:
    """Where a daemon is: a URL, or a Unix socket."""

    url: str
    uds: str | None = None
    key: str = API_KEY
    is_own: bool = False

    @property
    def is_local(self) -> bool:
        return self.uds is not None or self.url.startswith(("http://127.", "http://localhost", "http://[::1]"))


def parse_url(text: str, key: str) -> Endpoint:
    """http://, https://, or unix: and a path."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        return Endpoint("http://thawboxd", "/" + path.lstrip("/"), key)
    if text.startswith(("http://", "https://")):
        return Endpoint(text.rstrip("/"), None, key)
    raise InvalidInput(f"{text!r} is no address of thawboxd", "it is http://HOST:PORT, https://HOST:PORT or unix:/PATH")


def user_sockets() -> list[str]:
    """Where a daemon of this user, or of the system, would listen."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [f"{runtime}/thawbox/thawboxd.sock"] if runtime else []
    return [*own, "/run/thawbox/thawboxd.sock"]


def is_served(path: str) -> bool:
    """Somebody listens on that socket, and lets us in."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
        return True


def find_program(name: str = "thawboxd") -> str:
    """$THAWBOX_BIN (a folder, or a program in it), PATH, and where `make install` puts it."""
    tried = []
    given = os.environ.get("THAWBOX_BIN")
    if given:
        folder = Path(given) if Path(given).is_dir() else Path(given).parent
        tried.append(str(folder / name))
    elif found := shutil.which(name):
        return found
    else:
        tried += [f"/usr/local/bin/{name}", f"/usr/bin/{name}", f"/usr/local/libexec/thawbox/{name}",
                  str(Path.home() / ".local/bin" / name)]
    for path in tried:
        if os.access(path, os.X_OK):
            return path
    raise HostNotReady(f"{name} was not found (tried PATH and {', '.join(tried)})",
                       "install thawbox, or set THAWBOX_BIN to the folder of its programs, or THAWBOX_URL to the address of "
                       "a daemon that runs")


class OwnDaemon:
    """A thawboxd that serves this process alone, and one template."""

    def __init__(self, template: str) -> None:
        self.owner = os.getpid()
        self._folder = tempfile.TemporaryDirectory(prefix="thawbox-", ignore_cleanup_errors=True)
        path = f"{self._folder.name}/thawboxd.sock"
        self._lines: deque[str] = deque(maxlen=100)
        argv = [find_program(), "--unix", path, "--keys", f"{self._folder.name}/keys.json", "--template", template,
                "--exit-with-stdin"]
        # Not of the terminal's process group: an interrupt there is for Python, which ends it in its own time.
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE, start_new_session=True)
        self.endpoint = Endpoint("http://thawboxd", path, API_KEY, is_own=True)
        stderr = self._process.stderr
        assert stderr is not None
        if not self._wait(stderr):
            self._process.wait()
            self._close()
            raise self._failure(template)
        self._reader = threading.Thread(target=self._drain, args=(stderr,), name="thawboxd's log", daemon=True)
        self._reader.start()

    def _wait(self, stderr: IO[bytes]) -> bool:
        """Reads its log until it serves; False: it has ended."""
        for line in stderr:
            self._lines.append(line.decode("utf-8", "replace").rstrip())
            if b" serves " in line:
                return True
        return False

    def _drain(self, stderr: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in stderr:
                self._lines.append(line.decode("utf-8", "replace").rstrip())

    def _failure(self, template: str) -> HostNotReady:
        """Its last words, in the form "thawbox: cause" and a line with the remedy."""
        lines = [line.strip() for line in self._lines if line.strip()]
        causes = [line.partition(": ")[2] for line in lines if line.startswith(("thawbox: ", "thawboxd: "))]
        remedies = [line.removeprefix("remedy: ") for line in lines if line.startswith("remedy: ")]
        cause = causes[-1] if causes else (lines or [f"thawboxd ended with code {self._process.returncode}"])[-1]
        if cause.startswith("there is no template"):
            name, _, megabytes = template.partition("@")
            size = f" --memory {megabytes}" if megabytes else ""
            return HostNotReady(cause, f"bake it once with `thawbox template build {name}{size}`", code="no_template")
        return HostNotReady(cause, remedies[-1] if remedies else "`thawbox doctor` tells what this host lacks")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> list[str]:
        """The last lines that it wrote."""
        return list(self._lines)

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        self._folder.cleanup()

    def stop(self) -> None:
        """Ends it with all its sandboxes. In a child that was forked it does nothing: it is the parent's."""
        if os.getpid() != self.owner:
            return
        stdin = self._process.stdin
        if stdin and not stdin.closed:
            with contextlib.suppress(OSError):
                stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._close()


_lock = threading.Lock()
_own: dict[str, OwnDaemon] = {}


def own_daemon(template: str) -> OwnDaemon:
    """The daemon of this process for a template; started where there is none."""
    with _lock:
        daemon = _own.get(template)
        if daemon and daemon.owner == os.getpid() and not daemon.is_alive:
            daemon.stop()
            daemon = None
        if daemon is None:
            daemon = _own[template] = OwnDaemon(template)
        return daemon


def stop_own_daemons() -> None:
    """Ends the daemons of this process, and so their sandboxes. At exit it is done by itself."""
    with _lock:
        while _own:
            _own.popitem()[1].stop()


atexit.register(stop_own_daemons)


def given_url(url: str | None) -> str | None:
    return url or os.environ.get("THAWBOX_URL")


def is_own(url: str | None = None) -> bool:
    """Nobody else's daemon would be asked: what is baked now is served by the next one of this process."""
    return not given_url(url) and not any(is_served(path) for path in user_sockets())


def find(template: str, url: str | None = None, api_key: str | None = None) -> Endpoint:
    """Where to ask for a sandbox of that template."""
    key = api_key or os.environ.get("THAWBOX_API_KEY") or API_KEY
    if given := given_url(url):
        return parse_url(given, key)
    for path in user_sockets():
        if is_served(path):
            return Endpoint("http://thawboxd", path, key)
    return own_daemon(template).endpoint


def bake(template: str, memory_mb: int | None) -> None:
    """Bakes it with the command `thawbox`, which does nothing when it is there. Minutes, the first time."""
    argv = [find_program("thawbox"), "template", "build", template]
    if memory_mb is not None:
        argv += ["--memory", str(memory_mb)]
    done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it ended without a word"]
        raise HostNotReady(f"`{' '.join(argv[1:])}` failed: {words[-1]}", "run it in a terminal to see why")
