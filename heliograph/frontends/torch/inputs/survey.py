"""The inputs of whole numbers that are looked up, and how many numbers each of them may hold.

A program's inputs need their shapes before any node is made, so the graph is run through once in advance, with a list
of each input's possible values (inputs/tokens.py). A number is allowed at a place of an input if every lookup that
reads the place stays inside its table, as in torch. One-hot vectors have room for the largest number that any place
allows. With `ids + offsets` into one table the first column may hold numbers up to the table's end, whatever range its
author has in mind: torch accepts them, and known samples do not bound future ones. Where the model bounds the rows by
itself (`ids % 100`, `ids.clamp(max=8)`), every number is allowed, and there are as many as give different rows, or as
the calibration samples hold.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heliograph.errors import ProgramError
from heliograph.frontends.torch.inputs.tokens import (
    BAGS,
    MOST,
    NUMBERS,
    Read,
    Sources,
    Tokens,
    Unknown,
    bag_offsets,
    check_size,
    token_call,
)
from heliograph.frontends.torch.refusals import user_name
from heliograph.frontends.torch.source import op_name, short_name, stack_location
from heliograph.frontends.torch.values import Call, TensorNames, parts
from heliograph.ir import Array, Builder, Location, Stage

# Ops that look up, for the error where the row number is not known to come from one number of an input.
_LOOKUPS = BAGS | {"embedding", "index", "index_select", "take"}
# The first list of numbers is so much longer than the tallest table.
_MORE = 64


@dataclass(frozen=True, slots=True)
class Allowed:
    """The numbers that one input may hold.

    classes: their count, from 0 on.
    places: for each element of a sample, flattened, the numbers that it may be: (elements, classes).
    """

    classes: int
    places: Array

    def holds(self, samples: Array) -> Array:
        """For each element of samples, whether it is a whole number that its place may hold."""
        inside = (samples >= 0) & (samples < self.classes) & (samples == np.floor(samples))
        ids = np.where(inside, samples, 0).astype(np.int64).reshape(len(samples), -1)
        return np.asarray(inside & self.places[np.arange(ids.shape[1]), ids].reshape(samples.shape))


def surveyed(
    graph: Any,
    inputs: Mapping[Any, str],
    tensors: Mapping[Any, torch.Tensor],
    batch: int,
    samples: Mapping[Any, Array],
    caller: Location,
) -> dict[Any, Allowed]:
    """For each input of whole numbers that is looked up, the numbers that it may hold.

    `inputs` names the graph's inputs of whole numbers, `tensors` has its parameters and constants, `samples` the calibration
    samples, one array with a leading axis for each of `inputs`, or nothing. Raises an UnsupportedError where a lookup cannot
    be compiled, or would need one-hot vectors of too many numbers.
    """
    survey = _Survey(graph, inputs, tensors, batch, samples, caller)
    reads = survey.reads(2)
    if not reads:
        return {}
    most = max(survey.most.values())
    count = min(2 * max(read.rows for read in reads) + _MORE, most)
    while True:
        found = survey.allowed(survey.reads(count), count)
        if count >= most or None not in found.values():
            break
        count = min(2 * count, most)
    return survey.checked(found, max(read.rows for read in reads))


def check_bags(graph: Any, inputs: Sequence[Any], caller: Location) -> None:
    """Refuse bags whose start offsets are an input."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and short_name(node.target) in BAGS and node.args[2] in inputs:
            raise bag_offsets(_plain_call(node, TensorNames(), caller))


def _plain_call(node: Any, names: TensorNames, caller: Location) -> Call:
    """A call that makes no node of a program."""
    loc = stack_location(node.meta.get("stack_trace")) or caller
    name, called = op_name(node.target), user_name(node.target)
    return Call(Builder("", Stage.TENSOR), names, loc, name, called, node.meta.get("val"), node.target)


