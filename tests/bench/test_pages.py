# SPDX-License-Identifier: Apache-2.0
"""bench/pages.py: files and page tables are read as they are written; a real working set."""
import json
import struct

import common
import pages
import pytest


def state_section(tag: bytes, body: bytes) -> bytes:
    return struct.pack("<4sHHII", tag, 0, 1, len(body), 0) + body


def test_working_set_is_read_by_class(tmp_path):
    runs = struct.pack("<QII", 0x3000, 2, 1) + struct.pack("<QII", 0x200000, 512, 3)
    (tmp_path / "workset").write_bytes(state_section(b"WSET", b"x" * 40) + state_section(b"RUNS", runs))
    found = pages.working_set(tmp_path / "workset")
    assert found[3] == found[4] == "written" and found[512] == found[1023] == "large" and len(found) == 514


def test_a_file_without_the_section_is_an_error(tmp_path):
    (tmp_path / "workset").write_bytes(state_section(b"WSET", b""))
    with pytest.raises(common.BenchError, match="no section RUNS"):
        pages.working_set(tmp_path / "workset")


@pytest.fixture
def template(tmp_path):
    """Tables in pages 1 to 4, which map pages 8 and 9 at 4 MiB and a large page at 6 MiB; the kernel's half is odd."""
    memory = bytearray(16 * pages.PAGE)

    def entry(table: int, i: int, value: int) -> None:
        struct.pack_into("<Q", memory, table * pages.PAGE + i * 8, value)

    entry(1, 0, 0x2000 | 1)
    entry(1, 300, 0xdead000 | 1)
    entry(2, 0, 0x3000 | 1)
    entry(3, 2, 0x4000 | 1)
    entry(3, 3, 0x600000 | 0x81)
    entry(4, 0, 0x8000 | 1)
    entry(4, 5, 0x9000 | 1)
    entry(4, 6, 0xa000)  # not present
    (tmp_path / "memory").write_bytes(memory)
    sregs = bytearray(312)
    struct.pack_into("<Q", sregs, pages.CR3, 0x1000 | 0x18)
    (tmp_path / "state").write_bytes(b"THAWBOX1" + state_section(b"HEAD", b"y") + state_section(b"SREG", bytes(sregs)))
    return tmp_path


def test_tables_are_walked(template):
    tables = pages.Tables(template)
    assert tables.tables == {1, 2, 3, 4}
    assert tables.addresses[8] == 0x400000 and tables.addresses[9] == 0x405000 and 10 not in tables.addresses
    assert tables.addresses[0x600] == 0x600000 and tables.addresses[0x7ff] == 0x7ff000


def test_owners_and_counts(template):
    maps = pages.Maps("400000-401000 r-xp 00000000 00:00 0    /usr/bin/prog\n405000-406000 rw-p 00000000 00:00 0\n")
    found = pages.attribute({8: "read", 9: "written", 4: "read", 15: "near"}, pages.Tables(template), maps)
    assert [page.owner for page in found] == [
        "prog r-x", "anonymous rw-", "page tables of the interpreter", "guest kernel"]
    assert pages.counts(found) == {"read": 2, "written": 1, "near": 1, "large": 0, "windows": 1, "regions": 1}


def test_a_real_first_cell(bench, real):
    report = json.loads(bench("pages", *real, "--json").stdout)
    owners = report["owners"]
    assert report["all"]["written"] > 20 and owners["guest kernel"]["written"] > 0
    assert any(name.startswith("[heap]") for name in owners) and any(name.startswith("libc") for name in owners)
