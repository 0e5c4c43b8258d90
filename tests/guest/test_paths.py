# SPDX-License-Identifier: Apache-2.0
"""The lean path and IPython's own run_cell show the same."""
from __future__ import annotations

import json

import pytest
from harness import RESULT, STDERR, STDOUT, Answer

# Cells in order; each runs in two kernels, once by either path.
CELLS = [
    "1+1", "_", "__", "'text'", "'quote\\'s \"both\"'", "None", "True", "1.5", "1e100", "2+3j",
    "b'bytes'", "[1, 2, 3]", "list(range(200))", "{'a': 1, 'b': [1, 2]}", "(1,)", "{3, 1, 2}",
    "{'k%d' % i: i for i in range(40)}", "'line\\nline'", "'\u00e9\u4e2d\U0001f600'", "'\\ud800'",
    "'\\x00'", "print('a')", "print('a', end='')", "print('\\ud800 \\x00 \u00e9')",
    "import sys; print('err', file=sys.stderr); print('out')", "x = 5", "x", "x;", "x ; # quiet",
    "x # ; loud", "'a;b'", "x = 1\ny = 2\nx + y", "\n\n  \nx + 1", "x + 1  # comment", "# only",
    "   ", "", "for i in range(3): i", "if x:\n    x", "x == 1\nx == 2", "(x,\n y)",
    "def f(n):\n    '''doc'''\n    return n / 0", "f(1)", "1/0", "raise ValueError('text')",
    "raise ValueError('\\ud800\\x00')", "undefined", "import nothing_of_this_name",
    "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "try:\n    1/0\nfinally:\n    f(2)", "x = (1", "x = = 1", "def g(:\n    pass", "  indented = 1",
    "if x:\nx", "'unterminated", "return 1", "x = 7\nreturn x", "x", "yield 1", "break",
    "await later()", "lambda: (yield)", "'%d' % 'a'", "[].a", "assert x == 0, 'no'",
    "raise SystemExit", "raise SystemExit(3)", "exit()", "quit", "raise KeyboardInterrupt",
    "raise", "class C:\n    def __repr__(self):\n        return 'C()'\nC()", "[C(), C()]",
    "class Bad:\n    def __repr__(self):\n        raise RuntimeError('bad repr')", "Bad()",
    "class H:\n    def _repr_html_(self): return '<b>h</b>'\n    def _repr_png_(self): "
    "return b'\\x89PNG'\n    def _repr_json_(self): return {'a': 1}\n    def _repr_latex_(self): "
    "return '$x$'\n    def _repr_svg_(self): return '<svg/>'\n    def _repr_markdown_(self): "
    "return '*m*'\n    def __repr__(self): return 'H()'\nH()",
    "class M:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n        "
    "return {'text/plain': 'M', 'application/x': 'y'}, {'application/x': {'z': 1}}\nM()",
    "class D:\n    def _ipython_display_(self): print('own display')\nD()",
    "display('shown', 2)", "from IPython.display import HTML, Image, JSON, display\n"
    "display(HTML('<i>i</i>'), JSON({'a': [1]}))", "Image(data=b'\\x89PNG', format='png')",
    "import warnings; warnings.warn('careful')", "Out[1]", "_1", "In[1]", "_i", "_ii", "len(In)",
    "sorted(Out)[:5]", "_ = 5", "6", "_", "del _", "7", "_", "import pandas as pd",
    "df = pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})\ndf", "df['a']", "df['zz']",
    "import numpy as np\nnp.arange(5)", "np.eye(2)", "np.float64(1.5)",
    "import matplotlib.pyplot as plt", "fig = plt.figure(figsize=(1, 1))", "plt.get_fignums()",
    "plt.figure(figsize=(1, 1)); plt.show(); print('after')",
    "plt.figure(figsize=(1, 1))\n1/0", "from __future__ import annotations",
    "def h(a: Nowhere) -> Never: pass\nh.__annotations__", "(lambda: 1/0)()",
    "def r(n): return r(n + 1)\ntry:\n    r(0)\nexcept RecursionError as e:\n    print(e)",
    "1 if x else 2", "x := 3", "(z := 3)", "z", "10 ** 5000", "print(*range(50), sep='\\n')",
    "import sys; sys.stdout.write('abc')", "sys.stdout.buffer.write(b'raw')",
    "raise type('Custom', (Exception,), {'_render_traceback_': lambda s: ['mine']})('v')",
    "raise ExceptionGroup('g', [ValueError('a'), TypeError('b')])", "globals() is locals()",
    "__name__", "pwd = 1\npwd", "a = b = [1]\na is b", "a: int = 5\na", "*a, = 1, 2\na",
    "print(__file__)", "exec('1/0')", "eval('1 +')", "compile('x =', 'f', 'exec')",
    "In [1]: 1 + 1", ">>> 1 + 1", "str?", "%precision 2", "3.14159", "%precision", "3.14159",
    "get_ipython().execution_count", "%history -n 1-3",
]


def frames(answer: Answer) -> list:
    """Joins neighbouring frames of a stream, whose cuts are a matter of time."""
    out: list = []
    for kind, payload in answer.frames:
        if kind in (STDOUT, STDERR) and out and out[-1][0] == kind:
            out[-1][1] += payload
        elif kind == RESULT:
            out.append([kind, json.loads(payload)])
        else:
            out.append([kind, payload])
    return out


@pytest.fixture(scope="module")
def both(guest):
    lean, full = guest.connect(2000), guest.connect(2001)
    for stream in (lean, full):
        assert stream.run("get_ipython().forget()", silent=True).error is None
    # A hook is all it takes to send every cell down IPython's path.
    assert not full.run("get_ipython().events.register('pre_execute', lambda: None)",
                        silent=True).error
    lean.run("pass", silent=True)  # cells are numbered in file names: as many in both
    yield lean, full
    full.run("get_ipython().events.callbacks['pre_execute'].clear()", silent=True)
    lean.close()
    full.close()


@pytest.mark.parametrize("number", range(len(CELLS)), ids=lambda n: repr(CELLS[n])[:40])
def test_same_frames(both, number):
    lean, full = both
    assert frames(lean.run(CELLS[number])) == frames(full.run(CELLS[number]))


def test_silent_cells_are_the_same(both):
    lean, full = both
    for code in ("1+1", "print('p')", "x = 1", "1/0", "x ="):
        got = frames(lean.run(code, silent=True))
        assert got == frames(full.run(code, silent=True))


def test_which_path_was_taken(both):
    stream, _ = both
    stream.run("import sys; sh = get_ipython(); own = sh.run_ipython; took = []\n"
               "sh.run_ipython = lambda *a: (took.append(a[0]), own(*a))[1]")
    for code in ("1+1", "x = 1", "print(1)\nx", "1/0", "ls = 3\nls", "'%d' % 3", "x;"):
        stream.run(code)
    assert stream.run("took").text == "[]"
    for code in ("%precision", "!true", "await None", "x =", "ls", "str?"):
        stream.run(code)
    assert stream.run("[c for c in took]").text.count(",") == 5
    stream.run("del sh.run_ipython, sh, own, took")
