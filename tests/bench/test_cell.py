# SPDX-License-Identifier: Apache-2.0
"""bench/cell.py: its checks tell a right result from a wrong one; real cells."""
import ast
import base64
import csv
import io
import json

import cell
import common
import pytest
from common import Cell


def displayed(mime: str, data: str) -> Cell:
    return Cell(displays=[{"kind": "display", "data": {mime: data}}], result={"status": "ok"})


def right_result(kind: str, task: cell.Task) -> Cell:
    """What a guest would answer, computed here by other means."""
    if kind in ("sum", "numpy", "groupby"):
        pytest.importorskip("pandas" if kind == "groupby" else "numpy")
        *lines, last = task.code.splitlines()
        scope: dict = {}
        exec("\n".join(lines), scope)
        return Cell(displays=[{"kind": "result", "data": {"text/plain": str(eval(last, scope))}}])
    if kind.startswith("print"):
        word, times = task.code[len("print('"):-1].split("' * ")
        return Cell(stdout=word.encode() * int(times) + b"\n")
    if kind == "html":
        numbers = [int(n) for n in ast.literal_eval("[" + task.code.split("'a': range(")[1].split(")")[0] + "]")]
        rows = [f"<tr>\n<th>{i}</th>\n<td>{n}</td>\n<td>{i}</td>\n</tr>" for i, n in enumerate(range(*numbers))]
        head = '<table border="1">\n<tr style="text-align: right;">'
        return displayed("text/html", f"{head}{''.join(rows)}</table>")
    if kind == "traceback":
        key = task.code.splitlines()[-1][len("outer("):-1]
        return Cell(result={"status": "error", "error": {"name": "KeyError", "value": key, "traceback":
                                                         "line 4\n    return inner(n)[0]"}})
    return displayed("image/png", base64.b64encode(picture(True)).decode())


def picture(drawn: bool) -> bytes:
    figure, (axes,) = common.new_figure()
    if not drawn:
        axes.set_axis_off()
        axes.grid(False)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


@pytest.mark.parametrize("kind", list(cell.KINDS))
def test_a_right_result_passes_and_an_empty_one_does_not(kind):
    task = cell.KINDS[kind](5)
    found, want = task.check(right_result(kind, task))
    assert found == want
    found, want = task.check(Cell(result={"status": "ok"}))
    assert found != want


@pytest.mark.parametrize("kind", [kind for kind in cell.KINDS if kind != "plot"])
def test_the_result_of_another_run_does_not_pass(kind):
    """Contents are random: what a run before gave is wrong now."""
    old = cell.KINDS[kind](5)
    new = next(task for task in iter(lambda: cell.KINDS[kind](5), None) if task.code != old.code)
    found, want = new.check(right_result(kind, old))
    assert found != want


def test_a_picture_must_be_drawn():
    assert cell.is_drawn(picture(True)) and not cell.is_drawn(picture(False))


def test_an_error_in_a_cell_is_an_error():
    reply = common.Reply(Cell(result={"status": "error", "error": {"name": "MemoryError"}}), b"", 1.0, 1.0)
    with pytest.raises(common.BenchError, match="MemoryError"):
        cell.proven(cell.sum_cell(0), reply)


def test_limits():
    ran = []
    assert len(cell.Limits(3, 60).repeat(lambda: ran.append(1) or {}, lambda n: None)) == 3
    assert len(cell.Limits(3, 0).repeat(lambda: ran.append(1) or {}, lambda n: None)) == 1
    assert len(ran) == 4


@pytest.mark.parametrize("option", [["--kinds", "sum,product"], ["--only", "cold"], ["--runs", "0"], ["--seconds", "x"],
                                    ["--rows", "1000000"]])
def test_wrong_usage(bench, option):
    assert option[0] in bench("cell", *option, code=2).stderr


def test_real(bench, real, tmp_path):
    done = bench("cell", *real, "--kinds", "sum,print-1k,html,groupby,traceback", "--runs", "2", "--rows", "50",
                 "--first-rows", "20", "--json", "--csv", str(tmp_path / "x.csv"), "--plot", str(tmp_path / "x.svg"))
    cells = json.loads(done.stdout)["cells"]
    assert list(cells)[:2] == ["sum, warm", "sum, first"] and len(cells) == 10
    for each in cells.values():
        assert each["ms"]["n"] == 2 and 0 < each["guest_ms"] < each["ms"]["max"]
    with open(tmp_path / "x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["how"] for row in rows if row["kind"] == "sum"] == ["warm"] * 3 + ["first"] * 2
