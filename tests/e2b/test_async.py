# SPDX-License-Identifier: Apache-2.0
"""The asynchronous Python SDKs: the same methods by another transport, and several at once."""
import asyncio

import pytest
from e2b import CommandExitException, FileNotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def box(daemon):
    box = await AsyncSandbox.create(envs={"A": "b"})
    yield box
    await box.kill()


async def test_life(box):
    assert await box.is_running()
    assert (await box.get_info()).sandbox_id == box.sandbox_id
    await box.set_timeout(100)
    again = await AsyncSandbox.connect(box.sandbox_id)
    assert (await again.run_code("import os; os.environ['A']")).text == "b"
    assert box.sandbox_id in [item.sandbox_id for item in await AsyncSandbox.list().next_items()]
    assert len(await box.get_metrics()) == 1
    for call in (box.pause(), box.fork()):
        with pytest.raises(SandboxException, match="thawbox"):
            await call
    assert await box.kill() and not await box.is_running()


async def test_code_streams(box):
    seen = []

    async def on_stdout(message):
        seen.append((asyncio.get_running_loop().time(), message.line))

    cell = await box.run_code("import time\nprint('a', flush=True); time.sleep(1); print('b'); 7", on_stdout=on_stdout)
    assert [line for _, line in seen] == ["a\n", "b\n"] and cell.text == "7"
    assert seen[1][0] - seen[0][0] > 0.3, "the first line came while the cell ran"


async def test_cells_of_a_context_wait_for_each_other(box):
    cells = await asyncio.gather(*(box.run_code(f"x = {n}; import time; time.sleep(0.2); x") for n in range(4)))
    assert sorted(cell.text for cell in cells) == ["0", "1", "2", "3"]
    assert sorted(cell.execution_count for cell in cells) == [1, 2, 3, 4]


@pytest.mark.slow
async def test_files_and_commands_beside_a_cell(box):
    cell = asyncio.create_task(box.run_code("import time\nfor _ in range(600):\n    time.sleep(0.1)\n'done'", timeout=0))
    await asyncio.sleep(0.5)
    await box.files.write("a", "beside")
    assert await box.files.read("a") == "beside"
    assert (await box.commands.run("cat a", timeout=0)).stdout == "beside"
    cell.cancel()
    assert (await box.run_code("1", timeout=100)).text == "1", "the one whose client left was interrupted"


@pytest.mark.slow
async def test_commands(box):
    with pytest.raises(CommandExitException):
        await box.commands.run("exit 4", timeout=0)
    lines = []
    handle = await box.commands.run("for i in 1 2 3; do echo $i; done", background=True, on_stdout=lines.append, timeout=0)
    assert (await handle.wait()).stdout == "1\n2\n3\n" == "".join(lines)


async def test_watch(box):
    seen, ended = asyncio.Queue(), asyncio.Event()
    await box.files.make_dir("seen/there")
    watch = await box.files.watch_dir("seen", on_event=seen.put_nowait, on_exit=lambda error: ended.set(), recursive=True,
                                      include_entry=True)
    await box.files.write("seen/there/f", "x")
    events = [await asyncio.wait_for(seen.get(), 120) for _ in range(3)]
    assert [(e.type.value, e.name) for e in events] == [(kind, "there/f") for kind in ("create", "chmod", "write")]
    assert events[2].entry.path == "/home/user/seen/there/f"
    await box.commands.run("mv seen/there seen/other; echo >seen/other/g", timeout=0)
    events = [await asyncio.wait_for(seen.get(), 120) for _ in range(3)]
    assert [(e.type.value, e.name) for e in events] == [("rename", "there"), ("create", "other"), ("create", "other/g")]
    await watch.stop()
    assert ended.is_set()
    with pytest.raises(FileNotFoundException):
        await box.files.watch_dir("nothing", on_event=print)


async def test_watch_ends_with_its_sandbox(daemon):
    box = await AsyncSandbox.create()
    ended = asyncio.get_running_loop().create_future()
    await box.files.watch_dir("/tmp", on_event=print, on_exit=ended.set_result, timeout=0)
    await box.kill()
    assert isinstance(await asyncio.wait_for(ended, 120), TimeoutException)


@pytest.mark.slow
async def test_killed_in_the_middle(daemon):
    box = await AsyncSandbox.create()
    cell = asyncio.create_task(box.run_code("import time; time.sleep(600)", timeout=0))
    command = await box.commands.run("sleep 600", background=True, timeout=0)
    await box.kill()
    with pytest.raises(TimeoutException, match="killed"):
        await cell
    with pytest.raises(TimeoutException, match="killed"):
        await command.wait()
    with pytest.raises(SandboxException):
        await box.files.read("x")


async def test_several_sandboxes(daemon):
    boxes = await asyncio.gather(*(AsyncSandbox.create() for _ in range(6)))
    cells = await asyncio.gather(*(box.run_code(f"{n} * 7") for n, box in enumerate(boxes)))
    assert [cell.text for cell in cells] == [str(7 * n) for n in range(6)]
    assert all(await asyncio.gather(*(box.kill() for box in boxes)))
