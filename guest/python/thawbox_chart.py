# SPDX-License-Identifier: Apache-2.0
"""What a figure shows, in the form that E2B's clients read (charts.py of their SDK): a line, scatter, bar, pie or
box chart, one of several, or "unknown". Loaded with matplotlib at the bake, else when the first figure is shown."""
from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib.dates
import numpy
from matplotlib.category import UnitData
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, PathPatch, Rectangle, Shadow, Wedge

from thawbox_rich import plain

POINTS_MAX = 50_000
"""Points of all series of a figure; of more, every n-th is kept."""
PARTS_MAX = 2000
"""Series, bars, slices or boxes of one chart."""
CHARTS_MAX = 64
"""Charts of one figure."""
UNIT = re.compile(r"\s\(([^)]*)\)|\[([^\]]*)\]")
Box = dict[str, Any]


class Limits:
    """How much of a figure is kept; counts what is not."""

    def __init__(self, axes: list[Any]) -> None:
        self.points = sum(count_points(ax) for ax in axes)
        self.step = max(1, -(-self.points // POINTS_MAX))
        self.left_out = 0

    def first(self, parts: Iterable[Any]) -> list[Any]:
        """Returns the parts that are kept."""
        parts = list(parts)
        self.left_out += max(0, len(parts) - PARTS_MAX)
        return parts[:PARTS_MAX]

    def notes(self) -> list[str]:
        """Returns what was cut, in words."""
        notes = []
        if self.step > 1:
            notes.append(f"1 in {self.step} of {self.points} points kept")
        if self.left_out:
            notes.append(f"{self.left_out} series, bars, slices or boxes left out")
        return notes


def chart_of(figure: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns the chart, {} of a figure without data, and what was cut, in words."""
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes):
        return {}, []
    limits = Limits(axes[:CHARTS_MAX])
    charts = [read_axes(ax, limits) for ax in axes[:CHARTS_MAX]]
    notes = limits.notes()
    if len(axes) > CHARTS_MAX:
        notes.append(f"{len(axes) - CHARTS_MAX} charts left out")
    if len(charts) == 1:
        return charts[0], notes
    title = figure._suptitle.get_text() if figure._suptitle else ""
    return {"type": "superchart", "title": title or None, "elements": charts}, notes


def read_axes(ax: Any, limits: Limits) -> dict[str, Any]:
    """Returns the chart of one pair of axes."""
    kind, make = classify(ax)
    chart = {"type": kind, "title": ax.get_title() or None}
    if kind not in ("pie", "unknown"):
        for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
            label = axis.get_label_text()
            unit = UNIT.search(label)
            chart[f"{name}_label"] = label or None
            chart[f"{name}_unit"] = (unit[1] or unit[2]) if unit else None
    chart["elements"] = make(ax, limits, chart)
    return chart


def classify(ax: Any) -> tuple[str, Callable[..., list[dict[str, Any]]]]:
    """Returns the type of a chart and what reads its elements."""
    errors = error_bars(ax)
    artists = [a for a in (*ax.lines, *ax.patches, *ax.collections, *ax.images, *ax.artists,
                           *ax.tables) if id(a) not in errors]
    main = [a for a in artists if not (isinstance(a, Line2D) and is_straight(a))]
    if not artists or ax.name == "3d":
        return "unknown", nothing
    if all(isinstance(a, (Line2D, PathPatch)) for a in artists) and find_boxes(ax):
        return "box_and_whisker", read_boxes
    if all(isinstance(a, Line2D) for a in artists):
        return "line", read_lines
    if main and all(isinstance(a, PathCollection) for a in main):
        return "scatter", read_points
    if any(isinstance(a, Wedge) for a in main) \
            and all(isinstance(a, (Wedge, Shadow, Circle)) for a in main):
        return "pie", read_slices
    if bar_groups(ax) and all(isinstance(a, Rectangle) for a in main):
        return "bar", read_bars
    return "unknown", nothing


def error_bars(ax: Any) -> set[int]:
    """Returns the identities of the artists that draw error bars."""
    return {id(part) for c in ax.containers if isinstance(c, ErrorbarContainer)
            for parts in c.lines[1:] for part in parts}


def nothing(*args: Any) -> list[dict[str, Any]]:
    """Returns the elements of a chart of an unknown type."""
    return []


def is_straight(line: Line2D) -> bool:
    """Tells whether a line is one level or upright stroke, such as decorates charts of other types."""
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) == len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


def count_points(ax: Any) -> int:
    """Returns how many points all series have."""
    return sum(len(line.get_xdata(orig=False)) for line in ax.lines) + sum(
        len(c.get_offsets()) for c in ax.collections if isinstance(c, PathCollection))


# ---- numbers and what they stand for on an axis ----

def plain_list(data: Any, step: int = 1) -> list[Any]:
    """Returns every step-th value as one that JSON has."""
    array = numpy.ma.asanyarray(data).ravel()[::step]
    if array.dtype.kind == "f":
        return [v if math.isfinite(v) else None for v in array.filled(math.nan).tolist()]
    if array.dtype.kind == "M":
        return [None if v == "NaT" else v
                for v in array.data.astype("datetime64[s]").astype(str).tolist()]
    return [plain(v) for v in array.tolist()]


def converter_of(axis: Any) -> Any:
    """Returns what turns values into numbers on an axis, or None."""
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def meaning(axis: Any) -> Callable[[float], Any] | None:
    """Returns what turns a number on an axis into the date or category that it stands for; None when it stands
    for itself."""
    converter = type(converter_of(axis))
    if isinstance(axis.units, UnitData):
        names = {number: name for name, number in axis.units._mapping.items()}
        return lambda v: names.get(v, v)
    if converter.__name__ == "PeriodConverter" and getattr(axis, "freq", None) is not None:
        period = sys.modules["pandas"].Period
        return lambda v: period(ordinal=int(v), freq=axis.freq).to_timestamp().isoformat()
    if converter.__module__ == "matplotlib.dates" or converter.__name__ == "DatetimeConverter":
        return lambda v: matplotlib.dates.num2date(v).isoformat()
    return None


def translate(values: list[Any], stands_for: Callable[[float], Any] | None) -> list[Any]:
    """Returns what numbers on an axis stand for; other values, and those that stand for nothing, as they are."""
    if not stands_for:
        return values
    out = []
    for v in values:
        try:
            out.append(stands_for(v) if isinstance(v, (int, float)) else v)
        except (ValueError, OverflowError):
            out.append(v)
    return out


def describe_axis(axis: Any, name: str) -> dict[str, Any]:
    """Returns the members of a chart that describe one of its axes."""
    stands_for = meaning(axis)
    ticks = plain_list(axis.get_majorticklocs())
    labels = [text.get_text() for text in axis.get_majorticklabels()]
    scale = axis.get_scale()
    if isinstance(axis.units, UnitData):
        scale = "categorical"
    elif stands_for:
        scale = "datetime"
        ticks = translate(ticks, stands_for)
    elif scale == "linear" and are_names(ticks, labels):
        scale = "categorical"
    return {f"{name}_ticks": [float(t) if isinstance(t, int) else t for t in ticks],
            f"{name}_tick_labels": labels, f"{name}_scale": scale}


def are_names(ticks: list[Any], labels: list[str]) -> bool:
    """Tells whether ticks count something, and their labels are no numbers."""
    def is_number(text: str) -> bool:
        try:
            float(text.replace("\N{MINUS SIGN}", "-"))
        except ValueError:
            return False
        return True

    return bool(labels) and ticks == list(range(len(ticks))) and not any(map(is_number, labels))


# ---- series of points ----

def describe_axes(ax: Any, chart: dict[str, Any]) -> None:
    """Adds what a chart of points tells of its axes."""
    chart.update(describe_axis(ax.xaxis, "x") | describe_axis(ax.yaxis, "y"))


def read_lines(ax: Any, limits: Limits, chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the lines, without those that go across the whole axes."""
    describe_axes(ax, chart)
    elements = []
    errors = error_bars(ax)
    names = {id(c.lines[0]): c.get_label() for c in ax.containers
             if isinstance(c, ErrorbarContainer)}
    for line in limits.first(n for n in ax.lines if id(n) not in errors and (
            n.get_transform() == ax.transData or not is_straight(n))):
        points = []
        for axis, get in ((ax.xaxis, line.get_xdata), (ax.yaxis, line.get_ydata)):
            has_periods = type(converter_of(axis)).__name__ == "PeriodConverter"
            stands_for = None if isinstance(axis.units, UnitData) else meaning(axis)
            points.append(translate(plain_list(get(orig=not has_periods), limits.step), stands_for))
        label = re.sub("^_(child|line|container)", "Line ",
                       str(names.get(id(line), line.get_label())))
        elements.append({"label": label, "points": [list(p) for p in zip(*points)]})
    return elements


def read_points(ax: Any, limits: Limits, chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the groups of a scatter chart."""
    describe_axes(ax, chart)
    elements = []
    for group in limits.first(c for c in ax.collections if isinstance(c, PathCollection)):
        at = numpy.ma.asanyarray(group.get_offsets())
        x, y = (translate(plain_list(at[:, i], limits.step), meaning(axis))
                for i, axis in enumerate((ax.xaxis, ax.yaxis)))
        elements.append({"label": str(group.get_label()), "points": [list(p) for p in zip(x, y)]})
    return elements


# ---- bars and slices ----

def bar_groups(ax: Any) -> list[BarContainer]:
    """Returns the groups of bars."""
    return [c for c in ax.containers if isinstance(c, BarContainer) and c.patches]


def names_at(axis: Any, places: list[float], width: float) -> list[str]:
    """Returns the labels of the ticks that stand at these places; where not each has a tick of its own, what the
    places stand for."""
    ticks = list(zip(plain_list(axis.get_majorticklocs()),
                     (text.get_text() for text in axis.get_majorticklabels())))
    room = min((b - a for a, b in zip(sorted(places), sorted(places)[1:])), default=width) / 2
    found = []
    for place in places:
        near = min(ticks, key=lambda tick: abs(tick[0] - place), default=None)
        if near and near[1] and abs(near[0] - place) < room:
            found.append(near)
    if len(set(found)) == len(places):
        return [label for _, label in found]
    return [v if isinstance(v, str) else f"{v:g}" for v in translate(places, meaning(axis))]


def swap_axes(chart: dict[str, Any]) -> None:
    """Makes x the axis of the categories of a chart that lies on its side."""
    for name in ("label", "unit"):
        chart[f"x_{name}"], chart[f"y_{name}"] = chart[f"y_{name}"], chart[f"x_{name}"]


def read_bars(ax: Any, limits: Limits, chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the bars, group after group."""
    groups = bar_groups(ax)
    lies = groups[0].orientation == "horizontal"
    if lies:
        swap_axes(chart)
    elements = []
    for group in groups:
        bars = group.patches
        label = re.sub("^_container", "Group ", str(group.get_label()))
        at = [b.get_y() + b.get_height() / 2 if lies else b.get_x() + b.get_width() / 2
              for b in bars]
        width = abs(bars[0].get_height() if lies else bars[0].get_width())
        values = plain_list([b.get_width() if lies else b.get_height() for b in bars])
        names = names_at(ax.yaxis if lies else ax.xaxis, at, width)
        elements += [{"label": name, "group": label, "value": value}
                     for name, value in zip(names, values)]
    return limits.first(elements)


def read_slices(ax: Any, limits: Limits, chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the slices of a pie."""
    return [{"label": str(w.get_label()), "angle": abs(round(float(w.theta2 - w.theta1), 4)),
             "radius": float(w.r)}
            for w in limits.first(p for p in ax.patches if isinstance(p, Wedge))]


# ---- boxes and whiskers ----

def points_of(line: Line2D, lies: bool) -> list[tuple[float, float]]:
    """Returns the points of a line, of a chart that lies on its side with x and y exchanged."""
    points = zip(line.get_xdata(orig=False), line.get_ydata(orig=False))
    return [(float(y), float(x)) if lies else (float(x), float(y)) for x, y in points]


def outlines(ax: Any, lies: bool) -> list[list[tuple[float, float]]]:
    """Returns the outlines that may be boxes: filled ones, or else closed lines."""
    filled = [[(float(y), float(x)) if lies else (float(x), float(y))
               for x, y in patch.get_path().vertices]
              for patch in ax.patches if isinstance(patch, PathPatch)]
    lines = (points_of(line, lies) for line in ax.lines if len(line.get_xdata()) in (5, 11))
    return filled or [p for p in lines if p[0] == p[-1]]


def find_boxes(ax: Any) -> tuple[list[Box], bool] | None:
    """Returns the boxes of a chart, and whether they lie on their side; None when these are no boxes."""
    for lies in (False, True):
        boxes = [make_box(points) for points in outlines(ax, lies)[:PARTS_MAX]]
        strokes = [points_of(line, lies) for line in ax.lines if has_stroke(line)]
        marks = [points_of(line, lies) for line in ax.lines if not has_stroke(line)]
        for points in strokes:
            if len(points) == 2:
                add_stroke(boxes, points)
        if boxes and all(box["median"] is not None for box in boxes):
            for box in boxes:
                add_outliers(box, marks)
            return boxes, lies
    return None


def has_stroke(line: Line2D) -> bool:
    """Tells whether a line is drawn, rather than only its points marked."""
    return str(line.get_linestyle()).strip().lower() not in ("", "none")


def make_box(points: list[tuple[float, float]]) -> Box:
    """Returns a box whose whiskers and median are still to be found."""
    xs, ys = zip(*points)
    return {"left": min(xs), "right": max(xs), "low": min(ys), "high": max(ys), "width": 0.0,
            "median": None, "min": min(ys), "max": max(ys), "outliers": []}


def add_stroke(boxes: list[Box], points: list[tuple[float, float]]) -> None:
    """Adds a stroke to the box that it belongs to, if it is a median or a whisker."""
    (x1, y1), (x2, y2) = sorted(points)
    for box in boxes:
        if not box["left"] <= x1 <= x2 <= box["right"]:
            continue
        if y1 == y2 and box["low"] <= y1 <= box["high"] and x2 - x1 > box["width"]:
            box["median"], box["width"] = y1, x2 - x1  # the widest: a cap may lie on the box, too
        elif x1 == x2 and math.isclose(max(y1, y2), box["low"], abs_tol=1e-12):
            box["min"] = min(y1, y2)
        elif x1 == x2 and math.isclose(min(y1, y2), box["high"], abs_tol=1e-12):
            box["max"] = max(y1, y2)


def add_outliers(box: Box, marks: list[list[tuple[float, float]]]) -> None:
    """Adds the points that are marked above and below a box's whiskers."""
    box["outliers"] = [y for points in marks for x, y in points
                       if box["left"] <= x <= box["right"] and not box["min"] <= y <= box["max"]]


def read_boxes(ax: Any, limits: Limits, chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the boxes."""
    found = find_boxes(ax)
    assert found, "classify() has found some"
    boxes, lies = found
    if lies:
        swap_axes(chart)
    names = names_at(ax.yaxis if lies else ax.xaxis,
                     [(box["left"] + box["right"]) / 2 for box in boxes],
                     boxes[0]["right"] - boxes[0]["left"])
    return [{"label": name, "min": box["min"], "first_quartile": box["low"],
             "median": box["median"], "third_quartile": box["high"], "max": box["max"],
             "outliers": plain_list(box["outliers"])}
            for name, box in zip(names, limits.first(boxes))]
