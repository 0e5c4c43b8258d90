# SPDX-License-Identifier: Apache-2.0
"""bench/neighbours.py: what it reckons, and a small real run."""
import json
from types import SimpleNamespace

import common
import neighbours
import pytest


def result(**resources: dict[str, float]) -> dict:
    """Figures whose median is the one number."""
    return {"limits": {"disk_bytes": 65536, "vsock_bytes": 65536},
            "resources": {name: {"waits": 1, **{way: common.figures([ms]) for way, ms in ways.items()}} for name, ways in resources.items()}}


def test_least_share():
    """Beside a loud one that is held back it is what counts; CPU knows no such limit."""
    found = result(cpu={"alone": 10, "beside": 20}, disk={"alone": 10, "beside": 100, "held": 12})
    neighbours.check_least(found, 0.5)
    with pytest.raises(common.BenchError, match="cpu 0.50") as error:
        neighbours.check_least(found, 0.51)
    assert "disk" not in str(error.value).splitlines()[0] and "held" in str(error.value)
    with pytest.raises(common.BenchError, match="cpu 0.50, disk 0.83"):
        neighbours.check_least(found, 0.9)


def test_a_wrong_result_is_an_error():
    def sandbox(text: str, said: bytes = b""):
        cell = SimpleNamespace(text=text, stdout=said)
        return SimpleNamespace(run=lambda code: SimpleNamespace(cell=cell, ms=3.0))

    assert neighbours.piece(sandbox(str(neighbours.PIECE)), "disk") == 3.0
    with pytest.raises(common.BenchError, match="disk"):
        neighbours.piece(sandbox("1"), "disk")
    with pytest.raises(common.BenchError, match="vsock"):
        neighbours.piece(sandbox(str(neighbours.PIECE), b"too little"), "vsock")


@pytest.mark.parametrize("option", [["--least", "2"], ["--runs", "0"], ["--disk-rate", "1"]])
def test_wrong_usage(bench, option):
    assert option[0] in bench("neighbours", *option, code=2).stderr


def test_real(bench, real, tmp_path):
    done = bench("neighbours", *real, "--runs", "2", "--json", "--plot", str(tmp_path / "x.png"))
    resources = json.loads(done.stdout)["resources"]
    assert {name: set(each) for name, each in resources.items()} == {
        "cpu": {"waits", "alone", "beside"}, "disk": {"waits", "alone", "beside", "held"},
        "vsock": {"waits", "alone", "beside", "held"}}
    assert resources["disk"]["waits"] and resources["vsock"]["waits"]
