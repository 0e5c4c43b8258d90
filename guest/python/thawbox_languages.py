# SPDX-License-Identifier: Apache-2.0
"""Cells in other languages than Python: an interpreter of theirs beside this kernel, started by its first cell, or
before the freeze.

It has the kernel's working directory, environment and output; what cells define stays in it (docs/kernel.md).
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
from shlex import quote
from typing import Any

DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "thawbox_node.js")
ANSWER_FD = 250
"""Where an interpreter answers, out of the way of descriptors that a user's cell may name."""
ERRORS_FD = 251
"""Where bash finds the kernel's standard error, until its own messages have gone."""
REHEARSED = {
    "bash": [":"],
    "typescript": ["1 + 1", "await Promise.resolve({a: [1, 'b', null]})", "{ const a: number = 1; class B {} }",
                   "process.stdout.write(''); process.stderr.write('')", "throw new Error('rehearsed')"]}
"""Cells that say nothing, and leave nothing behind."""
NO_AVX = "NPY_DISABLE_CPU_FEATURES"
"""Set where the guest's kernel cannot keep the registers of AVX (docs/guest.md)."""


class Text:
    """A cell's value, shown as the text that its own interpreter gives it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def folder() -> str:
    """Returns the kernel's working directory, / where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


class Failure(Exception):
    """What went wrong in a cell, or made it end."""


def failure(name: str, value: str, trace: str) -> Failure:
    """Returns one of that name, which IPython shows as the trace of its own interpreter."""
    kind = type(name, (Failure,), {"_render_traceback_": lambda self: trace.splitlines()})
    error: Failure = kind(value)
    return error


class Interpreter:
    """A process that runs cells of one language. Of the kernel's thread."""

    def __init__(self, language: str, argv: list[str], stdin_is_ours: bool) -> None:
        """Starts it; raises OSError. `language` is that of its cells. Where its standard input is not ours, the descriptor that cells come by is its
        last argument, ANSWER_FD the one before."""
        theirs, self._to = os.pipe()
        self._from, answers = os.pipe()
        high = fcntl.fcntl(answers, fcntl.F_DUPFD_CLOEXEC, ANSWER_FD)
        try:
            if not stdin_is_ours:
                argv = [*argv, str(high), str(theirs)]
            self.process = subprocess.Popen(argv, stdin=theirs if stdin_is_ours else subprocess.DEVNULL,
                                            pass_fds=[high] if stdin_is_ours else [high, theirs], process_group=0)
        except BaseException:
            os.close(self._to)
            os.close(self._from)
            raise
        finally:
            for fd in (theirs, answers, high):
                os.close(fd)
        self.language = language
        self.answer_fd = high
        self.owes_answer = False
        self._exit = os.pidfd_open(self.process.pid)
        self._env = dict(os.environ)

    def close(self) -> int:
        """Ends it, and what is left of its group. Returns its exit status, negative for a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for fd in (self._to, self._from, self._exit):
            os.close(fd)
        return self.process.wait()

    def new_env(self) -> dict[str, str | None]:
        """Returns what the kernel's environment has become since the last cell: None is unset."""
        now = dict(os.environ)
        changed: dict[str, str | None] = {name: now.get(name) for name in self._env.keys() | now.keys()
                                          if self._env.get(name) != now.get(name)}
        self._env = now
        return changed

    def ask(self, request: str) -> str | None:
        """Sends a cell, and returns the line it is answered with; None when the interpreter has ended. An interrupt
        of the kernel's is passed on, and raised when the answer is there."""
        self.owes_answer = True
        self._send(request.encode("utf-8", "surrogateescape"))
        try:
            line = self._answer()
        except KeyboardInterrupt:
            os.killpg(self.process.pid, signal.SIGINT)
            self._answer()
            self.owes_answer = False
            raise
        self.owes_answer = False
        return line

    def _send(self, data: bytes) -> None:
        """An interrupt waits until all of a request has gone: the next one must begin where this one ends."""
        then = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            while data:
                data = data[os.write(self._to, data):]
        except BrokenPipeError:
            pass  # the answer says so
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, then)

    def _answer(self) -> str | None:
        line = bytearray()
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        poll.register(self._exit, select.POLLIN)
        while not line.endswith(b"\n"):
            ready = dict(poll.poll())
            if self._from not in ready:  # a process that it has left behind may hold the pipe open
                return None
            data = os.read(self._from, 65536)
            if not data:
                return None
            line += data
        return line[:-1].decode("utf-8", "replace")


