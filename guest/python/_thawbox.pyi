# SPDX-License-Identifier: Apache-2.0
"""What _thawbox.c offers. Called with the GIL, from the main thread unless it says otherwise.

"First cell" is the time from first()'s return of PARK to the next flush(): frames go to the mailbox then
(docs/protocol.md section 5), else to the attached stream (section 2).
"""
from collections.abc import Buffer, Callable
from random import Random
from typing import Any

# Descriptors 1 and 2.
def capture() -> None:
    """Makes this process the reader of its own descriptors 1 and 2. Once after each fork of a
    kernel. Raises OSError."""
def release() -> None:
    """Gives descriptors 1 and 2 back to what they were; what waits in the pipes is lost."""

# Output.
def begin(max_output: int) -> None:
    """A cell starts: output is sent from now on, first what was written since the last one.
    max_output in bytes, 0 for no bound."""
def write(stream: int, data: str | Buffer) -> int:
    """Writes to stdout (0) or stderr (1), text as UTF-8 with surrogates as backslash escapes.
    Returns len(data). Any thread."""
def frame(type: int, payload: bytes) -> None:
    """Queues one whole payload. Nothing in a forked child; nothing but a RESULT between cells,
    when the host expects none. Any thread."""
def hint() -> None:
    """What is queued should go out soon: at once in the first cell, within 20 ms on a stream.
    Any thread."""
def end() -> tuple[int, int]:
    """The cell is over: the kept tail is queued. Returns how many bytes of stdout and of stderr
    were dropped."""
def said() -> int:
    """Returns how many bytes the last cell has said: its output, with what was cut, and its displays."""
def flush() -> None:
    """Sends everything queued; in the first cell by DONE, which ends it."""
def attach(fd: int) -> None:
    """Frames go to this connected socket (-1: to nobody). The caller keeps it open until the next
    attach()."""
def forked() -> bool:
    """True in a process that user code forked."""

# The freeze point.
def open(port: int) -> None:
    """Maps the doorbell and gives the monitor this process's mailbox. Root. Raises OSError where
    there is no such monitor."""
def open_fake(shm: int, to_test: int, from_test: int, port: int) -> None:
    """A doorbell for tests: the mailbox is the shared memory file, each register access a message
    of three u32 (offset, value, is_write), answered by a u32."""
def first(run: Callable[[str, bool], Any], python: Random, numpy: int, environ: dict[bytes, bytes],
          count: int) -> tuple[int, tuple[int, int, Any] | bytes | None]:
    """Reads PARK; then takes the wake: reseeds as reseed() does, and sets its environment, in `environ`
    (of os.environ) too. A plain cell is then run by run(code, silent), which returns None or an error, and
    answered as execution `count`. Returns what PARK read, and: None where there is nothing to answer; a whole
    REQUEST frame to be answered; (start, end, None) of a cell that is done, in ns of now(); (start, 0, error)
    of one that must still be ended and answered, error being what run() returned or raised. Raises ValueError
    for a mailbox that is damaged, OSError and MemoryError."""
def next(run: Callable[[str, bool], Any], count: int) -> tuple[int, int, Any] | bytes | None:
    """Reads NEXT, the guest standing still meanwhile, until there is a request. Returns as first() what there
    is to do about it, None when the stream goes on by vsock. Raises what a signal's handler raised."""
def cell_runs() -> bool:
    """True while first() or next() runs a cell."""
def rehearse(message: bytes | None, n: int) -> None:
    """Until called with None, the registers are plain memory and park() returns n with the message
    (a wake and a request) in the mailbox."""
def reseed(python: Random, numpy: int, key: bytes) -> None:
    """Seeds a random.Random of CPython 3.11 with the first half of the key, and numpy's MT19937 state at this
    address (0: none) with the second, each as its own seed() does with these words. len(key) a multiple of 8,
    not 0 (ValueError)."""

# Before the freeze.
def slack(objects: int, heap: int, stack: int) -> None:
    """Grows the arenas of Python's objects, malloc's heap and the stack by so many bytes, in large
    pages where there are some, and keeps malloc from returning memory to the kernel: later growth
    needs no system call and no fresh page. With objects > 0 also maps the interpreter's program.
    Once. Raises MemoryError and ValueError."""
def large_text() -> int:
    """Copies the interpreter's program and its constants into large pages, as far as whole ones fit. Returns
    0, or the errno of why it stays as it was. No other thread may run."""
def rest(seconds: float) -> None:
    """Sleeps, and measures the TSC meanwhile: from then on now() makes no system call."""
def now() -> int:
    """Nanoseconds of an interval clock."""
