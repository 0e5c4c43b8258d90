# SPDX-License-Identifier: Apache-2.0
"""An MCP server over stdio: a sandbox as tools of Claude Desktop, Cursor and others. `thawbox-mcp --help`."""
from __future__ import annotations

import argparse
import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

try:
    from mcp.server.fastmcp import FastMCP, Image
except ImportError as error:
    raise ImportError("the package mcp is missing; install it with: pip install 'thawbox[mcp]'") from error

from . import __version__
from ._async import AsyncSandbox
from ._errors import SandboxGone, ThawboxError
from ._models import CommandResult, Execution

ABOUT = ("A private Linux sandbox (a microVM) with Python, numpy, pandas, matplotlib, scipy. Variables, imports and files stay "
         "from one call to the next, until `reset`. It has no network.")


class Session:
    """The sandbox of this server; made at the first call, and again after a reset or a loss."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._sandbox: AsyncSandbox | None = None
        self._lock = asyncio.Lock()

    async def sandbox(self) -> AsyncSandbox:
        async with self._lock:
            if self._sandbox is None:
                self._sandbox = await AsyncSandbox.create(
                    self.options.template, ttl_seconds=self.options.ttl, memory_mb=self.options.memory,
                    timeout_seconds=self.options.timeout, max_output_bytes=self.options.max_output)
            return self._sandbox

    async def close(self) -> bool:
        async with self._lock:
            sandbox, self._sandbox = self._sandbox, None
            if sandbox is None:
                return False
            await sandbox.close()
            return True


def execution_content(ex: Execution) -> list[Any]:
    """What a model is shown of a cell: text, then pictures."""
    parts = [ex.logs.stdout, ex.logs.stderr]
    content: list[Any] = []
    for result in ex.results:
        if result.png or result.jpeg:
            form = "png" if result.png else "jpeg"
            content.append(Image(data=base64.b64decode(result.png or result.jpeg or ""), format=form))
        elif result.text is not None:
            parts.append(result.text)
    if ex.error:
        parts.append(ex.error.report)
    if ex.truncated:
        parts.append(ex.truncated.note)
    text = "\n".join(part.rstrip("\n") for part in parts if part)
    return [text or "(no output)", *content]


def command_text(result: CommandResult) -> str:
    parts = [result.stdout, result.stderr, str(result.error) if result.error else "",
             result.truncated.note, f"exit code {result.exit_code}" if result.exit_code else ""]
    return "\n".join(part.rstrip("\n") for part in parts if part) or "(no output)"


def build(options: argparse.Namespace) -> FastMCP:
    """The server and its tools."""
    session = Session(options)

    @asynccontextmanager
    async def life(_: FastMCP) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await session.close()

    server = FastMCP("thawbox", instructions=ABOUT, lifespan=life)

    async def lost() -> None:
        """The next call gets a fresh one."""
        await session.close()

    @asynccontextmanager
    async def using() -> AsyncIterator[AsyncSandbox]:
        try:
            yield await session.sandbox()
        except SandboxGone as error:
            await lost()
            raise ThawboxError("the sandbox was lost; the next call gets a fresh one, without variables and files",
                               code="sandbox_gone") from error

    @server.tool(structured_output=False)
    async def run_code(code: str, timeout_seconds: float | None = None) -> list[Any]:
        """Run Python code. Variables and imports stay for later calls; the value of the last expression, what is printed,
        tracebacks and figures come back. IPython syntax (`!command`, `await`) works."""
        async with using() as sandbox:
            return execution_content(await sandbox.run_code(code, timeout_seconds=timeout_seconds))

    @server.tool(structured_output=False)
    async def exec(command: str, timeout_seconds: float | None = None) -> str:
        """Run a command line with bash; its output and exit code come back."""
        async with using() as sandbox:
            return command_text(await sandbox.exec(command, timeout_seconds=timeout_seconds))

    @server.tool(structured_output=False)
    async def read_file(path: str) -> list[Any]:
        """Read a file of the sandbox: text, or a PNG or JPEG picture. Relative paths are in /home/user."""
        async with using() as sandbox:
            data = await sandbox.files.read(path, "bytes")
        if data.startswith(b"\x89PNG"):
            return [Image(data=data, format="png")]
        if data.startswith(b"\xff\xd8\xff"):
            return [Image(data=data, format="jpeg")]
        try:
            return [data.decode()]
        except UnicodeDecodeError:
            raise ThawboxError(f"{path} is neither text nor a picture ({len(data)} bytes)", "read it with run_code") from None

    @server.tool(structured_output=False)
    async def write_file(path: str, content: str) -> str:
        """Write a text file in the sandbox, with its folders; what was there is replaced."""
        async with using() as sandbox:
            return f"written: {await sandbox.files.write(path, content)}"

    @server.tool(structured_output=False)
    async def list_files(path: str = ".") -> str:
        """List a folder of the sandbox."""
        async with using() as sandbox:
            entries = await sandbox.files.list(path)
        return "\n".join(f"{e.permissions} {e.size:>10} {e.name}{'/' if e.type == 'dir' else ''}" for e in entries) or "(empty)"

    @server.tool(structured_output=False)
    async def reset() -> str:
        """Throw the sandbox away: the next call gets a fresh one, without variables and files."""
        return "the sandbox was thrown away" if await session.close() else "there was none yet"

    return server


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("thawbox-mcp", description=f"An MCP server over stdio. {ABOUT}",
                                     epilog="It uses the daemon at $THAWBOX_URL, or the user's, or starts one for itself.")
    parser.add_argument("--template", default="code-interpreter", help="what sandboxes are thawed from (%(default)s)")
    parser.add_argument("--memory", type=int, metavar="MB", help="the variant of the template with that memory")
    parser.add_argument("--ttl", type=float, default=3600, metavar="SECONDS", help="life of a sandbox (%(default)s)")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="deadline of a call (%(default)s)")
    parser.add_argument("--max-output", type=int, default=50_000, metavar="BYTES",
                        help="output of a call; of more the middle is cut (%(default)s)")
    parser.add_argument("--version", action="version", version=__version__)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    build(parse(argv)).run("stdio")


if __name__ == "__main__":
    main()
