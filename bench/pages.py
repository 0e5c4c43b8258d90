#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whose the pages of a first cell are: the guest's working set by owner."""
from __future__ import annotations

import argparse
import collections
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
from common import BenchError, Outcome, Progress, Sandboxes

NAME = "pages"
TEXT = """\
Thaws the template once with its pages watched (the memory file leaves the page cache for that), runs --cell, and
says for each page that was used to whom it belongs in the interpreter's address space, by the guest's own page
tables: kernel, page tables, program text, a module's data, malloc's heap, an anonymous mapping (Python's arenas).

  read      only read
  written   a private copy
  near      read, but writable, or in a window of 8 of which 3 are used: made private as well
  large     in a page of 2 MiB that is only read

`windows` are runs of 8 pages at a multiple of 32 KiB: a KVM that shadows page tables maps one ahead as far as its
pages are private. `regions` are 2 MiB of addresses, each a page table."""
EXAMPLES = """\
examples:
  bench/pages.py
  bench/pages.py --cell 'import pandas as pd; pd.DataFrame({"a": [1, 2]}).sum()' --csv pages.csv
exit codes: 0 done; 1 the cell failed or the files are not understood; 2 wrong usage; 130 interrupted"""

PAGE, LARGE, WINDOW = 4096, 2 << 20, 8
CLASSES = ("read", "written", "near", "large", "later")
ADDRESS = 0xFFFFFFFFFF000
CR3 = 240
"""Offset in struct kvm_sregs."""
LOWER_HALF = 256


def sections(data: bytes, start: int) -> Iterator[tuple[bytes, bytes]]:
    """The sections of a state file, as core/state.c writes them: tag and body."""
    while start + 16 <= len(data):
        tag, _, _, n, _ = struct.unpack_from("<4sHHII", data, start)
        yield tag, data[start + 16:start + 16 + n]
        start += 16 + n


def section(path: Path, tag: bytes, start: int = 0) -> bytes:
    """The first section of that tag. Raises BenchError."""
    for found, body in sections(path.read_bytes(), start):
        if found == tag:
            return body
    raise BenchError(f"{path}: no section {tag.decode()}", "build the template again with this version")


