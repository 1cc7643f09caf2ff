"""How precisely an argmax is encrypted: its one-hot vector, and the differences that it compares."""

from __future__ import annotations

import numpy as np
import pytest

import heliograph as hg
from heliograph.compiler.pipeline import front_passes
from heliograph.interpret import interpret
from heliograph.ir import Builder, Program, Stage

GAP, CLASSES = 0.02, 6
# The default `bits` of an argmax: how close the entries of its vector come to 0 and 1, encryption included.
BITS = 5


def scores(*also: str, **attrs: object) -> Program:
    """The argmax of an input, and further functions of it."""
    builder = Builder("scores", Stage.TENSOR)
    x = builder.input("x", shape=(CLASSES,), low=-1.0, high=1.0)
    outputs = {"y": builder.op("argmax", (x,), axis=0, gap=GAP, **attrs)}
    return builder.finish(outputs | {name: builder.op(name, (x,)) for name in also})


def test_the_vector_needs_no_more_precision_than_its_polynomials_have() -> None:
    usual, fine = hg.compile(scores()), hg.compile(scores(), hg.Options(precision_bits=10.0))
    assert usual.report.figures.scale_bits < fine.report.figures.scale_bits
    assert usual.report.figures.predicted_ms < fine.report.figures.predicted_ms
    assert usual.report.figures.scheme_error <= 2.0 ** -(BITS + 2)
    assert fine.report.figures.scheme_error <= 2.0**-10
    samples = np.random.default_rng(3).uniform(-1.0, 1.0, size=(64, CLASSES))
    ordered = np.sort(samples, axis=1)
    for sample in samples[ordered[:, -1] - ordered[:, -2] >= GAP][:8]:
        expected = np.eye(CLASSES)[sample.argmax()]
        assert np.abs(hg.simulate(usual, sample) - expected).max() < 2.0**-BITS


def test_other_outputs_keep_the_usual_precision() -> None:
    """Beside an argmax, and the position of a maximum, which is a number."""
    assert hg.compile(scores("relu"), hg.Options(degree=7)).report.figures.scheme_error <= 2.0**-10
    number, fine = (hg.compile(scores(index=True), hg.Options(precision_bits=bits)) for bits in (None, 10.0))
    assert number.fingerprint == fine.fingerprint


@pytest.mark.parametrize(("attrs", "told"), [({}, None), ({"index": True}, 10.0)])
def test_the_bill_tells_no_bits_that_the_plan_does_not_keep(attrs: dict[str, object], told: float | None) -> None:
    options = hg.compile(scores(**attrs)).report.figures.options
    assert options["precision_bits"] == told
    assert hg.Options.of_bill(options).precision_bits == told


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_polynomials_leave_a_part_of_the_gap_to_encryption(share: float) -> None:
    lowered = front_passes(scores(), hg.Options(gap_error=share))[-1].program
    (entry,) = lowered.ranges
    assert entry.gap == GAP
    sample = np.full(CLASSES, -0.4)
    for distance, resolved in ((1.0 - 3.0 * share, True), (0.5 * (1.0 - 3.0 * share), False)):
        sample[2] = -0.4 + distance * GAP
        error = float(np.abs(interpret(lowered, sample) - np.eye(CLASSES)[2]).max())
        assert (error <= 2.0 ** -(BITS + 1)) is resolved


def test_a_plan_that_moves_differences_further_is_refused() -> None:
    with pytest.raises(hg.PlanningError) as caught:
        hg.compile(scores(), hg.Options(scale_bits=30, log_ring=15, gap_error=1e-6))
    assert "compared differences would err by" in str(caught.value)
