"""Choose the rotation keys: one per amount where memory allows, fewer with composed rotations where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from heliograph.ckks.chains import Chain, chain_at
from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.ckks.ring import Ring
from heliograph.errors import Argument, PlanningError, said
from heliograph.ir import Builder, CipherType, Node, Program, Stage
from heliograph.ir.bootstraps.asked import inside_bootstraps, place_of, refreshing
from heliograph.ir.maps.steps import needed_keys, rotation_steps

# A rotation amount and the level at which it is used; a relinearization counts as an amount of its own.
Use = tuple[int, int]
RELINEARIZE = -1
# A sub-chain is used if it reduces the key bytes to at most this share (without bootstraps, or if it saves at least
# this many bytes) and makes key switches slower by no more than this factor.
_WORTH_IT = 0.75
_SAVED_BYTES = 1 << 28
_AS_FAST = 1.05


def distances(keys: Collection[int], slots: int, wanted: Collection[int]) -> dict[int, int]:
    """The fewest key rotations that compose to each wanted amount; amounts out of reach are missing."""
    reach = np.full(slots, -1, dtype=np.int32)
    reach[0] = 0
    front = np.array([0])
    steps = np.array(sorted(keys))
    targets = np.array(sorted(wanted), dtype=np.int64)
    distance = 0
    while front.size and steps.size and (reach[targets] < 0).any():
        distance += 1
        front = np.unique((front[:, None] + steps[None, :]) % slots)
        front = front[reach[front] < 0]
        reach[front] = distance
    return {int(t): int(reach[t]) for t in targets if reach[t] >= 0}


def compose(amount: int, keys: Collection[int], slots: int) -> list[int]:
    """The shortest sequence of keys that rotates by `amount`, the first of these in lexicographic order."""
    steps = sorted(keys)
    frontier: dict[int, list[int]] = {0: []}
    seen = {0}
    while frontier:
        following: dict[int, list[int]] = {}
        for place, path in frontier.items():
            for step in steps:
                target = (place + step) % slots
                if target == amount:
                    return [*path, step]
                if target not in seen:
                    seen.add(target)
                    following[target] = [*path, step]
        frontier = following
    raise PlanningError(f"no keys among {steps} compose to a rotation by {amount}")


def _reduce(uses: Mapping[int, int], slots: int, count: int) -> list[int]:
    """At most `count` keys that reach every amount, dropping the cheapest to compose first."""
    keys = set(uses) | {1 << i for i in range(slots.bit_length() - 1)}

    def price(chosen: set[int]) -> float:
        table = distances(chosen, slots, uses)
        return sum(uses[a] * table[a] for a in uses) if len(table) == len(uses) else float("inf")

    while len(keys) > count:
        prices = {key: price(keys - {key}) for key in sorted(keys)}
        best = min(prices, key=lambda key: (prices[key], key))
        if prices[best] == float("inf"):
            break
        keys.discard(best)
    return sorted(keys)


@dataclass(frozen=True, slots=True)
class SelectKeys:
    """Chooses the evaluation keys, and composes rotations without a key of their own.

    Keys reach only as high in the chain as they are used: where this saves memory and costs no time, everything up to
    some level happens in a sub-chain with its own keys (`Parameters.chains`). A composed `rotate` becomes several
    nodes; the steps of a `linear_transform` are looked up in `Parameters.rotation_paths`.

    `ring`: the whole chain.
    `key_bytes`: the bound on the bytes of the program's evaluation keys together, without those of bootstraps.
    `bootstrapping`: the sub-chains that may bootstrap, in any order. One becomes a chain if it is the lowest in which
    some bootstrap can happen; its keys are for the work between the top of the next lower chain and its own.
    """

    ring: Ring
    key_bytes: int | None = None
    costs: CostTable = field(default=BUILT_IN)
    bootstrapping: tuple[Ring, ...] = ()

    name: ClassVar[str] = "select-keys"
    needs: ClassVar[Stage] = Stage.MANAGED
    makes: ClassVar[Stage] = Stage.MANAGED

    def run(self, program: Program) -> Program:
        slots, inside = self.ring.slots, inside_bootstraps(program)
        bootstrapping = _uses((node for node in program.nodes if node in inside), slots)
        own = _uses((node for node in program.nodes if node not in inside), slots)
        amounts: Counter[int] = Counter()
        for (amount, _), count in own.items():
            if amount != RELINEARIZE:
                amounts[amount] += count
        chains = self._chains(own + bootstrapping, self._bootstrapping(program))
        keys = sorted(amounts)
        rings = [chain.ring for chain in chains]
        ours, theirs = self._split(own, rings), self._split(bootstrapping, rings)
        if self.key_bytes is not None and sum(chain.key_bytes for chain in ours) > self.key_bytes:
            keys = self._fewer(ours, amounts)
            made = (_made_of(chain, keys, slots).rotation_keys for chain in ours)
            available = tuple(
                replace(chain, rotation_keys=tuple(sorted({*few, *fixed.rotation_keys})))
                for chain, few, fixed in zip(chains, made, theirs, strict=True)
            )
        else:
            available = chains
        paths = {amount: compose(amount, keys, slots) for amount in sorted(amounts) if amount not in keys}
        builder = Builder(program.name, Stage.MANAGED, program)

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op != "rotate" or node in inside or node.attrs["amount"] % slots not in paths:
                return builder.copy(node, operands)
            value = operands[0]
            for step in paths[node.attrs["amount"] % slots]:
                value = builder.op("rotate", (value,), node.loc, amount=step)
            return value

        in_transforms = {
            step % slots for node in program.nodes if needed_keys(node).composed for step in rotation_steps(node)
        }
        in_use = {amount: tuple(path) for amount, path in paths.items() if amount in in_transforms}
        builder.parameters = replace(program.planned, chains=available, rotation_paths=in_use)
        return builder.rewrite(program, emit)

    def _bootstrapping(self, program: Program) -> list[Ring]:
        """The rings of the whole chain and of the sub-chains in which some bootstrap happens, highest first."""
        for ring in self.bootstrapping:
            assert ring == self.ring.lower(ring.levels, ring.digits, bootstraps=True), (
                f"{ring} is not a part of {self.ring}"
            )
        # Of several parts with the same level, the last one is used: the one with the fewest digits.
        rings = [self.ring, *sorted(self.bootstrapping, key=lambda ring: (-ring.levels, -ring.digits))]
        used = {place_of(node, rings) for node in refreshing(program)}
        return [ring for number, ring in enumerate(rings) if not number or number in used]

    def _chains(self, uses: Mapping[Use, int], rings: Sequence[Ring]) -> tuple[Chain, ...]:
        """The chains of these rings, with the sub-chain that saves most memory if it saves enough."""
        best = self._split(uses, rings)
        whole_ms = self._ms(uses, best)
        bytes_of_all = sum(chain.key_bytes for chain in best)
        least = _WORTH_IT * bytes_of_all
        if self.ring.bootstrap is None:
            least = min(least, bytes_of_all - _SAVED_BYTES)
        levels = sorted({level for _, level in uses})
        for level in levels[:-1] if self.ring.bootstrap is None else levels:
            if not 0 < level < rings[-1].levels:
                continue
            for digits in range(1, level + 2):
                lower = self.ring.lower(level, digits)
                if not lower.legal or not lower.secure:
                    continue
                chains = self._split(uses, [*rings, lower])
                needed = sum(chain.key_bytes for chain in chains)
                if needed < least and self._ms(uses, chains) <= _AS_FAST * whole_ms:
                    best, least = chains, needed
        return best

    def _split(self, uses: Mapping[Use, int], rings: Sequence[Ring]) -> tuple[Chain, ...]:
        bounds = [ring.levels for ring in rings[1:]] + [-1]
        chains = []
        for ring, below in zip(rings, bounds, strict=True):
            inside = {amount for amount, level in uses if below < level <= ring.levels}
            chains.append(Chain(ring, tuple(sorted(inside - {RELINEARIZE})), RELINEARIZE in inside))
        return tuple(chains)

    def _ms(self, uses: Mapping[Use, int], chains: Sequence[Chain]) -> float:
        """The milliseconds of the key switches."""
        return sum(
            count * self.costs.rotate_ms(chain_at(chains, level).ring, level) for (_, level), count in uses.items()
        )

    def _fewer(self, chains: Sequence[Chain], amounts: Mapping[int, int]) -> list[int]:
        """The rotation amounts with keys, few enough for `key_bytes`; every chain then has the keys that it uses."""
        assert self.key_bytes is not None
        per_key = sum(chain.ring.rotation_key_bytes for chain in chains if chain.rotation_keys) or 1
        fixed = sum(chain.ring.rotation_key_bytes for chain in chains if chain.relinearization_key)
        room = max(0, self.key_bytes - fixed) // per_key
        keys = _reduce(amounts, self.ring.slots, max(room, 1)) if room < len(amounts) else sorted(amounts)
        if room < len(keys):
            raise PlanningError(
                said(
                    Argument("key_bytes", str(self.key_bytes)),
                    f" holds {max(room, 0)} rotation keys; this program needs {len(keys)}",
                ),
                where="Options.key_bytes",
                why=f"a key has {self.ring.rotation_key_bytes} bytes in this ring",
                hint=f"allow at least {len(keys) * per_key + fixed} bytes",
            )
        return keys


def _uses(nodes: Iterable[Node], slots: int) -> Counter[Use]:
    """The number of rotations by each amount, and of relinearizations, at each level."""
    uses: Counter[Use] = Counter()
    for node in nodes:
        if not isinstance(node.type, CipherType):
            continue
        for step in rotation_steps(node):
            if step % slots:
                uses[step % slots, node.type.level] += 1
        if needed_keys(node).relinearization:
            uses[RELINEARIZE, node.type.level] += 1
    return uses


def _made_of(chain: Chain, keys: Collection[int], slots: int) -> Chain:
    """The chain with the keys from which its rotations are composed."""
    steps: set[int] = set()
    for amount in chain.rotation_keys:
        steps.update([amount] if amount in keys else compose(amount, keys, slots))
    return Chain(chain.ring, tuple(sorted(steps)), chain.relinearization_key)
