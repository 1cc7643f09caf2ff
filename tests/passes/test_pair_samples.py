"""Two groups of samples as real and imaginary parts: the same results as side by side, where that takes longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.pairs import in_pairs

import heliograph as hg
from heliograph.compiler.pipeline import front_passes, unproved_pack_passes
from heliograph.interpret import interpret_many
from heliograph.ir import Array
from heliograph.ir.maps.layout import Layout, gap_axes
from heliograph.passes.base import apply
from heliograph.passes.packing.pair_samples import PairSamples, refuse_pairs

TOY = hg.Options(security_bits=None, log_ring=11, degree=7, precision_bits=6)
ROWS = np.random.default_rng(0).uniform(-1, 1, (96, 4, 8, 8)).astype(np.float32)


def _network(size: int = 8) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (
        torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(4 * size * size, 5),
    )  # fmt: skip
    return torch.nn.Sequential(*layers).eval()


def _traced(rows: Array, **more: Any) -> hg.Program:
    return hg.trace(_network(rows.shape[-1]), torch.tensor(rows[:1]), calibration=rows, **more)


@pytest.fixture
def paired() -> Iterator[None]:
    with in_pairs():
        yield


@pytest.mark.parametrize("samples", [1, 2])
def test_a_paired_program_means_the_same(samples: int) -> None:
    options = replace(TOY, batch=samples)
    ring = hg.compile(_traced(ROWS), options).ring
    program = front_passes(_traced(ROWS), options)[-1].program
    packed = unproved_pack_passes(program, ring, options)[-1].program
    made = apply(PairSamples(), packed)
    assert made.interface.batch == 2 * samples
    rows = np.asarray(ROWS[: 2 * samples], dtype=np.float64)

    (wanted,) = interpret_many(packed, (rows,))
    (found,) = interpret_many(made, (rows,))
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_samples_are_paired_where_that_is_faster() -> None:
    """A bootstrap takes its transforms once for both parts; small images fit side by side."""
    rows = np.random.default_rng(0).uniform(-1, 1, (96, 4, 16, 16)).astype(np.float32)
    options = replace(TOY, bootstrap=True, batch=2)
    artifact = hg.compile(_traced(rows), options)
    (spec,) = artifact.program.interface.inputs
    assert (spec.placed.samples, spec.placed.groups) == (1, 2)
    alone = hg.compile(_traced(rows), replace(options, batch=1)).report.figures
    both = artifact.report.figures
    assert alone.bootstraps == both.bootstraps
    assert both.predicted.evaluate_ms < 1.8 * alone.predicted.evaluate_ms
    wanted = _network(16)(torch.tensor(rows[:2])).detach().numpy()
    found = hg.simulate(artifact, rows[:2])
    np.testing.assert_allclose(found, wanted, atol=0.02)
    small = hg.compile(_traced(ROWS), replace(TOY, batch=2)).program.interface.inputs[0].placed
    assert (small.samples, small.groups) == (2, 1)


@pytest.mark.parametrize("bootstrap", [None, True])
def test_encrypted_samples_in_pairs(paired: None, bootstrap: bool | None) -> None:
    artifact = hg.compile(_traced(ROWS), replace(TOY, bootstrap=bootstrap, batch=4))
    artifact = hg.Artifact.from_bytes(artifact.to_bytes())
    assert artifact.program.interface.inputs[0].placed.groups == 2
    wanted = np.stack([hg.simulate(artifact, row[np.newaxis])[0] for row in ROWS[:6]])
    client = hg.Client(hg.PublicArtifact.from_bytes(artifact.public().to_bytes()), allow_insecure=True)
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        inputs = list(client.encrypt_many(ROWS[:6]))
        assert len(inputs) == 2
        found = client.decrypt_many([server.run(each) for each in inputs], of=inputs)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_values_of_both_groups_are_watched(paired: None) -> None:
    """What leaves the range of a polynomial is noticed in imaginary parts too, and where a bootstrap reads it."""
    program = _traced(ROWS / 4, input_range=(-1.0, 1.0))
    for bootstrap in (None, True):
        artifact = hg.compile(program, replace(TOY, bootstrap=bootstrap, batch=2, margin=0.1))
        inside = ROWS[:2] / 4
        hg.simulate(artifact, inside, check_ranges=True)
        for place in (0, 1):
            rows = inside.copy()
            rows[place] = np.sign(rows[place])
            with pytest.raises(hg.RangeError, match="leaves its interval"):
                hg.simulate(artifact, rows, check_ranges=True)


def test_other_operations_are_not_paired() -> None:
    source = """program scores
input x: secret tensor[8] in [-1, 1]
output y = softmax(x)
"""
    artifact = hg.compile(hg.parse(source), replace(TOY, batch=2))
    assert artifact.program.interface.inputs[0].placed.groups == 1
    packed = unproved_pack_passes(front_passes(_traced(ROWS), TOY)[-1].program, artifact.ring, TOY)[-1].program
    refuse_pairs(packed)
    stacked = replace(TOY, batch=artifact.ring.slots)
    packed = unproved_pack_passes(front_passes(_traced(ROWS), TOY)[-1].program, artifact.ring, stacked)[-1].program
    with pytest.raises(hg.PlanningError, match="is not computed of samples in pairs"):
        refuse_pairs(packed)


def test_groups_have_ciphertexts_of_their_own() -> None:
    layout = Layout((4, 2, 2), 32, 8, gap_axes((4, 2, 2), block=4), samples=2, groups=2)
    assert (layout.batch, layout.chunks, layout.ciphertexts) == (4, 2, 4)
    tensor = np.arange(64.0).reshape(4, 4, 2, 2)
    vectors = layout.pack(tensor)
    np.testing.assert_array_equal(layout.unpack(vectors), tensor)
    one = replace(layout, groups=1)
    for group in (0, 1):
        np.testing.assert_array_equal(vectors[2 * group : 2 * group + 2], one.pack(tensor[2 * group : 2 * group + 2]))
    np.testing.assert_array_equal(layout.pack(tensor, 3)[0], vectors[3])
    few = layout.unpack(layout.pack(tensor[:3]))
    np.testing.assert_array_equal(few[:3], tensor[:3])
    assert not few[3].any()
