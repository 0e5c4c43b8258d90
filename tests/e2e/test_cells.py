# SPDX-License-Identifier: Apache-2.0
"""What a cell may do and what comes back, through `thawbox run`."""
import base64
import json

import pytest


def value(result: dict) -> str | None:
    values = [r["data"].get("text/plain") for r in result["results"] if r["kind"] == "result"]
    return values[-1] if values else None


def test_json_object(thawbox):
    result = thawbox.json("-c", "print('out'); import sys; print('err', file=sys.stderr); 6 * 7")
    assert result["stdout"] == "out\n" and result["stderr"] == "err\n"
    assert value(result) == "42" and result["error"] is None and result["execution_count"] == 1
    timing, usage = result["timing"], result["usage"]
    assert 0 < timing["create_ms"] < timing["first_result_ms"] and 0 < timing["exec_ms"] < timing["first_result_ms"]
    assert usage["wall_ms"] > 0 and usage["cpu_ms"] >= 0 and usage["peak_kib"] > 10_000


def test_text_mode_streams_and_shows_the_value(thawbox):
    done = thawbox("run", "-c", "import sys; print('a'); print('b', file=sys.stderr); 1 + 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\n2\n", b"b\n")


def test_code_from_file_and_standard_input(thawbox, tmp_path):
    path = tmp_path / "cell.py"
    path.write_text("print('from a file')\n")
    assert thawbox("run", str(path)).stdout == b"from a file\n"
    assert thawbox("run", "-", input=b"print('from stdin')").stdout == b"from stdin\n"


def test_error_is_reported_with_traceback(thawbox):
    result = thawbox.json("-c", "def f(x):\n    return 1 / x\nprint('before')\nf(0)", code=1)
    assert result["stdout"] == "before\n"
    error = result["error"]
    assert error["name"] == "ZeroDivisionError" and error["value"] == "division by zero"
    assert "return 1 / x" in error["traceback"] and "f(0)" in error["traceback"]
    assert "\x1b" not in error["traceback"]
    done = thawbox("run", "-c", "undefined_name")
    assert done.returncode == 1 and b"NameError" in done.stderr and done.stdout == b""


def test_syntax_error(thawbox):
    error = thawbox.json("-c", "x = = 1", code=1)["error"]
    assert error["name"] == "SyntaxError" and "x = = 1" in error["traceback"]


def test_input_does_not_hang(thawbox):
    error = thawbox.json("-c", "input('name? ')", code=1, timeout=60)["error"]
    assert "input" in error["value"].lower()


def test_await(thawbox):
    assert value(thawbox.json("-c", "import asyncio\nawait asyncio.sleep(0.01)\n40 + 2")) == "42"


@pytest.mark.parametrize("code, want", [
    ("!echo from-shell", "from-shell"),
    ("%%bash\necho from-bash", "from-bash"),
    ("import subprocess; subprocess.run(['echo', 'from-child'])", "from-child"),
    ("import os; os.write(1, b'from-fd\\n')", "from-fd"),
    ("import ctypes; libc = ctypes.CDLL(None); libc.puts(b'from-c'); libc.fflush(None)", "from-c"),
    ("%cd /tmp\n%pwd", "/tmp"),
])
def test_magics_and_output_below_python(thawbox, code, want):
    result = thawbox.json("-c", code)
    assert want in result["stdout"] or want in value(result)


def test_order_of_output(thawbox):
    code = ("import os, subprocess\nfor i in range(3):\n    print('py', i, flush=True)\n"
            "    os.write(1, b'fd %d\\n' % i)\n    subprocess.run(['echo', 'child', str(i)])")
    want = "".join(f"py {i}\nfd {i}\nchild {i}\n" for i in range(3))
    assert thawbox.json("-c", code)["stdout"] == want


def test_figure_without_show(thawbox):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9]);"
    pictures = [r["data"]["image/png"] for r in thawbox.json("-c", code)["results"] if "image/png" in r["data"]]
    assert len(pictures) == 1 and base64.b64decode(pictures[0]).startswith(b"\x89PNG")


def test_figures_go_to_files(thawbox, tmp_path):
    done = thawbox("run", "--figures", str(tmp_path), "-c", "import matplotlib.pyplot as plt; plt.plot([1]); plt.show()")
    assert done.returncode == 0
    assert (tmp_path / "figure-1.png").read_bytes().startswith(b"\x89PNG")


def test_mime_bundles(thawbox):
    code = """
import pandas as pd
from IPython.display import display, SVG, JSON, Latex, Markdown
display(SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'), JSON({"a": 1}), Latex("$x$"), Markdown("*m*"))
pd.DataFrame({"a": [1, 2]})
"""
    result = thawbox.json("-c", code)
    kinds = [set(r["data"]) for r in result["results"]]
    for mime in ("image/svg+xml", "application/json", "text/latex", "text/markdown"):
        assert any(mime in k for k in kinds), mime
    assert {"text/plain", "text/html"} <= kinds[-1] and result["results"][-1]["kind"] == "result"


def test_pandas(thawbox):
    code = "import pandas as pd\npd.DataFrame({'k': list('aab'), 'v': [1, 2, 3]}).groupby('k').v.sum().to_dict()"
    assert value(thawbox.json("-c", code)) == "{'a': 3, 'b': 3}"


def test_the_user_and_the_host_name(thawbox):
    code = "import getpass, os, socket\n(getpass.getuser(), os.getcwd(), os.getuid(), socket.gethostname())"
    user, cwd, uid, host = eval(value(thawbox.json("-c", code)))
    assert (user, cwd, uid) == ("user", "/home/user", 1000) and host not in ("", "localhost", "(none)")


def test_sudo_and_apt_tree(thawbox):
    assert thawbox("exec", "sudo id -u").stdout == b"0\n"


def test_environment(thawbox):
    result = thawbox.json("--env", "TOKEN=s3cret", "--env", "WORDS=a b=c", "-c",
                          "import os; (os.environ['TOKEN'], os.environ['WORDS'])")
    assert value(result) == "('s3cret', 'a b=c')"
    seen = thawbox.json("-c", "import os; print(sorted(os.environ))")["stdout"]
    assert "THAWBOX_TEST" not in seen and "TMPDIR" not in seen, "the host's environment is not the sandbox's"


def test_exit_codes(thawbox, tmp_path):
    assert thawbox("run", "-c", "1").returncode == 0
    assert thawbox("run", "-c", "raise ValueError").returncode == 1
    assert thawbox("run").returncode == 2
    assert thawbox("run", str(tmp_path / "no such file.py")).returncode == 2
    assert thawbox("run", "--no-such-option", "-c", "1").returncode == 2
    missing = thawbox("run", "--template", "no-such-template", "-c", "1")
    assert missing.returncode == 3 and b"template" in missing.stderr


def test_a_size_that_is_not_baked(thawbox):
    done = thawbox("run", "--memory", "1000", "-c", "1")
    assert done.returncode == 3 and b"--memory 1000" in done.stderr, done.stderr


def test_system_exit_and_a_dead_kernel(thawbox):
    assert "sandbox" not in json.dumps(thawbox.json("-c", "raise SystemExit", code=1)["error"])
    done = thawbox("run", "-c", "print('x', flush=True); import os; os._exit(3)")
    assert done.returncode in (1, 125) and done.stderr
