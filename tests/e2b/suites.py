#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""E2B's own test suites, from a copy of their repositories, against a thawboxd: counts a suite, and each failure with its reason.

  python3 -m venv v && v/bin/pip install e2b==2.45.1 e2b-code-interpreter==2.9.1 pytest pytest-asyncio pytest-timeout pytest-xdist
  tests/e2b/suites.py --python v/bin/python --core E2B/packages/python-sdk --code-interpreter code-interpreter/python

Those in JavaScript after `npm install` in their folders (the suites need vitest, dotenv and msw of their development packages):

  tests/e2b/suites.py --core-js E2B/packages/js-sdk --code-interpreter-js code-interpreter/js

The versions are those of the copy. Only the environment is set; each test has its own time limit raised, as where KVM is done in
software starting bash takes seconds. Of the core suites only the files that a server of one's own can pass are run (CORE).
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Daemon  # noqa: E402

LIMIT_S = 300
CORE = {
    "core: api": ["api_{0}/test_sbx_info.py", "api_{0}/test_sbx_kill.py", "api_{0}/test_sbx_list.py"],
    "core: sandbox": [f"sandbox_{{0}}/test_{name}.py" for name in ("create", "connect", "kill", "secure", "timeout")],
    "core: files": [f"sandbox_{{0}}/files/test_{name}.py" for name in (
        "read", "write", "exists", "files_list", "info", "make_dir", "remove", "rename", "content_encoding", "metadata",
        "secured", "watch")],
    "core: commands": [f"sandbox_{{0}}/commands/test_{name}.py" for name in (
        "run", "env_vars", "cmd_connect", "cmd_kill", "cmd_list", "send_stdin", "sandbox_killed_during_run")],
    "core: pty": [f"sandbox_{{0}}/pty/test_{name}.py" for name in (
        "pty", "pty_create", "pty_connect", "pty_kill", "resize", "send_input")],
}
"""Files of the core suite that a server of one's own can pass, by their part; {0} is sync or async."""
CORE_JS = {
    "core js: api": [f"api/{name}" for name in ("info", "kill", "list")],
    "core js: sandbox": [f"sandbox/{name}" for name in ("create", "connect", "kill", "secure", "timeout")],
    "core js: files": [f"sandbox/files/{name}" for name in (
        "read", "write", "exists", "list", "info", "makeDir", "remove", "rename", "contentEncoding", "metadata", "signing",
        "watch")],
    "core js: commands": [f"sandbox/commands/{name}" for name in (
        "run", "envVars", "connect", "kill", "list", "sendStdin", "sandboxKilledDuringRun")],
    "core js: pty": [f"sandbox/pty/{name}" for name in ("ptyCreate", "ptyConnect", "kill", "resize", "sendInput")],
}
"""The same of the JavaScript suite."""
VITEST = """export default {{ test: {{ root: {root}, include: {include}, setupFiles: {setup}, fileParallelism: false, globals: false,
  environment: "node", testTimeout: {limit}, hookTimeout: {limit}, server: {{ deps: {{ interopDefault: true }} }} }} }}
"""


def pytest(python: str, tests: list[str], report: Path) -> list[str]:
    return [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"timeout={LIMIT_S}", "-o", "addopts=",
            "--import-mode=importlib", f"--junitxml={report}", *tests]


def vitest(folder: Path, tests: list[str], report: Path) -> list[str]:
    """Their own configuration names browsers and short limits: ours has the same set-up for Node.js alone."""
    config = report.with_name("vitest.config.mjs")
    setup = [f"tests/{file.name}" for file in (folder / "tests").glob("*.setup.ts")]
    config.write_text(VITEST.format(root=json.dumps(str(folder)), include=json.dumps(tests), setup=json.dumps(setup),
                                    limit=LIMIT_S * 1000))
    return ["npx", "vitest", "run", "--config", str(config), "--root", str(folder), "--reporter=junit", f"--outputFile={report}"]


def run(command: list[str], folder: Path, daemon: Daemon, report: Path) -> list[tuple[str, str, str]]:
    """Of each test its name, how it ended, and why."""
    environ = {**os.environ, "E2B_API_URL": daemon.url, "E2B_SANDBOX_URL": daemon.url, "E2B_API_KEY": "e2b_" + "0" * 40,
               "NO_PROXY": "127.0.0.1,localhost"}
    environ.pop("E2B_DEBUG", None)
    report.unlink(missing_ok=True)
    subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL)
    if not report.exists():
        sys.exit(f"suites: no report of {' '.join(command)}: run it by hand in {folder}")
    seen = []
    for case in ElementTree.parse(report).iter("testcase"):
        child = next((c for c in case if c.tag in ("failure", "error", "skipped")), None)
        how = {"failure": "failed", "error": "failed", "skipped": "skipped"}[child.tag] if child is not None else "passed"
        why = (child.get("message") or child.text or "").strip().splitlines()[:1] if child is not None else []
        seen.append((f"{case.get('classname')}::{case.get('name')}", how, why[0] if why else ""))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the SDKs of the copy's versions")
    parser.add_argument("--core", type=Path, help="packages/python-sdk of E2B's repository")
    parser.add_argument("--code-interpreter", type=Path, help="python/ of the code interpreter's")
    parser.add_argument("--core-js", type=Path, help="packages/js-sdk of E2B's repository")
    parser.add_argument("--code-interpreter-js", type=Path, help="js/ of the code interpreter's")
    parser.add_argument("--only", default="", help="suites with this in their name")
    parser.add_argument("--pool", default="2")
    args = parser.parse_args()
    suites: dict[str, tuple[Path, list[str]]] = {}
    if args.core:
        for name, files in CORE.items():
            paths = [f"tests/{kind}/{file.format(kind)}" for kind in ("sync", "async") for file in files]
            suites[name] = (args.core, [path for path in paths if (args.core / path).exists()])
    if args.core_js:
        for name, files in CORE_JS.items():
            paths = [f"tests/{file}.test.ts" for file in files]
            suites[name] = (args.core_js, [path for path in paths if (args.core_js / path).exists()])
    if args.code_interpreter:
        suites["code interpreter: sync"] = (args.code_interpreter, ["tests/sync"])
        suites["code interpreter: async"] = (args.code_interpreter, ["tests/async"])
        suites["code interpreter: charts, images"] = (args.code_interpreter, ["tests/charts", "tests/images"])
    if args.code_interpreter_js:
        suites["code interpreter js: all"] = (args.code_interpreter_js, ["tests/*.test.ts", "tests/env_vars/*.test.ts"])
        suites["code interpreter js: charts, images"] = (args.code_interpreter_js, ["tests/charts/*.test.ts", "tests/images/*.test.ts"])
    suites = {name: suite for name, suite in suites.items() if args.only in name}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the daemon ends, too
    with tempfile.TemporaryDirectory(prefix="thawbox-suites-") as tmp:
        daemon = Daemon(Path(tmp), "--pool", args.pool, "--cell-timeout", "300s")
        try:
            for name, (folder, tests) in suites.items():
                folder, report = folder.absolute(), Path(tmp, "report.xml")
                command = (vitest(folder, tests, report) if " js:" in name else
                           pytest(str(Path(args.python).absolute()), tests, report))
                seen = run(command, folder, daemon, report)
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
