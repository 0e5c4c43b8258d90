# SPDX-License-Identifier: Apache-2.0
"""What a sandbox's object knows, apart from how it talks: defaults, contexts, sums of usage."""
from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _envd
from ._errors import HostNotReady, InvalidInput, NotFound, SandboxGone, ThawboxError, TimeoutError_
from ._models import CommandResult, Execution, SandboxUsage, Usage
from ._wire import DEFAULT_CONTEXT, Handle, Sample

TEMPLATE = "code-interpreter"
TTL_SECONDS = 1800.0
TIMEOUT_SECONDS = 300.0
HOME = "/home/user"
DISK_MB = 8192
"""Of each sandbox's private disk (docs/guest.md)."""


@dataclass(frozen=True)
class Defaults:
    """What cells and commands get where a call says nothing."""

    timeout_seconds: float = TIMEOUT_SECONDS
    max_output_bytes: int | None = None
    raise_on_timeout: bool = False
    files_changed: bool = False
    full_usage: bool = False


@dataclass
class Contexts:
    """Who has the default interpreter, which is there from the thaw on: making another takes the guest longer.

    It goes to whoever comes first: `run_code` of the sandbox, or the first context that is made. So a program that
    only ever uses the one or the other gets the fast one, and the two never share variables.
    """

    main: str | None = None
    """Of the sandbox's own cells."""
    is_default_taken: bool = False
    needs_restart: bool = False
    """The default interpreter was given back with somebody's variables in it."""

    def take_default(self) -> bool:
        """True: the default interpreter is the caller's now."""
        if self.is_default_taken:
            return False
        self.is_default_taken = True
        return True

    def give_back(self, context: str) -> None:
        if context == DEFAULT_CONTEXT:
            self.is_default_taken = False
            self.needs_restart = True


@dataclass
class State:
    """Of one sandbox."""

    handle: Handle
    defaults: Defaults
    contexts: Contexts = field(default_factory=Contexts)
    metadata: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    cell_count: int = 0
    cells: Usage = field(default_factory=Usage)
    is_closed: bool = False

    def check_open(self) -> None:
        if self.is_closed:
            raise SandboxGone(f"the sandbox {self.handle.id} was closed", "create another one", code="closed")

    def note(self, ex: Execution) -> None:
        self.cell_count += 1
        if ex.usage:
            self.cells += ex.usage

    def usage(self, sample: Sample) -> SandboxUsage:
        if sample.vcpu_seconds is None or sample.gib_seconds is None:
            raise ThawboxError("the daemon has no meter", "take a newer thawboxd", code="not_offered")
        return SandboxUsage(time.monotonic() - self.started, sample.vcpu_seconds, sample.gib_seconds, self.cell_count,
                            self.cells)


def template_names(template: str, memory_mb: int | None) -> list[str]:
    """What to ask for: the variant of that memory, then the template itself, which may have it."""
    if memory_mb is None:
        return [template]
    if isinstance(memory_mb, bool) or not isinstance(memory_mb, int) or memory_mb < 128:
        raise InvalidInput(f"memory_mb must be an integer of 128 or more, not {memory_mb!r}")
    return [f"{template.partition('@')[0]}@{memory_mb}", template]


def wrong_memory(template: str, memory_mb: int | None, cause: ThawboxError | None = None) -> ThawboxError:
    """There is no variant of that size."""
    name = template.partition("@")[0]
    return InvalidInput(f"there is no variant of {name} with {memory_mb} MB: {cause or 'it has another size'}",
                        f"bake it once with `thawbox template build {name} --memory {memory_mb}` and serve it "
                        f"(`thawboxd --template {name}@{memory_mb}`), or pass bake=True where this process starts the "
                        "daemon", code="no_variant")


def may_bake(error: ThawboxError) -> bool:
    """It failed for want of a template, or of a variant of it."""
    return error.code in ("no_template", "no_variant")


SMALLER_DISK = """set -- "$1" $(stat -f -c '%f %S' /)
keep=$(($2 - $1 * 1048576 / $3))
[ $keep -le 0 ] || echo $keep >/sys/fs/ext4/vdb/reserved_clusters"""


def check_disk(disk_mb: int | None) -> None:
    if disk_mb is not None and (isinstance(disk_mb, bool) or not isinstance(disk_mb, int) or not 1 <= disk_mb <= DISK_MB):
        raise InvalidInput(f"disk_mb must be an integer of 1 to {DISK_MB}, not {disk_mb!r}: the disk of a sandbox has {DISK_MB} MB")


