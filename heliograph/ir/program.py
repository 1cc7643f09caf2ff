"""Programs: the one data structure that every pass reads and returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TypeAlias

import numpy as np

from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.ir.interface import Interface
from heliograph.ir.node import Array, Attr, Constant, Matrix, Node, Stage
from heliograph.ir.ranges import RangeEntry

# The number of inputs and outputs that a program's one-line summary names.
_SHOWN = 4
# The nodes that a notebook shows.
_SHOWN_NODES = 40

# Computes the impact of each secret activation of a tensor-stage program, in program order: A_i is the mean over samples of
# sum_j (dLoss/da_ij)^2 (OLA, section 2.2). The samples are one array for each input, with a leading sample axis.
Gradients: TypeAlias = "Callable[[Program, Sequence[Array]], Sequence[float]]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a program with the model from which it was traced.

    samples: the number of different samples on which both were run; 0 if the comparison was switched off.
    difference: the largest difference of an output as a share of its largest value, rounded up to a power of ten.
    ties: the number of samples with an answer that rounding decides; these do not count.
    """

    samples: int
    difference: float = 0.0
    ties: int = 0

    @classmethod
    def seen(cls, samples: int, difference: float, ties: int = 0) -> Comparison:
        """The comparison, with the difference rounded up, as its digits differ between machines."""
        return cls(samples, float(10.0 ** math.ceil(math.log10(max(difference, 1e-16)))), ties)


@dataclass(frozen=True, slots=True)
class Program:
    """A straight-line program: `nodes` in an order in which every input comes first; `inputs` are among them.

    `constants` holds arrays by name. `interface` describes inputs and outputs, `parameters` the plan for
    CKKS (None before planning), `ranges` the intervals of the polynomials' inputs, which nodes refer to by number.
    A pass returns a new program and shares the nodes that it did not change.
    """

    name: str
    stage: Stage
    inputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    output_names: tuple[str, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    interface: Interface = field(default_factory=Interface)
    parameters: Parameters | None = None
    ranges: tuple[RangeEntry, ...] = ()
    # Samples of the inputs, in input order, each with a leading sample axis; not part of the text.
    calibration: tuple[Array, ...] = ()
    # The front end's computation of impacts for programs like this one. Without it they come from finite differences.
    gradients: Gradients | None = field(default=None, compare=False)
    # The comparison with the model that the front end read; None without a model.
    comparison: Comparison | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{node.attrs['name']}: {node.type}" for node in self.inputs[:_SHOWN])
        outputs = ", ".join(
            f"{name}: {node.type}" for name, node in zip(self.output_names[:_SHOWN], self.outputs, strict=False)
        )
        return f"<Program {self.name!r}, {self.stage.value}, {len(self.nodes)} nodes: ({inputs}) -> ({outputs})>"

    def _repr_html_(self) -> str:
        """The view in a notebook: what the program takes and gives, and its first nodes."""
        from heliograph.ir.text import print_node

        names, more = self.names(), len(self.nodes) - _SHOWN_NODES
        lines = [print_node(node, names) for node in self.nodes[:_SHOWN_NODES]]
        lines += [f"... {more} more"] * (more > 0)
        return f"<p>{escape(repr(self))}</p><pre>{escape(chr(10).join(lines))}</pre>"

    @property
    def planned(self) -> Parameters:
        """The parameters of a program whose levels are planned."""
        assert self.parameters is not None, f"the levels of a {self.stage.value} program are not planned"
        return self.parameters

    @property
    def ring(self) -> Ring:
        """The ring of a program whose levels are planned."""
        return self.planned.ring

    @property
    def log_primes(self) -> tuple[float, ...]:
        """log2 of the primes of the chain, none before levels are planned."""
        return () if self.parameters is None else self.parameters.ring.log_primes

    def array(self, name: Attr) -> Array:
        """The dense constant of that name."""
        value = self.constants[str(name)]
        assert isinstance(value, np.ndarray), f"constant {name} is {type(value).__name__}"
        return value

    def linear_map(self, name: Attr) -> Matrix:
        """The matrix of that name, in any form."""
        value = self.constants[str(name)]
        assert isinstance(value, Matrix), f"constant {name} is {type(value).__name__}"
        return value

    def users(self) -> dict[Node, list[Node]]:
        """The readers of each node, once per operand position, in program order."""
        table: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand in node.inputs:
                table[operand].append(node)
        return table

    def names(self) -> dict[Node, str]:
        """The printed name of each node: `%0`, `%1`, ... in program order."""
        return {node: f"%{index}" for index, node in enumerate(self.nodes)}

    def __str__(self) -> str:
        from heliograph.ir.text import print_program

        return print_program(self)
