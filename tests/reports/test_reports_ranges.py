"""Polynomial inputs: known to the end, watched in the simulator, judged after decryption, compared layer by layer."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from helpers.ranges import unchecked
from reports_support import Net, SmallConv, TwoOutputs, artifact, program, samples

import heliograph as hg
from heliograph.compiler.pipeline import front_passes
from heliograph.errors import ProgramError, RangeError
from heliograph.execution.interface import pack_inputs
from heliograph.execution.loop import execute
from heliograph.execution.ranges import RangeWatch, polynomial_inputs, range_layout
from heliograph.execution.simulator import Simulator
from heliograph.interpret import interpret, run_nodes
from heliograph.ir.interface import TensorSpec
from heliograph.runtime.client import outputs

CASES = [(Net, (16,)), (SmallConv, (1, 8, 8)), (TwoOutputs, (16,))]


def test_intervals_say_whether_they_are_proved_or_observed():
    report = artifact(margin=0.1).report.to_dict()
    assert [(entry["layer"], entry["source"]) for entry in report["ranges"]] == [
        ("relu", "observed"),
        ("sigmoid", "observed"),
    ]
    assert all(entry["samples"] == 64 and entry["margin"] == 0.1 for entry in report["ranges"])
    assert report["proved_share"] == 0.0
    proved = artifact(calibrated=False).report.to_dict()
    assert [entry["source"] for entry in proved["ranges"]] == ["proved", "proved"]
    assert proved["proved_share"] == 1.0


def test_a_proved_interval_cannot_be_left_from_the_declared_input_range():
    made = artifact(calibrated=False)
    corners = np.random.default_rng(2).integers(0, 2, (40, 16)).astype(float)
    for x in corners:
        hg.simulate(made, x, check_ranges=True)


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_the_marked_values_are_the_inputs_of_the_polynomials(kind, shape):
    """Each marked ciphertext holds, element by element, what the polynomial program gives to that polynomial."""
    made = artifact(kind, shape)
    x = samples(shape)[3]
    polynomial = front_passes(program(kind, shape), hg.Options(degree=7))[-1].program
    expected = {}

    def remember(node, value):
        for reader in polynomial.users()[node]:
            if reader.op == "poly":
                expected[reader.attrs["range"]] = value[0]

    run_nodes(polynomial, {polynomial.inputs[0]: x[None]}, remember)
    points = polynomial_inputs(made.program)
    entries = sorted(entry for entry, _ in points.values())
    assert entries == sorted(expected) == list(range(len(made.program.ranges)))
    simulator, seen = Simulator(made.program, noisy=False), {}
    inputs = {
        node: simulator.encrypt(vector[0], node.attrs["level"], node.attrs["log_scale"])
        for node, vector in pack_inputs(made.program, [x]).items()
    }

    def observe(node, value):
        if node in points:
            entry, _ = points[node]
            seen[entry] = range_layout(made.program, entry).unpack([np.real(value.slots)])

    execute(made.program, simulator, inputs, observe=observe)
    for entry, value in expected.items():
        np.testing.assert_allclose(seen[entry].ravel(), value.ravel(), atol=1e-9)
        assert np.abs(value).max() <= 1.0 + 1e-9


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_inputs_in_range_pass_the_check(kind, shape):
    made = artifact(kind, shape)
    checked = hg.simulate(made, samples(shape)[0], check_ranges=True)
    plain = hg.simulate(made, samples(shape)[0])
    for a, b in zip(np.atleast_1d(checked), np.atleast_1d(plain), strict=True) if kind is not TwoOutputs else ():
        np.testing.assert_array_equal(a, b)


def _outside(factor: float) -> np.ndarray:
    """An input of that size that drives the first unit as far as it goes."""
    return factor * np.sign(np.asarray(program().constants["fc1.weight"])[0])


def test_a_left_interval_is_named_with_layer_line_and_excess():
    with pytest.raises(RangeError) as caught:
        hg.simulate(unchecked(artifact()), _outside(3.0), check_ranges=True)
    error = caught.value
    assert error.what == "the input of the polynomial of relu leaves its interval"
    assert "reports_support.py:" in error.where
    assert "times the range of its unit" in error.why
    assert "the range is observed" in error.why
    assert "sigmoid" in error.why


def test_an_interval_that_observation_gave_is_left_by_as_much_as_the_error_says():
    """The sigmoid's interval rests on samples: an input in the declared range leaves it."""
    made = artifact(margin=0.1)
    entry = made.program.ranges[1]
    low, high = entry.low, entry.high
    rng = np.random.default_rng(4)
    candidates = rng.integers(0, 2, (4000, 16)).astype(float)
    weights = program()
    fused = []
    for x in candidates:
        seen = {}
        values = {weights.inputs[0]: x[None]}
        run_nodes(weights, values, lambda node, value, seen=seen: seen.__setitem__(node.op, value))
        fused.append(_sigmoid_input(weights, x))
    worst = int(np.argmax([np.maximum(v - high, low - v).max() for v in fused]))
    excess = np.maximum(fused[worst] - high, low - fused[worst]).max()
    assert excess > 0.01 * (high - low), "the samples of this test reach everything"
    with pytest.raises(RangeError, match="sigmoid") as caught:
        hg.simulate(made, candidates[worst], check_ranges=True)
    # The ReLU before it is a polynomial: the excess is that of the compiled program.
    reported = float(caught.value.why.split(" by ")[1].split(";")[0])
    assert reported == pytest.approx(excess, abs=0.1 * (high - low))


