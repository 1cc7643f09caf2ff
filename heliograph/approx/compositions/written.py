"""Plans that are written as nodes of the polynomial stage; their costs are the costs of these nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

from heliograph.approx.evaluate import Plan, plan_polynomial
from heliograph.ir.analysis.depth import program_depth
from heliograph.ir.builder import Builder
from heliograph.ir.node import Node, Stage
from heliograph.ir.program import Program
from heliograph.ir.writer import Writer


class Written(ABC):
    """A plan of polynomials, products and sums."""

    @abstractmethod
    def write(self, writer: Writer, x: Node, entry: int | None = None) -> Node:
        """The value at x; `entry` is the place in the range table for the polynomial that reads x."""

    def write_on_input(self, writer: Writer) -> Node:
        """The value at an input of the program."""
        return self.write(writer, writer.builder.input("x", shape=(1,)))

    @cached_property
    def program(self) -> Program:
        """The plan alone, on one input."""
        writer = Writer(Builder("plan", Stage.POLYNOMIAL))
        return writer.builder.finish([self.write_on_input(writer)])

    @property
    def depth(self) -> int:
        """Levels of the nodes, plus one for scaling the input to [-1, 1]."""
        return 1 + program_depth(self.program)

    @property
    def multiplications(self) -> int:
        """Products of ciphertexts."""
        return sum(node.op == "mul" for node in self.program.nodes) + sum(plan.products for plan in self._polynomials)

    @property
    def plaintext_multiplications(self) -> int:
        """Products with numbers, the scaling of the input included."""
        return 1 + sum(plan.scalar_products for plan in self._polynomials)

    @property
    def _polynomials(self) -> list[Plan]:
        program = self.program
        coefficients = [program.array(node.attrs["coefficients"]) for node in program.nodes if node.op == "poly"]
        return [plan_polynomial(tuple(map(float, each))) for each in coefficients]
