# SPDX-License-Identifier: Apache-2.0
"""The Python package against a real thawboxd and real microVMs.

Two ways to a daemon are tested: one that is given by THAWBOX_URL (`daemon`, started once), and the one that the
package starts for itself (test_own_daemon.py). Commands start bash in the guest, which takes seconds where KVM is
done in software: every limit here is a guard, none is a measurement.
"""
from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
_spec = importlib.util.spec_from_file_location("e2b_conftest", ROOT / "tests" / "e2b" / "conftest.py")
e2b_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(e2b_conftest)
Daemon, BIN, GUARD_S = e2b_conftest.Daemon, e2b_conftest.BIN, e2b_conftest.GUARD_S


def pytest_configure(config) -> None:
    if config.option.markexpr == "not vm":
        return
    for path in (Path("/dev/kvm"), BIN / "thawboxd"):
        if not path.exists():
            pytest.exit(f"{path} is missing: these tests need it", returncode=1)


def pytest_collection_modifyitems(items) -> None:
    """Whatever has to do with a daemon is marked `vm`; -m "not vm" is seconds, and runs anywhere."""
    for item in items:
        if {"shared", "start", "no_daemon"} & set(item.fixturenames) or "own_daemon" in item.module.__name__:
            item.add_marker("vm")


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Iterator[Any]:
    daemon = Daemon(tmp_path_factory.mktemp("thawboxd"), "--pool", "2")
    yield daemon
    assert daemon.stop() == 0, daemon.text()


@pytest.fixture
def daemon(shared, monkeypatch) -> Iterator[Any]:
    """The daemon of all tests, given by address; no sandbox of a test may be left in it."""
    monkeypatch.setenv("THAWBOX_URL", shared.url)
    for name in ("E2B_API_URL", "E2B_SANDBOX_URL"):
        monkeypatch.setenv(name, shared.url)
    monkeypatch.setenv("E2B_API_KEY", e2b_conftest.KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield shared
    assert shared.process.poll() is None, shared.text()[-4000:]
    assert json.loads(shared.get("/v2/sandboxes")[1]) == []


@pytest.fixture
def start(tmp_path, monkeypatch) -> Iterator[Callable[..., Any]]:
    """Starts daemons for one test."""
    started = []

    def start_one(*args: str, **kwargs) -> Any:
        started.append(Daemon(tmp_path, "--pool", "1", *args, **kwargs))
        monkeypatch.setenv("THAWBOX_URL", started[-1].url)
        return started[-1]

    yield start_one
    for one in started:
        one.stop()


@pytest.fixture
def sb(daemon) -> Iterator[Any]:
    from thawbox import Sandbox

    with Sandbox.create() as sandbox:
        yield sandbox


@pytest.fixture
def no_daemon(monkeypatch, tmp_path) -> None:
    """Nobody has started one: the package has to."""
    monkeypatch.delenv("THAWBOX_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("THAWBOX_BIN", str(BIN))


if str(ROOT / "sdk" / "python" / "src") not in os.environ.get("PYTHONPATH", "").split(":"):
    sys.path.insert(0, str(ROOT / "sdk" / "python" / "src"))
