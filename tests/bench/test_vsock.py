# SPDX-License-Identifier: Apache-2.0
"""bench/vsock.py: what is counted and what is told apart; real streams."""
import csv
import json

import common
import pytest
import vsock


def test_the_first_is_not_among_the_rest():
    done = []
    times = vsock.repeat("it", lambda: done.append(1) or float(len(done)), 3, common.Progress("test"))
    assert times == [1.0, 2.0, 3.0, 4.0]


class FakeSandbox:
    """Prints what a cell prints, with one byte changed if `wrong`."""

    def __init__(self, wrong: bool):
        self.wrong = wrong
        self.scope: dict = {}

    def run(self, code: str) -> vsock.Reply:
        out = b""
        if code.startswith("print"):
            out = self.scope["text"].encode()
            out = b"!" + out[1:] if self.wrong else out
        else:
            exec(code, self.scope)
        return vsock.Reply(common.Cell(stdout=out, result={"status": "ok"}), b"", 1.0, 2.0)


def test_printed_text_is_compared():
    assert vsock.Streams(FakeSandbox(False), 1000).print() == 2.0
    with pytest.raises(common.BenchError, match="print gave"):
        vsock.Streams(FakeSandbox(True), 1000).print()


@pytest.mark.parametrize("option", [["--size", "1"], ["--runs", "0"], ["--trips", "no"]])
def test_wrong_usage(bench, option):
    assert option[0] in bench("vsock", *option, code=2).stderr


def test_real(bench, real, tmp_path):
    done = bench("vsock", *real, "--size", "3001", "--runs", "2", "--trips", "3", "--json", "--csv",
                 str(tmp_path / "x.csv"), "--plot", str(tmp_path / "x.png"))
    result = json.loads(done.stdout)
    assert result["size"] == 3000
    assert {name: row["ms"]["n"] for name, row in result["throughput"].items()} == {"put": 2, "get": 2, "print": 2}
    assert {name: row["ms"]["n"] for name, row in result["round_trips"].items()} == \
        {"sum": 3, "usage": 3, "ping": 3, "open": 3}
    with open(tmp_path / "x.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 3 * 3 + 4 * 4
