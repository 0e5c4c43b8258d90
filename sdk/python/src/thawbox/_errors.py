# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as a small tree. Each error tells what it is (`code`), why (`cause`), what to do (`remedy`)."""
from __future__ import annotations

import builtins
from typing import Any

__all__ = [
    "ThawboxError", "TimeoutError_", "SandboxGone", "NotFound", "LimitExceeded", "InvalidInput", "HostNotReady",
]


class ThawboxError(Exception):
    """Any error of this package. `partial` is what a cell or command had said until then, where there is something."""

    code = "error"

    def __init__(self, cause: str, remedy: str = "", *, code: str | None = None, partial: Any = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.partial = partial
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.cause, self.remedy, self.code, self.partial)


def _rebuild(kind: type[ThawboxError], cause: str, remedy: str, code: str, partial: Any) -> ThawboxError:
    return kind(cause, remedy, code=code, partial=partial)


class TimeoutError_(ThawboxError, builtins.TimeoutError):
    """A deadline has passed; also a builtin TimeoutError. `partial` has the output until then."""

    code = "timeout"


class SandboxGone(ThawboxError):
    """The sandbox has ended: killed, expired, or lost with its machine."""

    code = "sandbox_gone"


class NotFound(ThawboxError):
    """A sandbox, context, template or file that is not there."""

    code = "not_found"


class LimitExceeded(ThawboxError):
    """More than is allowed: sandboxes, requests, bytes, disk space."""

    code = "limit_exceeded"


class InvalidInput(ThawboxError):
    """What was asked for is wrong, or is not offered here."""

    code = "invalid_input"


class HostNotReady(ThawboxError):
    """No daemon can be reached or started, or the host cannot run sandboxes: `thawbox doctor`."""

    code = "host_not_ready"
