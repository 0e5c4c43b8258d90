# SPDX-License-Identifier: Apache-2.0
"""bench/daemon.py: what it takes for an answer, and a small real run."""
import asyncio
import json
import os

import common
import daemon
import pytest


def test_wrong_usage(bench):
    assert "--seconds" in bench("daemon", "--seconds", "no", code=2).stderr


async def answer_of(data: bytes) -> tuple[int, bytes]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    client = daemon.Client(reader, None)
    status, fields = await client.head()
    return status, await client.body(fields)


def test_bodies():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n"
    assert asyncio.run(answer_of(chunked)) == (200, b"hello!")
    assert asyncio.run(answer_of(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno")) == (404, b"no")
    assert asyncio.run(answer_of(b"HTTP/1.1 204 No Content\r\n\r\n")) == (204, b"")
    with pytest.raises(asyncio.IncompleteReadError):
        asyncio.run(answer_of(chunked[:-9]))


def test_real(bench, real):
    if not os.access(common.find_programs(None).with_name("thawboxd"), os.X_OK):
        pytest.skip("thawboxd is not built")
    done = bench("daemon", *real[:2], "--loop", "1", "2", "--cycles", "3", "--idle", "20", "--busy", "2", "--seconds", "1",
                 "--pool", "2", "--json")
    rows = {(row["phase"], row["what"]): row for row in map(json.loads, done.stdout.splitlines())}
    assert {what: rows["loop 2", what]["n"] for what in ("create", "cell", "kill", "all")} == dict.fromkeys(
        ("create", "cell", "kill", "all"), 3)
    assert rows["bare 1", "cell"]["n"] == 2 and rows["bare 2", "cell"]["n"] == 4
    assert rows["idle 20", "opened"]["n"] == 20 and rows["idle 20", "cell"]["n"] == 3
    assert rows["busy 2", "first cell"]["n"] == 2 and rows["busy 2", "cell"]["n"] >= 2
    assert len({row["threads"] for row in rows.values()}) == 1, "streams and sandboxes cost no thread"
