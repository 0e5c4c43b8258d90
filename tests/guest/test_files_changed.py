# SPDX-License-Identifier: Apache-2.0
"""Which files a cell has made or changed, and what it has used, for requests that ask."""
from __future__ import annotations

import os
import time

import pytest
from harness import RESULT, STDOUT, request

from test_first_cell import park


@pytest.fixture
def look(stream, tmp_path):
    """Runs cells in a folder of their own, which is home, temporary and working folder; returns what changed."""
    work = tmp_path / "work"
    for name in ("work", "home", "temp"):
        (tmp_path / name).mkdir()
    stream.run(f"import os, tempfile; kept = os.getcwd(), os.environ['HOME'], tempfile.tempdir\nos.chdir('{work}')\n"
               f"os.environ['HOME'] = '{tmp_path}/home'; tempfile.tempdir = '{tmp_path}/temp'", silent=True)
    time.sleep(0.05)  # files get the time of the last tick of the clock

    def run(code: str, **members) -> dict[str, int]:
        answer = stream.run(code, files_changed=True, **members)
        run.answer = answer
        time.sleep(0.05)
        return {os.path.relpath(f["path"], tmp_path): f["size"] for f in answer.result["files_changed"]}

    yield run
    stream.run("os.chdir(kept[0]); os.environ['HOME'] = kept[1]; tempfile.tempdir = kept[2]", silent=True)


def test_files_that_a_cell_changes(look, stream):
    assert look("open('a.txt', 'w').write('abc'); print('x')\n5") == {"work/a.txt": 3}
    assert look.answer.stdout == "x\n" and look.answer.text == "5" and look.answer.result["files_cut"] == 0
    assert look("open('a.txt').read()") == {}, "reading is no change"
    assert look("open('a.txt', 'r+').write('ABC')") == {"work/a.txt": 3}, "in place, same size"
    assert look("!mkdir -p deep/er && cp -p a.txt deep/er/b.txt") == {"work/deep/er/b.txt": 3}, "an old time"
    assert look("os.utime('a.txt', (0, 0)); os.rename('deep/er/b.txt', 'c.txt')") == {"work/a.txt": 3, "work/c.txt": 3}
    assert look("os.remove('c.txt'); os.mkdir('empty'); os.symlink('a.txt', 'link')") == {}
    assert look("for p in ('~/h', tempfile.gettempdir() + '/t'):\n    open(os.path.expanduser(p), 'w').close()") == {
        "home/h": 0, "temp/t": 0}
    assert look("os.makedirs('.cache'); open('.cache/f', 'w').close(); open('.env', 'w').close()") == {"work/.env": 0}
    assert look("f = open('held', 'w'); f.write('1'); f.flush()") == {"work/held": 1}, "not closed yet"
    assert look("open(b'\\xff', 'w').close(); 1/0") == {"work/\\xff": 0}
    assert look.answer.error["name"] == "ZeroDivisionError"
    assert "files_changed" not in stream.run("open('a.txt', 'w').close()").result, "only where it is asked for"


def test_bounds(look):
    assert len(look("for i in range(300): open(f'f{i}', 'w').close()")) == 256
    assert look.answer.result["files_cut"] == 44
    assert len(look("for i in range(5000): open(f'g{i:04d}', 'w').close()")) <= 256
    assert look.answer.result["files_cut"] > 0
    assert look("!rm -f f* g*") == {} and look.answer.result["files_cut"] == 0


def test_folders_that_are_gone(look):
    assert look("os.mkdir('d'); os.chdir('d'); os.rmdir('../d')") == {}
    assert look("os.chdir('/'); 1") == {} and look.answer.error is None
    look("scandir = os.scandir\ndef broken(*a): raise KeyError\nos.scandir = broken")
    assert look.answer.result["files_changed"] == [] and look.answer.result["files_cut"] == 1
    look("os.scandir = scandir")
    assert look.answer.result["files_cut"] == 0


def test_output_need_not_wait_for_the_look(look, stream):
    """The first cell of a mailbox rings before; over a stream the answer comes first, too."""
    stream.send(request(op="run", code="print('said')", files_changed=True))
    assert stream.frame() == (STDOUT, b"said\n") and stream.frame()[0] == RESULT


def test_a_child_does_not_look(look):
    look("pid = os.fork()\nif pid == 0:\n    raise SystemExit(5)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])")
    assert look.answer.text == "5"


def test_usage_in_the_result(stream):
    answer = stream.run("import time\nt = time.process_time()\nwhile time.process_time() < t + .1: pass\nprint('12345')\n7",
                        usage=True)
    usage = answer.result["usage"]
    assert usage["wall_ms"] >= 95 and usage["cpu_user_ms"] + usage["cpu_system_ms"] >= 80
    assert usage["output_bytes"] == 6 + len(answer.frames[-2][1]) and usage["peak_kib"] > 10000
    assert stream.call(op="usage").result == usage
    assert "usage" not in stream.run("1").result
    assert stream.call(op="usage").result["output_bytes"] < 100
    cut = stream.run("print('x' * 9999)", usage=True, max_output=100).result
    assert cut["usage"]["output_bytes"] == 10000 and cut["cut"]["stdout"] == 9900


def test_disk_use(stream, tmp_path):
    if os.statvfs(tmp_path).f_bsize == 0:
        pytest.skip("no disk")
    code = f"f = open('{tmp_path}/big', 'wb'); f.write(bytes(3 << 20)); f.close(); os.sync()"
    usage = stream.run("import os\n" + code, usage=True).result["usage"]
    assert usage["write_bytes"] in (0, *range(3 << 20, 4 << 20)), "0: of a file system in memory"
    usage = stream.run(f"import subprocess; subprocess.run(['sh', '-c', 'cat {tmp_path}/big > {tmp_path}/copy'])",
                       usage=True).result["usage"]
    assert usage["write_bytes"] in (0, *range(3 << 20, 4 << 20)), "a child's"


@pytest.mark.parametrize("name", ["usage", "files_changed"])
def test_members_are_checked(stream, name):
    error = stream.run("1", **{name: 1}).error
    assert error["name"] == "ProtocolError" and f'"{name}" must be bool' in error["value"]


def test_as_a_first_cell_and_later_by_the_mailbox(start, tmp_path):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    code = f"import os, tempfile; tempfile.tempdir = '{tmp_path}'; os.chdir('{tmp_path}')\nopen('new', 'w').write('ab')\n3"
    answer = guest.bell.thaw(request(op="run", code=code, files_changed=True, usage=True))
    assert answer.text == "3" and answer.result["usage"]["wall_ms"] > 0
    assert {"path": f"{tmp_path}/new", "size": 2} in answer.result["files_changed"]
    answer = guest.bell.next(request(op="run", code="print(4)", usage=True))
    assert answer.stdout == "4\n" and answer.result["usage"]["output_bytes"] == 2
    assert guest.bell.next(request(op="usage")).result["output_bytes"] == 2
    guest.bell.serve()
    assert guest.connect().run("5").text == "5"