class _Survey:
    """A walk through a graph; the environment holds tokens, known tensors, pending computations, and `Unknown`."""

    def __init__(
        self,
        graph: Any,
        inputs: Mapping[Any, str],
        tensors: Mapping[Any, torch.Tensor],
        batch: int,
        samples: Mapping[Any, Array],
        caller: Location,
    ) -> None:
        self.graph, self.inputs, self.tensors = graph, inputs, tensors
        self.batch, self.samples, self.caller = batch, samples, caller
        self.shapes = {node: tuple(int(size) for size in node.meta["val"].shape[1:]) for node in inputs}
        self.most = {}
        for node, shape in self.shapes.items():
            bound = MOST // max(1, int(np.prod(shape))) + 1
            self.most[node] = min(bound, torch.iinfo(node.meta["val"].dtype).max + 1)
        self.sources = Sources((), ())
        self.names = TensorNames()

    def reads(self, count: int) -> list[Read]:
        """The lookups, each with its row for each of this many numbers."""
        found: list[Read] = []
        self.sources = Sources(tuple(self.shapes.values()), (count,) * len(self.shapes), reads=found)
        arguments: list[Any] = []
        for node in self.graph.graph.nodes:
            if node.op != "placeholder":
                continue
            if node in self.inputs:
                number = list(self.inputs).index(node)
                arguments.append(self.sources.tokens(number, self.batch, node.meta["val"].dtype))
            elif node in self.tensors:
                arguments.append(self.tensors[node].detach())
            else:
                arguments.append(Unknown(ids=False) if isinstance(node.meta.get("val"), torch.Tensor) else None)
        self._run(self.graph, arguments)
        return found

    # ------------------------------------------------------------------ the walk

    def _run(self, module: Any, arguments: Sequence[Any]) -> Any:
        table: dict[Any, Any] = {}
        remaining = iter(arguments)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                table[node] = next(remaining)
            elif node.op == "get_attr":
                table[node] = operator.attrgetter(str(node.target))(module)
            elif node.op == "output":
                return torch.fx.node.map_arg(node.args[0], lambda one: self._known(one, table))
            elif any(any(parts(table[one], Tokens | Unknown)) for one in node.all_input_nodes):  # type: ignore[arg-type]
                table[node] = self._step(node, table)
            else:
                table[node] = _Later
        return None

    def _known(self, node: Any, table: dict[Any, Any]) -> Any:
        """The value of a node, computed now if it depends on no input and was not needed before."""
        if table[node] is _Later:
            args, kwargs = self._operands(node, table)
            with torch.no_grad():
                table[node] = node.target(*args, **kwargs)
        return table[node]

    def _operands(self, node: Any, table: dict[Any, Any]) -> tuple[Any, Any]:
        args = torch.fx.node.map_arg(node.args, lambda one: self._known(one, table))
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda one: self._known(one, table))
        return args, kwargs

    def _step(self, node: Any, table: dict[Any, Any]) -> Any:
        there = [table[one] for one in node.all_input_nodes]
        tokens, unknown = list(parts(there, Tokens)), list(parts(there, Unknown))
        name = op_name(node.target)
        if node.target is operator.getitem:
            held = table[node.args[0]]
            return held[node.args[1]] if isinstance(held, list | tuple) else held
        if name in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            args, _ = self._operands(node, table)
            at = 1 if name == "wrap_with_set_grad_enabled" else 4
            return self._run(args[at], args[at + 1 :])
        derived = Unknown(bool(tokens) or any(one.ids for one in unknown))
        if not tokens and not self._looks_up(node, table):
            return derived
        args, kwargs = self._operands(node, table)
        made = token_call(_plain_call(node, self.names, self.caller), args, kwargs)
        return derived if made is NUMBERS else made

    def _looks_up(self, node: Any, table: dict[Any, Any]) -> bool:
        """Whether the node is a lookup at a number computed from several numbers."""
        if short_name(node.target) not in _LOOKUPS:
            return False
        found: list[Any] = []
        torch.fx.node.map_arg(node.args[1:], found.append)
        return any(one.ids for one in parts([table[place] for place in found], Unknown))

    # ------------------------------------------------------------------ allowed numbers

    def allowed(self, reads: Sequence[Read], count: int) -> dict[Any, Allowed | None]:
        """The numbers that each looked-up input may hold; None where more than `count` must be tried to decide."""
        total = self.sources.total
        legal = np.ones((total, count), dtype=bool)
        read = np.zeros(total, dtype=bool)
        # The last number at which a lookup gives a row that no smaller number gave.
        newest = np.zeros(total, dtype=np.int64)
        for one in reads:
            places, values = one.places.reshape(-1).numpy(), one.values.reshape(count, -1).numpy()
            for element in np.flatnonzero(places >= 0):
                place, rows = places[element], values[:, element]
                legal[place] &= (rows >= (-one.rows if one.wraps else 0)) & (rows < one.rows)
                read[place] = True
                newest[place] = max(newest[place], int(np.unique(rows, return_index=True)[1].max()))
        found: dict[Any, Allowed | None] = {}
        for number, node in enumerate(self.inputs):
            span = slice(self.sources.first(number), self.sources.first(number) + self.sources.sizes[number])
            if not read[span].any():
                continue
            seen = self.samples.get(node)
            largest = np.zeros(span.stop - span.start) if seen is None else seen.reshape(len(seen), -1).max(axis=0)
            classes = 1
            for place, top in zip(range(span.start, span.stop), largest, strict=True):
                wanted = int(top) + 1
                if read[place]:
                    last = np.flatnonzero(legal[place])
                    if not last.size or (last[-1] == count - 1 and 2 * newest[place] >= count):
                        classes = 0
                        break
                    wanted = int(last[-1]) + 1 if last[-1] < count - 1 else max(int(newest[place]) + 1, wanted)
                classes = max(classes, wanted)
            if not classes:
                found[node] = None
                continue
            padded = np.ones((span.stop - span.start, max(classes, count)), dtype=bool)
            padded[:, :count] = legal[span]
            found[node] = Allowed(classes, padded[:, :classes])
        return found

    def checked(self, found: Mapping[Any, Allowed | None], rows: int) -> dict[Any, Allowed]:
        """The allowed numbers, after the checks of sizes and samples."""
        made: dict[Any, Allowed] = {}
        for node, allowed in found.items():
            name, shape = self.inputs[node], self.shapes[node]
            check_size(name, shape, allowed.classes if allowed is not None else max(rows, self.most[node]), self.caller)
            if allowed is None:
                raise ProgramError(
                    f"input {name!r} is looked up in tables, but no number that it may hold is a row of all of them",
                    where=self.caller,
                    hint="look at what is added to or multiplied by the ids before they are looked up",
                )
            made[node] = allowed
        return made


# A node that depends on no input is computed when something asks for it.
_Later = object()
