"""Choose the rotation keys: one per amount where memory allows, fewer with composed rotations where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heliograph.errors import PlanningError
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.verify import rotation_steps
from heliograph.target import Ring


def distances(keys: Collection[int], slots: int, wanted: Collection[int]) -> dict[int, int]:
    """For each wanted amount the fewest key rotations that compose to it (amounts out of reach are missing)."""
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
    """The shortest sequence of keys that rotates by `amount`; the first in lexicographic order of those."""
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
    """Fix the rotation keys in the metadata and compose the rotations that have none.

    `key_bytes` bounds all evaluation keys together, the relinearization key included. A `rotate` node becomes a chain;
    the steps of a `linear_transform` are looked up in `rotation_paths`.
    """

    ring: Ring
    key_bytes: int | None = None

    name: ClassVar[str] = "select-keys"
    needs: ClassVar[Stage] = Stage.MANAGED
    makes: ClassVar[Stage] = Stage.MANAGED

    def run(self, program: Program) -> Program:
        slots = self.ring.slots
        uses = Counter(step % slots for node in program.nodes for step in rotation_steps(node) if step % slots)
        relinearize = any(node.op == "relinearize" for node in program.nodes)
        keys = sorted(uses)
        if self.key_bytes is not None and uses:
            room = self.key_bytes // self.ring.rotation_key_bytes - int(relinearize)
            if room < len(keys):
                keys = _reduce(uses, slots, max(room, 1))
            if room < len(keys):
                needed = (len(keys) + relinearize) * self.ring.rotation_key_bytes
                raise PlanningError(
                    f"key_bytes={self.key_bytes} holds {max(room, 0)} rotation keys; this program needs {len(keys)}",
                    where="Options.key_bytes",
                    why=f"a key has {self.ring.rotation_key_bytes} bytes in this ring",
                    hint=f"allow at least {needed} bytes",
                )
        paths = {amount: compose(amount, keys, slots) for amount in sorted(uses) if amount not in keys}
        builder = Builder(program.name, Stage.MANAGED, program)

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op != "rotate" or node.attrs["amount"] % slots not in paths:
                return builder.copy(node, operands)
            value = operands[0]
            for step in paths[node.attrs["amount"] % slots]:
                value = builder.op("rotate", (value,), node.loc, amount=step)
            return value

        in_transforms = {
            step % slots for node in program.nodes if node.op == "linear_transform" for step in rotation_steps(node)
        }
        builder.metadata["rotation_keys"] = keys
        builder.metadata["rotation_paths"] = {str(a): path for a, path in paths.items() if a in in_transforms}
        builder.metadata["relinearization_key"] = relinearize
        return builder.rewrite(program, emit)
