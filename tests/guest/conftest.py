# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the kernel laid out once, guests on demand."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness import PYTHON, Guest, Stream, build  # noqa: E402


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.path.exists("/usr/lib/python3/dist-packages/IPython"):
        pytest.skip(f"{PYTHON} lacks IPython: apt-get install --no-install-recommends "
                    "python3-ipython python3-pandas python3-matplotlib python3-scipy python3-pil "
                    "python3-requests python3-dev")
    return build(tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def guests() -> Iterator[list[Guest]]:
    """Guests to end with the test."""
    begun: list[Guest] = []
    yield begun
    for guest in begun:
        guest.close()


@pytest.fixture
def start(kernel: Path, tmp_path: Path, guests: list[Guest]) -> Callable[..., Guest]:
    def begin(*args: str, **options: object) -> Guest:
        folder = tmp_path / str(len(guests))
        folder.mkdir()
        guests.append(Guest(kernel, folder, *args, **options))
        return guests[-1]

    return begin


@pytest.fixture(scope="session")
def guest(kernel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest whose kernels (2000 and one spare) serve their streams at once."""
    g = Guest(kernel, tmp_path_factory.mktemp("guest"), spares=1)
    yield g
    g.close()


@pytest.fixture
def stream(guest: Guest) -> Iterator[Stream]:
    s = guest.connect()
    yield s
    s.close()
