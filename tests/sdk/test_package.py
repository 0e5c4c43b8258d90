# SPDX-License-Identifier: Apache-2.0
"""The package as users get it: a wheel, in an environment with nothing else, by each Python that is there."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

PROGRAM = """
import asyncio, importlib.metadata, json, sys
from thawbox import AsyncSandbox, Sandbox

async def twice():
    async with await AsyncSandbox.create() as sb:
        return (await sb.run_code("20 * 2")).text

with Sandbox.create() as sb:
    ex = sb.run_code("print('out')\\n6 * 7")
    sb.files.write("f", "x")
    names = [e.name for e in sb.files.list()]
others = sorted(d.name for d in importlib.metadata.distributions())
print(json.dumps([sys.version_info[:2], ex.text, ex.logs.stdout, "f" in names, asyncio.run(twice()), others]))
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Wheel and sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT / "sdk" / "python", check=True,
                   capture_output=True)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def test_what_is_in_it(built):
    wheel, sdist = built
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"thawbox/py.typed", "thawbox/_guest.py", "thawbox/_codec.py", "thawbox/mcp.py", "thawbox/smolagents.py"} <= names
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("src/thawbox/__init__.py") for name in archive.getnames())
    meta = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert "thawbox-mcp = thawbox.mcp:main" in meta and "[smolagents.executors]" in meta


def interpreters() -> list[str]:
    """Each minor version once: of the PATH, of pyenv, of uv; those that can make an environment."""
    homes = [os.environ.get("PYENV_ROOT", "~/.pyenv") + "/versions",
             os.environ.get("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python")]
    found = []
    for minor in range(10, 14):
        paths = [shutil.which(f"python3.{minor}")]
        paths += [str(path) for home in homes for path in Path(home).expanduser().glob(f"*3.{minor}.*/bin/python3.{minor}")]
        found += [path for path in paths if path and subprocess.run(
            [path, "-c", "import venv, ensurepip"], check=False, capture_output=True).returncode == 0][:1]
    return found


@pytest.mark.parametrize("python", interpreters() or [sys.executable], ids=lambda path: Path(path).name)
def test_in_an_empty_environment(daemon, built, tmp_path, python):
    subprocess.run([python, "-m", "venv", tmp_path / "env"], check=True)
    subprocess.run([tmp_path / "env/bin/pip", "install", "-q", "--disable-pip-version-check", built[0]], check=True)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([tmp_path / "env/bin/python", "-c", PROGRAM], check=True, capture_output=True, text=True, env=env,
                          cwd=tmp_path)
    version, text, out, has_file, twice, others = json.loads(done.stdout)
    assert version == [3, int(python.rpartition(".")[2])] or python == sys.executable
    assert (text, out, has_file, twice) == ("42", "out\n", True, "40")
    assert "smolagents" not in others and "numpy" not in others and "thawbox" in others
    help_text = subprocess.run([tmp_path / "env/bin/thawbox-mcp"], check=False, capture_output=True, text=True, env=env).stderr
    assert "pip install 'thawbox[mcp]'" in help_text
