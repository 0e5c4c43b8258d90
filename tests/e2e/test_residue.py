# SPDX-License-Identifier: Apache-2.0
"""What a sandbox knew is nowhere when it is gone, and none of its host's words were ever in it or in a template.

A canary is a word that nobody else has. Each search is shown to find it where it must be.
"""
import array
import mmap
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import BIN, default_home
from tiny import elf, interpreter
from vmm import RESULT, Vmm, Zygote, frame

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="looks into other processes' memory")
CHUNK = 8 << 20
PAGE = 4096


@pytest.fixture
def word() -> str:
    return f"canary{os.urandom(16).hex()}"


def found_in(path: Path, word: str) -> bool:
    """In the data of a file; its holes are skipped."""
    needle = word.encode()
    with open(path, "rb", buffering=0) as file:
        at, size = 0, os.fstat(file.fileno()).st_size
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return False
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            while at < end:
                if needle in os.pread(file.fileno(), CHUNK + len(needle), at):
                    return True
                at += CHUNK
    return False


def parts_with(directory: Path, word: str) -> set[str]:
    """Parts of a snapshot, all disks as one."""
    return {path.name.rstrip("0123456789") for path in directory.iterdir() if path.is_file() and found_in(path, word)}


def search(files: list[Path], word: str) -> list[Path]:
    """Those that hold it; what has gone meanwhile, or is not ours to read, does not."""
    found = []
    for path in files:
        try:
            if found_in(path, word):
                found.append(path)
        except OSError:
            continue
    return found


def new_in(folder: Path, start: float) -> list[Path]:
    """What was put there since then."""
    found = []
    for path in folder.iterdir():
        try:
            if path.lstat().st_ctime >= start - 1:
                found.append(path)
        except OSError:
            continue
    return found


def changed_since(start: float, *roots: Path) -> list[Path]:
    """Files that were made, written or renamed since then."""
    found = [root for root in roots if root.is_file() and not root.is_symlink()]
    for root in roots:
        for folder, _, names in os.walk(root, onerror=None):
            for path in (Path(folder, name) for name in names):
                try:
                    if path.is_file() and not path.is_symlink() and path.stat().st_ctime >= start - 1:
                        found.append(path)
                except OSError:
                    continue
    return found


def places(template: Path, tmp: Path, start: float) -> list[Path]:
    """Where this user's programs may have written since then."""
    shared = [new_in(Path(name), start) for name in ("/tmp", "/var/tmp", "/dev/shm", "/run")]
    return [default_home(), template, tmp, *(path for paths in shared for path in paths)]


# --- on the host's disk ---------------------------------------------------------------------------------------------------

def test_nothing_is_on_disk_when_it_is_gone(thawbox, template, tmp_path, word):
    """Its variables, its cell, a file that it was given, files that it wrote and synced to its own disk."""
    start = time.time()
    given = tmp_path / "given"
    given.write_text(f"{word}-given")
    code = (f"import os; x = '{word}-cell'\n"
            "open('/home/user/written', 'w').write(x * 5000); open('/tmp/written', 'w').write(x); os.sync()\n"
            "print(len(os.environ['TOKEN']), len(open('/home/user/given').read()), "
            "'HOST_SECRET' in os.environ, b'HOST_SECRET' in open('/proc/self/environ', 'rb').read())")
    done = thawbox("run", "--env", f"TOKEN={word}-variable", "--put", str(given), "-c", code,
                   env={"HOST_SECRET": f"{word}-host"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(word) + 9).encode(), str(len(word) + 6).encode(), b"False", b"False"]
    assert found_in(given, word), "the search finds what is there"
    given.unlink()
    files = changed_since(start, *places(template, tmp_path, start)) + [path for path in template.iterdir() if path.is_file()]
    assert template / "memory" in files and search(files, word) == []


