"""Large outputs are divided by a power of two, and the client multiplies them: what artifact, bill and client say."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace

import numpy as np
import pytest

import heliograph as hg
from heliograph.artifact.artifact import Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.public import VERSION, PublicArtifact
from heliograph.compiler.pipeline import scaled
from heliograph.errors import RangeError, WireError
from heliograph.interpret import interpret_batch
from heliograph.ir import Program
from heliograph.ir.interface import TensorSpec
from heliograph.runtime.client.outputs import check_output

TOY = hg.Options(security_bits=None)
SAMPLES = np.random.default_rng(0).uniform(-1, 1, (64, 4))


def program(*outputs: str, before: str = "") -> Program:
    """A program of one input of four elements, with calibration samples; outputs by their expressions."""
    lines = [f"output y{number} = {expression}" for number, expression in enumerate(outputs)]
    text = "program p\ninput x: secret tensor[4] in [-1, 1]\n" + before + "\n".join(lines) + "\n"
    return replace(hg.parse(text), calibration=(SAMPLES,))


def scales(artifact: Artifact) -> list[float | None]:
    return [spec.scale for spec in artifact.public().outputs]


@pytest.mark.parametrize(
    ("expression", "scale"),
    [
        ("x * 60000", None),
        ("x * 70000", 2.0**17),
        ("x * 1e7", 2.0**24),
        ("3e8 - x * 1e7", 2.0**29),
        ("relu(x) * 1e9", 2.0**30),
        ("relu(x * 1e6)", 2.0**20),
        # Each factor of a product takes a share, a square an even one.
        ("(x * 1e5) * (x * 1e5)", 2.0**34),
        ("x * 1e25", 2.0**84),
    ],
)
def test_outputs_above_a_size_are_divided(expression: str, scale: float | None) -> None:
    made = program(expression)
    seen: list[str] = []
    artifact = hg.compile(made, TOY, watch=lambda name, each: seen.append(name))
    assert scales(artifact) == [scale]
    assert (seen[0] == "scale-outputs") == (scale is not None)
    exact = interpret_batch(made, SAMPLES)[0]
    largest = np.abs(exact).max()
    figures = artifact.report.figures
    # What encryption adds is small beside the output, and all figures are those that the client has.
    assert figures.predicted.scheme_error < 2.0**-9 * largest
    for sample, wanted in zip(SAMPLES[:4], exact, strict=False):
        found = hg.simulate(artifact, sample)
        assert np.abs(found - wanted).max() <= figures.predicted.max_abs_error + 1e-3 * largest
    (possible,) = figures.output_ranges.values()
    assert possible.low <= exact.min()
    assert exact.max() <= possible.high
    text = " ".join(artifact.report.full().split())
    assert (
        (f"the client multiplies y0 by {scale:.0f} after decryption" in text) == (scale is not None) if scale else True
    )
    assert f"up to {artifact.report._magnitude:.3g} on the samples" in text
    again = Artifact.from_bytes(artifact.to_bytes())
    assert (again.report, again.fingerprint) == (artifact.report, artifact.fingerprint)


def test_outputs_without_measure_are_refused() -> None:
    with pytest.raises(hg.PlanningError, match="too large for any first modulus"):
        hg.compile(program("x * 1e30"), TOY)


def test_each_output_has_a_scale_of_its_own() -> None:
    made = program("x * 1e7", "x * 0.5", "relu(x) * -1e12")
    artifact = hg.compile(made, TOY)
    assert scales(artifact) == [2.0**24, None, 2.0**40]
    found = hg.simulate(artifact, SAMPLES[0])
    exact = [out[0] for out in interpret_batch(made, SAMPLES[:1])]
    for ours, theirs, share in zip(found, exact, (1e-3, 1e-3, 0.1), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=share * np.abs(theirs).max())
    assert artifact.report.figures.largest_output == pytest.approx(
        np.abs(interpret_batch(made, SAMPLES)[2]).max(), rel=0.1
    )


def test_the_error_of_the_bill_is_that_of_the_client() -> None:
    made = program("relu(x) * 1e9")
    artifact = hg.compile(made, replace(TOY, degree=7))
    exact = interpret_batch(made, SAMPLES)[0]
    worst = max(np.abs(hg.simulate(artifact, x) - y).max() for x, y in zip(SAMPLES, exact, strict=True))
    figures = artifact.report.figures
    assert 1e7 < worst <= 1.02 * figures.predicted_max_abs_error
    assert figures.given_error == pytest.approx(worst, rel=0.02)
    assert figures.predicted.relative_error == pytest.approx(figures.predicted_max_abs_error / 1e9, rel=0.1)
    # The same network near one has the same bill, but for its unit.
    small = hg.compile(program("relu(x)"), replace(TOY, degree=7)).report.figures
    assert small.predicted_max_abs_error == pytest.approx(figures.predicted_max_abs_error / 1e9, rel=0.05)


def test_a_client_multiplies_what_it_decrypts() -> None:
    made = program("x * 1e7 + 3e8", "x * 0.5")
    artifact = hg.compile(made)
    found = hg.run(artifact, SAMPLES[0], quiet=True)
    exact = [out[0] for out in interpret_batch(made, SAMPLES[:1])]
    for ours, theirs in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3 * np.abs(theirs).max())


def test_layers_are_compared_with_what_is_encrypted() -> None:
    made = program("relu(x) * 1e9")
    shown = str(hg.debug(hg.compile(made, TOY), SAMPLES[0], program=made))
    assert "no layer deviates by more" in shown


def test_what_is_carried_stays_as_it_is() -> None:
    text = (
        "program p\ninput x: secret tensor[4] in [-1, 1]\ninput s: carried tensor[4] in [-2e5, 2e5]\n"
        "output y = (s + x) * 1000\noutput s = s + x\n"
    )
    made = scaled(hg.parse(text))
    assert {spec.name: spec.scale is None for spec in made.interface.outputs} == {"y": False, "s": True}


def test_a_client_is_told_the_range_that_it_has() -> None:
    (spec,) = hg.compile(program("x * 1e7"), TOY).program.interface.outputs
    with pytest.raises(RangeError, match=re.escape("[-1e+07, 1e+07]")):
        check_output(replace(spec, low=-1e7 / 2**24, high=1e7 / 2**24), np.full(4, 3.0), 0.0, 1e-6)


def test_a_program_on_slots_keeps_its_outputs_and_is_told_what_to_do() -> None:
    text = "program p\ninput x: secret slots[8] in [-1, 1]\noutput y = x * {}\n"
    artifact = hg.compile(hg.parse(text.format(1e5)), TOY)
    assert scales(artifact) == [None]
    with pytest.raises(hg.PlanningError, match="divide the outputs by"):
        hg.compile(hg.parse(text.format(1e9)), TOY)


@pytest.mark.parametrize("scale", [0.0, -2.0, 1.0, 3.0, 2.0**101, float("1e999"), "2", True, [2.0]])
def test_scales_of_strangers_are_checked(scale: object) -> None:
    public = hg.compile(program("x * 1e7"), TOY).public()
    fields = dict(unpack(public.to_bytes(), "public artifact", VERSION, 1 << 30).fields)
    fields["outputs"] = [{**fields["outputs"][0], "scale": scale}]
    with pytest.raises((WireError, ValueError)):
        PublicArtifact.from_bytes(pack(Container("public artifact", VERSION, fields)))


def test_inputs_have_no_scale() -> None:
    public = hg.compile(program("x * 1e7"), TOY).public()
    fields = dict(unpack(public.to_bytes(), "public artifact", VERSION, 1 << 30).fields)
    fields["inputs"] = [{**fields["inputs"][0], "scale": 2.0}]
    with pytest.raises(WireError, match="the scale of input 'x'"):
        PublicArtifact.from_bytes(pack(Container("public artifact", VERSION, fields)))


def test_a_scale_comes_before_what_a_client_finishes_with() -> None:
    spec = TensorSpec("y", (3,), finish="log_softmax", finish_axis=0, scale=4.0)
    value = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    expected = dataclasses.replace(spec, scale=None).finished(4.0 * value)
    np.testing.assert_array_equal(spec.finished(value), expected)
    np.testing.assert_allclose(spec.finished(value)[1], -np.log(3.0))
