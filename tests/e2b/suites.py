#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""E2B's own test suites, from a copy of their repositories, against a thawboxd: counts a suite, and each failure with its reason.

  python3 -m venv v && v/bin/pip install e2b==2.45.1 e2b-code-interpreter==2.9.1 pytest pytest-asyncio pytest-timeout pytest-xdist
  tests/e2b/suites.py --python v/bin/python --core E2B/packages/python-sdk --code-interpreter code-interpreter/python

The versions are those of the copy. Only the environment is set; each test has its own time limit raised, as where KVM is done in
software starting bash takes seconds. Of the core suite only the files that a server of one's own can pass are run (CORE).
"""
from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Daemon  # noqa: E402

LIMIT_S = 300
CORE = {
    "core: api": ["api_{0}/test_sbx_info.py", "api_{0}/test_sbx_kill.py", "api_{0}/test_sbx_list.py"],
    "core: sandbox": [f"sandbox_{{0}}/test_{name}.py" for name in ("create", "connect", "kill", "secure", "timeout")],
    "core: files": [f"sandbox_{{0}}/files/test_{name}.py" for name in (
        "read", "write", "exists", "files_list", "info", "make_dir", "remove", "rename", "content_encoding", "metadata", "secured",
        "watch")],
    "core: commands": [f"sandbox_{{0}}/commands/test_{name}.py" for name in (
        "run", "env_vars", "cmd_connect", "cmd_kill", "cmd_list", "send_stdin", "sandbox_killed_during_run")],
    "core: pty": [f"sandbox_{{0}}/pty/test_{name}.py" for name in (
        "pty", "pty_create", "pty_connect", "pty_kill", "resize", "send_input")],
}
"""Files of the core suite that a server of one's own can pass, by their part; {0} is sync or async."""


def run(python: str, folder: Path, tests: list[str], daemon: Daemon, report: Path) -> list[tuple[str, str, str]]:
    """Of each test its name, how it ended, and why."""
    environ = {**os.environ, "E2B_API_URL": daemon.url, "E2B_SANDBOX_URL": daemon.url, "E2B_API_KEY": "e2b_" + "0" * 40,
               "NO_PROXY": "127.0.0.1,localhost"}
    environ.pop("E2B_DEBUG", None)
    subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"timeout={LIMIT_S}", "-o", "addopts=",
                    "--import-mode=importlib", f"--junitxml={report}", *tests], cwd=folder, env=environ, stdout=subprocess.DEVNULL)
    seen = []
    for case in ElementTree.parse(report).iter("testcase"):
        child = next((c for c in case if c.tag in ("failure", "error", "skipped")), None)
        how = {"failure": "failed", "error": "failed", "skipped": "skipped"}[child.tag] if child is not None else "passed"
        why = (child.get("message") or "").splitlines()[:1] if child is not None else []
        seen.append((f"{case.get('classname')}::{case.get('name')}", how, why[0] if why else ""))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the SDKs of the copy's versions")
    parser.add_argument("--core", type=Path, help="packages/python-sdk of E2B's repository")
    parser.add_argument("--code-interpreter", type=Path, help="python/ of the code interpreter's")
    parser.add_argument("--only", default="", help="the suite of this name, or of its last word")
    parser.add_argument("--pool", default="2")
    args = parser.parse_args()
    suites: dict[str, tuple[Path, list[str]]] = {}
    if args.core:
        for name, files in CORE.items():
            paths = [f"tests/{kind}/{file.format(kind)}" for kind in ("sync", "async") for file in files]
            suites[name] = (args.core, [path for path in paths if (args.core / path).exists()])
    if args.code_interpreter:
        suites["code interpreter: sync"] = (args.code_interpreter, ["tests/sync"])
        suites["code interpreter: async"] = (args.code_interpreter, ["tests/async"])
        suites["code interpreter: charts, images"] = (args.code_interpreter, ["tests/charts", "tests/images"])
    suites = {name: suite for name, suite in suites.items() if args.only in name.split(": ")[-1].split(", ") + ["", name]}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the daemon ends, too
    with tempfile.TemporaryDirectory(prefix="thawbox-suites-") as tmp:
        daemon = Daemon(Path(tmp), "--pool", args.pool, "--cell-timeout", "300s")
        try:
            for name, (folder, tests) in suites.items():
                seen = run(str(Path(args.python).absolute()), folder, tests, daemon, Path(tmp, "report.xml"))
                count = {how: sum(one == how for _, one, _ in seen) for how in ("passed", "failed", "skipped")}
                print(f"{name}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped", flush=True)
                for test, how, why in seen:
                    if how != "passed":
                        print(f"  {how} {test}: {why:.200}", flush=True)
        finally:
            daemon.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
