"""One evaluation of a program on any backend: a rule for each op on ciphertexts, and what belongs to this run alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import numpy as np

from heliograph.errors import ProgramError
from heliograph.execution.counted import Counted
from heliograph.execution.plaintexts import EncodeAhead
from heliograph.execution.protocol import C, Call, Primitives
from heliograph.ir import Array, CipherType, Node

if TYPE_CHECKING:
    from heliograph.execution.evaluator import Evaluator, Transform

# Evaluates a node: (run, node, operands) -> its value.
Rule: TypeAlias = "Callable[[Run[Any], Node, Sequence[Any]], Any]"


class Run(Generic[C]):
    """Evaluates the nodes of a program once, in order, in one thread.

    `calls` counts the primitives of this run as they leave for the backend: what the floor of a run is the sum of.
    `ahead` encodes plaintexts before they are used.
    """

    def __init__(self, shared: Evaluator[C], ahead: EncodeAhead | None) -> None:
        self.calls: Counter[Call] = Counter()
        self.shared, self._ahead = shared, ahead
        self._at: dict[tuple[int, int], Counted[C]] = {}
        # Rotations of one value share its decomposition: the digits, and how many rotations are still to come.
        self._digits: dict[int, tuple[Any, int]] = {}
        # The same for transforms: of each value the digits and the rotations that later transforms read.
        self._kept: dict[int, tuple[Any, dict[int, C]]] = {}

    def close(self) -> None:
        """Give back what it borrowed; the execution is over, or broken off."""
        self.shared.end(self._ahead)
        self._ahead = None

    def evaluate(self, node: Node, operands: Sequence[Any]) -> C:
        """The node's value; raises RangeError or ProgramError where the scheme would give nonsense."""
        if self.shared.before is not None:
            self.shared.before(self.shared.index[node])
        rule = RULES.get(node.op)
        if rule is None:
            raise ProgramError(f"there is no rule that evaluates {node.op} on ciphertexts", where=node.loc)
        try:
            value: C = rule(self, node, operands)
        except ProgramError as error:
            if error.where:
                raise
            raise type(error)(error.what, where=node.loc, why=error.why, hint=error.hint) from None
        return value

    def at(self, kind: CipherType) -> Counted[C]:
        """The primitives on ciphertexts of that level and chain, counted."""
        found = self._at.get((kind.chain, kind.level))
        if found is None:
            found = self._at[kind.chain, kind.level] = Counted(self.part(kind.chain), kind.level, self.calls)
        return found

    def part(self, chain: int) -> Primitives[C]:
        """The primitives in one chain of the parameters."""
        return self.shared.part(chain)

    def constant(self, node: Node, level: int, make: Callable[[], Any]) -> Any:
        """The plaintext that a node adds or multiplies with, kept between runs."""
        return self.shared.cache.get(self.shared.index[node], make, self.shared.plaintext_bytes(level))

    def diagonal(self, transform: Transform[C], g: int, position: int, b: int, offset: int) -> Any:
        """The plaintext of one diagonal of a transform."""
        return self.shared.diagonal(transform.encoding(g, position, b, offset), self._ahead)

    def rotation(self, node: Node, x: C) -> C:
        """The value of a `rotate`."""
        source = node.inputs[0]
        on, amount = self.at(_cipher(node)), node.attrs["amount"] % self.shared.ring.slots
        rotations = self.shared.rotations[source]
        if rotations < 2:
            return on.rotate(x, amount)
        key = self.shared.index[source]
        if key not in self._digits:
            self._digits[key] = on.decompose(x), rotations
        digits, left = self._digits.pop(key)
        if left > 1:
            self._digits[key] = (digits, left - 1)
        return on.rotate_hoisted(x, amount, digits)

    def baby_steps(self, node: Node, position: int, x: C) -> dict[int, C]:
        """The rotations of one operand of a transform; those that a later one of the same value reads are kept for it."""
        steps, source = self.shared.babies[node, position], self.shared.index[node.inputs[position]]
        on, paths = self.at(_cipher(node)), self.shared.paths
        digits, kept = self._kept.pop(source, (None, {}))
        if steps.decompose:
            digits = on.decompose(x)
        rotated: dict[int, C] = {0: x, **kept}
        for b in steps.make:
            if b in paths:
                value = x
                for step in paths[b]:
                    value = on.rotate(value, step)
                rotated[b] = value
            else:
                rotated[b] = on.rotate_hoisted(x, b, digits) if steps.hoisted else on.rotate(x, b)
        if not steps.last:
            self._kept[source] = (digits, {b: rotated[b] for b in steps.keep})
        return rotated

    def transform(self, node: Node, operands: Sequence[C]) -> C:
        """The value of a `linear_transform`: hoisted baby steps, products with the diagonals, giant steps.

        A backend may override it as a whole, and then counts the same calls (execution/walk.py).
        """
        on, paths = self.at(_cipher(node)), self.shared.paths
        rotated = [self.baby_steps(node, position, x) for position, x in enumerate(operands)]
        total: C | None = None
        transform = self.shared.transform(node)
        for g, terms in transform.groups.items():
            part: C | None = None
            for position, b, offset in terms:
                term = on.mul_plain(rotated[position][b], self.diagonal(transform, g, position, b, offset))
                part = term if part is None else on.accumulate(part, term)
            assert part is not None
            for step in paths.get(g, (g,) if g else ()):
                part = on.rotate(part, step)
            total = part if total is None else on.accumulate(total, part)
        if total is None:
            # A map that is zero everywhere: a ciphertext of zeros of the right level and scale.
            total = on.mul_plain(operands[0], on.encode(0.0, node.attrs["plain_log_scales"][0]))
        return total


# ---------------------------------------------------------------------------------------------- rules


