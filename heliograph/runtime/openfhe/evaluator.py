"""Evaluation of nodes on OpenFHE ciphertexts: the server's half. No secret key is ever here."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from heliograph.chains import chain_at, key_chains
from heliograph.errors import ProgramError
from heliograph.execution.backend import Call
from heliograph.ir import Array, CipherType, Node, Program
from heliograph.ir.diagonals import DiagonalMap
from heliograph.ir.slot_ops import transform_diagonals
from heliograph.passes.bsgs import BabySteps, share_babies, transform_terms
from heliograph.runtime.openfhe import bootstrapping
from heliograph.runtime.openfhe.context import make_context, working_context
from heliograph.runtime.openfhe.encapsulation import conjugation_index
from heliograph.runtime.openfhe.plaintexts import EncodeAhead, Encoding, PlaintextCache
from heliograph.runtime.openfhe.serial import retagged
from heliograph.runtime.openfhe.template import meaningless, moved, transferred
from heliograph.target import Ring

DEFAULT_CACHE_BYTES = 1 << 30
# Between the name of the keys of the whole chain and the level of a lower part; no client's name has it.
_LEVEL_MARK = "/"


def chain_tag(tag: str, whole: Ring, ring: Ring) -> str:
    """The name of the keys of a chain: that of the whole chain, with the level after it for a lower part."""
    base = tag.partition(_LEVEL_MARK)[0]
    return base if ring == whole else f"{base}{_LEVEL_MARK}{ring.levels}"


class OpenFHEEvaluator:
    """Evaluates the nodes of one executable program; evaluation keys are found by the tag that ciphertexts carry.

    Where the program has keys for lower parts of its chain, every ciphertext is in the context of the lowest part that
    holds its level, under that part's tag (see `chain_tag`); it moves when its level crosses the border.
    """

    def __init__(self, program: Program, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.program = program
        self.chains = key_chains(program.metadata)
        self.ring = self.chains[0].ring
        self._contexts = {chain.ring: working_context(chain.ring) for chain in self.chains}
        self.calls: Counter[Call] = Counter()
        # Half of it for plaintexts that stay, half for those that are encoded ahead of their use.
        self.cache = PlaintextCache(cache_bytes - cache_bytes // 2)
        self.ahead = EncodeAhead(self._encodings, cache_bytes // 2)
        self._paths = {int(a): tuple(path) for a, path in program.metadata["rotation_paths"].items()}
        self._order = 2 * self.ring.ring_dim
        self._index = {node: i for i, node in enumerate(program.nodes)}
        # Rotations of one value share its decomposition: how many are still to come, and of which ciphertext.
        self._rotations = Counter(node.inputs[0] for node in program.nodes if node.op == "rotate")
        # Called with a node's position before it is evaluated, where its keys may have to be loaded.
        self.before: Callable[[int], None] | None = None
        self._digits: dict[int, tuple[Any, Any, int]] = {}
        # The same for transforms: who makes which rotations, and of each ciphertext the digits and rotations still needed.
        self._babies: dict[tuple[Node, int], BabySteps] | None = None
        self._shared: dict[int, tuple[Any, Any, dict[int, Any]]] = {}

    def describe(self, value: Any) -> tuple[int, int]:
        mark = str(value.GetKeyTag()).partition(_LEVEL_MARK)[2]
        levels = int(mark) if mark else self.ring.levels
        return levels - value.GetLevel(), value.NumberCiphertextElements()

    def prepare(self) -> None:
        """Set up the bootstraps of the program, before its first evaluation; later calls cost nothing."""
        for slots in self.program.metadata.get("bootstrap_slots", ()):
            bootstrapping.prepare(self.ring, slots, self._pairs(slots))

    def adopt(self, x: Any, level: int, tag: str) -> Any:
        """A ciphertext of the whole chain as evaluation takes it, under a tag under which the keys are installed."""
        ring = self.ring_at(level)
        if ring == self.ring and ring.bootstrap is None:
            return retagged(x, tag)
        return moved(x, ring, level, chain_tag(tag, self.ring, ring))

    def released(self, x: Any, tag: str) -> Any:
        """Any value of an evaluation as a ciphertext of the whole chain under the key named `tag`, for its owner."""
        return transferred(x, self.ring, self.describe(x)[0], tag, make_context)

    def example(self, level: int, tag: str) -> Any:
        """A ciphertext of that level, of no meaning, for timing operations; `tag` as for `adopt`."""
        ring = self.ring_at(level)
        return meaningless(ring, level, chain_tag(tag, self.ring, ring))

    def ring_at(self, level: int) -> Ring:
        """The lowest part of the chain that holds the level."""
        return chain_at(self.chains, level).ring

    def context_at(self, level: int) -> Any:
        """The context in which ciphertexts of that level are."""
        return self._contexts[self.ring_at(level)]

    def _settled(self, x: Any, before: int, level: int) -> Any:
        """A value whose level has changed, in the part of the chain where it belongs now."""
        ring = self.ring_at(level)
        if ring == self.ring_at(before):
            return x
        return moved(x, ring, level, chain_tag(str(x.GetKeyTag()), self.ring, ring))

    def _count(self, primitive: str, level: int, parts: int) -> None:
        self.calls[primitive, level, parts] += 1

    def _encode(self, values: Array, log_scale: float, degree: int, level: int) -> Any:
        """A plaintext whose true scale is 2**log_scale; OpenFHE is told the nominal one of that degree."""
        factor = 2.0 ** (log_scale - degree * self.ring.scale_bits)
        context, slots = self.context_at(level), values.size
        spent = self.ring_at(level).levels - level
        scaled = np.ascontiguousarray(values * factor)
        try:
            return context.MakeCKKSPackedPlaintext(scaled, degree, spent, None, slots)
        except RuntimeError as error:
            # OpenFHE refuses what would be rounded to zero everywhere; zero is then what it is.
            if "Scaling factor too small" not in str(error):
                raise
            return context.MakeCKKSPackedPlaintext(np.zeros_like(scaled), degree, spent, None, slots)

    def _scalar(self, value: float, log_scale: float, degree: int) -> float:
        return float(value * 2.0 ** (log_scale - degree * self.ring.scale_bits))

    def evaluate(self, node: Node, operands: Sequence[Any]) -> Any:
        if self.before is not None:
            self.before(self._index[node])
        x, a, op = operands[0], node.attrs, node.op
        operand = node.inputs[0].type
        assert isinstance(operand, CipherType)
        level, parts = operand.level, operand.parts
        cc = self.context_at(level)
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
            return cc.EvalMult(x, self._encode(operands[1][0], a["plain_log_scale"], 1, level))
        if op == "add_pt":
            self._count("add_pt", level, parts)
            return cc.EvalAdd(x, self._encode(operands[1][0], operand.log_scale, x.GetNoiseScaleDeg(), level))
        if op == "mul_int":
            return self._times(x, a["factor"], level, parts)
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
        if op in ("real_part", "imaginary_part"):
            return self._part(node, x)
        if op == "relinearize":
            self._count("relinearize", level, parts)
            return cc.Relinearize(x)
        raise ProgramError(f"the OpenFHE backend does not evaluate {op}", where=node.loc)

    def _pairs(self, slots: int) -> bool:
        """Whether bootstraps of so many slots keep imaginary parts."""
        return slots in self.program.metadata.get("paired_slots", ())

    def _in_whole_chain(self, x: Any, level: int) -> Any:
        """The ciphertext where the keys of bootstraps are."""
        if self.ring_at(level) == self.ring:
            return x
        return moved(x, self.ring, level, chain_tag(str(x.GetKeyTag()), self.ring, self.ring))

    def _bootstrap(self, node: Node, operands: Sequence[Any]) -> Any:
        operand, kind, slots = node.inputs[0].type, node.type, node.attrs["slots"]
        assert isinstance(operand, CipherType)
        assert isinstance(kind, CipherType)
        x, *others = (self._in_whole_chain(each, operand.level) for each in operands)
        for other in others:
            self._count("mul_scalar", operand.level, 2)
            self._count("add", operand.level, 2)
            x = self._contexts[self.ring].EvalAdd(x, self._times_i(other))
        paired = self._pairs(slots)
        self._count("bootstrap_pair" if paired else "bootstrap", operand.level, slots)
        result = bootstrapping.bootstrap(self.ring, x, slots, paired)
        surplus = self.ring.bootstrap_level - kind.level
        if surplus > 0:
            result = self._contexts[self.ring].LevelReduce(result, None, surplus)
        return self._settled(result, self.ring.levels, kind.level)

    def _times_i(self, x: Any) -> Any:
        """The product with the imaginary unit, exact: a monomial, so that neither scale nor level is spent."""
        product = self._contexts[self.ring].EvalMult(x, complex(0.0, 2.0**-self.ring.scale_bits))
        product.SetNoiseScaleDeg(x.GetNoiseScaleDeg())
        product.SetScalingFactor(x.GetScalingFactor())
        return product

    def _part(self, node: Node, x: Any) -> Any:
        """z + conj(z), or i (conj(z) - z)."""
        assert isinstance(node.type, CipherType)
        level, cc = node.type.level, self._contexts[self.ring]
        whole = self._in_whole_chain(x, level)
        self._count("conjugate", level, 2)
        self._count("add", level, 2)
        conjugate = cc.EvalRotate(whole, conjugation_index(self.ring))
        if node.op == "real_part":
            return self._settled(cc.EvalAdd(whole, conjugate), self.ring.levels, level)
        self._count("mul_scalar", level, 2)
        part = self._times_i(cc.EvalSub(conjugate, whole))
        return self._settled(part, self.ring.levels, level)

    def add_vector(self, x: Any, values: Array, kind: CipherType) -> Any:
        """The ciphertext of that type plus a vector; not one of the program's calls."""
        plain = self._encode(values, kind.log_scale, x.GetNoiseScaleDeg(), kind.level)
        return self.context_at(kind.level).EvalAdd(x, plain)

    def _vector(self, node: Node, log_scale: float, degree: int, level: int) -> Any:
        """The plaintext that a node adds or multiplies with.

        Numbers are encoded as vectors too: OpenFHE's own sum with a number takes the scale of a product for
        2**scale_bits times the prime, which is off by the distance of that prime from the power of two.
        """

        def make() -> Any:
            if node.op == "add_scalar":
                values = np.full(self.ring.slots, node.attrs["value"])
            elif node.op == "lincomb":
                values = np.full(self.ring.slots, node.attrs["constant"])
            else:
                values = np.resize(self.program.array(node.attrs["value"]), self.ring.slots)
            return self._encode(values, log_scale, degree, level)

        return self.cache.get(self._index[node], make, self._plaintext_bytes(level))

    def _plaintext_bytes(self, level: int) -> int:
        # One polynomial, and the complex vector that it was encoded from.
        return self.ring.ciphertext_bytes(level, parts=1) + 16 * self.ring.slots

    def _times(self, x: Any, factor: int, level: int, parts: int) -> Any:
        """A small whole multiple by doubling."""
        cc, total, power, rest = self.context_at(level), None, x, abs(factor)
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
        cc = self.context_at(level)
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
            return self.context_at(level).EvalFastRotation(x, amount, self._order, hoisted)
        self._count("rotate", level, 2)
        return self.context_at(level).EvalRotate(x, amount)

    def _decompose(self, x: Any, level: int) -> Any:
        self._count("decompose", level, 2)
        return self.context_at(level).EvalFastRotationPrecompute(x)

    def _rotate_node(self, node: Node, x: Any) -> Any:
        assert isinstance(node.type, CipherType)
        source, level = node.inputs[0], node.type.level
        amount = node.attrs["amount"] % self.ring.slots
        if self._rotations[source] < 2:
            return self._rotate(x, amount, level)
        key = self._index[source]
        of, digits, left = self._digits.pop(key, (None, None, self._rotations[source]))
        # An evaluation that was broken off leaves digits of its own ciphertext behind.
        if of is not x:
            digits, left = self._decompose(x, level), self._rotations[source]
        if left > 1:
            self._digits[key] = (x, digits, left - 1)
        return self._rotate(x, amount, level, digits)

    def _transform(self, node: Node, operands: Sequence[Any]) -> Any:
        """Hoisted baby steps, products with the diagonals, giant steps."""
        a, x = node.attrs, operands[0]
        assert isinstance(node.type, CipherType)
        level = node.type.level
        cc = self.context_at(level)
        diagonals = self._diagonals(node)
        groups = transform_terms(diagonals, a["baby_steps"], a["giant_steps"])
        rotated = [self._rotated(node, position, x) for position, x in enumerate(operands)]
        plaintexts = self._transform_encodings(node)
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
            for step in self._paths.get(g, (g,) if g else ()):
                part = self._rotate(part, step, level)
            if total is None:
                total = part
            else:
                self._count("accumulate", level, 2)
                cc.EvalAddInPlace(total, part)
        if total is None:
            # A map that is zero everywhere: a ciphertext of zeros of the right level and scale.
            self._count("mul_plain", level, 2)
            total = cc.EvalMult(x, self._encode(np.zeros(self.ring.slots), a["plain_log_scales"][0], 1, level))
        return total

    def _plaintext(self, encoding: Encoding) -> Any:
        """A diagonal as it is kept, or as it was encoded ahead."""
        # Once plaintexts are encoded ahead, the cache takes no more: what is ahead was chosen by what it had.
        if encoding.key in self.cache or (not self.ahead.begun and self.cache.has_room(encoding.size)):
            return self.cache.get(encoding.key, encoding.make, encoding.size)
        return self.ahead.take(encoding)

    def _transform_encodings(self, node: Node) -> Iterator[Encoding]:
        """The diagonals of a transform in the order in which they are used."""
        a, number, diagonals = node.attrs, self._index[node], self._diagonals(node)
        assert isinstance(node.type, CipherType)
        level = node.type.level
        size = self._plaintext_bytes(level)
        for g, terms in transform_terms(diagonals, a["baby_steps"], a["giant_steps"]).items():
            for position, b, offset in terms:

                def make(position: int = position, b: int = b, offset: int = offset, g: int = g) -> Any:
                    # What repeats over the slots is encoded in as many slots as it fills: a smaller transform.
                    values = np.roll(diagonals[position].one_run(offset, g + b), g)
                    return self._encode(values, a["plain_log_scales"][position], 1, level)

                yield Encoding((number, position, offset), make, size)

    def _encodings(self, key: Hashable) -> Iterator[Encoding]:
        """The diagonals of the program that are not kept, from that of the key on, and over again."""
        assert isinstance(key, tuple)
        nodes = [node for node in self.program.nodes if node.op == "linear_transform"]
        start = [self._index[node] for node in nodes].index(key[0])
        there = False
        for node in itertools.chain(nodes[start:], itertools.cycle(nodes)):
            for encoding in self._transform_encodings(node):
                there = there or encoding.key == key
                if there and encoding.key not in self.cache:
                    yield encoding

    def _diagonals(self, node: Node) -> list[DiagonalMap]:
        return transform_diagonals(node.attrs, self.program.matrix, self.ring.slots)

    def _rotated(self, node: Node, position: int, x: Any) -> dict[int, Any]:
        """The baby steps of one operand; those that a later transform of the same value reads too are kept for it."""
        if self._babies is None:
            self._babies = share_babies(self.program.nodes, self._diagonals, self._paths)
        steps, source = self._babies[node, position], self._index[node.inputs[position]]
        assert isinstance(node.type, CipherType)
        level = node.type.level
        of, digits, kept = self._shared.pop(source, (None, None, {}))
        rotated: dict[int, Any] = {0: x, **(kept if of is x else {})}
        wanted = steps.make
        # An evaluation that was broken off leaves rotations of its own ciphertext behind: nothing of it is taken.
        if of is not x:
            digits, wanted = None, tuple(b for b in steps.all if b)
        for b in wanted:
            if b not in self._paths:
                if steps.hoisted and digits is None:
                    digits = self._decompose(x, level)
                rotated[b] = self._rotate(x, b, level, digits)
                continue
            value = x
            for step in self._paths[b]:
                value = self._rotate(value, step, level)
            rotated[b] = value
        if not steps.last:
            self._shared[source] = (x, digits, {b: rotated[b] for b in steps.keep})
        return rotated
