# SPDX-License-Identifier: Apache-2.0
"""What a first result costs in counts, which do not depend on the machine's speed. The bounds, with a reason each, are
in bounds.json; what is measured is printed with `pytest -s`."""
import json
import re
import shutil
from pathlib import Path

import pytest

from conftest import BIN
from test_thaw import drop_caches
from vmm import Vmm

BOUNDS = {name: bound for name, (bound, _) in json.loads(Path(__file__).with_name("bounds.json").read_text()).items()}


def within(found: dict[str, int]) -> None:
    print(found)
    assert {name: n for name, n in found.items() if n > BOUNDS[name]} == {}, f"of {found}"


def first_cell(vmm, template) -> dict[str, int]:
    with vmm() as m:
        assert m.first_cell(template)[1].text == "2"
        m.call("pause")
        stats = m.call("stats")
        usage = m.private_kib()
    counters = {name: stats["vcpu"][name]
                for name in ("insn_emulation", "mmio_exits", "irq_injections", "pf_taken") if name in stats["vcpu"]}
    own = sum(kib for name, kib in usage.items() if not name.startswith(str(template)))
    return {**counters, "populated": stats["memory"]["populated"], "private_kib": own}


def test_guest_and_memory(vmm, template):
    """The first of twenty that no tick has met: on a busy machine a cell may take the 30 ms to the guest's first one."""
    for _ in range(20):
        counts = first_cell(vmm, template)
        if counts["insn_emulation"] <= BOUNDS["insn_emulation"]:
            break
    within(counts)


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_system_calls(thawbox, template, tmp_path):
    log = tmp_path / "calls"
    wrapper = tmp_path / "traced"
    wrapper.write_text(f'#!/bin/sh\nexec strace -f -qq -o "{log}" "{BIN}/thawbox-vmm" "$@"\n')
    wrapper.chmod(0o755)
    with Vmm(wrapper, env=thawbox.env) as m:
        assert m.first_cell(template)[1].text == "2"
        m.call("quit")
        m.process.wait(20)
    calls = [line for line in log.read_text().splitlines() if re.match(r"\d+ +\w+\(", line)]
    assert any("KVM_RUN" in line for line in calls)
    within({"system_calls": len(calls)})


def read_kib(pid: int) -> int:
    return int(re.search(r"^read_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.M)[1]) // 1024


def cold_read_kib(vmm, template) -> int:
    drop_caches(template)
    with vmm() as m:
        assert m.first_cell(template)[1].text == "2"
        return read_kib(m.process.pid)


def test_bytes_read_cold(vmm, template):
    """The best of three: each page that differs from thaw to thaw brings the disk's read-ahead."""
    within({"cold_read_kib": min(cold_read_kib(vmm, template) for _ in range(3))})