class Bash(Interpreter):
    """An interactive bash without a terminal: a SIGINT ends what runs, and not the shell."""

    def __init__(self, language: str) -> None:
        """Its messages of a start without a terminal are for nobody."""
        super().__init__(
            language, ["bash", "-c", f"exec bash --norc --noprofile --noediting -i {ERRORS_FD}>&2 2>/dev/null"], True)
        self._begin = f"PS1= PS2= HISTFILE=; set +m +H; exec 2>&{ERRORS_FD} {ERRORS_FD}>&-\n"

    def begin(self, language: str) -> None:
        """As Node.begin(). Of its generators, RANDOM alone has a state."""
        self.language = language
        self._begin = f"cd {quote(folder())}; SECONDS=0 RANDOM={int.from_bytes(os.urandom(4), 'little')}\n"

    def run(self, code: str) -> Text | None:
        env = "".join(f"export {name}={quote(value)}\n" if value is not None else f"unset {name}\n"
                      for name, value in self.new_env().items() if name.isidentifier())
        answer = self.ask(f"{self._begin}{env}eval {quote(code)} </dev/null\nprintf '%s\\n' $? >&{self.answer_fd}\n")
        self._begin = ""
        if answer is None:
            raise EOFError
        if answer != "0":
            raise failure("ExitStatus", answer, f"exit status {answer}")
        return None


class Node(Interpreter):
    """Node.js with thawbox_node.js, which answers in JSON."""

    def __init__(self, language: str) -> None:
        flags = ["--no-enable-avx", "--no-enable-avx2", "--no-enable-fma3"] if NO_AVX in os.environ else []
        super().__init__(language, ["node", *flags, DRIVER], False)
        self._begin: dict[str, str] = {}

    def begin(self, language: str) -> None:
        """Makes one that was started before the freeze this sandbox's own: it takes the kernel's folder, and its
        generators of random numbers are seeded anew."""
        self.language = language
        self._begin = {"begin": folder()}

    def run(self, code: str) -> Text | None:
        request = {"code": code, "env": self.new_env(), "typescript": self.language == "typescript", **self._begin}
        self._begin = {}
        line = self.ask(json.dumps(request) + "\n")
        if line is None:
            raise EOFError
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise failure(*(str(answer["error"][part]) for part in ("name", "value", "traceback")))
        return Text(answer["text"]) if "text" in answer else None


KINDS: dict[str, type[Bash] | type[Node]] = {"bash": Bash, "javascript": Node, "typescript": Node}
running: dict[str, Bash | Node] = {}
"""By language."""
ready: list[Bash | Node] = []
"""Started before the freeze, each until a context takes it."""


def make_ready() -> None:
    """Starts one of each kind, as far as this image has them, and runs cells in it: for a bake."""
    for language, cells in REHEARSED.items():
        with contextlib.suppress(OSError, EOFError):
            interpreter = KINDS[language](language)
            for code in cells:
                with contextlib.suppress(Failure):
                    interpreter.run(code)
            ready.append(interpreter)


def start(language: str) -> Bash | Node:
    """Returns an interpreter; raises OSError when there is none."""
    for interpreter in ready:
        if type(interpreter) is KINDS[language]:
            ready.remove(interpreter)
            interpreter.begin(language)
            return interpreter
    return KINDS[language](language)


def run(language: str, code: str) -> Text | None:
    """Runs a cell of bash, javascript or typescript. Returns its value, None if it has none; raises what went wrong."""
    interpreter = running.get(language)
    if interpreter is None:
        try:
            interpreter = running[language] = start(language)
        except OSError as e:
            raise failure("FileNotFoundError", f"no interpreter for {language}: {e}",
                          f"{language}: {e}: build the template with its package") from None
    try:
        return interpreter.run(code)
    except KeyboardInterrupt:
        if interpreter.owes_answer:  # to the next cell it would come as that one's
            running.pop(language).close()
        raise
    except EOFError:
        status = running.pop(language).close()
        if status == 0:
            return None
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise failure("ExitStatus", str(status), f"the interpreter ended: {how}; the next cell starts a new one") from None
