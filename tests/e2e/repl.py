# SPDX-License-Identifier: Apache-2.0
"""Drives `thawbox repl` on a pseudo-terminal, as a user would."""
from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import termios
import time


class Repl:
    PROMPT = re.compile(rb"In \[\d+\]: ")

    def __init__(self, thawbox, *args: str, cwd=None):
        self.master, slave = pty.openpty()
        self.process = thawbox.popen("repl", *args, stdin=slave, stdout=slave, stderr=slave, cwd=cwd,
                                     env={"TERM": "dumb", "NO_COLOR": "1"}, start_new_session=True,
                                     preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.seen = b""
        self.wait_for(self.PROMPT)

    def wait_for(self, pattern: re.Pattern, timeout: float = 60) -> bytes:
        """Reads until the pattern; returns what came before it."""
        end = time.monotonic() + timeout
        while not (match := pattern.search(self.seen)):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise TimeoutError(f"no {pattern.pattern!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.master, 65536)
            except OSError:
                raise EOFError(f"repl ended: {self.seen!r}") from None
        before, self.seen = self.seen[:match.start()], self.seen[match.end():]
        return before

    def send(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\n")

    def cell(self, line: str, timeout: float = 60) -> str:
        """Runs one line; returns what the terminal showed up to the next prompt, the echo removed."""
        self.send(line)
        shown = self.wait_for(self.PROMPT, timeout).decode().replace("\r", "")
        return shown.split("\n", 1)[1] if "\n" in shown else shown

    def interrupt(self) -> None:
        os.write(self.master, b"\x03")

    def close(self) -> int:
        """Ends the session by end-of-file; returns the exit code."""
        try:
            if self.process.poll() is None:
                os.write(self.master, b"\x04")
            end = time.monotonic() + 20
            while self.process.poll() is None and time.monotonic() < end:
                if select.select([self.master], [], [], 0.1)[0]:
                    try:
                        os.read(self.master, 65536)
                    except OSError:
                        break
            return self.process.wait(20)
        finally:
            os.close(self.master)
            self.master = -1
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> Repl:
        return self

    def __exit__(self, *_) -> None:
        if self.master >= 0:
            self.close()
