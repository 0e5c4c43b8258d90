# SPDX-License-Identifier: Apache-2.0
"""What E2B's clients expect of results: charts, read by their own SDK where it is installed; data; pictures."""
from __future__ import annotations

import base64
import functools
import importlib.util
import json

import pytest
from harness import ROOT, Answer, Guest, Stream

SDKS = sorted(ROOT.glob("out/e2b/python-*/lib/python3*/site-packages/e2b_code_interpreter/charts.py"))


@functools.cache
def sdk():
    """The chart models of E2B's Python SDK: one file without dependencies."""
    if not SDKS:
        pytest.skip("E2B's SDK is not installed (make e2b does it)")
    spec = importlib.util.spec_from_file_location("e2b_charts", SDKS[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plots(guest: Guest):
    """A stream whose kernel has pyplot."""
    stream = guest.connect()
    assert not stream.run("%matplotlib inline\nimport datetime, numpy as np, pandas as pd\n"
                          "import matplotlib.pyplot as plt").error
    yield stream
    stream.close()


def chart(stream: Stream, code: str, displays: int = 1):
    """Runs a cell that draws a figure; returns its chart as the SDK reads it, and the text beside it."""
    answer = stream.run(code + "\nplt.show()")
    assert not answer.error and not answer.stderr, (answer.error, answer.stderr)
    assert len(answer.displays) == displays
    data = answer.displays[0]["data"]
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert set(data) == {"image/png", "text/plain", "e2b/chart"}, "nothing that would be extra"
    raw = json.loads(data["e2b/chart"])
    return sdk()._deserialize_chart(raw), data["text/plain"]


def points(series) -> list:
    return [list(p) for p in series.points]


def test_line(plots):
    c, _ = chart(plots, """
plt.plot([1, 2, 3], [1.5, float('nan'), 4.5], label='sin(x)')
plt.plot([1, 2, 3], [3, 2, 1])
plt.axhline(2); plt.axvline(1)
plt.xlabel('Time (s)'); plt.ylabel('Amplitude [Hz]'); plt.title('Title'); plt.grid(True); plt.legend()""")
    s = sdk()
    assert type(c) is s.LineChart and c.type == s.ChartType.LINE and c.title == "Title"
    assert (c.x_label, c.x_unit, c.y_label, c.y_unit) == ("Time (s)", "s", "Amplitude [Hz]", "Hz")
    assert (c.x_scale, c.y_scale) == (s.ScaleType.LINEAR, s.ScaleType.LINEAR)
    assert [e.label for e in c.elements] == ["sin(x)", "Line 1"]
    assert points(c.elements[0]) == [[1, 1.5], [2, None], [3, 4.5]]
    assert all(isinstance(t, float) for t in c.x_ticks + c.y_ticks)
    assert len(c.x_ticks) == len(c.x_tick_labels) and "2.00" in c.x_tick_labels


def test_line_of_two_level_points_is_a_line(plots):
    c, _ = chart(plots, "plt.plot([0, 5], [3, 3], label='level')")
    assert [e.label for e in c.elements] == ["level"] and points(c.elements[0]) == [[0, 3], [5, 3]]


@pytest.mark.parametrize("dates", [
    "[datetime.date(2023, 9, 1) + datetime.timedelta(i) for i in range(9)]",
    "[datetime.datetime(2023, 9, 1 + i) for i in range(9)]",
    "pd.date_range('2023-09-01', periods=9)",
    "np.arange('2023-09-01', '2023-09-10', dtype='datetime64[D]')"])
def test_dates(plots, dates):
    c, _ = chart(plots, f"plt.plot({dates}, range(9))")
    assert (c.x_scale, c.y_scale) == ("datetime", "linear")
    import datetime
    assert datetime.datetime.fromisoformat(c.x_ticks[0]).year == 2023
    assert [x[:10] for x, _ in c.elements[0].points] == [f"2023-09-{d:02d}" for d in range(1, 10)]


def test_dates_of_pandas(plots):
    c, _ = chart(plots, "pd.DataFrame({'a': range(9), 'b': 2}, index=pd.date_range('2023-09-01', periods=9)).plot()")
    assert c.x_scale == "datetime" and c.x_ticks[0].startswith("2023-")
    assert [e.label for e in c.elements] == ["a", "b"]
    assert c.elements[0].points[8] == ("2023-09-09T00:00:00", 8)


@pytest.mark.parametrize(("code", "scale"), [("plt.yscale('log')", "log"), ("plt.yscale('symlog')", "symlog"),
                                             ("plt.yscale('logit')", "logit")])
def test_scales(plots, code, scale):
    c, _ = chart(plots, f"plt.plot([.1, .2], [.1, .9]); {code}")
    assert (c.x_scale, c.y_scale) == ("linear", scale)


def test_categories(plots):
    c, _ = chart(plots, "plt.plot([1, 2, 3], ['A', 'B', 'C'])")
    assert (c.x_scale, c.y_scale) == ("linear", "categorical")
    assert points(c.elements[0]) == [[1, "A"], [2, "B"], [3, "C"]]
    c, _ = chart(plots, "plt.scatter(['u', 'v'], [1, 2]); plt.yticks([0, 1, 2], ['no', 'one', 'two'])")
    assert (c.x_scale, c.y_scale) == ("categorical", "categorical") and points(c.elements[0]) == [["u", 1], ["v", 2]]
    c, _ = chart(plots, "plt.plot([0, 1, 2], [0, 1, 2]); plt.xticks([0, 1, 2], ['0.0', '1.0', '2.0'])")
    assert c.x_scale == "linear"


def test_scatter(plots):
    c, _ = chart(plots, "plt.scatter([1, 2], [3, 4.5], label='one'); plt.scatter(range(3), range(3), label='two')\n"
                        "plt.grid(True); plt.axhline(2)\nplt.xlabel('A')")
    assert type(c) is sdk().ScatterChart and c.x_label == "A" and c.y_label is None and c.title is None
    assert [(e.label, len(e.points)) for e in c.elements] == [("one", 2), ("two", 3)]
    assert points(c.elements[0]) == [[1, 3], [2, 4.5]]


def bars(c) -> list:
    return [(e.label, e.group, e.value) for e in c.elements]


def test_bars(plots):
    c, _ = chart(plots, "plt.bar(['a', 'b', 'c'], [5, 5, 5], label='Sold'); plt.xlabel('Who'); plt.ylabel('What (kg)')")
    assert type(c) is sdk().BarChart and (c.x_label, c.y_label, c.y_unit) == ("Who", "What (kg)", "kg")
    assert bars(c) == [("a", "Sold", 5), ("b", "Sold", 5), ("c", "Sold", 5)]
    c, _ = chart(plots, "plt.barh(['a', 'b'], [1, 2]); plt.barh(['a', 'b'], [3, 4], left=[1, 2])\n"
                        "plt.xlabel('x'); plt.ylabel('y')")
    assert (c.x_label, c.y_label) == ("y", "x"), "x is the axis of the names"
    assert bars(c) == [("a", "Group 0", 1), ("b", "Group 0", 2), ("a", "Group 1", 3), ("b", "Group 1", 4)]


def test_grouped_bars(plots):
    c, _ = chart(plots, "x = np.arange(3)\nplt.bar(x - .2, [1, 2, 3], .4, label='l', yerr=[1, 1, 1], capsize=3)\n"
                        "plt.bar(x + .2, [4, 5, 6], .4, label='r')\nplt.xticks(x, ['a', 'b', 'c']); plt.axhline(2)")
    assert bars(c) == [("a", "l", 1), ("b", "l", 2), ("c", "l", 3), ("a", "r", 4), ("b", "r", 5), ("c", "r", 6)]
    c, _ = chart(plots, "pd.DataFrame({'p': [1, 2], 'q': [3, 4]}, index=['a', 'b']).plot.bar()")
    assert bars(c) == [("a", "p", 1), ("b", "p", 2), ("a", "q", 3), ("b", "q", 4)]


def test_bars_at_numbers(plots):
    c, _ = chart(plots, "plt.bar([10, 20, 35], [1, 2, 3], width=4)")
    assert [float(e.label) for e in c.elements] == [10, 20, 35]
    c, _ = chart(plots, "plt.hist([1, 1, 2, 3, 3, 3], bins=[.5, 1.5, 2.5, 3.5])")
    assert [(float(e.label), e.value) for e in c.elements] == [(1, 2), (2, 1), (3, 3)]
    c, _ = chart(plots, "plt.hist([1, 2], bins=[0, 1, 2, 3])")
    assert [float(e.label) for e in c.elements] == [.5, 1.5, 2.5]
    c, _ = chart(plots, "plt.bar([3], [7])")
    assert len(c.elements) == 1 and c.elements[0].value == 7


@pytest.mark.parametrize("more", ["", ", shadow=True, explode=[0, .1]", ", wedgeprops={'width': .4}"])
def test_pie(plots, more):
    c, _ = chart(plots, f"plt.pie([90, 10], labels=['No', 'No, in blue'], autopct='%1.1f%%', startangle=90{more})\n"
                        "plt.title('Early?')")
    assert type(c) is sdk().PieChart and c.title == "Early?"
    assert [(e.label, e.angle, e.radius) for e in c.elements] == [("No", 324, 1), ("No, in blue", 36, 1)]


SCORES = "scores = {'A': [85, 90, 78, 92, 88], 'B': [95, 89, 76, 91, 84, 87], 'C': [75, 82, 88, 79, 86]}\n"


@pytest.mark.parametrize("draw", ["plt.boxplot(scores.values(), labels=scores{})",
                                  "plt.boxplot(scores.values(), labels=scores, patch_artist=True{})",
                                  "plt.boxplot(scores.values(), labels=scores, showmeans=True, showcaps=False{})"])
@pytest.mark.parametrize("lies", [False, True])
def test_box(plots, draw, lies):
    labels = "plt.xlabel('n'); plt.ylabel('class')" if lies else "plt.xlabel('class'); plt.ylabel('n')"
    c, _ = chart(plots, SCORES + draw.format(", vert=False" if lies else "") + "\n" + labels)
    assert type(c) is sdk().BoxAndWhiskerChart and (c.x_label, c.y_label) == ("class", "n")
    assert [e.label for e in c.elements] == ["A", "B", "C"]
    assert [(e.min, e.first_quartile, e.median, e.third_quartile, e.max) for e in c.elements] == [
        (78, 85, 88, 90, 92), (84, 84.75, 88, 90.5, 95), (75, 79, 82, 86, 88)]
    assert [e.outliers for e in c.elements] == [[], [76], []]


def test_box_of_few_values(plots):
    c, _ = chart(plots, "plt.boxplot([[1, 1, 1, 1], [1, 2, 2, 2, 9, 10, 50, 60]], patch_artist=True)")
    assert (c.elements[0].min, c.elements[0].median, c.elements[0].max) == (1, 1, 1)
    assert c.elements[1].outliers == [50, 60] or c.elements[1].outliers == []
    c, _ = chart(plots, "pd.DataFrame({'p': [1, 2, 3, 4], 'q': [2, 3, 4, 5]}).plot.box()")
    assert [(e.label, e.median) for e in c.elements] == [("p", 2.5), ("q", 3.5)]


def test_several(plots):
    c, _ = chart(plots, """
fig, axs = plt.subplots(2, 2)
fig.suptitle('Both')
axs[0, 0].plot([1, 2]); axs[0, 0].set_title('first')
axs[0, 1].scatter([1], [2])
axs[1, 0].imshow(np.eye(3))""")
    s = sdk()
    assert type(c) is s.SuperChart and c.title == "Both"
    assert [e.type for e in c.elements] == ["line", "scatter", "unknown", "unknown"]
    assert c.elements[0].title == "first" and c.elements[1].title is None
    c, _ = chart(plots, "fig, a = plt.subplots()\na.plot([1, 2])\na.twinx().bar([0, 1], [3, 4])")
    assert [type(e) for e in c.elements] == [s.LineChart, s.BarChart] and c.title is None


@pytest.mark.parametrize("code", [
    "plt.gca().add_artist(plt.Circle((0, 0), 1)); plt.gca().add_artist(plt.Circle((0, 0), 2)); plt.title('t')",
    "plt.imshow(np.eye(3)); plt.title('t')", "plt.fill_between([1, 2], [3, 4]); plt.title('t')",
    "plt.violinplot([1, 2, 3]); plt.title('t')", "plt.scatter([1], [2]); plt.plot([1, 2, 3]); plt.title('t')",
    "plt.figure().add_subplot(projection='3d').plot([1, 2], [1, 2], [1, 2]); plt.title('t')"])
def test_unknown(plots, code):
    c, _ = chart(plots, code)
    s = sdk()
    assert type(c) is s.Chart and c.type == s.ChartType.UNKNOWN and (c.title, c.elements) == ("t", [])


def test_errorbars_are_lines(plots):
    c, _ = chart(plots, "plt.errorbar([1, 2], [3, 4], yerr=1, capsize=2, label='e')")
    assert c.type == "line" and [e.label for e in c.elements] == ["e"] and points(c.elements[0]) == [[1, 3], [2, 4]]


def test_blank_figures_have_no_chart(plots):
    c, _ = chart(plots, "plt.subplots(); plt.text(.5, .5, 'words')")
    assert c is None
    shown = plots.run("plt.figure(); plt.show()").displays[0]["data"]
    assert list(shown) == ["text/plain"], "not even a picture: matplotlib draws none"


def test_a_figure_that_cannot_be_read_is_shown(plots):
    c, _ = chart(plots, "ax = plt.gca(); ax.plot([1, 2])\nax.get_title = lambda *a: 1/0")
    assert c is None


def test_figure_as_value_and_by_display(plots):
    answer = plots.run("fig, ax = plt.subplots(); ax.plot([1, 2]); plt.close()\nfig")
    assert json.loads(answer.displays[0]["data"]["e2b/chart"])["type"] == "line"
    shown = plots.run("display(fig, include=['text/plain'])").displays[0]["data"]
    assert list(shown) == ["text/plain"]
    shown = plots.run("display(fig, exclude=['e2b/chart'])").displays[0]["data"]
    assert set(shown) == {"text/plain", "image/png"}


def test_large_charts_are_thinned(plots):
    c, text = chart(plots, "plt.plot(np.arange(120_000)); plt.plot([1, 2, 3])")
    assert len(c.elements[0].points) == 40_000 and c.elements[0].points[1] == (3, 3)
    assert text.endswith("[thawbox: e2b/chart: 1 in 3 of 120003 points kept]")
    c, text = chart(plots, "plt.bar(range(2500), 1)")
    assert len(c.elements) == 2000 and "500 series, bars, slices or boxes left out" in text


# ---- data ----

def data(answer: Answer):
    return json.loads(answer.displays[0]["data"]["e2b/data"])


def test_data_of_a_table(plots):
    answer = plots.run("pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, np.nan], 'd': [True, False],\n"
                       " 'e': pd.to_datetime(['2024-01-02', None]), 'f': pd.to_datetime(['2024-01-02']*2, utc=True),\n"
                       " 'g': [np.inf, 1], 'h': pd.array([1, None], dtype='Int64'), 'i': [[1, np.nan], {'k': 2}],\n"
                       " 'j': [2**70, datetime.date(2024, 1, 2)], 'k': pd.Categorical(['u', 'v']),\n"
                       " 'l': ['\\ud800', '\u00e9'], 5: [np.int8(1), np.float32(.5)]})")
    assert not answer.error and not answer.stderr
    assert data(answer) == {
        "a": [1, 2], "b": ["x", None], "c": [1.5, None], "d": [True, False],
        "e": ["2024-01-02T00:00:00", None], "f": ["2024-01-02T00:00:00+00:00"] * 2, "g": [None, 1.0],
        "h": [1, None], "i": [[1, None], {"k": 2}], "j": [str(2**70), "2024-01-02"], "k": ["u", "v"],
        "l": ["\\ud800", "\u00e9"], "5": [1, .5]}
    assert set(answer.displays[0]["data"]) == {"text/plain", "text/html", "e2b/data"}
    assert data(plots.run("display(pd.DataFrame({('p', 'q'): [1]}))")) == {"('p', 'q')": [1]}
    assert data(plots.run("pd.DataFrame()")) == {}
    assert data(plots.run("pd.DataFrame([[1, 2]], columns=['a', 'a'])")) == {"a": [2]}


def test_no_data_of_other_values(plots):
    for code in ("pd.Series([1, 2])", "pd.DataFrame({'a': [1, 1]}).groupby('a')", "[1, 2]", "np.eye(2)"):
        answer = plots.run(code)
        assert not answer.error and "e2b/data" not in answer.displays[0]["data"]


def test_large_tables_are_cut(plots):
    answer = plots.run("pd.DataFrame({'a': range(70_000), 'b': 1.5})")
    assert [len(column) for column in data(answer).values()] == [50_000] * 2
    assert answer.text.endswith("[thawbox: e2b/data: the first 50000 of 70000 rows]")
    answer = plots.run("pd.DataFrame({'a': ['x' * 1000] * 9000})")
    assert 3900 < len(data(answer)["a"]) < 4200 and " of 9000 rows]" in answer.text
    assert "thawbox" not in plots.run("pd.DataFrame({'a': range(1000)})").text


# ---- pictures ----

IMAGE = "from PIL import Image\nimage = Image.new('RGB', (8, 6), 'red')\n"


def pictures(answer: Answer) -> list[bytes]:
    assert not answer.error and not answer.stderr, (answer.error, answer.stderr)
    return [base64.b64decode(d["data"]["image/png"])[:4] for d in answer.displays]


def test_pictures(plots, tmp_path):
    assert pictures(plots.run(IMAGE + "image")) == [b"\x89PNG"]
    shown = plots.run(IMAGE + "image.show()\nprint('shown')")
    assert pictures(shown) == [b"\x89PNG"] and shown.stdout == "shown\n" and shown.displays[0]["kind"] == "display"
    for code in (f"image.save('{tmp_path}/a.png')", f"image.save('{tmp_path}/a.jpg', quality=5)",
                 f"image.save('{tmp_path}/b', 'PNG')", f"image.save('{tmp_path}/c', format='GIF')"):
        assert pictures(plots.run(IMAGE + code)) == [b"\x89PNG"], code
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jpg", "a.png", "b", "c"]
    for code in (f"import pathlib; image.save(pathlib.Path('{tmp_path}/d.png'))",
                 "import io; image.save(io.BytesIO(), 'PNG')",
                 f"image.convert('CMYK').save('{tmp_path}/e.jpg')"):
        assert pictures(plots.run(IMAGE + code)) == [], code
    assert plots.run(f"image.save('{tmp_path}/f.nothing')").error["name"] == "ValueError"


# ---- bounds ----

def test_displays_of_a_cell_are_bounded(plots):
    answer = plots.run("class P:\n    def _repr_png_(self): return b'p' * (6 << 20)\n    def __repr__(self): return 'P()'\n"
                       "for i in range(9): display(P())\n'end'")
    assert ["image/png" in d["data"] for d in answer.displays] == [True] * 4 + [False] * 2
    assert "a display of 8388" in answer.displays[4]["data"]["text/plain"] and answer.text == "'end'"
    assert len(plots.run("for i in range(3): display(P())").displays) == 3, "each cell has its own bound"


def test_one_display_is_bounded(plots):
    """Whatever its characters become in JSON, the host can read it."""
    for code in ("'\u00e9' * (6 << 20)", "'\U0001f600' * (6 << 20)", "display({'text/html': '\x01' * (5 << 20)}, raw=True)",
                 "raise ValueError('\u4e2d' * (6 << 20))"):
        answer = plots.run(code)
        assert all(len(payload) <= 24 << 20 for _, payload in answer.frames), code
        assert "thawbox:" in (answer.error["value"] if answer.error else answer.displays[0]["data"]["text/plain"])
