"""One run of a program on any backend, with its own state. The evaluation rule of each op is in the table of ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic

from heliograph.errors import ProgramError
from heliograph.execution.counted import Counted
from heliograph.execution.plaintexts import EncodeAhead
from heliograph.execution.protocol import C, Call, Primitives
from heliograph.ir import CipherType, Node
from heliograph.ir.ops.slots.bootstraps import fourier_factor
from heliograph.ir.ops.slots.runs import cipher
from heliograph.ir.ops.table import OPS, Role, role_of

if TYPE_CHECKING:
    from heliograph.execution.evaluator import Evaluator, Transform


class _Diagonals(Sequence[Any]):
    """The plaintexts of a transform, each made or taken from the cache where it is read: once, and in order."""

    def __init__(self, run: Run[Any], transform: Transform[Any]) -> None:
        self._run, self._transform = run, transform

    def __len__(self) -> int:
        return len(self._transform.terms)

    def __getitem__(self, place: Any) -> Any:
        return self._run.diagonal(self._transform, *self._transform.terms[place])


class Run(Generic[C]):
    """Evaluates the nodes of a program once, in order, in one thread.

    `calls` counts the primitives of this run as they go to the backend; the floor of a run is the sum over them.
    `ahead` encodes plaintexts before they are used.
    """

    def __init__(self, shared: Evaluator[C], ahead: EncodeAhead | None) -> None:
        self.calls: Counter[Call] = Counter()
        self.shared, self._ahead = shared, ahead
        self._at: dict[tuple[int, int], Counted[C]] = {}
        # Rotations of one value share its decomposition: the digits, and the number of rotations still to come.
        self._digits: dict[int, tuple[Any, int]] = {}
        # The conjugate of each complex value of which one part is still to come.
        self._conjugates: dict[int, Any] = {}
        # The same for transforms: for each value, the digits and the rotations that later transforms read.
        self._kept: dict[int, tuple[Any, dict[int, C]]] = {}
        # For each stack and matrix, the sums still to be read, by row: the remaining reads, and the value.
        self._sums: dict[tuple[Node, str, float], tuple[Counter[int], dict[int, C]]] = {}

    def close(self) -> None:
        """End the run, finished or aborted, and return the thread that encodes ahead."""
        self.shared.end(self._ahead)
        self._ahead = None

    def evaluate(self, node: Node, operands: Sequence[Any]) -> C:
        """The node's value. Raises RangeError or ProgramError where the scheme would give nonsense."""
        if self.shared.before is not None:
            self.shared.before(self.shared.index[node])
        rule = OPS[node.op].run if node.op in OPS else None
        if rule is None:
            raise ProgramError(f"there is no rule that evaluates {node.op} on ciphertexts", where=node.loc)
        try:
            value: C
            if role_of(node) is Role.LEVEL and isinstance(operands[0], list):
                # A stack: apply the rule to each of its ciphertexts.
                value = [rule(self, node, [each]) for each in operands[0]]  # type: ignore[assignment]
            else:
                value = rule(self, node, operands)
        except ProgramError as error:
            if error.where:
                raise
            raise type(error)(error.what, where=node.loc, why=error.why, hint=error.hint) from None
        except Exception as error:
            why = self.shared.refusal(error)
            if why is None:
                raise
            raise ProgramError(f"the backend does not evaluate this {node.op}", where=node.loc, why=why) from None
        return value

    def at(self, kind: CipherType) -> Counted[C]:
        """The counted primitives on ciphertexts of that level and chain."""
        found = self._at.get((kind.chain, kind.level))
        if found is None:
            found = self._at[kind.chain, kind.level] = Counted(
                self.part(kind.chain), kind.level, self.calls, kind.chain
            )
        return found

    def part(self, chain: int) -> Primitives[C]:
        """The primitives in one chain of the parameters."""
        return self.shared.part(chain)

    def divides(self, node: Node) -> bool:
        """Whether the value of a key switch is divided by the special primes before it is read.

        A rescale that alone reads it may divide by these and its own prime at once. Calls are counted and priced as if
        every backend did; a backend that does not is right too.
        """
        return node not in self.shared.undivided

    def constant(self, node: Node, level: int, make: Callable[[], Any]) -> Any:
        """The plaintext summand or factor of a node, kept between runs."""
        return self.shared.cache.get(self.shared.index[node], make, self.shared.plaintext_bytes(level))

    def diagonal(self, transform: Transform[C], g: int, position: int, b: int, offset: int) -> Any:
        """The plaintext of one diagonal of a transform."""
        return self.shared.diagonal(transform.encoding(g, position, b, offset), self._ahead)

    def conjugation(self, node: Node, x: C) -> C:
        """The conjugate of the operand of a `real_part` or `imaginary_part`, computed once for both."""
        source, on = node.inputs[0], self.at(cipher(node))
        if self.shared.parts[source] != 2:
            return on.conjugate(x)
        key = self.shared.index[source]
        if key in self._conjugates:
            made: C = self._conjugates.pop(key)
        else:
            made = self._conjugates[key] = on.conjugate(x)
        return made

    def rotation(self, node: Node, x: C) -> C:
        """The value of a `rotate`."""
        source = node.inputs[0]
        on, amount = self.at(cipher(node)), node.attrs["amount"] % self.shared.ring.slots
        if not amount:
            return x
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
        """The rotations of one operand of a transform; those that a later transform of the same value reads stay."""
        steps, source = self.shared.babies[node, position], self.shared.index[node.inputs[position]]
        on, paths = self.at(cipher(node)), self.shared.paths
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

    def factor(self, node: Node) -> Sequence[Any]:
        """The plaintexts of a `fourier_factor`'s diagonals."""
        return self.shared.factor(node)

    def fourier_factor(self, node: Node, x: C) -> C:
        """The value of a `fourier_factor`: hoisted baby steps, all sums of products, giant steps from the farthest on.

        With wide values, baby steps are not divided by the special primes, and giant steps in one part only.
        """
        on, factor, slots = self.at(cipher(node)), fourier_factor(node.attrs), self.shared.ring.slots
        wide = self.shared.is_wide(node)
        digits = None
        rotated = []
        for amount in factor.babies:
            if amount and digits is None:
                digits = on.decompose(x)
            if wide:
                rotated.append(on.rotate_wide(x, amount % slots, digits))
            else:
                rotated.append(on.rotate_hoisted(x, amount % slots, digits) if amount else x)
        groups = [[(place - group.start, place) for place in group] for group in factor.groups]
        if wide:
            *sums, total = on.wide_sums(rotated, self.factor(node), groups)
            for part in reversed(sums):
                total = on.step_wide(total, factor.giant_step % slots, part)
            return on.narrow(total, self.divides(node))
        *sums, total = on.sums_of_products(rotated, self.factor(node), groups)
        for part in reversed(sums):
            total = on.accumulate(on.rotate(total, factor.giant_step % slots), part)
        return total

    def weighted_sum(self, node: Node, values: Sequence[C]) -> C:
        """One sum of a stack: the first request computes all sums of the program with this matrix."""
        name, row, log_scale = str(node.attrs["matrix"]), node.attrs["row"], node.attrs["plain_log_scale"]
        key = node.inputs[0], name, log_scale
        if key not in self._sums:
            left = Counter(self.shared.sums[key])
            weights = self.shared.program.linear_map(name).sparse().csr()[list(left)]
            made = self.at(cipher(node)).weighted_sums(values, weights, log_scale)
            self._sums[key] = left, dict(zip(left, made, strict=True))
        left, sums = self._sums[key]
        value = sums[row]
        left[row] -= 1
        if not left[row]:
            del left[row], sums[row]
        if not left:
            del self._sums[key]
        return value

    def transform(self, node: Node, operands: Sequence[C]) -> C:
        """The value of a `linear_transform`: hoisted baby steps, products with the diagonals, giant steps.

        Where there are several giant steps, they are added in the extended basis and divided once.
        A backend may override it as a whole, and then counts the same calls (execution/walk.py).
        """
        on, paths = self.at(cipher(node)), self.shared.paths
        rotated = [self.baby_steps(node, position, x) for position, x in enumerate(operands)]
        total: Any = None
        transform = self.shared.transform(node)
        values, products = [rotated[position][b] for position, b in transform.factors], transform.products
        if not products:
            # A map that is zero everywhere: a ciphertext of zeros of the right level and scale.
            return on.mul_plain(operands[0], on.constant(0.0, node.attrs["plain_log_scales"][0]))
        parts = on.sums_of_products(values, _Diagonals(self, transform), products)
        wide = self.shared.adds_wide(node)
        for g, part in zip(transform.groups, parts, strict=True):
            *steps, last = paths.get(g, (g,))
            for step in steps:
                part = on.rotate(part, step)
            if wide:
                total = on.rotate_wide(part, last, on.decompose(part) if last else None, total)
            else:
                part = on.rotate(part, last) if last else part
                total = part if total is None else on.accumulate(total, part)
        return on.narrow(total, self.divides(node)) if wide else total
