# SPDX-License-Identifier: Apache-2.0
"""What a sandbox answers: results, logs, errors, files, usage."""
from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = [
    "CommandResult", "Execution", "ExecutionError", "FileChange", "FileEntry", "FileEvent", "Logs", "Metrics", "Pricing",
    "Result", "SandboxInfo", "SandboxUsage", "Truncation", "Usage",
]

TEXT_MIMES = {
    "text": "text/plain", "html": "text/html", "markdown": "text/markdown", "svg": "image/svg+xml",
    "latex": "text/latex", "javascript": "application/javascript",
}
BINARY_MIMES = {"png": "image/png", "jpeg": "image/jpeg", "pdf": "application/pdf"}
DATA_MIMES = {"json": "application/json"}


class Logs(Mapping[str, str]):
    """Standard output and error of a cell, as attributes and as a mapping of "stdout" and "stderr"."""

    __slots__ = ("stderr", "stdout")

    def __init__(self, stdout: str = "", stderr: str = "") -> None:
        self.stdout = stdout
        self.stderr = stderr

    def __getitem__(self, name: str) -> str:
        if name == "stdout":
            return self.stdout
        if name == "stderr":
            return self.stderr
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(("stdout", "stderr"))

    def __len__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return f"Logs(stdout={self.stdout!r}, stderr={self.stderr!r})"


@dataclass(frozen=True)
class Truncation:
    """Bytes that are missing from the middle of the output; false when none are.

    `files_changed`: how many more there are, at least, than Execution.files_changed has.
    """

    stdout: int = 0
    stderr: int = 0
    files_changed: int = 0

    def __bool__(self) -> bool:
        return self.stdout > 0 or self.stderr > 0

    @property
    def note(self) -> str:
        """A line that tells a reader, or a model, of missing output; "" when none is missing."""
        if not self:
            return ""
        return (f"[the output was too long: {self.stdout} bytes of stdout and {self.stderr} bytes of stderr are "
                "missing from its middle]")


@dataclass(frozen=True)
class ExecutionError:
    """An exception that ended a cell: its class, its text, the traceback as Python shows it."""

    name: str
    value: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"

    @property
    def report(self) -> str:
        """The traceback, and what it does not tell: of a deadline it shows the KeyboardInterrupt alone."""
        if self.name in self.traceback:
            return self.traceback
        return f"{self.traceback.rstrip()}\n{self}".lstrip()


@dataclass(frozen=True)
class FileChange:
    """A file that a cell has made or changed."""

    path: str
    size: int


@dataclass(frozen=True)
class Usage:
    """What one cell has used; None: it was not measured.

    As the host sees the machine: `wall_ms`, `cpu_ms`, `pages_dirtied` (of 4 KiB), `output_bytes`. As the interpreter sees
    itself, with `full_usage`: `cpu_user_ms`, `cpu_system_ms`, `peak_kib`, `read_bytes` and `write_bytes` of disks.
    """

    wall_ms: float | None = None
    cpu_ms: float | None = None
    cpu_user_ms: float | None = None
    cpu_system_ms: float | None = None
    peak_kib: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    output_bytes: int | None = None
    pages_dirtied: int | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Usage:
        return cls(**{f.name: data[f.name] for f in fields(cls)
                      if isinstance(data.get(f.name), (int, float)) and not isinstance(data.get(f.name), bool)})

    def __add__(self, other: Usage) -> Usage:
        def total(name: str) -> Any:
            mine, its = getattr(self, name), getattr(other, name)
            if mine is None or its is None:
                return its if mine is None else mine
            return max(mine, its) if name == "peak_kib" else mine + its

        return Usage(**{f.name: total(f.name) for f in fields(self)})


@dataclass
class Result:
    """One thing that a cell showed: the value of its last expression (`is_main_result`), or a display.

    Pictures and PDF are in base64, as E2B has them; `bytes_of("png")` decodes. `extra` has other MIME types.
    """

    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    png: str | None = None
    jpeg: str | None = None
    pdf: str | None = None
    latex: str | None = None
    json: Any = None
    javascript: str | None = None
    data: Any = None
    chart: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    is_main_result: bool = False

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Result:
        known = {f.name for f in fields(cls)} - {"extra"}
        extra = line.get("extra")
        return cls(**{name: value for name, value in line.items() if name in known},
                   extra=dict(extra) if isinstance(extra, Mapping) else {})

    def formats(self) -> list[str]:
        """The names of the forms it has."""
        names = [f.name for f in fields(self) if f.name not in ("extra", "is_main_result")]
        return [name for name in names if getattr(self, name) is not None] + list(self.extra)

    def bytes_of(self, name: str) -> bytes:
        """The content of `png`, `jpeg` or `pdf`."""
        text = getattr(self, name, None) if name in BINARY_MIMES else None
        if not isinstance(text, str):
            raise KeyError(name)
        return base64.b64decode(text)

    def __str__(self) -> str:
        return self.text if self.text is not None else f"<{', '.join(self.formats()) or 'nothing'}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        del include, exclude  # Jupyter filters by itself
        names = {**TEXT_MIMES, **DATA_MIMES, **BINARY_MIMES}
        bundle = {mime: getattr(self, name) for name, mime in names.items() if getattr(self, name) is not None}
        return {"text/plain": str(self), **self.extra, **bundle}


