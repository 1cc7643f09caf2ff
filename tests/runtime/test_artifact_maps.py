"""Maps in their small form in files: as small as the weights, the same when read again, and refused where altered."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import heliograph as hg
from heliograph.artifact.artifact import VERSION, Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.errors import WireError
from heliograph.ir import Builder, Location, SparseMatrix, Stage
from heliograph.ir.maps.placed import PlacedMatrix

SHAPE, CHANNELS = (8, 16, 16), 8


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """Two convolutions with a square between them, the first of an input that is itself computed."""
    random = np.random.default_rng(0)
    builder = Builder("net", Stage.TENSOR)
    value = builder.input("x", shape=SHAPE, low=-1.0, high=1.0)
    usual = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    for layer in range(2):
        weight = builder.constant(random.normal(size=(CHANNELS, CHANNELS, 3, 3)) / 8, f"w{layer}")
        value = builder.op("conv", (value,), Location(layer=f"conv{layer}"), weight=weight, **usual)
        if not layer:
            value = builder.op("mul", (value, value), Location(layer="square"))
    return hg.compile(builder.finish([value]), hg.Options(security_bits=None, log_ring=12, precision_bits=8))


@pytest.fixture(scope="module")
def good(artifact: Artifact) -> Container:
    return unpack(artifact.to_bytes(), "artifact", VERSION, 1 << 30)


def test_a_file_holds_each_map_once(artifact: Artifact, good: Container) -> None:
    kinds = [type(constant) for constant in artifact.program.constants.values()]
    assert PlacedMatrix in kinds
    assert SparseMatrix not in kinds
    arrays = sum(blob.nbytes for name, blob in good.blobs.items() if isinstance(blob, np.ndarray))
    weights = 2 * 8 * CHANNELS * CHANNELS * 9
    entries = sum(int(c.nnz) for c in artifact.program.constants.values() if isinstance(c, PlacedMatrix))
    # The moves of the nine taps are there once, for both.
    assert arrays < weights + 9 * 20 * 256 + 2000
    assert arrays < 12 * entries / 20


def test_what_is_read_is_what_was_written(artifact: Artifact) -> None:
    again = Artifact.from_bytes(artifact.to_bytes())
    assert again.to_bytes() == artifact.to_bytes()
    assert again.fingerprint == artifact.fingerprint
    x = np.random.default_rng(1).uniform(-1, 1, size=SHAPE)
    np.testing.assert_array_equal(hg.simulate(again, x, noisy=False), hg.simulate(artifact, x, noisy=False))


def placed(fields: dict[str, Any]) -> dict[str, Any]:
    """The description of one block."""
    found: dict[str, Any] = next(made for made in fields["constants"].values() if "operand" in made)
    return found


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a map that is not there": lambda f: placed(f).update(map=7),
    "a map of text": lambda f: placed(f).update(map="0"),
    "a block that is not there": lambda f: placed(f).update(block=[40, 0]),
    "a block of three": lambda f: placed(f).update(block=[0, 0, 0]),
    "negative block": lambda f: placed(f).update(block=[-1, 0]),
    "no result": lambda f: placed(f).pop("result"),
    "another field": lambda f: placed(f).update(more=1),
    "moved copies": lambda f: placed(f)["operand"].update(shift=4, run=2048),
    "another shape": lambda f: placed(f)["operand"].update(shape=[4, 16, 16]),
    "a huge shape": lambda f: placed(f)["operand"].update(shape=[1 << 21, 2, 2]),
    "another gap": lambda f: placed(f)["result"].update(gap=3),
    "another period": lambda f: placed(f)["result"].update(period=64),
    "other slots": lambda f: [placed(f)[side].update(slots=1024) for side in ("operand", "result")],
    "no slots": lambda f: placed(f)["operand"].update(slots=0),
    "maps that are none": lambda f: f.update(maps={}),
    "no weights": lambda f: f["maps"][0].pop("weights"),
    "weights of places": lambda f: f["maps"][0].update(weights=f["maps"][0]["places"][0][3]),
    "overlapping places": lambda f: f["maps"][0].update(places=[f["maps"][0]["places"][0]] * 9),
    "fewer places": lambda f: f["maps"][0].update(places=f["maps"][0]["places"][:8]),
    "places of another size": lambda f: f["maps"][0]["places"][0].__setitem__(0, 100),
    "places without end": lambda f: f["maps"][0].update(places=f["maps"][0]["places"] * 1000),
}


@pytest.mark.parametrize("case", CHANGES)
def test_altered_maps_are_refused(good: Container, case: str) -> None:
    fields = copy.deepcopy(dict(good.fields))
    CHANGES[case](fields)
    assert fields != good.fields
    with pytest.raises(WireError):
        Artifact.from_bytes(pack(Container(good.kind, good.version, fields, good.blobs)))


@pytest.mark.parametrize("times", [0, 1, 3, -2, 1 << 40, "2"])
def test_repeated_vectors_are_bounded(good: Container, times: Any) -> None:
    fields = copy.deepcopy(dict(good.fields))
    number = fields["maps"][0]["places"][0][2]
    fields["constants"]["more"] = {"array": number, "times": times}
    with pytest.raises(WireError):
        Artifact.from_bytes(pack(Container(good.kind, good.version, fields, good.blobs)))
