# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that this process has made and not ended, by whichever layer: when it exits they are.

A daemon of its own ends with it, and all its sandboxes; what is kept here is for daemons of others.
"""
from __future__ import annotations

import atexit
import os

from . import _wire
from ._daemon import Endpoint
from ._errors import ThawboxError
from ._http import shared
from ._wire import Cut

_made: dict[str, Endpoint] = {}
_owner = os.getpid()


def note(sandbox_id: str, endpoint: Endpoint) -> None:
    if not endpoint.is_own:
        _made[sandbox_id] = endpoint


def forget(sandbox_id: str) -> None:
    _made.pop(sandbox_id, None)


def end_all() -> None:
    """In a child that was forked it does nothing: they are the parent's."""
    silent = set()
    while _made and os.getpid() == _owner:
        sandbox_id, endpoint = _made.popitem()
        try:
            if endpoint not in silent:
                shared(endpoint).send(_wire.kill(sandbox_id))
        except (ThawboxError, Cut):
            silent.add(endpoint)  # it is gone, or does not answer: nobody waits for it once more


atexit.register(end_all)
