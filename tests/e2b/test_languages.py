# SPDX-License-Identifier: Apache-2.0
"""Cells in bash, JavaScript and TypeScript through E2B's SDK. The interpreters themselves: tests/guest/test_languages.py."""
import os

import pytest
from conftest import GUARD_S
from e2b_code_interpreter import Sandbox

RUNS = int(os.environ.get("THAWBOX_TEST_RUNS", "4"))


def run(box: Sandbox, code: str, language: str, **options):
    return box.run_code(code, language=language, timeout=GUARD_S * 2, **options)


def test_bash(start):
    start("--pool", "1")
    with Sandbox.create(envs={"FROM": "create"}) as box:
        cell = run(box, "x=5; pwd; echo $FROM", "bash")
        assert "".join(cell.logs.stdout) == "/home/user\ncreate\n" and not cell.error
        assert run(box, "echo $x $FROM", "sh", envs={"FROM": "cell"}).logs.stdout == ["5 cell\n"]
        assert run(box, "echo $FROM; nonsense", "bash").error.name == "ExitStatus"
        assert box.run_code("'x' in globals()").text == "False", "Python's context is another one"
        assert {c.language for c in box.list_code_contexts()} == {"python", "javascript", "bash"}


def test_javascript_is_warm_and_draws_its_own_numbers(start):
    """Node.js comes out of the template, where its generators have been seeded: no two sandboxes may draw the same."""
    start("--pool", "1")
    code = ("const c = require('crypto'); [Math.random(), c.randomBytes(16).toString('hex'), c.randomUUID(), c.randomInt(2 ** 40),"
            " c.webcrypto.getRandomValues(new Uint32Array(4)).join()].join(' ')")
    drawn = []
    for _ in range(RUNS):
        with Sandbox.create(envs={"FROM": "create"}) as box:
            drawn.append(box.run_code(code, language="js").text.split(" "))
            assert box.run_code("[process.env.FROM, process.cwd()].join(' ')", language="js").text == "create /home/user"
    assert all(len(set(each)) == len(each) for each in zip(*drawn)), drawn


def test_without_a_new_seed_javascript_draws_the_same(start):
    """The control: it shows that the test above would see shared state. (OpenSSL takes a new seed by itself when minutes have
    passed since the bake.)"""
    start("--pool", "1")
    code = ("import thawbox_languages as t\n"  # a context of Python takes the interpreters that are ready, and has them not begin
            "[i.run('[Math.random(), Math.random(), Math.random()].join()').text for i in t.ready if i.language != 'bash']")
    drawn = []
    for _ in range(2):
        with Sandbox.create() as box:
            drawn.append(box.run_code(code, context=box.create_code_context(), timeout=GUARD_S * 2).text)
    assert drawn[0] == drawn[1] and drawn[0].count("0.") == 3, "a new seed is not what makes them differ"


@pytest.mark.slow
def test_javascript_and_typescript(sandbox):
    cell = run(sandbox, "import { readFileSync } from 'fs'\nconst a: number = 20; console.log(typeof readFileSync)", "ts")
    assert cell.logs.stdout == ["function\n"] and not cell.error
    assert run(sandbox, "const a = 21; await Promise.resolve(a * 2)", "ts").text == "42"
    ctx = sandbox.create_code_context(language="js", cwd="/tmp")
    assert ctx.language == "javascript"
    assert sandbox.run_code("process.cwd()", context=ctx, timeout=GUARD_S * 2).text == "/tmp"
    error = sandbox.run_code("missing()", context=ctx).error
    assert (error.name, error.value) == ("ReferenceError", "missing is not defined")
    sandbox.remove_code_context(ctx)


def test_two_first_cells_make_one_context(sandbox):
    """Two cells at once make one context, and run one after the other."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        cells = list(pool.map(lambda n: run(sandbox, f"n=$((n + {n})); echo $n", "bash"), (1, 2)))
    assert sorted("".join(cell.logs.stdout).strip() for cell in cells)[-1] == "3"
    assert len([c for c in sandbox.list_code_contexts() if c.language == "bash"]) == 1
