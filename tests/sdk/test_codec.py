# SPDX-License-Identifier: Apache-2.0
"""Values between host and guest: what is passed, and what a hostile text meets."""
from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
import math
import pathlib
import uuid

import numpy as np
import pandas as pd
import PIL.Image
import pytest
from thawbox import _codec as codec


@dataclasses.dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize("value", [
    None, True, 0, -1, 2**63, -(10**5000), 1.5, float("inf"), "", "é\u2028\ud800", [1, [2]], (1, "a"), {1, 2}, frozenset({3}),
    {}, {"t": 1, "v": 2}, {"__type__": "bytes"}, {1: "a", (2, 3): [4]}, b"\0\xff", 1 + 2j, dt.datetime(2024, 1, 2, 3, 4, 5, 6),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), dt.date(2024, 1, 2), dt.time(1, 2), dt.timedelta(-1, 5, 7),
    decimal.Decimal("1.10"), pathlib.Path("/a/b"), uuid.UUID(int=5),
], ids=lambda value: type(value).__name__)
def test_values_come_back(value):
    if isinstance(value, int) and abs(value) > 10**400:
        assert codec.loads(codec.dumps(value)) == value
        return
    back = codec.loads(codec.dumps(value))
    assert back == value and type(back) is type(value)


def test_values_that_become_others():
    assert math.isnan(codec.loads(codec.dumps(float("nan"))))
    assert codec.loads(codec.dumps(np.float64(2.5))) == 2.5
    assert codec.loads(codec.dumps(pd.NaT)) is None and codec.loads(codec.dumps(pd.NA)) is None
    assert codec.loads(codec.dumps(pd.Timestamp("2024-01-01T00:00:00.123456789"))) == dt.datetime(2024, 1, 1, 0, 0, 0, 123456)
    assert codec.loads(codec.dumps(Point(1, 2.0))) == {"x": 1, "y": 2.0}


@pytest.mark.parametrize("array", [
    np.arange(6).reshape(2, 3), np.array([]), np.array(1.5), np.array(["a", "bc"]), np.array(["2024-01-01"], "M8[D]"),
    np.zeros((2, 0)), np.array([True]), np.asfortranarray(np.arange(4.0).reshape(2, 2)), np.array([1, "a", None], object),
])
def test_arrays(array):
    back = codec.loads(codec.dumps(array))
    assert back.dtype == array.dtype and back.shape == array.shape and (back == array).all()
    back.flags.writeable = True


def test_tables():
    frame = pd.DataFrame({"a": [1, 2], "b": [1.5, None], "c": ["x", None], "d": pd.to_datetime(["2024-01-01", "2024-01-02"])},
                         index=["i", "j"])
    pd.testing.assert_frame_equal(codec.loads(codec.dumps(frame)), frame, check_dtype=False, check_index_type=False)
    pd.testing.assert_frame_equal(codec.loads(codec.dumps(frame.iloc[:0])).reset_index(drop=True),
                                  frame.iloc[:0].reset_index(drop=True), check_dtype=False, check_index_type=False,
                                  check_column_type=False)
    series = frame["a"]
    pd.testing.assert_series_equal(codec.loads(codec.dumps(series)), series, check_index_type=False)
    assert codec.loads(codec.dumps(frame.set_index(["a", "d"]).index[:1])) == [(1, dt.datetime(2024, 1, 1))]


def test_pictures():
    image = PIL.Image.new("RGB", (3, 2), (255, 0, 0))
    back = codec.loads(codec.dumps(image))
    assert back.size == (3, 2) and back.getpixel((0, 0)) == (255, 0, 0)


def test_what_cannot_be_passed():
    loop: list = []
    loop.append(loop)
    for value in (object(), lambda: 1, open, [[object()]], loop, np.zeros(1, [("a", int)])):
        with pytest.raises(codec.CodecError):
            codec.dumps(value)
    with pytest.raises(codec.CodecError, match="too large"):
        codec.dumps("x" * (codec.TEXT_MAX + 1))


PNG = codec.loads.__globals__["_png"](PIL.Image.new("RGB", (2, 2)))


@pytest.mark.parametrize("text", [
    "", "{", "nan", "[" * 5000 + "]" * 5000, '{"a":1}', '{"t":"dict"}', '{"t":"dict","v":[[1]]}', '{"t":"dict","v":[[[1],2]]}',
    '{"t":"bytes","v":"*"}', '{"t":"bytes","v":5}', '{"t":"datetime","v":"x"}', '{"t":"int","v":"zz"}', '{"t":"float","v":"1"}',
    '{"t":"pickle","v":"gASVCgAAAAAAAABLAS4="}', '{"t":5,"v":1}', '{"t":"ndarray","v":["O",[1],""]}',
    '{"t":"ndarray","v":["<i8",[1000000000000],"AAAAAAAAAAA="]}', '{"t":"ndarray","v":["<i8",[-1,-1],"AAAAAAAAAAA="]}',
    '{"t":"ndarray","v":["V8",[1],"AAAAAAAAAAA="]}', '{"t":"ndarray","v":["i4,O",[0],""]}', '{"t":"png","v":"aGk="}',
    '{"t":"dataframe","v":[["a","b"],[],[[1]]]}', '{"t":"set","v":[[1]]}', '{"t":"Decimal","v":"x"}',
    '{"t":"timedelta","v":[1e300,0,0]}', '{"t":"complex","v":["1"]}', '{"t":"objects","v":[[7],[1]]}',
])
def test_hostile_texts(text):
    with pytest.raises(codec.CodecError):
        codec.loads(text)


def test_hostile_pictures():
    import base64

    data = bytearray(base64.b64decode(PNG))
    data[16:24] = (50_000).to_bytes(4, "big") * 2
    for raw in (bytes(data), base64.b64decode(PNG)[:40], b"GIF89a" + bytes(40)):
        with pytest.raises(codec.CodecError):
            codec.loads(json.dumps({"t": "png", "v": base64.b64encode(raw).decode()}))
