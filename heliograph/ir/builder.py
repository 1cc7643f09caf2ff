"""The one way to make programs: types are inferred and operands checked as each node is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heliograph.ckks.chains import Chain
from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError, at
from heliograph.ir.constants import Constants, resemblance, same
from heliograph.ir.interface import Interface
from heliograph.ir.location import UNKNOWN, Location
from heliograph.ir.node import (
    Array,
    Attr,
    ConstantName,
    Matrix,
    Node,
    Stage,
    freeze_attrs,
    live_nodes,
)
from heliograph.ir.ops.table import Context, check_call, check_stacks, check_stage, check_type, spec_of
from heliograph.ir.program import Comparison, Gradients, Program
from heliograph.ir.ranges import RangeEntry


class Builder:
    """Collects nodes and constants of a program at one stage.

    Start from nothing (front ends) or from another program's constants and records (passes). `finish` drops nodes that
    the outputs do not need, keeps inputs, and orders the rest.

    A pass that puts one node in place of each node, or of each output, calls `rewrite`. A pass that needs more (several
    nodes for one, tables beside the program) goes through the nodes itself: `copy` for unchanged nodes, inputs too,
    then `finish_as`.
    """

    def __init__(self, name: str, stage: Stage, source: Program | None = None) -> None:
        self.name = name
        self.stage = stage
        self.constants = Constants(source.constants if source else None)
        self.interface: Interface = source.interface if source else Interface()
        self.parameters: Parameters | None = source.parameters if source else None
        self.ranges: list[RangeEntry] = list(source.ranges) if source else []
        self.calibration: tuple[Array, ...] = source.calibration if source else ()
        self.gradients: Gradients | None = source.gradients if source else None
        self.comparison: Comparison | None = source.comparison if source else None
        self.inputs: list[Node] = []
        # Names of the constants given here, grouped by a key that equal constants share.
        self._given: dict[tuple[object, ...], list[str]] = {}
        self._copies: dict[str, int] = {}

    @property
    def context(self) -> Context:
        return Context(self.constants, self.parameters.ring.log_primes if self.parameters else ())

    def constant(self, value: Any, name: str = "c") -> ConstantName:
        """Register an array or sparse matrix and return its name; equal contents given here share one entry."""
        stored: Array | Matrix
        if isinstance(value, Matrix):
            stored = value
        else:
            array = np.asarray(value, order="C")  # ascontiguousarray would turn a scalar into a vector of one
            if array.dtype.kind not in "fiub":
                raise ProgramError(f"constant {name} has dtype {array.dtype}; real numbers are needed")
            if not np.isfinite(array).all():
                raise ProgramError(
                    f"constant {name} holds NaN or infinity",
                    why="the numbers of a program are finite",
                    hint="if these are weights, see whether the training diverged; give a state from before",
                )
            stored = array.astype(np.float32 if array.dtype == np.float32 else np.float64)
            stored.flags.writeable = False
        alike = self._given.setdefault(resemblance(stored), [])
        for known in alike:
            if same(self.constants[known], stored):
                return ConstantName(known)
        unique, count = name, self._copies.get(name, 1)
        if unique in self.constants and not same(self.constants[unique], stored):
            # Skip the names that earlier calls saw in use.
            while (unique := f"{name}.{count + 1}") in self.constants:
                count += 1
                if same(self.constants[unique], stored):
                    break
            self._copies[name] = count
        if unique not in self.constants:
            self.constants.put(unique, stored)
        alike.append(unique)
        return ConstantName(unique)

    def input(self, name: str, loc: Location = UNKNOWN, /, **attrs: Attr) -> Node:
        """A run-time value; `shape` (or `slots`), `low`, `high`, `secret` are attributes of the op `input`."""
        node = self.op("input", (), loc, **{"name": name, **attrs})
        if any(n.attrs["name"] == name and n.attrs.get("chunk") == node.attrs.get("chunk") for n in self.inputs):
            raise ProgramError(f"two inputs are called {name!r}", where=loc, hint="give each one its own name")
        self.inputs.append(node)
        return node

    def op(self, op: str, inputs: Sequence[Node] = (), loc: Location = UNKNOWN, /, **attrs: Attr) -> Node:
        """A node with inferred type; a ProgramError with the location where the op refuses its operands."""
        spec = spec_of(op)
        frozen = freeze_attrs(attrs)
        with at(loc):
            check_call(spec, len(inputs), frozen, self.constants)
            check_stacks(spec, [node.type for node in inputs])
            inferred = spec.infer_type([node.type for node in inputs], frozen, self.context)
            check_stage(spec, self.stage, inferred)
            check_type(op, inferred)
        return Node(op, tuple(inputs), frozen, inferred, loc)

    def copy(self, node: Node, inputs: Sequence[Node]) -> Node:
        """The node on other operands (itself if they are the same), with its type inferred anew.

        An input is kept: it becomes an input of the new program, in the order of these calls.
        """
        if node.op == "input" and node not in self.inputs:
            self.inputs.append(node)
        if len(inputs) == len(node.inputs) and all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            return node
        return self.op(node.op, inputs, node.loc, **node.attrs)

    def rewrite(
        self,
        program: Program,
        emit: Callable[[Node, list[Node]], Node],
        *,
        inputs: bool = False,
        leave: Callable[[str, Node, Node], Node] | None = None,
    ) -> Program:
        """The program with every node replaced by `emit(node, operands)`; operands are new nodes.

        Inputs stay as they are; with `inputs` they are passed to `emit` too, which has to `copy` them. An output is
        `leave(name, node, made)`, where `made` replaces `node`.
        """
        new: dict[Node, Node] = {}
        for node in program.nodes:
            if node.op == "input" and not inputs:
                new[node] = self.copy(node, ())
            else:
                new[node] = emit(node, [new[operand] for operand in node.inputs])
        if leave is None:
            return self.finish_as(program, new)
        named = zip(program.output_names, program.outputs, strict=True)
        return self.finish({name: leave(name, node, new[node]) for name, node in named})

    def set_ring(self, ring: Ring) -> None:
        """Fix the modulus chain by whose primes `rescale` divides; it has no keys yet."""
        self.parameters = Parameters((Chain(ring),))

    def finish_as(self, program: Program, new: Mapping[Node, Node]) -> Program:
        """The program with the outputs of `program` under their names; `new` maps its nodes to their replacements."""
        return self.finish(dict(zip(program.output_names, (new[node] for node in program.outputs), strict=True)))

    def finish(self, outputs: Sequence[Node] | Mapping[str, Node]) -> Program:
        """The program with these outputs (named `y`, or `y0`, `y1`, ... if no names are given)."""
        if isinstance(outputs, Mapping):
            names, nodes = tuple(outputs), tuple(outputs.values())
        else:
            nodes = tuple(outputs)
            names = ("y",) if len(nodes) == 1 else tuple(f"y{i}" for i in range(len(nodes)))
        if not nodes:
            raise ProgramError(f"program {self.name} has no output")
        order = live_nodes(nodes, tuple(self.inputs))
        return Program(
            self.name,
            self.stage,
            tuple(self.inputs),
            order,
            nodes,
            names,
            self.constants.used_by(order),
            self.interface,
            self.parameters,
            tuple(self.ranges),
            self.calibration,
            self.gradients,
            self.comparison,
        )
