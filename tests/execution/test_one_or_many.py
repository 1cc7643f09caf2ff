"""One sample or many, by shape; values outside of a range; labels of classes in files from strangers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import heliograph as hg
from heliograph.execution.interface import sample_count
from heliograph.ir.interface import TensorSpec
from heliograph.ir.labels import read_labels, with_labels

TOY = hg.Options(security_bits=None)
SOURCE = "program p\ninput x: secret tensor[4] in [-1, 1]\noutput y = x * x\n"
ROWS = np.linspace(-1, 1, 40).reshape(10, 4)


@pytest.mark.parametrize(
    ("spec", "value", "count"),
    [
        (TensorSpec("x", (4,)), np.zeros(4), 0),
        (TensorSpec("x", (4,)), np.zeros((3, 4)), 3),
        (TensorSpec("x", (4,)), [[0.0] * 4], 1),
        (TensorSpec("x", (4,)), np.zeros((2, 3, 4)), None),
        (TensorSpec("x", (4,)), [[0.0], [0.0, 1.0]], None),
        (TensorSpec("x", ()), 1.0, 0),
        (TensorSpec("x", ()), [1.0, 2.0], 2),
        (TensorSpec("x", (5, 9), classes=9), np.zeros(5, dtype=int), 0),
        (TensorSpec("x", (5, 9), classes=9), np.zeros((7, 5), dtype=int), 7),
        (TensorSpec("x", (5, 9), classes=9), np.zeros((5, 9)), 0),
        (TensorSpec("x", (5, 9), classes=9), np.zeros((2, 5, 9)), 2),
        (TensorSpec("x", (5, 9), classes=9), np.zeros((7, 5)), 7),
    ],
)
def test_samples_are_counted_by_shape(spec: TensorSpec, value: object, count: int | None) -> None:
    assert sample_count([spec], [value]) == count


@pytest.mark.parametrize("batch", [1, 4])
def test_one_or_many_everywhere(batch: int) -> None:
    artifact = hg.compile(hg.parse(SOURCE), replace(TOY, batch=batch))
    wanted = ROWS**2
    assert np.abs(hg.simulate(artifact, ROWS[3]) - wanted[3]).max() < 1e-4
    for count in (1, 3, 10):
        assert np.abs(hg.simulate(artifact, ROWS[:count]) - wanted[:count]).max() < 1e-4
        found = hg.run(artifact, ROWS[:count], quiet=True, allow_insecure=True)
        assert found.shape == (count, 4)
        assert np.abs(found - wanted[:count]).max() < 1e-4
    assert hg.run(artifact, ROWS[0], quiet=True, allow_insecure=True).shape == (4,)
    client = hg.Client(artifact, allow_insecure=True)
    assert isinstance(client.encrypt(ROWS), list)
    assert len(client.encrypt(ROWS)) == -(-10 // batch)
    assert isinstance(client.encrypt(ROWS[0]), hg.EncryptedInput)
    with pytest.raises(hg.ProgramError, match="has"):
        client.encrypt(np.zeros((2, 2, 4)))


def test_errors_of_many_samples_differ() -> None:
    artifact = hg.compile(hg.parse(SOURCE), TOY)
    found = hg.simulate(artifact, np.stack([ROWS[0]] * 3), seed=5)
    assert len({row.tobytes() for row in found}) == 3
    assert (found[1] == hg.simulate(artifact, ROWS[0], seed=6)).all()


def test_values_outside_are_clipped_where_that_is_asked_for() -> None:
    artifact = hg.compile(hg.parse(SOURCE), TOY)
    outside = 1.5 * ROWS
    with pytest.raises(hg.RangeError, match="clip=True"):
        hg.simulate(artifact, outside)
    wanted = np.clip(outside, -1, 1) ** 2
    assert np.abs(hg.simulate(artifact, outside, clip=True) - wanted).max() < 1e-4
    client = hg.Client(artifact, allow_insecure=True)
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        inputs = client.encrypt(outside, clip=True)
        found = client.decrypt_many([server.run(each) for each in inputs], of=inputs)
    assert np.abs(found - wanted).max() < 1e-4
    with pytest.raises(hg.RangeError):
        client.encrypt(outside)
    with pytest.raises(hg.ProgramError, match="nan"):
        client.encrypt(np.full(4, np.nan), clip=True)


def test_a_shape_that_lacks_an_axis_of_length_one_is_told_how_to_get_it() -> None:
    artifact = hg.compile(hg.parse(SOURCE.replace("tensor[4]", "tensor[1, 2, 2]")), TOY)
    with pytest.raises(hg.ProgramError) as caught:
        hg.simulate(artifact, np.zeros((2, 2)))
    assert caught.value.hint == "x.reshape(1, 2, 2)"


def test_labels_of_strangers_are_checked() -> None:
    artifact = hg.compile(hg.parse(SOURCE), TOY)
    named = with_labels(TensorSpec("y", (4,)), [3, -1, 0, 10**12])
    assert read_labels(named).tolist() == [3, -1, 0, 10**12]  # type: ignore[union-attr]

    def public(**changed: object) -> hg.PublicArtifact:
        own = artifact.public()
        outputs = (replace(own.outputs[0], **changed),)  # type: ignore[arg-type]
        return hg.PublicArtifact.from_bytes(replace(own, outputs=outputs).to_bytes())

    assert read_labels(public(columns=named.columns, labels="int").outputs[0]) is not None
    assert public(unit="EUR").outputs[0].unit == "EUR"
    for columns, labels in (
        (("1", "2", "3", "x"), "int"),
        (("1", "2", "3", "03"), "int"),
        (("1.0", "2.0", "inf", "3.0"), "float"),
        (("True", "False", "true", "x"), "bool"),
        (("a", "b", "c"), "text"),
        (("a", "b", "c", "c"), "text"),
        (None, "text"),
    ):
        with pytest.raises(hg.WireError, match=r"classes|columns"):
            public(columns=columns, labels=labels)
    own = artifact.public()
    with pytest.raises(hg.WireError, match="of an output"):
        hg.PublicArtifact.from_bytes(replace(own, inputs=(replace(own.inputs[0], unit="m"),)).to_bytes())
