# SPDX-License-Identifier: Apache-2.0
"""Files in and out, and `thawbox exec`."""
import hashlib
import os
import signal
import subprocess

import pytest


def test_64_mib_in_and_out(thawbox, tmp_path):
    data = os.urandom(64 << 20)
    (tmp_path / "in.bin").write_bytes(data)
    code = "import hashlib; print(hashlib.sha256(open('in.bin', 'rb').read()).hexdigest())"
    done = thawbox("run", "--put", str(tmp_path / "in.bin"), "--get", f"in.bin:{tmp_path / 'out.bin'}", "-c", code,
                   timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "out.bin").read_bytes() == data


@pytest.mark.parametrize("name", ["with spaces.txt", "größe-数据.csv", "quote'\"$HOME.txt", "-dash", "empty"])
def test_names(thawbox, tmp_path, name):
    content = b"" if name == "empty" else b"x,y\n1,2\n"
    (tmp_path / name).write_bytes(content)
    out = tmp_path / "out"
    out.mkdir()
    done = thawbox("run", "--put", str(tmp_path / name), "--get", name, "-c", f"import os; print(os.listdir())", cwd=out)
    assert done.returncode == 0, done.stderr
    assert (out / name).read_bytes() == content and name in eval(done.stdout)


def test_missing_local_file_starts_nothing(thawbox, tmp_path):
    done = thawbox("run", "--put", str(tmp_path / "nothing.csv"), "-c", "print('ran')")
    assert done.returncode == 2 and b"nothing.csv" in done.stderr and done.stdout == b""


def test_missing_guest_file(thawbox, tmp_path):
    out = tmp_path / "result.csv"
    out.write_text("old")
    done = thawbox("run", "--get", f"nothing.csv:{out}", "-c", "print('ran')")
    assert done.returncode == 1 and b"nothing.csv" in done.stderr and done.stdout == b"ran\n"
    assert out.read_text() == "old", "a failed get must not touch the file that is there"


def test_file_belongs_to_the_user(thawbox, tmp_path):
    (tmp_path / "in.txt").write_text("a")
    done = thawbox("run", "--put", f"{tmp_path / 'in.txt'}:sub/in.txt", "-c",
                   "import os; open('sub/in.txt', 'a').write('b'); open('sub/in.txt').read(), os.stat('sub/in.txt').st_uid")
    assert done.stdout == b"('ab', 1000)\n", done.stderr


def test_exec_streams_and_exit_code(thawbox):
    done = thawbox("exec", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert thawbox("exec", "--", "printf", "%s|", "a b", "c").stdout == b"a b|c|"
    assert thawbox("exec", "--", "/no/such/program").returncode in (126, 127)


def test_exec_standard_input(thawbox):
    data = os.urandom(3 << 20)
    done = thawbox("exec", "sha256sum", input=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_exec_signal(thawbox):
    assert thawbox("exec", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_interrupted_command_leaves_nothing(thawbox):
    process = thawbox.popen("exec", "echo ready; sleep 1000", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
