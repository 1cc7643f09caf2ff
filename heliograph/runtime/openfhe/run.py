"""One evaluation of a program on OpenFHE ciphertexts: its nodes, and what belongs to this evaluation alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.execution.protocol import Call
from heliograph.ir import CipherType, Node
from heliograph.ir.transforms import transform_terms
from heliograph.runtime.openfhe import bootstrapping
from heliograph.runtime.openfhe.encapsulation import conjugation_index
from heliograph.runtime.openfhe.plaintexts import EncodeAhead, Encoding
from heliograph.runtime.openfhe.tags import chain_tag
from heliograph.runtime.openfhe.template import moved

if TYPE_CHECKING:
    from heliograph.runtime.openfhe.evaluator import OpenFHEEvaluator


class OpenFHERun:
    """Evaluates the nodes of a program once, in order; runs of one evaluator may go on in several threads.

    `calls` counts the homomorphic calls of this run. `ahead` encodes plaintexts before they are used; only one run of an
    evaluator has it at a time, for its memory is bounded: the others encode each plaintext where they use it.
    """

    def __init__(self, shared: OpenFHEEvaluator, ahead: EncodeAhead | None) -> None:
        self.calls: Counter[Call] = Counter()
        self._shared, self._ahead = shared, ahead
        self._ring, self._program = shared.ring, shared.program
        # Rotations of one value share its decomposition: the digits, and how many rotations are still to come.
        self._digits: dict[int, tuple[Any, int]] = {}
        # The same for transforms: of each value the digits and the rotations that later transforms read.
        self._kept: dict[int, tuple[Any, dict[int, Any]]] = {}

    def close(self) -> None:
        """Give back what it borrowed."""
        self._shared.end(self._ahead)
        self._ahead = None

    def evaluate(self, node: Node, operands: Sequence[Any]) -> Any:
        if self._shared.before is not None:
            self._shared.before(self._shared.index[node])
        x, a, op = operands[0], node.attrs, node.op
        operand = node.inputs[0].type
        assert isinstance(operand, CipherType)
        level, parts = operand.level, operand.parts
        cc = self._shared.context_at(level)
        if op in ("add_ct", "sub_ct"):
            self._count("add", level, max(parts, operands[1].NumberCiphertextElements()))
            return cc.EvalAdd(x, operands[1]) if op == "add_ct" else cc.EvalSub(x, operands[1])
        if op == "mul_ct":
            self._count("mul", level, 2)
            return cc.EvalMultNoRelin(x, operands[1])
        if op == "lincomb":
            return self._combination(node, operands)
        if op == "linear_transform":
            return self._transform(node, operands)
        if op == "rotate":
            return self._rotate_node(node, x)
        if op == "mul_plain":
            self._count("mul_plain", level, 2)
            return cc.EvalMult(x, self._vector(node, a["plain_log_scale"], 1, level))
        if op in ("add_plain", "add_scalar"):
            self._count("add_plain", level, parts)
            return cc.EvalAdd(x, self._vector(node, operand.log_scale, x.GetNoiseScaleDeg(), level))
        if op == "mul_pt":
            self._count("mul_pt", level, 2)
            return cc.EvalMult(x, self._shared.encode(operands[1][0], a["plain_log_scale"], 1, level))
        if op == "add_pt":
            self._count("add_pt", level, parts)
            return cc.EvalAdd(x, self._shared.encode(operands[1][0], operand.log_scale, x.GetNoiseScaleDeg(), level))
        if op == "mul_int":
            return self._times(x, a["factor"], level, parts)
        if op == "mul_i":
            self._count("mul_scalar", level, parts)
            return self._settled(self._times_i(self._in_whole_chain(x, level)), self._ring.levels, level)
        if op == "negate":
            self._count("add", level, parts)
            return cc.EvalNegate(x)
        if op == "rescale":
            self._count("rescale", level, parts)
            return self._settled(cc.Rescale(x), level, level - 1)
        if op == "level_drop":
            return self._settled(cc.LevelReduce(x, None, a["levels"]), level, level - a["levels"])
        if op == "bootstrap":
            return self._bootstrap(node, operands)
        if op == "conjugate":
            whole = self._ring.levels
            return self._settled(self._conjugate(self._in_whole_chain(x, level), level), whole, level)
        if op in ("real_part", "imaginary_part"):
            return self._part(node, x)
        if op == "relinearize":
            self._count("relinearize", level, parts)
            return cc.Relinearize(x)
        raise ProgramError(f"the OpenFHE backend does not evaluate {op}", where=node.loc)

    def _in_whole_chain(self, x: Any, level: int) -> Any:
        """The ciphertext where the keys of bootstraps are."""
        if self._shared.ring_at(level) == self._ring:
            return x
        return moved(x, self._ring, level, chain_tag(str(x.GetKeyTag()), self._ring, self._ring))

    def _bootstrap(self, node: Node, operands: Sequence[Any]) -> Any:
        operand, kind, slots = node.inputs[0].type, node.type, node.attrs["slots"]
        assert isinstance(operand, CipherType)
        assert isinstance(kind, CipherType)
        x, *others = (self._in_whole_chain(each, operand.level) for each in operands)
        for other in others:
            self._count("mul_scalar", operand.level, 2)
            self._count("add", operand.level, 2)
            x = self._shared.whole_context.EvalAdd(x, self._times_i(other))
        paired = self._shared.pairs(slots)
        self._count("bootstrap_pair" if paired else "bootstrap", operand.level, slots)
        result = bootstrapping.bootstrap(self._ring, x, slots, paired)
        surplus = self._ring.bootstrap_level - kind.level
        if surplus > 0:
            result = self._shared.whole_context.LevelReduce(result, None, surplus)
        return self._settled(result, self._ring.levels, kind.level)

    def _times_i(self, x: Any) -> Any:
        """The product with the imaginary unit, exact: a monomial, so that neither scale nor level is spent."""
        product = self._shared.whole_context.EvalMult(x, complex(0.0, 2.0**-self._ring.scale_bits))
        product.SetNoiseScaleDeg(x.GetNoiseScaleDeg())
        product.SetScalingFactor(x.GetScalingFactor())
        return product

    def _conjugate(self, x: Any, level: int) -> Any:
        """The conjugate of a ciphertext of the whole chain."""
        self._count("conjugate", level, 2)
        return self._shared.whole_context.EvalRotate(x, conjugation_index(self._ring))

    def _part(self, node: Node, x: Any) -> Any:
        """z + conj(z), or i (conj(z) - z)."""
        assert isinstance(node.type, CipherType)
        level, cc = node.type.level, self._shared.whole_context
        whole = self._in_whole_chain(x, level)
        conjugate = self._conjugate(whole, level)
        self._count("add", level, 2)
        if node.op == "real_part":
            return self._settled(cc.EvalAdd(whole, conjugate), self._ring.levels, level)
        self._count("mul_scalar", level, 2)
        part = self._times_i(cc.EvalSub(conjugate, whole))
        return self._settled(part, self._ring.levels, level)

    def _settled(self, x: Any, before: int, level: int) -> Any:
        """A value whose level has changed, in the part of the chain where it belongs now."""
        ring = self._shared.ring_at(level)
        if ring == self._shared.ring_at(before):
            return x
        return moved(x, ring, level, chain_tag(str(x.GetKeyTag()), self._ring, ring))

    def _scalar(self, value: float, log_scale: float, degree: int) -> float:
        return float(value * 2.0 ** (log_scale - degree * self._ring.scale_bits))

    def _vector(self, node: Node, log_scale: float, degree: int, level: int) -> Any:
        """The plaintext that a node adds or multiplies with.

        Numbers are encoded as vectors too: OpenFHE's own sum with a number takes the scale of a product for
        2**scale_bits times the prime, which is off by the distance of that prime from the power of two.
        """

        def make() -> Any:
            if node.op == "add_scalar":
                values = np.full(self._ring.slots, node.attrs["value"])
            elif node.op == "lincomb":
                values = np.full(self._ring.slots, node.attrs["constant"])
            else:
                values = np.resize(self._program.array(node.attrs["value"]), self._ring.slots)
            return self._shared.encode(values, log_scale, degree, level)

        return self._shared.cache.get(self._shared.index[node], make, self._shared.plaintext_bytes(level))

    def _times(self, x: Any, factor: int, level: int, parts: int) -> Any:
        """A small whole multiple by doubling."""
        cc, total, power, rest = self._shared.context_at(level), None, x, abs(factor)
        while rest:
            if rest & 1:
                if total is not None:
                    self._count("add", level, parts)
                total = power if total is None else cc.EvalAdd(total, power)
            rest >>= 1
            if rest:
                self._count("add", level, parts)
                power = cc.EvalAdd(power, power)
        if total is None:
            raise ProgramError("a product with zero would be no ciphertext", hint="use a constant instead")
        return cc.EvalNegate(total) if factor < 0 else total

    def _combination(self, node: Node, operands: Sequence[Any]) -> Any:
        a = node.attrs
        assert isinstance(node.type, CipherType)
        level, total = node.type.level, None
        cc = self._shared.context_at(level)
        for x, weight, plain in zip(operands, a["weights"], a["plain_log_scales"], strict=True):
            self._count("mul_scalar", level, 2)
            term = cc.EvalMult(x, self._scalar(weight, plain, 1))
            if total is None:
                total = term
            else:
                self._count("accumulate", level, 2)
                cc.EvalAddInPlace(total, term)
        assert total is not None
        if a["constant"]:
            self._count("add_plain", level, 2)
            constant = self._vector(node, node.type.log_scale, total.GetNoiseScaleDeg(), level)
            total = cc.EvalAdd(total, constant)
        return total

    def _rotate(self, x: Any, amount: int, level: int, hoisted: Any = None) -> Any:
        if hoisted is not None:
            self._count("rotate_hoisted", level, 2)
            return self._shared.context_at(level).EvalFastRotation(x, amount, 2 * self._ring.ring_dim, hoisted)
        self._count("rotate", level, 2)
        return self._shared.context_at(level).EvalRotate(x, amount)

    def _decompose(self, x: Any, level: int) -> Any:
        self._count("decompose", level, 2)
        return self._shared.context_at(level).EvalFastRotationPrecompute(x)

    def _rotate_node(self, node: Node, x: Any) -> Any:
        assert isinstance(node.type, CipherType)
        source, level = node.inputs[0], node.type.level
        amount = node.attrs["amount"] % self._ring.slots
        rotations = self._shared.rotations[source]
        if rotations < 2:
            return self._rotate(x, amount, level)
        key = self._shared.index[source]
        if key not in self._digits:
            self._digits[key] = self._decompose(x, level), rotations
        digits, left = self._digits.pop(key)
        if left > 1:
            self._digits[key] = (digits, left - 1)
        return self._rotate(x, amount, level, digits)

    def _transform(self, node: Node, operands: Sequence[Any]) -> Any:
        """Hoisted baby steps, products with the diagonals, giant steps."""
        a, x = node.attrs, operands[0]
        assert isinstance(node.type, CipherType)
        level = node.type.level
        cc = self._shared.context_at(level)
        diagonals = self._shared.diagonals(node)
        groups = transform_terms(diagonals, a["baby_steps"], a["giant_steps"])
        rotated = [self._rotated(node, position, x) for position, x in enumerate(operands)]
        plaintexts = self._shared.transform_encodings(node)
        total = None
        for g, terms in groups.items():
            part = None
            for position, b, _ in terms:
                self._count("mul_plain", level, 2)
                term = cc.EvalMult(rotated[position][b], self._plaintext(next(plaintexts)))
                if part is None:
                    part = term
                else:
                    self._count("accumulate", level, 2)
                    cc.EvalAddInPlace(part, term)
            for step in self._shared.paths.get(g, (g,) if g else ()):
                part = self._rotate(part, step, level)
            if total is None:
                total = part
            else:
                self._count("accumulate", level, 2)
                cc.EvalAddInPlace(total, part)
        if total is None:
            # A map that is zero everywhere: a ciphertext of zeros of the right level and scale.
            self._count("mul_plain", level, 2)
            total = cc.EvalMult(x, self._shared.encode(np.zeros(self._ring.slots), a["plain_log_scales"][0], 1, level))
        return total

    def _plaintext(self, encoding: Encoding) -> Any:
        """A diagonal as it is kept, or as it was encoded ahead."""
        shared = self._shared
        # Once plaintexts are encoded ahead, the cache takes no more: what is ahead was chosen by what it had.
        if encoding.key in shared.cache or (not shared.ahead.begun and shared.cache.has_room(encoding.size)):
            return shared.cache.get(encoding.key, encoding.make, encoding.size)
        return encoding.make() if self._ahead is None else self._ahead.take(encoding)

    def _rotated(self, node: Node, position: int, x: Any) -> dict[int, Any]:
        """The baby steps of one operand; those that a later transform of the same value reads too are kept for it."""
        steps, source = self._shared.babies[node, position], self._shared.index[node.inputs[position]]
        assert isinstance(node.type, CipherType)
        level = node.type.level
        digits, kept = self._kept.pop(source, (None, {}))
        rotated: dict[int, Any] = {0: x, **kept}
        for b in steps.make:
            if b not in self._shared.paths:
                if steps.hoisted and digits is None:
                    digits = self._decompose(x, level)
                rotated[b] = self._rotate(x, b, level, digits)
                continue
            value = x
            for step in self._shared.paths[b]:
                value = self._rotate(value, step, level)
            rotated[b] = value
        if not steps.last:
            self._kept[source] = (digits, {b: rotated[b] for b in steps.keep})
        return rotated

    def _count(self, primitive: str, level: int, parts: int) -> None:
        self.calls[primitive, level, parts] += 1
