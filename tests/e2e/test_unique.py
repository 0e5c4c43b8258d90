# SPDX-License-Identifier: Apache-2.0
"""Many sandboxes: right answers, nothing shared, nothing left."""
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RUNS = int(os.environ.get("THAWBOX_TEST_RUNS", "100"))  # make e2e N=1000
AT_ONCE = 8
# 32 bytes of each generator, or all that it gives.
IDENTITY = ("import os, random, uuid, numpy, secrets, socket\n"
            "print(os.urandom(32).hex(), open('/dev/urandom', 'rb').read(32).hex(), random.randbytes(32).hex(), uuid.uuid4(),\n"
            "      numpy.random.bytes(32).hex(), secrets.token_hex(32),\n"
            "      open('/proc/sys/kernel/random/boot_id').read().strip(), open('/proc/sys/kernel/random/uuid').read().strip(),\n"
            "      os.environ['THAWBOX_ID'], socket.gethostname(), sep='\\n')\n")
NAMES = ("os.urandom", "/dev/urandom", "random", "uuid.uuid4", "numpy.random", "secrets", "boot id", "the kernel's uuid", "id", "host name")


def one(thawbox, number: int, env: dict[str, str] | None = None) -> list[str]:
    a, b = random.randrange(10**9), random.randrange(10**9)
    result = thawbox.json("-c", f"{IDENTITY}{a} + {b}", env=env)
    assert result["results"][-1]["data"]["text/plain"] == str(a + b), f"sandbox {number}"
    lines = result["stdout"].splitlines()
    assert len(lines) == len(NAMES)
    return lines


def shared_memory_kib() -> int:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Shmem"].split()[0])


def check_distinct(rows: list[list[str]]) -> None:
    for name, values in zip(NAMES, zip(*rows)):
        assert len(set(values)) == len(values), f"two sandboxes share {name}"


def test_one_after_another_and_at_once(thawbox):
    one(thawbox, -1)  # pages of the template that the cache keeps are not a leak
    before = shared_memory_kib()
    rows = [one(thawbox, i) for i in range(RUNS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows += pool.map(lambda i: one(thawbox, i), range(RUNS, RUNS + 3 * AT_ONCE))
    check_distinct(rows)
    print(f"{len(rows)} sandboxes: {', '.join(NAMES)} all differ")
    assert not thawbox.left_behind()
    assert shared_memory_kib() - before < 64 * 1024


def test_openssl_and_numpys_new_generators(thawbox):
    """They begin at their first use, which takes a second on software KVM: in as many sandboxes as above where N is given."""
    code = "import ssl, numpy\nprint(ssl.RAND_bytes(32).hex(), numpy.random.default_rng().bytes(32).hex())"
    number = RUNS if "THAWBOX_TEST_RUNS" in os.environ else AT_ONCE
    rows = [thawbox.json("-c", code)["stdout"].split() for _ in range(number)]
    assert all(len(set(values)) == number for values in zip(*rows)), rows
    print(f"{number} sandboxes: ssl, numpy.random.default_rng all differ")


def test_without_the_replacement_they_are_equal(thawbox):
    """The control: it shows that the test above would see shared state."""
    first, second = (one(thawbox, i, env={"THAWBOX_TEST_NO_RESEED": "1"}) for i in range(2))
    assert first[0] == second[0], "os.urandom differs although nothing replaced the kernel's random state"


def test_kernel_streams_differ_too(vmm, template):
    """Two thaws by the bare protocol, reading the kernel's generator in other ways than Python's."""
    code = "import os; (os.getrandom(8).hex(), open('/dev/urandom', 'rb').read(8).hex(), os.uname().nodename)"
    seen = []
    for name in ("left", "right"):
        with vmm() as m:
            seen.append(eval(m.thaw(template, code, hostname=name).answer().text))
    assert seen[0][0] != seen[1][0] and seen[0][1] != seen[1][1]
    assert (seen[0][2], seen[1][2]) == ("left", "right")


def test_outputs_of_at_once_sandboxes_do_not_mix(thawbox):
    def run(i: int) -> bool:
        result = json.loads(thawbox("run", "--json", "-c", f"for _ in range(2000): print('{i:04d}' * 10)").stdout)
        return result["stdout"] == (f"{i:04d}" * 10 + "\n") * 2000

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert all(pool.map(run, range(AT_ONCE)))
