"""Weighted sums as products of matrices: exact to the last coefficient, and the library's own sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from helpers.backends import openfhe
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.compiler.planning import planner
from heliograph.compiler.planning.plan import Plan
from heliograph.dsl import parse
from heliograph.errors import RangeError, WireError
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Program

pytest.importorskip("openfhe")

from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server
from heliograph.runtime.sums import _product, _split

PRIMES = {20: (1 << 20) - 3, 30: (1 << 30) - 35, 45: (1 << 45) - 55, 60: (1 << 60) - 93}
LAYER = """program layer
input x: secret tensor[6] in [-1, 1]
param w: tensor[4, 6] = [[{rows[0]}], [{rows[1]}], [{rows[2]}], [{rows[3]}]]
h = linear(x, w)
output y = h * h
"""


@given(
    bits=st.sampled_from(sorted(PRIMES)), weight_bits=st.integers(1, 70), count=st.integers(1, 900), seed=st.integers(0, 99),
    density=st.sampled_from([0.02, 1.0]),
)  # fmt: skip
@settings(max_examples=60, deadline=None, derandomize=True)
def test_products_are_exact(bits: int, weight_bits: int, count: int, seed: int, density: float) -> None:
    random, modulus = np.random.default_rng(seed), PRIMES[bits]
    largest = float(2**weight_bits)
    dense = np.rint(random.uniform(-largest, largest, size=(3, count))) * (random.random((3, count)) < density)
    taken = random.integers(0, modulus, size=(count, 5), dtype=np.uint64)
    taken[:, 0] = modulus - 1
    found = _product(_split(scipy.sparse.csr_array(dense), modulus), taken, modulus)
    exact = [[sum(int(w) * int(x) for w, x in zip(row, column)) % modulus for column in taken.T] for row in dense]  # noqa: B905
    assert found.tolist() == exact


def layer() -> str:
    rows = np.random.default_rng(1).normal(size=(4, 6))
    return LAYER.format(rows=[", ".join(f"{value:.6f}" for value in row) for row in rows])


def batch(count: int) -> Array:
    return np.random.default_rng(2).uniform(-1, 1, size=(count, 6))


def test_sums_are_those_of_the_library() -> None:
    artifact = compile(parse(layer()), Options(security_bits=None, log_ring=10, batch="max"))
    session = openfhe(artifact.program)
    ring, random = artifact.ring, np.random.default_rng(3)
    values = [session.encrypt(random.uniform(-1, 1, ring.slots), 2, 50.0) for _ in range(7)]
    weights = scipy.sparse.csr_array(random.normal(size=(3, 7)))
    primitives = session.evaluator.part(0)
    made = primitives.weighted_sums(values, weights, 49.5)
    for row, value in zip(weights, made, strict=True):
        total = None
        # As a product and a sum for each, by the library's rule of rounding.
        for x, weight in zip(values, row.toarray().ravel(), strict=True):
            term = primitives.mul_scalar(x, float(weight), 49.5)
            total = term if total is None else primitives.add(total, term)
        found, wanted = (session.decrypt(each, 99.5) for each in (value, total))
        np.testing.assert_allclose(found, wanted, atol=1e-7)
        assert primitives.describe(value) == (2, 2)


def test_a_weight_beyond_exact_numbers_is_refused() -> None:
    artifact = compile(parse(layer()), Options(security_bits=None, log_ring=10, batch="max"))
    session = openfhe(artifact.program)
    x = session.encrypt(np.zeros(artifact.ring.slots), 2, 40.0)
    with pytest.raises(RangeError, match=r"^a weight is too large for scale 2\^40.0$"):
        session.evaluator.part(0).weighted_sums([x], scipy.sparse.csr_array([[2.0**80]]), 40.0)


def test_any_number_of_samples() -> None:
    program = parse(layer())
    artifact = compile(program, Options(security_bits=None, log_ring=10, batch="max"))
    slots = artifact.ring.slots
    client = Client(artifact, allow_insecure=True)
    x = batch(slots + 3)
    expected = np.stack([np.asarray(out) for out in interpret_many(program, [x])[0]])
    with Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        for through_bytes in (False, True):
            sent = list(client.encrypt_many(x))
            assert len(sent) == 2
            if through_bytes:
                sent = [type(each).from_bytes(each.to_bytes()) for each in sent]
            answers = [server.run(each) for each in sent]
            found = client.decrypt_many(reversed(answers), of=[each.receipt() for each in sent])
            np.testing.assert_allclose(found, expected, atol=1e-4)
        first = answers[0]
        with pytest.raises(WireError, match="1 of 2 inputs have no answer"):
            client.decrypt_many([first], of=sent)
        with pytest.raises(WireError, match="two answers to the inputs"):
            client.decrypt_many([first, first], of=sent)
        with pytest.raises(WireError, match="none of the inputs has"):
            client.decrypt_many(answers, of=sent[:1])
        with pytest.raises(WireError, match="no inputs"):
            client.decrypt_many([], of=[])
    done = {call.primitive for call in server.trace.calls}
    assert done >= {"weighted_sums", "mul", "relinearize_wide", "narrow_rescale", "rescale"}
    with pytest.raises(Exception, match="outside its range"):
        next(client.encrypt_many(2 * x))


def test_inputs_of_sums_are_checked_before_they_are_read() -> None:
    artifact = compile(parse(layer()), Options(security_bits=None, log_ring=10, batch="max"))
    client = Client(artifact, allow_insecure=True)
    with Server(artifact, client.evaluation_keys(), backend="openfhe", allow_insecure=True) as server:
        data = client.encrypt(batch(4)).to_bytes()
        good = type(client.encrypt(batch(4))).from_bytes(data)
        name = next(iter(good.blobs))
        for wrong in (b"", bytes(len(good.blobs[name])), bytes(good.blobs[name])[:-1], b"\xff" * len(good.blobs[name])):
            good.blobs[name] = wrong
            with pytest.raises(WireError):
                server.run(good)


def test_the_objective_takes_a_batch() -> None:
    program = parse(layer())
    options = {"security_bits": None, "log_ring": 10}
    many = compile(program, Options(objective="throughput", **options))  # type: ignore[arg-type]
    one = compile(program, Options(objective="latency", **options))  # type: ignore[arg-type]
    assert many.program.interface.batch == many.ring.slots
    assert one.program.interface.batch < many.program.interface.batch
    predicted = many.report.to_dict()["predicted"]
    assert predicted["ciphertext_sample_bytes"] == predicted["ciphertext_bytes"] // many.ring.slots
    assert predicted["evaluate_sample_ms"] < one.report.to_dict()["predicted_ms"]
    with pytest.raises(Exception, match="a batch and an objective"):
        compile(program, Options(objective="latency", batch=8, **options))  # type: ignore[arg-type]


def test_larger_batches_are_not_planned_once_answers_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    program, made, asked = parse(layer()), planner.batch_plan, []

    def plan(program: Program, options: Options, *more: Any, **named: Any) -> Plan:
        asked.append(options.batch)
        return made(program, options, *more, **named)

    monkeypatch.setattr(planner, "batch_plan", plan)
    compile(program, Options(security_bits=None, log_ring=10, objective="throughput"))
    assert asked == [1, 8, 256, "max"]
    asked.clear()
    compile(program, Options(security_bits=None, log_ring=10, objective="latency"))
    assert asked == [1, 8, 256]
