# SPDX-License-Identifier: Apache-2.0
"""The MCP server, over stdio, with the official client."""
from __future__ import annotations

import base64
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from conftest import BIN, ROOT
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@asynccontextmanager
async def client(daemon, *args: str):
    env = {**os.environ, "THAWBOX_URL": daemon.url, "PYTHONPATH": str(ROOT / "sdk" / "python" / "src")}
    server = StdioServerParameters(command=sys.executable, args=["-m", "thawbox.mcp", *args], env=env)
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        yield session


def text_of(result) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")


async def test_tools(daemon):
    async with client(daemon) as session:
        tools = {one.name: one for one in (await session.list_tools()).tools}
        assert set(tools) == {"run_code", "exec", "read_file", "write_file", "list_files", "reset"}
        assert all(one.description for one in tools.values())

        async def call(name: str, **arguments):
            return await session.call_tool(name, arguments)

        assert text_of(await call("reset")) == "there was none yet"
        assert text_of(await call("run_code", code="x = 20\nprint('out')\nx + 1")) == "out\n21"
        assert text_of(await call("run_code", code="x + 2")) == "22", "variables stay"
        assert text_of(await call("run_code", code="pass")) == "(no output)"
        failed = await call("run_code", code="{}['k']")
        assert "KeyError: 'k'" in text_of(failed) and not failed.isError
        late = text_of(await call("run_code", code="print('so far')\nwhile True: pass", timeout_seconds=1))
        assert "so far" in late and "TimeoutError" in late
        shown = await call("run_code", code="import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()")
        picture = next(part for part in shown.content if part.type == "image")
        assert picture.mimeType == "image/png" and base64.b64decode(picture.data).startswith(b"\x89PNG")
        assert "written: /home/user/d/f.txt" in text_of(await call("write_file", path="d/f.txt", content="text"))
        assert text_of(await call("read_file", path="d/f.txt")) == "text"
        assert "d/" in text_of(await call("list_files"))
        assert text_of(await call("exec", command="cat d/f.txt; exit 3")) == "text\nexit code 3"
        missing = await call("read_file", path="none")
        assert missing.isError and "none" in text_of(missing)
        assert text_of(await call("reset")) == "the sandbox was thrown away"
        assert text_of(await call("run_code", code="'x' in globals()")) == "False"
        await call("run_code", code="plt = 1")


async def test_a_lost_sandbox_is_told_and_replaced(daemon):
    from thawbox import Sandbox

    async with client(daemon) as session:
        await session.call_tool("run_code", {"code": "x = 1"})
        for one in Sandbox.list():
            Sandbox.connect(one.id).kill()
        result = await session.call_tool("run_code", {"code": "x"})
        assert result.isError and "lost" in text_of(result)
        assert text_of(await session.call_tool("run_code", {"code": "'x' in globals()"})) == "False"


def test_help(capsys):
    from thawbox import mcp

    with pytest.raises(SystemExit) as caught:
        mcp.main(["--help"])
    assert caught.value.code == 0 and "MCP server over stdio" in capsys.readouterr().out


def test_the_command(daemon, tmp_path):
    """`thawbox mcp` becomes the server; without the package it says how to get it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "thawbox-mcp").write_text('#!/bin/sh\necho "$THAWBOX_BIN $@"\n')
    (folder / "thawbox-mcp").chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k != "THAWBOX_BIN"}

    def run(path, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BIN / "thawbox", "mcp", *args], env={**env, "PATH": str(path)}, check=False, text=True,
                              capture_output=True)

    done = run(f"{folder}:/usr/bin:/bin", "--", "--timeout", "60")
    assert done.returncode == 0 and done.stdout == f"{BIN} --timeout 60\n"
    done = run(tmp_path, "--")
    assert done.returncode == 3 and "pip install 'thawbox[mcp]'" in done.stderr
    assert run(folder, "--timeout", "60").returncode == 2