def test_frozen_sandbox_has_its_own_words_and_none_of_its_host(thawbox, template, tmp_path, word):
    """Who asks for a snapshot gets the sandbox's secrets with it; what the host's processes had in theirs is not in it."""
    env = {**thawbox.env, "HOST_SECRET": f"{word}-host"}
    with Vmm(BIN / "thawbox-vmm", env=env) as m:
        stream = m.thaw(template, f"import os; kept = '{word}-cell'", env={"TOKEN": f"{word}-variable"})
        assert stream.answer().result["status"] == "ok"
        cell = stream.run("open('/home/user/f', 'w').write(kept * 100); os.sync()")
        assert cell.result["status"] == "ok", cell.result
        m.snapshot(tmp_path / "frozen")
    assert parts_with(tmp_path / "frozen", f"{word}-cell") == {"memory", "disk"}
    assert "memory" in parts_with(tmp_path / "frozen", f"{word}-variable")
    assert not parts_with(tmp_path / "frozen", f"{word}-host")
    assert not parts_with(template, word)


def test_bake_takes_nothing_from_its_environment(thawbox, tmp_path, word):
    """The variables of the process that boots and freezes a machine are in no part of it."""
    answer = frame(RESULT, b'{"status":"ok","execution_count":1,"error":null}')
    kernel, disk = tmp_path / "kernel", tmp_path / "disk.img"
    kernel.write_bytes(elf(interpreter(answer), pvh=True))
    disk.write_bytes(b"disk".ljust(1 << 20, b"\0"))
    with Vmm(BIN / "thawbox-vmm", env={**thawbox.env, "HOST_SECRET": word}) as m:
        m.call("boot", kernel=str(kernel), memory_mb=64, cmdline=f"shown={word}-line",
               disks=[{"path": str(disk), "overlay": True}], overlay_dir=str(tmp_path))
        m.event("parked", 60)
        m.snapshot(tmp_path / "frozen")
    assert parts_with(tmp_path / "frozen", f"{word}-line") == {"memory"}, "the search finds the command line"
    held = b"".join(path.read_bytes().replace(f"{word}-line".encode(), b"") for path in (tmp_path / "frozen").iterdir())
    assert word.encode() not in held


def test_template_is_nobody(vmm, template):
    """No machine id, no key of a host or user, no seed, no history: each sandbox would have the same."""
    code = ("import glob, os\n"
            "names = ['/etc/machine-id', '/var/lib/dbus/machine-id', '/var/lib/systemd/random-seed', '/etc/ssh/ssh_host_*',\n"
            "         '/root/.*history', '/home/user/.*history', '/root/.ssh/*', '/home/user/.ssh/*', '/root/.netrc',\n"
            "         '/home/user/.netrc', '/root/.aws/*', '/home/user/.aws/*', '/var/lib/dhcp/*']\n"
            "[p for n in names for p in glob.glob(n) if os.path.getsize(p)]")
    with vmm() as m:
        assert m.thaw(template, code).answer().text == "[]"


def test_api_key_is_kept_as_a_hash(thawbox, tmp_path):
    keys = tmp_path / "keys.json"
    done = thawbox("key", "create", "--keys", str(keys), "alice")
    key = done.stdout.decode().strip()
    assert re.fullmatch(r"e2b_[0-9a-f]{40}", key), done
    assert "alice" in keys.read_text() and key[4:] not in keys.read_text()
    start = keys.stat().st_ctime
    assert search(changed_since(start, *places(default_home(), tmp_path, start)), key[4:]) == []


# --- in the next sandbox ---------------------------------------------------------------------------------------------------

LEAVE = """
import os, subprocess
left = '{word}-variable'
for path in ('/tmp/left', '/dev/shm/left', '/var/tmp/left', '/home/user/left'):
    with open(path, 'w') as file: file.write('{word}-file')
os.environ['LEFT'] = '{word}-environment'
process = subprocess.Popen(['sleep', '10000'])
os.sync()
"""
LOOK = """
import glob, os
def command(pid):
    try: return open(f'/proc/{pid}/cmdline').read()
    except OSError: return ''
print('left' in globals(), [p for p in ('/tmp/left', '/dev/shm/left', '/var/tmp/left', '/home/user/left') if os.path.exists(p)],
      'LEFT' in os.environ, [command(p) for p in os.listdir('/proc') if p.isdigit() and 'sleep' in command(p)])
"""
CLEAN = b"False [] False []\n"


@dataclass
class Page:
    """What pagemap says of one present page."""

    address: int
    pfn: int
    is_of_file: bool