def _sigmoid_input(tensors, x):
    found = {}

    def observe(node, value):
        for reader in tensors.users()[node]:
            if reader.op == "sigmoid":
                found["value"] = value[0]

    run_nodes(tensors, {tensors.inputs[0]: np.asarray(x)[None]}, observe)
    return found["value"]


def test_slots_without_an_element_are_not_looked_at():
    made = artifact().program
    node, (entry, _) = next(iter(polynomial_inputs(made).items()))
    layout = range_layout(made, entry)
    used = np.zeros(layout.period, dtype=bool)
    used[layout.places()] = True
    slots = np.tile(np.where(used, 0.5, 77.0), layout.slots // layout.period)
    assert not used.all()
    watch = RangeWatch(made, lambda n, value: value)
    watch.observe(node, slots)
    watch.check()
    assert watch.largest == {entry: 0.5}
    slots[layout.period + layout.places()[2]] = -1.25
    watch.observe(node, slots)
    (excess,) = watch.excesses
    assert (excess.value, excess.index, excess.count) == (-1.25, (2,), 1)
    slots[0] = np.nan
    watch.observe(node, slots)
    assert len(watch.excesses) == 2


# ------------------------------------------------------------------------------------------- decrypted outputs

SPEC = TensorSpec("y", (), None, -1.0, 2.0, "proved")
ERROR = 1e-6


def test_a_sound_output_is_believed():
    outputs.check_output(SPEC, np.array([-1.0, 2.0005]), 1e-7, ERROR)


@pytest.mark.parametrize(
    ("tensor", "estimate", "words"),
    [
        ([0.0, np.nan], 1e-7, "NaN or infinity"),
        ([0.0, 2.1], 1e-7, "that no input in its range can give"),
        ([0.0, 1.0], 2e-3, "more than 1024 times the one expected, 1e-06"),
    ],
)
def test_signs_of_an_overflow_are_said_in_words(tensor, estimate, words):
    with pytest.raises(RangeError, match=words):
        outputs.check_output(SPEC, np.array(tensor), estimate, ERROR)


def test_an_observed_output_range_claims_no_proof():
    with pytest.raises(RangeError, match="far beyond all that calibration showed"):
        outputs.check_output(replace(SPEC, range_source="observed"), np.array([9.0]), 1e-7, ERROR)


def _size(made, factor: float) -> float:
    """The largest output of the compiled program on an input outside; infinite where it outgrows the modulus."""
    try:
        return float(np.abs(hg.simulate(unchecked(made), _outside(factor), noisy=False)).max())
    except RangeError:
        return np.inf


def test_an_overflow_under_encryption_is_refused_at_decryption():
    """Real ciphertexts: one input gives values that no input can give, a larger one destroys the message."""
    made = artifact()
    public = made.public()
    open_inputs = tuple(replace(spec, low=None, high=None) for spec in public.inputs)
    careless = dataclasses.replace(public, inputs=open_inputs)
    # A client that does not look at its inputs, and calls itself one of this artifact all the same.
    vars(careless)["fingerprint"] = public.fingerprint
    client = hg.Client(careless, allow_insecure=True)
    with hg.Server(made, client.evaluation_keys(), allow_insecure=True) as server:
        good = samples()[0]
        np.testing.assert_allclose(
            client.decrypt(server.run(client.encrypt(good))), hg.simulate(made, good, noisy=False), atol=1e-6
        )
        found = set()
        high = made.public().outputs[0].high
        sizes = {factor: _size(made, factor) for factor in np.linspace(0.1, 2.0, 96)}
        beyond = next(factor for factor, size in sizes.items() if 2 * high < size < 40 * high)
        for factor in (beyond, 20.0):
            with pytest.raises(RangeError) as caught:
                client.decrypt(server.run(client.encrypt(_outside(factor))))
            found.add(caught.value.what.split(":")[0].split(" has ")[0])
            assert "simulate" in caught.value.hint
        assert found == {"output 'y'", "the result cannot be decrypted"}


def test_the_secure_generator_is_normal():
    values = outputs.secure_normal(200_001)
    assert values.shape == (200_001,)
    assert abs(values.mean()) < 0.015
    assert values.std() == pytest.approx(1.0, abs=0.01)
    assert (np.abs(values) < 1.0).mean() == pytest.approx(0.6827, abs=0.006)


# ------------------------------------------------------------------------------------------- debug


def test_debug_compares_original_polynomial_and_decrypted_values():
    made, x = artifact(), samples()[5]
    found = hg.debug(made, x, program=program())
    assert [(layer.layer, layer.kind) for layer in found.layers] == [
        ("relu", "activation"),
        ("sigmoid", "activation"),
        ("y", "output"),
    ]
    assert found.first_deviation is None
    relu, sigmoid, y = found.layers
    # The input of the first activation is linear: polynomial and original are the same values, in the same units.
    np.testing.assert_allclose(relu.polynomial, relu.original, atol=1e-6)
    np.testing.assert_allclose(sigmoid.original, _sigmoid_input(program(), x), atol=1e-12)
    np.testing.assert_allclose(y.original, interpret(program(), x), atol=1e-12)
    assert 1e-5 < sigmoid.approximation_error < 0.1
    for layer in found.layers:
        assert 0 < layer.encryption_error < 1e-6


def test_debug_names_the_first_layer_that_deviates():
    made = artifact()
    found = hg.debug(made, _outside(2.0), program=program())
    assert found.first_deviation is not None
    assert found.first_deviation.layer == "relu"
    assert "times its interval" in str(found)
    # Without ranges left, a coarse polynomial is the first deviation at a fine tolerance.
    fine = hg.debug(made, samples()[5], program=program(), tolerance=1e-3, encrypted=False)
    assert fine.first_deviation is not None
    assert fine.first_deviation.layer == "sigmoid"
    assert "polynomials before it" in str(fine)


def test_debug_without_the_program_has_no_originals():
    found = hg.debug(artifact(), samples()[5], encrypted=False)
    assert all(layer.original is None and layer.decrypted is None for layer in found.layers)
    assert "pass program=" in str(found)


def test_debug_refuses_another_program():
    with pytest.raises(ProgramError, match="not the one that the artifact was compiled from"):
        hg.debug(artifact(), samples()[5], program=program(TwoOutputs), encrypted=False)


def test_a_constant_that_rounds_to_zero_is_encoded():
    """OpenFHE refuses to encode what would be zero everywhere; the constant of an odd polynomial is about 1e-17."""
    from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
    from heliograph.runtime.openfhe.evaluator import OpenFHEEvaluator

    made = artifact()
    evaluator, cryptor = OpenFHEEvaluator(made.program, "0" * 32), OpenFHECryptor(made.ring)
    values = np.linspace(-1.0, 1.0, made.ring.slots)
    ciphertext = cryptor.encrypt(values, 2, 40.0)
    part = evaluator.part(0)
    plain = part.encode(np.full(made.ring.slots, 1e-20), 40.0, 2)
    found = cryptor.decrypt(part.add_plain(ciphertext, plain), 40.0)
    np.testing.assert_allclose(found, values, atol=1e-6)


def test_the_words_of_a_left_interval(golden):
    with pytest.raises(RangeError) as caught:
        hg.simulate(unchecked(artifact()), _outside(3.0), noisy=False, check_ranges=True)
    golden("left_interval.txt", f"{caught.value}\n")


def test_the_table_of_debug(golden):
    good = hg.debug(artifact(), samples()[5], program=program(), encrypted=False)
    bad = hg.debug(artifact(), _outside(20.0), program=program(), encrypted=False)
    assert "there are no outputs" in str(bad)
    golden("debug.txt", f"{good}\n\n{bad}\n")
