# SPDX-License-Identifier: Apache-2.0
"""The asynchronous layer: the same surface, awaited."""
from __future__ import annotations

import asyncio

import pytest
from thawbox import AsyncSandbox, InvalidInput, NotFound, Pricing, SandboxGone, TimeoutError_


async def test_program(daemon, tmp_path):
    async with await AsyncSandbox.create(env={"A": "1"}, metadata={"m": "x"}) as sb:
        seen: list[str] = []

        async def note(text: str) -> None:
            await asyncio.sleep(0)
            seen.append(text)

        ctx = await sb.create_code_context()
        ex = await ctx.run_code("import os\nprint(os.environ['A'])\n6 * 7", on_stdout=note)
        assert ex.text == "42" and seen == ["1\n"]
        ex = await ctx.run_code("while True: pass", timeout_seconds=1)
        assert ex.timed_out
        with pytest.raises(TimeoutError_):
            await ctx.run_code("while True: pass", timeout_seconds=1, raise_on_timeout=True)
        assert (await sb.exec("echo out", timeout_seconds=120)).stdout == "out\n"
        (tmp_path / "f").write_bytes(b"data")
        path = await sb.upload_file(tmp_path / "f")
        assert await sb.files.read(path) == "data" and (await sb.files.stat("f")).size == 4
        with open(tmp_path / "f", "rb") as f:
            await sb.files.write("g", f)
        await sb.download("g", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"data"
        assert {e.name for e in await sb.files.list()} >= {"f", "g"}
        assert await sb.files.mkdir("d") and not await sb.files.mkdir("d")
        assert (await sb.files.rename("g", "h")).name == "h" and await sb.files.exists("h")
        await sb.files.remove("h")
        with pytest.raises(NotFound):
            await sb.files.stat("h")
        assert (await sb.info()).metadata == {"m": "x"} and (await sb.metrics()).cpus == 1
        assert (await sb.usage()).cost(Pricing(1, 1)) > 0
        assert [one.id for one in await AsyncSandbox.list()] == [sb.id]
        other = await AsyncSandbox.connect(sb.id)
        with pytest.raises(NotFound):
            await AsyncSandbox.connect("inone")
        await ctx.restart()
        await ctx.close()
        assert await other.kill() is True
    with pytest.raises(SandboxGone):
        await sb.run_code("1")
    for call in (sb.info, sb.files.list, sb.usage):
        with pytest.raises(SandboxGone):
            await call()
    assert await sb.kill() is False and await sb.kill() is False


async def test_many_at_once(daemon):
    async def one(number: int) -> str | None:
        async with await AsyncSandbox.create() as sb:
            await sb.run_code(f"n = {number}")
            return (await sb.run_code("n")).text

    assert await asyncio.gather(*(one(n) for n in range(5))) == ["0", "1", "2", "3", "4"]


async def test_a_task_that_is_cancelled_ends_its_cell(daemon):
    async with await AsyncSandbox.create() as sb:
        await sb.run_code("x = 1")
        started = asyncio.Event()
        task = asyncio.create_task(sb.run_code("print('go')\nwhile True: pass", on_stdout=lambda _: started.set()))
        await asyncio.wait_for(started.wait(), 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sb.run_code("x", timeout_seconds=60)).text == "1"


async def test_what_is_refused(daemon):
    with pytest.raises(InvalidInput, match="template build"):
        await AsyncSandbox.create(memory_mb=1234)
    with pytest.raises(NotFound):
        await AsyncSandbox.create("none")


async def test_killed_while_a_cell_runs(daemon):
    sb = await AsyncSandbox.create()
    started = asyncio.Event()
    task = asyncio.create_task(sb.run_code("import time\nprint('go', flush=True)\ntime.sleep(600)",
                                           on_stdout=lambda _: started.set()))
    await asyncio.wait_for(started.wait(), 120)
    await sb.kill()
    with pytest.raises(SandboxGone) as caught:
        await task
    assert caught.value.partial.logs.stdout == "go\n"


async def test_first_cells_of_two_tasks_are_of_one_context(daemon):
    async with await AsyncSandbox.create() as sb:
        await asyncio.gather(sb.run_code("a = 1"), sb.run_code("b = 2"))
        assert (await sb.run_code("a + b")).text == "3"
