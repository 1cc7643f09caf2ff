"""What a backend does, and the one loop that executes a scheduled program on any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from heliograph.ir import Node

C = TypeVar("C")

# (primitive, level, parts): what was called, at which level, on ciphertexts of how many parts.
Call = tuple[str, int, int]
# Bootstraps of one value and of two; their third number is that of their slots.
BOOTSTRAPS = ("bootstrap", "bootstrap_pair")
# Calls that work in the whole chain whatever their level: the keys of bootstraps are there.
IN_WHOLE_CHAIN = (*BOOTSTRAPS, "conjugate")
# Calls that move slots; a key switch each.
ROTATIONS = ("rotate", "rotate_hoisted", "conjugate")
# Products with what the server knows: an encoded vector, a number, a plain input.
PLAIN_PRODUCTS = ("mul_plain", "mul_scalar", "mul_pt")


class Run(Protocol[C]):
    """One execution of a program: it evaluates the nodes, and holds what belongs to this execution alone.

    `calls` counts the homomorphic primitives executed, by level, as they leave for the library: that is what the floor
    of a run is the sum of.
    """

    calls: Counter[Call]

    def evaluate(self, node: Node, operands: Sequence[C]) -> C:
        """The node's value; raises RangeError or ProgramError where the scheme would give nonsense."""
        ...

    def close(self) -> None:
        """Called when the execution is over, or broken off."""
        ...


class Evaluator(Protocol[C]):
    """What all executions of a program share; holds evaluation keys, never a secret key."""

    def begin(self) -> Run[C]:
        """A run of its own for one execution."""
        ...

    def describe(self, value: C) -> tuple[int, int]:
        """(level, parts) of a ciphertext as the backend has it: compared with the plan after every node."""
        ...
