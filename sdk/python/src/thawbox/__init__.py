# SPDX-License-Identifier: Apache-2.0
"""Fresh, isolated, warmed Python sandboxes: microVMs on this machine, by thawboxd.

    from thawbox import Sandbox
    with Sandbox.create() as sb:
        print(sb.run_code("1 + 1").text)
"""
from ._async import AsyncContext, AsyncFiles, AsyncSandbox, AsyncWatcher
from ._daemon import stop_own_daemons
from ._errors import HostNotReady, InvalidInput, LimitExceeded, NotFound, SandboxGone, ThawboxError, TimeoutError_
from ._models import (
    CommandResult,
    Execution,
    ExecutionError,
    FileChange,
    FileEntry,
    FileEvent,
    Logs,
    Metrics,
    Pricing,
    Result,
    SandboxInfo,
    SandboxUsage,
    Truncation,
    Usage,
)
from ._sandbox import Context, Files, Sandbox, Watcher

__version__ = "0.1.0"

__all__ = [
    "AsyncContext",
    "AsyncFiles",
    "AsyncSandbox",
    "AsyncWatcher",
    "CommandResult",
    "Context",
    "Execution",
    "ExecutionError",
    "FileChange",
    "FileEntry",
    "FileEvent",
    "Files",
    "HostNotReady",
    "InvalidInput",
    "LimitExceeded",
    "Logs",
    "Metrics",
    "NotFound",
    "Pricing",
    "Result",
    "Sandbox",
    "SandboxGone",
    "SandboxInfo",
    "SandboxUsage",
    "ThawboxError",
    "TimeoutError_",
    "Truncation",
    "Usage",
    "Watcher",
    "stop_own_daemons",
]