def _cipher(node: Node) -> CipherType:
    """The type of a ciphertext."""
    assert isinstance(node.type, CipherType)
    return node.type


def _sum(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    x, y = operands
    on, parts = run.at(_cipher(node.inputs[0])), max(_cipher(operand).parts for operand in node.inputs)
    return on.add(x, y, parts) if node.op == "add_ct" else on.sub(x, y, parts)


def _product(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    return run.at(_cipher(node.inputs[0])).mul(*operands)


def _relinearize(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    operand = _cipher(node.inputs[0])
    return run.at(operand).relinearize(operands[0], operand.parts)


def _negate(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    operand = _cipher(node.inputs[0])
    return run.at(operand).negate(operands[0], operand.parts)


def _mul_i(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    kind = _cipher(node)
    return run.at(kind).times_i(operands[0], kind.parts)


def _whole_multiple(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    """By doubling: one sum for each bit below the highest, and one for each further bit that is set."""
    operand, factor = _cipher(node.inputs[0]), node.attrs["factor"]
    if not factor:
        raise ProgramError("a product with zero would be no ciphertext", hint="use a constant instead")
    on, total, power, rest = run.at(operand), None, operands[0], abs(factor)
    while rest:
        if rest & 1:
            total = power if total is None else on.add(total, power, operand.parts)
        rest >>= 1
        if rest:
            power = on.add(power, power, operand.parts)
    return on.negate(total, operand.parts) if factor < 0 else total


def _vector(run: Run[Any], node: Node) -> Array:
    """The constant of a node, in all slots."""
    return np.resize(run.shared.program.array(node.attrs["value"]), run.shared.ring.slots)


def _mul_plain(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    on = run.at(_cipher(node))
    plain = run.constant(node, on.level, lambda: on.encode(_vector(run, node), node.attrs["plain_log_scale"]))
    return on.mul_plain(operands[0], plain)


def _add_plain(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    x, kind = operands[0], _cipher(node)
    on = run.at(kind)
    plain = run.constant(node, kind.level, lambda: on.encode(_vector(run, node), kind.log_scale, x))
    return on.add_plain(x, plain, kind.parts)


def _add_scalar(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    x, kind = operands[0], _cipher(node)
    on = run.at(kind)
    plain = run.constant(node, kind.level, lambda: on.encode(float(node.attrs["value"]), kind.log_scale, x))
    return on.add_plain(x, plain, kind.parts)


def _mul_pt(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    # Plain values have a leading axis of one sample.
    return run.at(_cipher(node)).mul_pt(operands[0], operands[1][0], node.attrs["plain_log_scale"])


def _add_pt(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    kind = _cipher(node)
    return run.at(kind).add_pt(operands[0], operands[1][0], kind.log_scale, kind.parts)


def _combination(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    a, kind = node.attrs, _cipher(node)
    on, total = run.at(kind), None
    for x, weight, log_scale in zip(operands, a["weights"], a["plain_log_scales"], strict=True):
        term = on.mul_scalar(x, weight, log_scale)
        total = term if total is None else on.accumulate(total, term)
    if a["constant"]:
        plain = run.constant(node, kind.level, lambda: on.encode(float(a["constant"]), kind.log_scale, total))
        total = on.add_plain(total, plain)
    return total


def _rotate(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    return run.rotation(node, operands[0])


def _transform(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    return run.transform(node, operands)


def _rescale(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    operand = _cipher(node.inputs[0])
    return run.at(operand).rescale(operands[0], operand.parts)


def _level_drop(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    return run.at(_cipher(node.inputs[0])).level_drop(operands[0], node.attrs["levels"])


def _switch_chain(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    kind = _cipher(node)
    return run.at(kind).move(operands[0], kind.parts)


def _bootstrap(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    """One value, or two as real and imaginary part of one, refreshed."""
    kind, slots, fresh = _cipher(node), node.attrs["slots"], run.shared.ring.bootstrap_level
    on = run.at(_cipher(node.inputs[0]))
    x, *others = operands
    for other in others:
        x = on.add(x, on.times_i(other))
    result = on.bootstrap_pair(x, slots) if run.shared.pairs(slots) else on.bootstrap(x, slots)
    if kind.level > fresh:
        raise ProgramError(f"a bootstrap returns to level {fresh}, planned was {kind.level}")
    if kind.level < fresh:
        result = run.at(replace(kind, level=fresh)).level_drop(result, fresh - kind.level)
    return result


def _conjugate(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    return run.at(_cipher(node)).conjugate(operands[0])


def _part(run: Run[Any], node: Node, operands: Sequence[Any]) -> Any:
    """z + conj(z), or i (conj(z) - z): twice the part, which is read at twice the scale."""
    kind, x = _cipher(node), operands[0]
    on = run.at(kind)
    conjugate = on.conjugate(x)
    twice = on.add(x, conjugate) if node.op == "real_part" else on.times_i(on.sub(conjugate, x))
    return on.reread(twice, kind.log_scale)


RULES: Mapping[str, Rule] = {
    "add_ct": _sum,
    "sub_ct": _sum,
    "mul_ct": _product,
    "relinearize": _relinearize,
    "negate": _negate,
    "mul_int": _whole_multiple,
    "mul_i": _mul_i,
    "mul_plain": _mul_plain,
    "add_plain": _add_plain,
    "add_scalar": _add_scalar,
    "mul_pt": _mul_pt,
    "add_pt": _add_pt,
    "lincomb": _combination,
    "rotate": _rotate,
    "linear_transform": _transform,
    "rescale": _rescale,
    "level_drop": _level_drop,
    "switch_chain": _switch_chain,
    "bootstrap": _bootstrap,
    "conjugate": _conjugate,
    "real_part": _part,
    "imaginary_part": _part,
}