@dataclass
class Execution:
    """What became of a cell.

    `timed_out`: its deadline ended it, and `error` is a TimeoutError. `context_restarted`: the interpreter had to be
    replaced, so that variables are gone. `files_changed` is None where it was not asked for.
    """

    results: list[Result] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    error: ExecutionError | None = None
    execution_count: int | None = None
    truncated: Truncation = field(default_factory=Truncation)
    usage: Usage | None = None
    files_changed: list[FileChange] | None = None
    timed_out: bool = False
    context_restarted: bool = False

    @property
    def result(self) -> Result | None:
        """The value of the last expression, or None."""
        return next((r for r in self.results if r.is_main_result), None)

    @property
    def text(self) -> str | None:
        """The text of the last expression's value, or None."""
        return self.result.text if self.result else None

    def __str__(self) -> str:
        parts = [self.logs.stdout, self.logs.stderr, self.text or "", self.error.report if self.error else ""]
        return "\n".join(part.rstrip("\n") for part in parts if part)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        shown = self.result or (self.results[-1] if self.results else None)
        bundle = shown._repr_mimebundle_(include, exclude) if shown else {}
        return {**bundle, "text/plain": str(self)}


@dataclass
class CommandResult:
    """What became of a command. `exit_code` is -1 when a signal or its deadline ended it; `status` has the words."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = -1
    status: str = ""
    truncated: Truncation = field(default_factory=Truncation)
    error: ExecutionError | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.error

    @property
    def logs(self) -> Logs:
        return Logs(self.stdout, self.stderr)


@dataclass(frozen=True)
class FileEntry:
    """A file or folder of the sandbox."""

    name: str
    path: str
    type: str
    """"file", "dir", or "other"."""
    size: int = 0
    mode: int = 0
    permissions: str = ""
    owner: str = ""
    group: str = ""
    modified: dt.datetime | None = None
    symlink_target: str | None = None


@dataclass(frozen=True)
class FileEvent:
    """A change below a folder that is watched: its type ("create", "write", "remove", "rename", "chmod") and the name.

    The name is relative to the folder; a rename has the old one, and a "create" the new. `entry` is what has it now, where
    entries were asked for and it is still there.
    """

    type: str
    name: str
    entry: FileEntry | None = None


@dataclass(frozen=True)
class SandboxInfo:
    """What the daemon knows of a sandbox."""

    id: str
    template: str
    metadata: dict[str, str]
    started: dt.datetime
    ends: dt.datetime
    cpus: int
    memory_mb: int
    disk_mb: int
    state: str


@dataclass(frozen=True)
class Metrics:
    """What a sandbox uses now, as the host sees it."""

    time: dt.datetime
    cpus: int
    cpu_percent: float
    memory_bytes: int
    memory_total_bytes: int
    disk_total_bytes: int


@dataclass(frozen=True)
class Pricing:
    """A price list: what an hour of an active vCPU, and an hour of a GiB of working set, cost."""

    vcpu_hour: float
    gib_hour: float


@dataclass(frozen=True)
class SandboxUsage:
    """What a sandbox has used since it was created.

    `vcpu_seconds` counts while the guest runs, not while it waits; `gib_seconds` is memory of its own (what it has
    written, not the template that all share) over time. `cells` is the sum of its cells' `usage`.
    """

    seconds: float
    vcpu_seconds: float
    gib_seconds: float
    cell_count: int
    cells: Usage

    def cost(self, pricing: Pricing) -> float:
        """In the currency of the price list."""
        return (self.vcpu_seconds * pricing.vcpu_hour + self.gib_seconds * pricing.gib_hour) / 3600


def parse_time(text: Any) -> dt.datetime:
    """A time as thawboxd writes it: RFC 3339, in UTC."""
    value = str(text).replace("Z", "+00:00")
    head, dot, rest = value.partition(".")
    if dot:  # Python 3.10 reads 3 or 6 digits alone
        digits = rest[:len(rest) - len(rest.lstrip("0123456789"))]
        value = f"{head}.{digits[:6]:0<6}{rest[len(digits):]}"
    return dt.datetime.fromisoformat(value)
