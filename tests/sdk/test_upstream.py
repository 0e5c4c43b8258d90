# SPDX-License-Identifier: Apache-2.0
"""smolagents' own tests of remote executors, as they are, with our executor in the place of theirs.

They are not part of this project: THAWBOX_SMOLAGENTS is a folder with a copy of its repository (or of its `tests` alone), of
the version that is installed. Docker's client, which they import and we do not use, may be missing.
"""
from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest

FOLDER = os.environ.get("THAWBOX_SMOLAGENTS")
if not FOLDER:
    pytest.skip("THAWBOX_SMOLAGENTS is not set: there is no copy of smolagents' tests", allow_module_level=True)


def upstream() -> types.ModuleType:
    """Their module, under a package of another name than our tests'."""
    os.environ["RUN_ALL"] = "1"  # else those that need a service skip themselves
    if importlib.util.find_spec("docker") is None:
        sys.modules["docker"] = types.ModuleType("docker")
    path = Path(FOLDER) / "tests"
    package = types.ModuleType("smolagents_tests")
    package.__path__ = [str(path)]
    sys.modules["smolagents_tests"] = package
    return importlib.import_module("smolagents_tests.test_remote_executors")


theirs = upstream()


class TestThawbox(theirs.CommonDockerExecutorIntegration):
    """The ten that every executor of theirs is to pass."""

    @pytest.fixture
    def custom_executor(self, daemon):
        from thawbox.smolagents import ThawboxExecutor

        with ThawboxExecutor(additional_imports=["pillow", "numpy"]) as executor:
            yield executor


class TestE2BWithThawbox(theirs.TestE2BExecutorIntegration):
    """Those of the E2B executor, on ours."""

    @pytest.fixture(autouse=True)
    def set_executor(self, daemon):
        from thawbox.smolagents import ThawboxExecutor

        with ThawboxExecutor(additional_imports=["pillow", "numpy"]) as self.executor:
            yield


class TestE2BUnchanged(theirs.TestE2BExecutorIntegration):
    """Those of the E2B executor as it is, with E2B's own client, against this daemon."""

    @pytest.fixture(autouse=True)
    def set_executor(self, daemon):
        import io

        from rich.console import Console
        from smolagents.monitoring import AgentLogger, LogLevel
        from smolagents.remote_executors import E2BExecutor

        logger = AgentLogger(LogLevel.INFO, Console(force_terminal=False, file=io.StringIO()))
        self.executor = E2BExecutor(additional_imports=["pillow", "numpy"], logger=logger)
        yield
        self.executor.cleanup()
