# SPDX-License-Identifier: Apache-2.0
"""Every call into libc that `thawbox template build` makes on files, processes and memory fails once. It succeeds all the same or
says why; the template that was there stays usable, and what a failure leaves behind is swept by the next build.

Its machine is tests/e2e/fake_monitor.py's; full disks, and machines that fail, are in tests/e2e/test_build.py.
"""
import json

import pytest

from test_build import Builds

MOST = 80  # calls of one kind

ONCE = [("mkdir", "ENOSPC"), ("mkdtemp", "ENOSPC"), ("open", "EMFILE"), ("rename", "EIO"), ("symlink", "ENOSPC"), ("fsync", "EIO"),
        ("fflush", "ENOSPC"), ("pread", "EIO"), ("mmap", "ENOMEM"), ("socket", "EMFILE"), ("posix_spawn", "EAGAIN")]
HARMLESS = {"all short": "read:short:1:1000000 write:short:1:1000000",
            "pread short": "pread:short:1:1000000",
            "interrupted": " ".join(f"read:EINTR:{n}:1" for n in (1, 2, 3, 5, 9, 17, 33, 65))}


@pytest.fixture
def build(thawbox, tmp_path):
    return Builds(thawbox, tmp_path)


def struck_build(build, faults, fault: str):
    """A build in which that fails; the template is whole afterwards."""
    env = {name: value for name, value in faults("", "thawbox").items() if name.startswith(("FAULT", "LD_PRELOAD"))}
    before = build.current
    done = build.thawbox("template", "build", *build.options, "--force", env={**build.env, **env, "FAULT": fault})
    if done.returncode == 0:
        assert json.loads(done.stdout)["built"] and build.current != before
    elif b"/current is the new one" not in done.stderr:
        assert build.current == before, "a bake that failed was switched in"
    build.run("template", "verify", "tiny")
    return done


@pytest.mark.parametrize("call,error", ONCE)
def test_call_that_fails(build, faults, call, error):
    build()
    for n in range(1, MOST + 1):
        done = struck_build(build, faults, f"{call}:{error}:{n}:1")
        if not faults.struck:
            break
        if done.returncode:
            said = done.stderr.decode().splitlines()
            assert done.returncode in (2, 3), (faults.struck, done)
            assert [line[:9] for line in said[-2:]] == ["thawbox: ", "  remedy:"], (faults.struck, said)
    else:
        raise AssertionError(f"more than {MOST} calls of {call}")
    assert n > 1, "no such call: this test tests nothing"
    build("--force")
    build.check()


@pytest.mark.parametrize("fault", HARMLESS.values(), ids=HARMLESS)
def test_calls_that_do_a_part(build, faults, fault):
    build()
    done = struck_build(build, faults, fault)
    assert done.returncode == 0 and faults.struck, done.stderr
    build.check()
