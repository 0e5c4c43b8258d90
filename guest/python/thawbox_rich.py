# SPDX-License-Identifier: Apache-2.0
"""What E2B's clients expect beside the notebook's own representations: the data of a table, the chart of a figure,
a picture that is saved."""
from __future__ import annotations

import contextlib
import datetime
import functools
import json
import math
import sys
from collections.abc import Callable
from typing import Any

from IPython.display import display

from thawbox_mime import clean

DATA = "e2b/data"
CHART = "e2b/chart"
VALUES_MAX = 100_000
"""Values of a table: of one with more, the first rows are sent."""
DATA_MAX = 4 << 20
"""Bytes of a table's data."""
INT_MAX = 1 << 63
"""Whole numbers from here on are none to readers of JSON."""
PNG_MODES = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
"""Kinds of pictures that a PNG can hold."""


def enrich(obj: Any, data: dict[str, Any], include: Any, exclude: Any) -> None:
    """Adds to a value's representations (by MIME type) the one that E2B's interpreter has besides, if any. It
    comes on top: a figure that cannot be read, or a strange column, must not cost the rest."""
    with contextlib.suppress(Exception):
        mime, make = reader_of(obj)
        if not make or mime in data or include and mime not in include \
                or exclude and mime in exclude:
            return
        data[mime], notes = make(obj)
        if notes:
            data["text/plain"] = "\n".join(
                [data.get("text/plain", ""), *(f"[thawbox: {mime}: {n}]" for n in notes)])


def reader_of(obj: Any) -> tuple[str, Callable[[Any], tuple[str, list[str]]] | None]:
    """Returns the type of the further representation and what makes it. Whether a value is a table or a figure is
    asked only where there can be one: with its library imported."""
    pandas, figure = (sys.modules.get(name) for name in ("pandas", "matplotlib.figure"))
    if pandas and isinstance(obj, pandas.DataFrame):
        return DATA, data_of
    if figure and isinstance(obj, figure.Figure):
        return CHART, chart_text
    return "", None


def chart_text(figure: Any) -> tuple[str, list[str]]:
    """Returns a figure's chart as JSON, and what was cut, in words."""
    try:
        from thawbox_chart import chart_of
        chart, notes = chart_of(figure)
        return json.dumps(chart, allow_nan=False), notes
    except Exception:
        return "{}", []


def data_of(table: Any) -> tuple[str, list[str]]:
    """Returns {column: [values]} of a table as JSON, and what was cut, in words."""
    rows = min(len(table), VALUES_MAX // max(1, table.shape[1]))
    text = columns_text(table, rows)
    while len(text) > DATA_MAX and rows:
        rows = rows * DATA_MAX // (len(text) + len(text) // 16)
        text = columns_text(table, rows)
    notes = [f"the first {rows} of {len(table)} rows"] if rows < len(table) else []
    return text, notes


def columns_text(table: Any, rows: int) -> str:
    """Returns the first rows of each column as JSON."""
    return json.dumps({clean(str(name)): [plain(v) for v in table.iloc[:rows, i].tolist()]
                       for i, name in enumerate(table.columns)}, allow_nan=False)


def plain(v: Any) -> Any:
    """Returns a value as one that JSON has: no number as None, times in ISO 8601, what else there is as text."""
    kind = type(v)
    if kind is float:
        return v if math.isfinite(v) else None
    if kind is str:
        return clean(v)
    if v is None or kind is bool:
        return v
    if kind is int:
        return v if -INT_MAX <= v < INT_MAX else str(v)
    return plain_object(v)


def plain_object(v: Any) -> Any:
    """As plain(), of a value that is none of JSON's own."""
    pandas, numpy = (sys.modules.get(name) for name in ("pandas", "numpy"))
    if pandas and (v is pandas.NaT or v is pandas.NA):
        return None
    if numpy and isinstance(v, numpy.generic) and type(v.item()) is not type(v):
        return plain(v.item())
    if isinstance(v, (datetime.date, datetime.time)):
        return v.isoformat()
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    if isinstance(v, dict):
        return {str(k): plain(x) for k, x in v.items()}
    return clean(str(v))


def show_saved_pictures(image: type) -> None:
    """Makes a picture of PIL's that is saved under a name appear among the cell's results, as with E2B."""
    save = image.save

    @functools.wraps(save)
    def save_and_show(self: Any, fp: Any, *args: Any, **options: Any) -> Any:
        if isinstance(fp, str) and self.mode in PNG_MODES:
            display(self)
        return save(self, fp, *args, **options)

    image.save = save_and_show
