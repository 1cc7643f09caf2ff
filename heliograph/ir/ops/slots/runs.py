"""Evaluation of ops on ciphertexts, each from primitives that every backend has (execution/protocol.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array, Node
from heliograph.ir.ops.spec import Attrs, Runs
from heliograph.ir.types import CipherType


def cipher(node: Node) -> CipherType:
    """The type of a ciphertext."""
    assert isinstance(node.type, CipherType)
    return node.type


def added(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.at(cipher(node.inputs[0])).add(*operands, parts=cipher(node).parts)


def subtracted(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.at(cipher(node.inputs[0])).sub(*operands, parts=cipher(node).parts)


def complex_of(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    """The first operand plus i times the second: two primitives, no level, no key."""
    (x, y), imaginary = operands, cipher(node.inputs[1])
    on = run.at(imaginary)
    return on.add(x, on.times_i(y, parts=imaginary.parts), parts=max(cipher(node.inputs[0]).parts, imaginary.parts))


def product(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.at(cipher(node.inputs[0])).mul(*operands)


def relinearized(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    operand = cipher(node.inputs[0])
    return run.at(operand).relinearize(operands[0], parts=operand.parts, divided=run.divides(node))


def negated(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    operand = cipher(node.inputs[0])
    return run.at(operand).negate(operands[0], parts=operand.parts)


def times_i(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    kind = cipher(node)
    return run.at(kind).times_i(operands[0], parts=kind.parts)


def whole_multiple(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    """The multiple by doubling: one sum for each bit below the highest, and one for each further bit that is set."""
    operand, factor = cipher(node.inputs[0]), node.attrs["factor"]
    if not factor:
        raise ProgramError("a product with zero would be no ciphertext", hint="use a constant instead")
    on, total, power, rest = run.at(operand), None, operands[0], abs(factor)
    while rest:
        if rest & 1:
            total = power if total is None else on.add(total, power, parts=operand.parts)
        rest >>= 1
        if rest:
            power = on.add(power, power, parts=operand.parts)
    return on.negate(total, parts=operand.parts) if factor < 0 else total


def plain_vector(a: Attrs, array: Callable[[Any], Array]) -> Array:
    """One period of an op's plaintext vector, complex if it has imaginary parts; `array` gives constants
    by their names.
    """
    vector = array(a["value"])
    return np.asarray(vector + 1j * array(a["imaginary"])) if "imaginary" in a else vector


def _vector(run: Runs, node: Node) -> Array:
    """The constant of a node, in all slots."""
    return np.resize(plain_vector(node.attrs, run.shared.program.array), run.shared.ring.slots)


def product_with_constant(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    on = run.at(cipher(node))
    plain = run.constant(node, on.level, lambda: on.constant(_vector(run, node), node.attrs["plain_log_scale"]))
    return on.mul_plain(operands[0], plain)


def sum_with_constant(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    x, kind = operands[0], cipher(node)
    on = run.at(kind)
    plain = run.constant(node, kind.level, lambda: on.constant(_vector(run, node), kind.log_scale, x))
    return on.add_plain(x, plain, parts=kind.parts)


def sum_with_number(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    x, kind = operands[0], cipher(node)
    on = run.at(kind)
    plain = run.constant(node, kind.level, lambda: on.constant(float(node.attrs["value"]), kind.log_scale, x))
    return on.add_plain(x, plain, parts=kind.parts)


def product_with_plain(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    # Plain values have a leading axis of one sample.
    return run.at(cipher(node)).mul_pt(operands[0], operands[1][0], node.attrs["plain_log_scale"])


def sum_with_plain(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    kind = cipher(node)
    return run.at(kind).add_pt(operands[0], operands[1][0], kind.log_scale, kind.parts)


def combination(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    a, kind = node.attrs, cipher(node)
    on, total = run.at(kind), None
    for x, weight, log_scale in zip(operands, a["weights"], a["plain_log_scales"], strict=True):
        term = on.mul_scalar(x, weight, log_scale)
        total = term if total is None else on.accumulate(total, term)
    if a["constant"]:
        plain = run.constant(node, kind.level, lambda: on.constant(float(a["constant"]), kind.log_scale, total))
        total = on.add_plain(total, plain)
    return total


def stacked(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    """The operands as a list. A stack of one is the ciphertext itself, because its type is a ciphertext's."""
    return operands[0] if len(operands) == 1 else list(operands)


def weighted_sum(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    (stack,) = operands
    return run.weighted_sum(node, stack if isinstance(stack, list) else [stack])


def rotated(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.rotation(node, operands[0])


def transformed(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.transform(node, operands)


def rescaled(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    operand = cipher(node.inputs[0])
    return run.at(operand).rescale(operands[0], parts=operand.parts, divided=run.divides(node.inputs[0]))


def dropped(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.at(cipher(node.inputs[0])).level_drop(operands[0], node.attrs["levels"])


def switched(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    kind = cipher(node)
    return run.at(kind).move(operands[0], kind.parts)


def conjugated(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.at(cipher(node)).conjugate(operands[0])


def part_of_complex(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    """z + conj(z), or i (conj(z) - z): twice the part, which is read at twice the scale."""
    kind, x = cipher(node), operands[0]
    on = run.at(kind)
    conjugate = run.conjugation(node, x)
    twice = on.add(x, conjugate) if node.op == "real_part" else on.times_i(on.sub(conjugate, x))
    return on.reread(twice, kind.log_scale)


def fourier_factor(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.fourier_factor(node, operands[0])


def raised(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    return run.at(replace(cipher(node), level=0)).raise_modulus(
        operands[0], node.attrs["slots"], node.attrs.get("share")
    )


def reread(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    kind = cipher(node)
    return run.at(kind).reread(operands[0], kind.log_scale)


def first(run: Runs, node: Node, operands: Sequence[Any]) -> Any:
    """The first operand, the result of a bootstrap; the others are the values that it refreshes."""
    return operands[0]
