# SPDX-License-Identifier: Apache-2.0
"""docs/openapi.yaml against a real thawboxd: schemathesis makes requests of it, right ones and wrong ones."""
import json
import os
import subprocess
import sys
from pathlib import Path

import yaml
from conftest import BIN, GUARD_S, ROOT

EXAMPLES = 25
"""For each operation and phase; more by THAWBOX_TEST_EXAMPLES."""


def description(to: Path) -> Path:
    """With what only this daemon knows: the names of templates."""
    text = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
    members = text["components"]["schemas"]["NewSandbox"]["properties"]
    members["templateID"]["enum"] = ["base", "code-interpreter", "code-interpreter-v1", "nonesuch"]
    to.write_text(json.dumps(text))
    return to


def test_control_plane(start, tmp_path):
    """No failure of the server's own, no request without an answer, nothing that the description does not tell."""
    key = subprocess.run([BIN / "thawbox", "key", "create", "--keys", tmp_path / "keys.json", "tester"], check=True,
                         capture_output=True, text=True).stdout.strip()
    daemon = start("--max-sandboxes", "3")
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "--config-file", Path(__file__).with_name("schemathesis.toml"), "--no-color", "run",
         description(tmp_path / "openapi.json"), "--url", daemon.url, "--header", f"X-API-KEY: {key}",
         "--max-examples", os.environ.get("THAWBOX_TEST_EXAMPLES", str(EXAMPLES)), "--request-timeout", "30", "--workers", "1",
         "--seed", "1"], capture_output=True, text=True, cwd=tmp_path, timeout=5 * GUARD_S,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(Path(__file__).parent)})
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert daemon.process.poll() is None and daemon.get("/health")[0] == 200
