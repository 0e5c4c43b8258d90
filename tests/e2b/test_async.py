# SPDX-License-Identifier: Apache-2.0
"""The asynchronous Python SDKs: the same methods by another transport, and several at once."""
import asyncio

import pytest
from e2b import (AsyncSecret, AsyncTemplate, AsyncVolume, CommandExitException, FileNotFoundException, PtySize, SandboxException,
                 TimeoutException)
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


@pytest.mark.slow
async def test_contexts(box):
    await box.run_code("x = 1")
    other = await box.create_code_context(cwd="/tmp")
    assert (await box.run_code("import os; os.getcwd()", context=other)).text == "/tmp"
    assert (await box.run_code("x", context=other)).error.name == "NameError"
    assert [c.id for c in await box.list_code_contexts()][-1] == other.id
    await box.restart_code_context(other)
    assert (await box.run_code("os", context=other)).error.name == "NameError"
    await box.remove_code_context(other)
    with pytest.raises(SandboxException):
        await box.run_code("1", context=other)
    assert (await box.run_code("x")).text == "1"


async def test_files(box):
    files = box.files
    written = await files.write_files([{"path": "d/a", "data": "1"}, {"path": "d/b", "data": b"\0\xff"}])
    assert [info.path for info in written] == ["/home/user/d/a", "/home/user/d/b"]
    assert await files.read("d/b", format="bytes") == b"\0\xff" and (await files.get_info("d/a")).size == 1
    assert [entry.name for entry in await files.list("d")] == ["a", "b"]
    assert (await files.rename("d/a", "d/c")).path == "/home/user/d/c"
    await files.remove("d/b")
    assert await files.exists("d/c") and not await files.exists("d/b")
    assert not await files.make_dir("d")
    with pytest.raises(FileNotFoundException):
        await files.read("d/b")
    for url in (box.download_url("d/c"), box.upload_url("d/e")):
        assert "signature=v1_" in url
    assert box.get_host(8000).startswith(f"8000-{box.sandbox_id}.")


async def test_not_offered(box):
    for call in (box.beta_pause(), box.create_snapshot(), box.list_snapshots().next_items(), AsyncSandbox.delete_snapshot("s"),
                 box.update_network({"allow_out": ["example.com"]}), AsyncVolume.create("v"), AsyncVolume.list(),
                 AsyncSecret.create("s", "v"), AsyncTemplate.exists("t"), AsyncTemplate.build(AsyncTemplate().from_base_image(), "t"),
                 box.create_code_context(language="r")):
        with pytest.raises(Exception, match="thawbox"):
            await call
    with pytest.raises(FileNotFoundException):
        await box.get_mcp_token()


@pytest.mark.slow
async def test_input(box):
    handle = await box.commands.run("cat", background=True, stdin=True, timeout=0)
    await box.commands.send_stdin(handle.pid, "a")
    more = box.commands.stream_input(handle.pid)
    await more.send(b"b")
    await more.close()
    assert [p.pid for p in await box.commands.list()] == [handle.pid]
    await box.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "ab"
    assert not await box.commands.kill(handle.pid)


@pytest.mark.slow
async def test_terminal(box):
    seen = bytearray()
    handle = await box.pty.create(PtySize(rows=24, cols=80), on_data=seen.extend, timeout=0)
    await box.pty.resize(handle.pid, PtySize(rows=30, cols=90))
    await handle.disconnect()
    again = await box.pty.connect(handle.pid, on_data=seen.extend, timeout=0)
    await box.pty.send_stdin(handle.pid, b"echo $((20+22)); stty size; exit\n")
    await again.wait()
    assert b"42\r\n" in seen and b"30 90" in seen
    assert not await box.pty.kill(handle.pid)


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
    with pytest.raises(TimeoutException, match="was killed or reached its end of life"):
        await command.wait()
    with pytest.raises(SandboxException):
        await box.files.read("x")


async def test_several_sandboxes(daemon):
    boxes = await asyncio.gather(*(AsyncSandbox.create() for _ in range(6)))
    cells = await asyncio.gather(*(box.run_code(f"{n} * 7") for n, box in enumerate(boxes)))
    assert [cell.text for cell in cells] == [str(7 * n) for n in range(6)]
    assert all(await asyncio.gather(*(box.kill() for box in boxes)))