def mappings(pid: int) -> list[tuple[int, int, str, str]]:
    """Start, end, permissions and name."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in fields[0].split("-"))
        if start < 1 << 63:
            found.append((start, end, fields[1], fields[5] if len(fields) > 5 else ""))
    return found


def pages(pid: int, start: int, end: int) -> list[Page]:
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        entries = array.array("Q", os.pread(pagemap.fileno(), (end - start) // PAGE * 8, start // PAGE * 8))
    return [Page(start + n * PAGE, entry & (1 << 55) - 1, bool(entry >> 61 & 1))
            for n, entry in enumerate(entries) if entry >> 63]


def private_memory_has(pid: int, word: str) -> bool:
    """In the pages that are the process's own."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, end, permissions, _ in mappings(pid):
            if not permissions.startswith("rw"):
                continue
            for page in pages(pid, start, end):
                if not page.is_of_file and word.encode() in os.pread(memory.fileno(), PAGE, page.address):
                    return True
    return False


@needs_root
@pytest.mark.parametrize("way", ["fork", "shell", "standby"])
def test_residue_in_a_pool(thawbox, template, word, way):
    """One member is used and ended; one that waited beside it and one that was made afterwards know nothing of it."""
    with Zygote(BIN / "thawbox-vmm", template, env=thawbox.env) as zygote, getattr(zygote, way)() as waited:
        with getattr(zygote, way)() as used:
            stream = used.thaw(template, LEAVE.format(word=word))
            assert stream.answer().result["status"] == "ok"
            seen = stream.run(LOOK).stdout
            assert seen.startswith(b"True ['/tmp/left', '/dev/shm/left', '/var/tmp/left', '/home/user/left'] True ['sleep"), seen
            assert private_memory_has(used.process.pid, word), "the search finds it in its own monitor"
        with getattr(zygote, way)() as later:
            for m in (waited, later):
                assert m.thaw(template, LOOK).answer().stdout == CLEAN
                assert not private_memory_has(m.process.pid, word)
            assert not private_memory_has(zygote.process.pid, word)


# --- which pages are shared ---------------------------------------------------------------------------------------------------

def own_pages(pid: int, of: str = "") -> set[int]:
    """Frames of the pages that no file backs; with `of`, in mappings of that name."""
    return {page.pfn for start, end, _, name in mappings(pid) if not of or name.startswith(of)
            for page in pages(pid, start, end) if not page.is_of_file}


def pages_of_everybody() -> set[int]:
    """The kernel's own, which any process maps: of zeros, of the clock."""
    with mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as zeros:
        assert zeros[0] == 0
        return own_pages(os.getpid())


@needs_root
@pytest.mark.parametrize("way", ["fork", "shell", "standby"])
def test_shared_pages_are_the_clean_ones_of_the_template(thawbox, template, way):
    """Of guest memory two sandboxes share what neither has written, from the template's file; of the rest of a monitor, what
    its zygote had before there was a guest. No page that a guest has written belongs to two."""
    memory = str(template / "memory")
    with (Zygote(BIN / "thawbox-vmm", template, env=thawbox.env) as zygote, getattr(zygote, way)() as left,
          getattr(zygote, way)() as right):
        for m in (left, right):
            assert m.thaw(template, "import pandas; x = pandas.DataFrame({'a': [1, 2]}).sum().a; x").answer().text == "3"
        a, b = left.process.pid, right.process.pid
        for pid in (a, b):
            guest = [one for one in mappings(pid) if one[3].startswith(memory)]
            assert guest and all("p" in permissions for _, _, permissions, _ in guest), "private mappings of the template"
        mine, theirs = own_pages(a, memory), own_pages(b, memory)
        assert mine and theirs and not mine & theirs
        assert not mine & own_pages(b) and not theirs & own_pages(a)
        assert own_pages(a) & own_pages(b) <= own_pages(zygote.process.pid) | pages_of_everybody()


@needs_root
def test_pages_do_not_stay_with_the_zygote(thawbox, template):
    """What a fork gets of its zygote is from before any guest: the zygote maps no guest memory."""
    with Zygote(BIN / "thawbox-vmm", template, env=thawbox.env) as zygote:
        with zygote.fork() as m:
            m.thaw(template, "1").answer()
            assert not [one for one in mappings(zygote.process.pid) if one[3].startswith(str(template / "memory"))]