def working_set(path: Path) -> dict[int, str]:
    """Class of each page of a `workset` file, by guest-physical page number."""
    pages = {}
    for address, count, kind in struct.iter_unpack("<QII", section(path, b"RUNS")):
        for i in range(count):
            pages[address // PAGE + i] = CLASSES[kind]
    return pages


class Tables:
    """The interpreter's page tables, 4 levels, in the template's memory (Intel SDM volume 3, 4.5)."""

    def __init__(self, template: Path):
        self.addresses: dict[int, int] = {}
        """Virtual address of each mapped page, by physical page number."""
        self.tables: set[int] = set()
        state = section(template / "state", b"SREG", len("THAWBOX1"))
        with open(template / "memory", "rb") as self._memory:
            self._walk(struct.unpack_from("<Q", state, CR3)[0] & ADDRESS, 3, 0)

    def _walk(self, table: int, level: int, base: int) -> None:
        self.tables.add(table // PAGE)
        self._memory.seek(table)
        for i, entry in enumerate(struct.unpack("<512Q", self._memory.read(PAGE))):
            if not entry & 1 or (level == 3 and i >= LOWER_HALF):
                continue
            address, at = entry & ADDRESS, base | i << (12 + 9 * level)
            if level == 0:
                self.addresses[address // PAGE] = at
            elif not entry & 0x80:
                self._walk(address, level - 1, at)
            elif level == 1:
                first = (address & ~(LARGE - 1)) // PAGE
                self.addresses.update({first + k: at + k * PAGE for k in range(LARGE // PAGE)})


class Maps:
    """/proc/self/maps of the interpreter."""

    def __init__(self, text: str):
        self._ranges = []
        for line in filter(str.strip, text.splitlines()):
            parts = line.split(maxsplit=5)
            start, end = (int(part, 16) for part in parts[0].split("-"))
            name = parts[5].strip().rsplit("/", 1)[-1] if len(parts) > 5 else "anonymous"
            self._ranges.append((start, end, f"{name} {parts[1][:3]}"))

    def owner(self, address: int) -> str:
        """Name of the mapping and its rights."""
        return next((name for start, end, name in self._ranges if start <= address < end), "unmapped")


@dataclass
class Page:
    """One page that was used."""

    owner: str
    kind: str
    address: int | None
    """Virtual; None outside of the interpreter's address space."""


def attribute(pages: dict[int, str], tables: Tables, maps: Maps) -> list[Page]:
    """Says for each page of a working set whose it is."""
    found = []
    for number, kind in pages.items():
        address = tables.addresses.get(number)
        if number in tables.tables:
            found.append(Page("page tables of the interpreter", kind, None))
        elif address is None:
            found.append(Page("guest kernel", kind, None))
        else:
            found.append(Page(maps.owner(address), kind, address))
    return found


def counts(pages: list[Page]) -> dict[str, int]:
    """Pages of each class, windows and regions."""
    kinds = collections.Counter(page.kind for page in pages)
    addresses = [page.address // PAGE for page in pages if page.address is not None and page.kind != "large"]
    return {**{kind: kinds[kind] for kind in CLASSES[:4]}, "windows": len({a // WINDOW for a in addresses}),
            "regions": len({a * PAGE // LARGE for a in addresses})}


def measure(args: argparse.Namespace, sandboxes: Sandboxes, progress: Progress) -> Outcome:
    """Runs the cell in a watched sandbox and reads what was recorded."""
    progress.say("reads the interpreter's page tables")
    tables = Tables(sandboxes.template)
    with tempfile.TemporaryDirectory(prefix="thawbox-pages-") as folder:
        sandbox = sandboxes.start(args.cell, record=True)
        common.must_succeed(sandbox.first().cell, "the cell")
        sandbox.vmm.event("first-done")
        with open(Path(folder) / "workset", "wb") as file:
            sandbox.vmm.call("workset", fd=file.fileno())
        faults = sandbox.counters().get("pf_taken")
        sandboxes.end(sandbox)
        pages = working_set(Path(folder) / "workset")
    plain = sandboxes.start("print(open('/proc/self/maps').read())")
    maps = Maps(plain.first().cell.stdout.decode())
    found = attribute(pages, tables, maps)
    owners = {name: counts([page for page in found if page.owner == name])
              for name in {page.owner for page in found}}
    ordered = dict(sorted(owners.items(), key=lambda item: -sum(item[1][kind] for kind in CLASSES[:3])))
    total = counts(found)
    heads = ["owner", *total]
    text = common.table(heads, [*[[name, *row.values()] for name, row in ordered.items()], ["all", *total.values()]])
    rows = [{"owner": page.owner, "class": page.kind, "address": f"{page.address:#x}" if page.address else ""}
            for page in found]
    return Outcome({"cell": args.cell, "faults": faults, "owners": ordered, "all": total}, rows,
                   f"{text}\n\nfaults of shadow or nested page tables in the watched run: {faults}", lambda: draw(ordered))


def draw(owners: dict[str, dict[str, int]]) -> Any:
    """Bars of the owners, by class."""
    figure, (axes,) = common.new_figure()
    names = list(owners)[:14][::-1]
    left = [0] * len(names)
    for kind in CLASSES[:3]:
        values = [owners[name][kind] for name in names]
        axes.barh(names, values, left=left, label=kind)
        left = [a + b for a, b in zip(left, values)]
    axes.set_xlabel("pages of 4 KiB")
    axes.set_title("Pages of a first cell, by owner")
    axes.legend()
    return figure


def parser() -> argparse.ArgumentParser:
    options = common.make_parser(NAME, TEXT, EXAMPLES)
    options.add_argument("--cell", default="1+1", metavar="CODE", help="the first cell (default 1+1)")
    return options


if __name__ == "__main__":
    sys.exit(common.run_program(NAME, parser().parse_args(), measure))
