"""Constants: read-only, equal ones once, and a digest that is computed once in a constant's life."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scipy.sparse

import heliograph as hg
from heliograph.ir import Array, Builder, OpaqueConstant, SparseMatrix, Stage, constants
from heliograph.ir.constants import Constants, same
from heliograph.ir.node import constant_digest


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the digest of each object was computed, by its identity."""
    counts: Counter[int] = Counter()
    kept = []

    def counting(constant: object) -> str:
        counts[id(constant)] += 1
        kept.append(constant)  # no other object gets the identity
        return constant_digest(constant)  # type: ignore[arg-type]

    monkeypatch.setattr(constants, "constant_digest", counting)
    return counts


def test_a_digest_is_computed_once_for_all_programs_that_hold_the_constant(digests: Counter[int]) -> None:
    builder = Builder("p", Stage.TENSOR)
    x = builder.input("x", shape=(12,), low=-1.0, high=1.0)
    weight = builder.constant(np.random.default_rng(0).normal(size=(9, 12)), "w")
    program = builder.finish({"y": builder.op("linear", (x,), weight=weight)})
    assert not digests, "nobody asked for it"
    other = Builder("q", Stage.TENSOR, program)
    assert str(program).splitlines()[2:] == str(other.rewrite(program, other.copy)).splitlines()[2:]
    assert str(program) == str(program)
    assert list(digests.values()) == [1]


def test_a_compilation_computes_no_digest_twice(digests: Counter[int]) -> None:
    text = "program p\ninput x: slots[8] in [-1, 1]\ny = x * 0.5 + x * x * 0.25\noutput y\n"
    made = hg.compile(hg.parse(text), hg.Options(security_bits=None))
    assert (made.fingerprint, made.to_bytes()) == (made.fingerprint, made.to_bytes())
    assert digests
    assert max(digests.values()) == 1


def test_constants_cannot_be_changed_and_arrays_that_were_given_can() -> None:
    given: Array = np.arange(6.0).reshape(2, 3)
    matrix = scipy.sparse.csr_array(given)
    table = Constants({"dense": given, "sparse": SparseMatrix.of(matrix)})
    before = {name: table.digest(name) for name in table}
    for array in (table["dense"], table["sparse"].data, table["sparse"].indices, table["sparse"].indptr):  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1  # type: ignore[index]
    given[0, 1] = matrix.data[0] = 7.0
    assert before == {name: constant_digest(constant) for name, constant in table.items()}
    builder = Builder("p", Stage.TENSOR)
    name = builder.constant(given, "w")
    given[0, 1] = 8.0
    assert builder.constants[name][0, 1] == 7.0  # type: ignore[index]


def test_a_matrix_is_made_of_another_that_stays_as_it_is() -> None:
    matrix = scipy.sparse.csr_array((np.array([0.0, 1.0, 2.0]), np.array([2, 1, 1]), np.array([0, 3])), shape=(1, 3))
    made = SparseMatrix.of(matrix)
    assert (made.data.tolist(), made.indices.tolist()) == ([3.0], [1])
    assert (matrix.data.tolist(), matrix.indices.tolist()) == ([0.0, 1.0, 2.0], [2, 1, 1])
    assert same(SparseMatrix.of(made.csr()), made)


def test_equal_constants_share_one_entry_and_only_these() -> None:
    builder = Builder("p", Stage.TENSOR)
    long: Array = np.zeros(100)
    other = long.copy()
    other[50] = 1.0  # both ends are those of the first
    names = [builder.constant(value, "c") for value in (long, other, long.copy(), other.copy())]
    assert names == ["c", "c.2", "c", "c.2"]
    assert builder.constant(-long, "zero") == "zero", "-0.0 is another number"
    assert builder.constant(long.astype(np.float32), "single") == "single"
    assert builder.constant(long.reshape(10, 10), "square") == "square"
    assert builder.constant(np.zeros(()), "scalar") != builder.constant(np.zeros(1), "one")
    assert builder.constant(np.zeros((0, 3)), "empty") != builder.constant(np.zeros((3, 0)), "none")
    eye = SparseMatrix.of(np.eye(3))
    assert builder.constant(eye, "eye") == builder.constant(SparseMatrix.of(np.eye(3)), "again") == "eye"


def test_a_constant_of_the_program_before_is_taken_up_by_its_name_and_contents() -> None:
    source = Builder("p", Stage.TENSOR)
    x = source.input("x", shape=(2,), low=-1.0, high=1.0)
    y = source.op("mul", (x, source.op("constant", value=source.constant(np.ones(2), "c"))))
    builder = Builder("p", Stage.TENSOR, source.finish([y]))
    held = builder.constants["c"]
    assert builder.constant(np.ones(2), "c") == "c"
    assert builder.constants["c"] is held
    assert builder.constant(np.zeros(2), "c") == "c.2"


def test_what_only_a_text_knows_is_told_by_its_digest() -> None:
    values: Array = np.arange(3.0)
    assert same(OpaqueConstant("f64", (3,), constant_digest(values)), values)
    assert not same(OpaqueConstant("f64", (3,), "0" * 32), values)
    assert not same(values, SparseMatrix.of(values[np.newaxis]))