def disk_command(disk_mb: int | None) -> list[str] | None:
    """What root runs to make a sandbox's disk smaller: its file system keeps the other blocks from everybody, root included.

    None: nothing is to be done. It is a rule within the guest: its root can lift it.
    """
    if disk_mb is None or disk_mb == DISK_MB:
        return None
    return ["/bin/sh", "-ec", SMALLER_DISK, "sh", str(disk_mb)]


def check_disk_made(result: CommandResult, disk_mb: int | None) -> None:
    if not result.ok:
        why = (result.stderr or result.status).strip()
        raise ThawboxError(f"the disk could not be held to {disk_mb} MB: {why}", "leave disk_mb out", code="disk", partial=result)


def is_lost(error: ThawboxError) -> bool:
    """Of a look at a sandbox: it is gone, or its daemon, which takes its sandboxes with it."""
    return isinstance(error, (NotFound, SandboxGone, HostNotReady))


def gone(handle: Handle, partial: Any = None, *, late: bool = False) -> SandboxGone:
    """It ended while a request was under way."""
    why = "the guest did not answer after a deadline, and the sandbox was ended" if late else \
        "it was killed, its time to live has ended, or its machine was lost"
    return SandboxGone(f"the sandbox {handle.id} has ended while a request was under way: {why}",
                       "create another one; ttl_seconds bounds its life", partial=partial)


def cut_off(handle: Handle, partial: Any) -> ThawboxError:
    """The connection broke, and the sandbox lives."""
    return ThawboxError(f"the connection to the daemon broke during a request to {handle.id}",
                        "a cell was interrupted by it; a command runs on", code="connection", partial=partial)


def timeout_of(result: Execution | CommandResult) -> TimeoutError_:
    error = result.error
    return TimeoutError_(error.value if error else "the deadline has passed", "give it more time with timeout_seconds",
                         partial=result)


def check_callback(callbacks: Mapping[str, Any]) -> None:
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise InvalidInput(f"on_{name} must be callable, not {callback!r}")


def as_content(data: Any) -> Any:
    """Of files.write(): bytes, text, or a file that is open for reading."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    if hasattr(data, "read"):
        return _envd.chunks(data)
    raise InvalidInput(f"a file's content is text, bytes or an open file, not {type(data).__name__}")


def as_text(data: bytes) -> str | bytes:
    """Text where it is text: UTF-8 without NUL; else the bytes."""
    if b"\0" in data:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def upload_source(file: Any, path: str | None) -> tuple[Any, str]:
    """An open file, or the path of one; and where it goes."""
    if isinstance(file, (str, os.PathLike)):
        source: Any = Path(file)
        if not source.is_file():
            raise InvalidInput(f"{source} is not a file of this machine")
        return source, path or f"{HOME}/{source.name}"
    if isinstance(file, (bytes, bytearray)):
        if not path:
            raise InvalidInput("bytes have no name: pass path=")
        return io.BytesIO(bytes(file)), path
    if not hasattr(file, "read"):
        raise InvalidInput(f"an upload is an open file, a path or bytes, not {type(file).__name__}")
    name = getattr(file, "name", None)
    if not path and not isinstance(name, str):
        raise InvalidInput("the file has no name: pass path=")
    return file, path or f"{HOME}/{os.path.basename(str(name))}"


def installed(result: CommandResult, packages: list[str]) -> None:
    """Raises when pip failed."""
    if result.ok:
        return
    lines = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
    raise ThawboxError(f"{', '.join(packages)} could not be installed: {lines[-1] if lines else result.status}",
                       INSTALL_REMEDY, code="install", partial=result)


INSTALL_REMEDY = ("a sandbox has no network: pass wheels=FOLDER with the packages and what they need (`pip download --only-binary "
                  ":all: --python-version 3.11 -d FOLDER ...`), or bake them into a template (packages.pip in template.json, "
                  "docs/guest.md)")


def wheels_in(folder: str | os.PathLike[str]) -> list[Path]:
    found = sorted(Path(folder).glob("*.whl"))
    if not found:
        raise InvalidInput(f"there are no wheels in {folder}", INSTALL_REMEDY)
    return found


def pip_line(packages: list[str], folder: str) -> list[str]:
    """As root: /usr/local is where every interpreter that runs looks, and is the sandbox's own."""
    return ["/usr/bin/python3", "-m", "pip", "install", "--no-index", "--no-warn-script-location", "--break-system-packages",
            "--root-user-action=ignore", "--disable-pip-version-check", "--find-links", folder, "--", *packages]

