# SPDX-License-Identifier: Apache-2.0
"""Results as the SDKs' own models read them: charts, data, pictures; and what the last line of a cell tells besides."""
import base64
import json

import pytest
from e2b_code_interpreter import Sandbox
from e2b_code_interpreter.charts import (BarChart, BoxAndWhiskerChart, Chart, ChartType, LineChart, PieChart, ScaleType,
                                         ScatterChart, SuperChart)

DRAW = "import matplotlib.pyplot as plt, numpy as np\n"


def test_charts(sandbox: Sandbox):
    """One of each type in one cell: each figure is a result of its own."""
    cell = sandbox.run_code(DRAW + """
plt.plot([1, 2, 3], [1, 4, 9], label="squares"); plt.xlabel("Time (s)"); plt.title("Line"); plt.show()
plt.scatter([1, 2], [3, 4], label="some"); plt.show()
plt.bar(["a", "b"], [5, 5], label="Sold"); plt.show()
plt.pie([90, 10], labels=["No", "Yes"], autopct="%1.1f%%"); plt.show()
plt.boxplot([[85, 90, 78, 92, 88], [95, 89, 76, 91, 84, 87]], labels=["A", "B"]); plt.show()
fig, axs = plt.subplots(1, 2); fig.suptitle("Both"); axs[0].semilogy([1, 2]); axs[1].scatter([1], [2]); plt.show()
plt.imshow(np.eye(3)); plt.show()
plt.subplots(); plt.show()
""", timeout=0)
    assert cell.error is None, cell.error.traceback
    assert all(base64.b64decode(result.png).startswith(b"\x89PNG") and result.extra == {} for result in cell.results)
    line, scatter, bar, pie, box, both, unknown, blank = (result.chart for result in cell.results)
    assert isinstance(line, LineChart) and (line.title, line.x_label, line.x_unit) == ("Line", "Time (s)", "s")
    assert line.elements[0].label == "squares" and line.elements[0].points == [(1, 1), (2, 4), (3, 9)]
    assert isinstance(scatter, ScatterChart) and scatter.elements[0].points == [(1, 3), (2, 4)]
    assert isinstance(bar, BarChart)
    assert [(b.label, b.group, b.value) for b in bar.elements] == [("a", "Sold", 5), ("b", "Sold", 5)]
    assert isinstance(pie, PieChart) and [(s.label, s.angle) for s in pie.elements] == [("No", 324), ("Yes", 36)]
    assert isinstance(box, BoxAndWhiskerChart)
    assert [(b.label, b.min, b.median, b.max, b.outliers) for b in box.elements] == [("A", 78, 88, 92, []),
                                                                                     ("B", 84, 88, 95, [76])]
    assert isinstance(both, SuperChart) and both.title == "Both"
    assert both.elements[0].y_scale == ScaleType.LOG and isinstance(both.elements[1], ScatterChart)
    assert type(unknown) is Chart and unknown.type == ChartType.UNKNOWN and blank is None
    assert json.loads(cell.to_json())["results"][0]["chart"]["type"] == "line"


def test_data(sandbox: Sandbox):
    cell = sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2, None], 't': pd.to_datetime(['2024-01-02'] * 3)})")
    (result,) = cell.results
    assert result.data == {"a": [1, 2, None], "t": ["2024-01-02T00:00:00"] * 3}
    assert list(result.formats()) == ["text", "html", "data"]


def test_pictures(sandbox: Sandbox):
    cell = sandbox.run_code("from PIL import Image\nimage = Image.new('RGB', (9, 9))\nimage.show()\nimage.save('a.png')\nimage")
    assert cell.error is None and len(cell.results) == 3 and all(result.png for result in cell.results)
    assert bytes(sandbox.files.read("a.png", format="bytes")).startswith(b"\x89PNG")


def execute(daemon, box: Sandbox, code: str, **members) -> list[dict]:
    """The lines that answer a cell, as they come."""
    status, body = daemon.request("POST", "/execute", {"code": code, **members}, E2b_Sandbox_Id=box.sandbox_id,
                                  E2b_Sandbox_Port="49999", X_Access_Token=box._envd_access_token)
    assert status == 200
    return [json.loads(line) for line in body.splitlines()]


def test_last_line(daemon, sandbox: Sandbox):
    end = execute(daemon, sandbox, "open('new.txt', 'w').write('abc'); print('x' * 99)", files_changed=True)[-1]
    assert end["type"] == "end_of_execution" and "truncated" not in end
    assert end["files_changed"] == [{"path": "/home/user/new.txt", "size": 3}]
    usage = end["usage"]
    assert usage["output_bytes"] == 100 and usage["peak_kib"] > 10_000 and usage["wall_ms"] > 0
    assert {"cpu_ms", "cpu_user_ms", "cpu_system_ms", "pages_dirtied", "read_bytes", "write_bytes"} <= set(usage)
    end = execute(daemon, sandbox, "data = bytearray(40 << 20)")[-1]
    assert "files_changed" not in end and "peak_kib" not in end["usage"]
    assert end["usage"]["pages_dirtied"] > 9000 and end["usage"]["cpu_ms"] > 0
    end = execute(daemon, sandbox, "1 + 1", usage=True)[-1]
    assert end["usage"]["cpu_user_ms"] >= 0 and end["usage"]["pages_dirtied"] < 9000


@pytest.mark.slow
def test_out_of_memory(daemon):
    """What asks for more than there can be has a MemoryError; what takes more than there is, too, with its context.
    On software KVM a fresh page costs a millisecond and more: this takes minutes there."""
    box = Sandbox.create(timeout=3600)
    try:
        box.run_code("x = 1")
        cell = box.run_code("b = bytearray(1 << 40)", timeout=0)
        assert cell.error.name == "MemoryError" and box.run_code("x", timeout=0).text == "1"
        cell = box.run_code("print('begun')\nparts = []\nwhile True: parts.append(bytearray(8 << 20))", timeout=0)
        assert cell.error.name == "MemoryError", cell.error
        if "killed" in cell.error.value:
            assert cell.error.value == "killed: out of memory; the context was restarted, its variables are gone"
            assert box.run_code("x", timeout=0).error.name == "NameError"
        assert cell.logs.stdout == ["begun\n"] and box.run_code("1 + 1", timeout=0).text == "2"
    finally:
        box.kill()
