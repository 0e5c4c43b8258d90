# SPDX-License-Identifier: Apache-2.0
"""The JavaScript SDKs, by node's own test runner (js/sdk.test.mjs)."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "js"


def test_javascript(daemon, tmp_path):
    modules = Path(os.environ.get("E2B_JS", "")) / "node_modules"
    if not shutil.which("node") or not os.environ.get("E2B_JS") or not modules.is_dir():
        pytest.skip("node, or the SDKs from npm, are missing (make e2b installs those where there is npm)")
    shutil.copy(HERE / "sdk.test.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(modules)
    done = subprocess.run(["node", "--test", "--test-reporter=tap", tmp_path / "sdk.test.mjs"], capture_output=True, text=True,
                          timeout=1800, env=dict(os.environ))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "# fail 0" in done.stdout and "# pass 0" not in done.stdout
