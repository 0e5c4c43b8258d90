# SPDX-License-Identifier: Apache-2.0
"""A day in small: sandboxes come and go, some are killed, clients leave in the middle, and the daemon is replaced meanwhile.

THAWBOX_TEST_RUNS sandboxes (200): `THAWBOX_TEST_RUNS=2000 make e2b K=churn` is the long one. Each must answer rightly, or have
been killed; nothing is left, and nothing has grown.
"""
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import time

import httpx
import pytest
from conftest import GUARD_S, Daemon
from e2b_code_interpreter import AsyncSandbox
from test_restart import restart

RUNS = int(os.environ.get("THAWBOX_TEST_RUNS", "200"))
USERS = 4
KILLED, MURDERED, LEFT = 0.1, 0.1, 0.05
"""Of all: by the API in the middle of a cell; a monitor at random by SIGKILL; clients that leave in the middle of one."""


class Users:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.random = random.Random(6)
        self.count = dict.fromkeys(("answered", "killed", "lost", "left", "asked again", "murders"), 0)

    def is_lost(self, box: AsyncSandbox) -> bool:
        return bool(re.search(rf"{box.sandbox_id}.*lost: ", self.daemon.text()))

    async def again(self, what, *args, **kwargs):
        """As a client that knows of restarts: asks the next daemon."""
        end = time.monotonic() + GUARD_S
        while True:
            try:
                return await what(*args, **kwargs)
            except Exception as error:
                told = "ask again" in str(error) or "DaemonReplaced" in str(error)
                if not (told or isinstance(error, httpx.TransportError)) or time.monotonic() > end:
                    raise
                self.count["asked again"] += 1

    async def sum(self, box: AsyncSandbox) -> None:
        a, b = self.random.randrange(10**6), self.random.randrange(10**6)
        cell = await box.run_code(f"{a} + {b}", timeout=GUARD_S)
        if cell.error:
            raise RuntimeError(cell.error.name)
        assert cell.text == str(a + b)

    def murder(self) -> None:
        """A monitor of a sandbox, or of the pool: whose, is left to chance. Not the zygote, which leads their session."""
        with contextlib.suppress(ProcessLookupError):
            monitors = [pid for pid, line in self.daemon.processes() if "thawbox-vmm" in line and os.getsid(pid) != pid]
            if monitors:
                os.kill(self.random.choice(monitors), signal.SIGKILL)
                self.count["murders"] += 1

    async def use(self, box: AsyncSandbox) -> None:
        await self.again(self.sum, box)
        fate = self.random.random()
        if fate < KILLED:
            cell = asyncio.create_task(box.run_code("import time; time.sleep(300)", timeout=0))
            await asyncio.sleep(0.2)
            await self.again(box.kill)
            with pytest.raises(Exception):
                cell = await cell
                raise RuntimeError(cell.error)  # by a restart in the same moment
            self.count["killed"] += 1
            return
        if fate < KILLED + LEFT:
            cell = asyncio.create_task(box.run_code("import time; time.sleep(300)", timeout=0))
            await asyncio.sleep(0.2)
            cell.cancel()
            await asyncio.gather(cell, return_exceptions=True)
            self.count["left"] += 1
        elif fate < KILLED + LEFT + MURDERED:
            self.murder()
        await self.again(self.sum, box)
        await self.again(box.kill)
        self.count["answered"] += 1

    async def one(self) -> None:
        box = await self.again(AsyncSandbox.create, timeout=3000)
        try:
            await self.use(box)
        except Exception:
            await asyncio.sleep(0)
            if not self.is_lost(box):
                raise
            self.count["lost"] += 1

    async def run(self, nr: int) -> None:
        left = iter(range(nr))

        async def user() -> None:
            for _ in left:
                await self.one()

        await asyncio.gather(*(user() for _ in range(USERS)))


def clients_of(daemon: Daemon) -> set[str]:
    """Connections that clients keep for later are theirs."""
    port = f":{int(daemon.url.rsplit(':', 1)[1]):04X}"
    rows = [line.split() for line in open("/proc/net/tcp").readlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] != "0A"}


def size(daemon: Daemon) -> dict[str, int]:
    proc = f"/proc/{daemon.process.pid}"
    held = [os.readlink(f"{proc}/fd/{fd}") for fd in os.listdir(f"{proc}/fd")]
    return {"fds": len([name for name in held if name not in clients_of(daemon)]), "threads": len(os.listdir(f"{proc}/task")),
            "KiB": daemon.status_kib("VmRSS")}


def at_rest(daemon: Daemon) -> dict[str, int]:
    """When all have gone and the pool is full."""
    end = time.monotonic() + GUARD_S
    while time.monotonic() < end:
        ready = daemon.metric('thawbox_pool_members{"template": "code-interpreter", "state": "ready"}')
        dying = daemon.metric('thawbox_pool_members{"template": "code-interpreter", "state": "dying"}')
        if ready == 2 and not dying and not daemon.metric("thawbox_sandboxes_ending"):
            return size(daemon)
        time.sleep(0.1)
    raise AssertionError(daemon.text()[-4000:])


@pytest.mark.slow
def test_a_day_in_small(start):
    daemon = start("--pool", "2")
    users = Users(daemon)
    asyncio.run(users.run(10))
    restart(daemon)
    before = at_rest(daemon)

    async def day() -> None:
        loop = asyncio.get_running_loop()
        made = daemon.metric('thawbox_creates_total{"result": "ok"}')
        work = asyncio.create_task(users.run(RUNS))
        for part in (1, 2):
            while not work.done() and daemon.metric('thawbox_creates_total{"result": "ok"}') < made + RUNS * part / 3:
                await asyncio.sleep(0.2)
            await loop.run_in_executor(None, restart, daemon)
        await work

    began = time.monotonic()
    asyncio.run(day())
    after = at_rest(daemon)
    print(f"{RUNS} sandboxes in {time.monotonic() - began:.0f} s: {users.count}; before {before}, after {after}")
    assert sum(users.count[how] for how in ("answered", "killed", "lost")) == RUNS + 10
    assert users.count["lost"] <= users.count["murders"]
    assert json.loads(daemon.get("/v2/sandboxes")[1]) == [] and daemon.metric("thawbox_sandboxes") == 0
    assert after["fds"] <= before["fds"] and after["threads"] == before["threads"]
    assert after["KiB"] < before["KiB"] + 8192
    assert daemon.stop() == 0, "and no process is left"
