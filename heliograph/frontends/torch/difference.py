"""The first operation of the exported graph at which a traced program and its module differ."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from heliograph.execution.interface import one_hot
from heliograph.frontends.torch.graph import export, quiet, unchanged
from heliograph.frontends.torch.inputs.examples import Example
from heliograph.frontends.torch.refusals import APART, apart_hint, user_name
from heliograph.frontends.torch.rules.attention import fast_path_hint
from heliograph.frontends.torch.source import leaf_module, module_stack, stack_location
from heliograph.frontends.torch.values import Value
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Location, Node, Program, shape_of
from heliograph.ir.interface import TensorSpec

_EVAL = "call model.eval() before trace"
_ALONE = "a program works on one sample at a time, and here its result for a sample depends on the others of its batch"


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A traced model, with the facts that a comparison needs.

    module: the module that runs; for an exported program, its module.
    example: the example inputs in the precision of the weights.
    program: the traced program.
    wide: the program with all axes of the graph; it runs on one sample too. For a refused trace, its inputs alone.
    exported: the graph that was walked, None for a module that was not traced; its inputs are in the order of
        `example`'s tensors.
    values: the value in `wide` of each call in that graph.
    caller: the user's line that asked for the trace.
    start: the line on which the model's forward begins, or the caller's.
    any_batch: whether the module may be run on batches of any size.
    allowed: for each input of whole numbers that are looked up, by its name: the numbers that each of its elements may
        be, (elements, classes).
    flags: the names of the inputs of zeros and ones.
    softened: for each constant that stands for a huge number in a mask, by its name: the places of the rows that it is
        written to.
    """

    module: torch.nn.Module
    example: Example
    program: Program
    wide: Program
    exported: ExportedProgram | None
    values: Mapping[Any, Any]
    caller: Location
    start: Location
    any_batch: bool
    allowed: Mapping[str, Array]
    flags: frozenset[str] = frozenset()
    softened: Mapping[str, int] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """The number of samples for which the graph was made."""
        return int(self.example.tensors[0].shape[0]) if self.example.tensors else 1


@dataclass(frozen=True, slots=True)
class Difference:
    """The text of an error about an operation that differs.

    mixes: whether the operation mixes samples.
    """

    what: str
    where: Location
    why: str
    hint: str
    mixes: bool = False


def fed(program: Program, samples: Sequence[torch.Tensor]) -> list[Array]:
    """Samples of a module in the form that its program takes."""
    found = []
    for node, tensor in zip(program.inputs, samples, strict=True):
        array = tensor.detach().cpu()
        spec = TensorSpec(node.attrs["name"], tuple(shape_of(node)), classes=node.attrs.get("classes"))
        values = array.double().numpy() if array.is_floating_point() else array.numpy()
        found.append(np.asarray(one_hot(spec, values), dtype=np.float64))
    return found


def first_difference(reading: Reading, samples: Sequence[torch.Tensor], row: int, share: float) -> Difference:
    """The first op whose result for sample `row` of a batch differs in the program, or for the sample alone."""
    if not _repeats(reading, samples):
        training = [path or "the model" for path, one in reading.module.named_modules() if one.training]
        return Difference(
            "the model gives another answer each time it runs",
            reading.start,
            f"{training[0]!r} is in training mode" if training else "it draws random numbers, or keeps a state",
            _EVAL if training else "make it give the same answer each time: random numbers are drawn once, in __init__",
        )
    # The graph may not run on these samples; the difference is an error in any case.
    with contextlib.suppress(Exception):
        found = _in_program(reading, samples, row, share)
        if found is not None:
            return found
    for search in (_beside_others, _in_batches):
        with contextlib.suppress(Exception):
            found = search(reading, samples, row, share)
            if found is not None:
                return found
    found = _in_outputs(reading, samples)
    if found is not None:
        return found
    return Difference(
        "torch computes something else when the model runs than in the graph that torch.export makes of it",
        reading.start,
        "no operation of that graph differs",
        fast_path_hint(reading.module, reading.example)
        or "write it without what depends on how it is run, such as torch.jit.is_tracing()",
    )


def _repeats(reading: Reading, samples: Sequence[torch.Tensor]) -> bool:
    """Whether the module gives the same numbers on a second run."""
    tensors = iter([*samples, *samples])
    with torch.no_grad(), unchanged(reading.module), torch.random.fork_rng(devices=[]), quiet():
        calls = [reading.example.map(lambda _: next(tensors).clone()) for _ in range(2)]
        first, second = (pytree.tree_leaves(reading.module(*call.args, **call.kwargs)) for call in calls)
    pairs = zip(first, second, strict=True)
    return all(torch.allclose(a, b, equal_nan=True) for a, b in pairs if isinstance(a, torch.Tensor))


class _Recording(torch.fx.Interpreter):
    """Runs a graph and keeps the result of each call."""

    def __init__(self, exported: ExportedProgram, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(exported.graph_module)
        self.results: dict[Any, Any] = {}
        given, arguments = iter(tensors), []
        for spec in exported.graph_signature.input_specs:
            if spec.kind.name == "USER_INPUT":
                tensor = hasattr(spec.arg, "name") and not hasattr(spec.arg, "value")
                arguments.append(next(given).clone() if tensor else getattr(spec.arg, "value", None))
            elif spec.target in exported.state_dict:
                arguments.append(exported.state_dict[spec.target].clone())
            else:
                arguments.append(exported.constants[spec.target])
        with torch.no_grad():
            self.run(*arguments)

    def run_node(self, node: Any) -> Any:
        result = super().run_node(node)
        # A tensor that is written to in place later would have another value then.
        self.results[node] = result.clone() if isinstance(result, torch.Tensor) else result
        return result


def _location(reading: Reading, node: Any) -> Location:
    place = stack_location(node.meta.get("stack_trace")) or reading.caller
    return replace(place, layer=module_stack(node)[-1][0]) if leaf_module(node) else place


def _far(ours: Array, theirs: Array, share: float) -> float | None:
    """The largest difference if it exceeds the share of the largest value, else None."""
    distance = float(np.abs(ours - theirs)[np.isfinite(theirs)].max(initial=0.0))
    return distance if not distance <= share * _size(theirs) + 1e-300 else None


def _size(values: Array) -> float:
    """The largest absolute value among the finite ones."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _in_program(reading: Reading, samples: Sequence[torch.Tensor], row: int, share: float) -> Difference | None:
    """The first call of the walked graph whose result differs in the program."""
    if reading.exported is None:
        return None
    ran = _Recording(reading.exported, [tensor[[row] * reading.batch] for tensor in samples]).results
    one = [tensor[row : row + 1] for tensor in samples]
    inputs = dict(zip(reading.wide.inputs, fed(reading.wide, one), strict=True))
    known: dict[Node, Array] = {}
    run_nodes(reading.wide, inputs, lambda node, value: known.__setitem__(node, value))
    known.update(inputs)
    for node, value in reading.values.items():
        theirs = ran.get(node)
        if not isinstance(value, Value) or not isinstance(theirs, torch.Tensor) or value.node not in known:
            continue
        ours, theirs = known[value.node], theirs.detach().double()
        alone, other = ours[0], theirs.numpy()
        if value.hidden is not None or value.cover is not None:
            continue
        if alone.shape != other.shape:
            return Difference(
                f"{user_name(node.target)} is read in another shape",
                _location(reading, node),
                f"it has shape {tuple(other.shape)}, and {alone.shape} in the program",
                "write it in another way, and report this: a rule of Heliograph reads it wrongly",
            )
        distance = _far(alone.reshape(-1), other.reshape(-1), 10 * share)
        if distance is not None:
            return Difference(
                f"{user_name(node.target)} is the first operation that differs",
                _location(reading, node),
                f"there the program is off by {distance:.3g} of at most {_size(other):.3g}",
                "write it in another way, and report this: a rule of Heliograph reads it wrongly",
            )
    return None


def _beside_others(reading: Reading, samples: Sequence[torch.Tensor], row: int, share: float) -> Difference | None:
    """The first call whose result for a sample differs between a batch of other samples and a batch of its copies."""
    count = int(samples[0].shape[0])
    exported = reading.exported if not reading.any_batch else _exported_for(reading, samples)
    if exported is None or count == 1:
        return None
    ran = _Recording(exported, samples).results
    why = _ALONE
    if reading.any_batch and reading.batch > 1:
        why += f"; the model does not run on one of {count} samples: it may be that example_input has no batch axis"
    for place in (row, (row + 1) % count):
        for node, ours in _Recording(exported, [tensor[[place] * count] for tensor in samples]).results.items():
            if node.op != "call_function" or _kept_apart(ours, ran[node], count, place, share):
                continue
            named = f"{user_name(node.target)} mixes samples of the batch"
            return Difference(named, _location(reading, node), why, apart_hint(node.target), mixes=True)
    return None


def _kept_apart(ours: Any, theirs: Any, count: int, row: int, share: float) -> bool:
    """Whether a sample's part is the same in two results, at one of the places where it may be."""
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return True
    pairs = [(ours.double().numpy(), theirs.double().numpy())]
    for axis, size in enumerate(ours.shape):
        if not size % count:
            pairs += _by_sample(ours.double(), theirs.double(), count, count, row, axis)
    return any(_far(mine, its, 10 * share) is None for mine, its in pairs)


def _in_outputs(reading: Reading, samples: Sequence[torch.Tensor]) -> Difference | None:
    """The first output whose first axis is not the sample axis."""
    given, count = iter(samples), int(samples[0].shape[0])
    called = reading.example.map(lambda _: next(given).clone())
    with torch.no_grad(), unchanged(reading.module), quiet():
        leaves = [
            leaf for leaf in pytree.tree_leaves(reading.module(*called.args, **called.kwargs)) if leaf is not None
        ]
    for leaf, name, output in zip(leaves, reading.wide.output_names, reading.wide.outputs, strict=False):
        shape = tuple(getattr(leaf, "shape", ()))
        if shape[:1] == (count,) or output.op == "input":
            continue
        what, hint = f"output {name!r} has shape {shape} for {count} samples: the model mixes samples", str(APART)
        if count in shape:
            what = f"output {name!r} has its batch axis at position {shape.index(count)}"
            hint = "permute the batch axis to the front before returning"
        return Difference(what, output.loc, "axis 0 of every output is the batch axis", hint, mixes=True)
    return None


def _in_batches(reading: Reading, samples: Sequence[torch.Tensor], row: int, share: float) -> Difference | None:
    """The first call whose result for a sample differs between its batch and a batch of another size."""
    count = int(samples[0].shape[0])
    if not reading.any_batch:
        return None
    alone = _exported_on(reading, [tensor[row : row + 1] for tensor in samples])
    size = 1
    if count == 1:
        alone, size = _exported_on(reading, [torch.cat([tensor, tensor]) for tensor in samples]), 2
    together = _exported_on(reading, samples)
    row = row if count > 1 else 0
    hint = "compute each sample by itself: keep the size of the batch, and other samples, out of it"
    for (node, ours), (other, theirs) in zip(alone, together, strict=False):
        where = _location(reading, other)
        named = f"{user_name(other.target)} depends on the batch"
        if node.target != other.target:
            return Difference(
                named, where, f"with {count} samples the model calls it, with {size} it calls another", hint
            )
        if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            continue
        pairs = _by_sample(ours.double(), theirs.double(), size, count, row)
        if not pairs:
            shapes = f"its shape is {tuple(ours.shape)} for {size} samples and {tuple(theirs.shape)} for {count}"
            shapes += ": it mixes samples, or uses their number"
            return Difference(named, where, shapes, hint)
        distances = [_far(mine, its, 10 * share) for mine, its in pairs]
        if all(distance is not None for distance in distances):
            sizes = f"its result for a sample is another with {size} in the batch than with {count}"
            return Difference(named, where, sizes, hint)
    if len(alone) != len(together):
        longer = max(alone, together, key=len)
        node = longer[min(len(alone), len(together))][0]
        calls = f"it is called with {count if longer is together else size} samples in the batch, and not with "
        named = f"whether {user_name(node.target)} is called depends on the batch"
        return Difference(named, _location(reading, node), calls + str(size if longer is together else count), hint)
    return None


def _exported_on(reading: Reading, tensors: Sequence[torch.Tensor]) -> list[tuple[Any, Any]]:
    """The calls of the module exported for these samples, in order, with their results."""
    ran = _Recording(_exported_for(reading, tensors), tensors).results
    return [(node, result) for node, result in ran.items() if node.op == "call_function"]


def _exported_for(reading: Reading, tensors: Sequence[torch.Tensor]) -> ExportedProgram:
    """The module exported for these samples."""
    given = iter(tensors)
    return export(reading.module, reading.example.map(lambda _: next(given)), reading.caller)


def _by_sample(
    ours: torch.Tensor, theirs: torch.Tensor, size: int, count: int, row: int, axis: int | None = None
) -> list[tuple[Array, Array]]:
    """One sample's part of two results, in each way that their shapes allow; empty where they allow none.

    The results are for `size` and `count` samples, whose axis is `axis`, by default the one where the shapes differ.
    """
    if ours.ndim != theirs.ndim:
        return []
    axes = [at for at in range(ours.ndim) if ours.shape[at] != theirs.shape[at]]
    if axis is None and not axes:
        return [(ours.numpy(), theirs.numpy())]
    axis = axes[0] if axis is None else axis
    each, rest = divmod(int(theirs.shape[axis]), count)
    if len(axes) > 1 or rest or each * size != ours.shape[axis]:
        return []
    found = []
    for outer in (True, False):
        parts = [
            tensor.unflatten(axis, (number, each) if outer else (each, number)).select(
                axis if outer else axis + 1, place
            )
            for tensor, number, place in ((ours, size, row if size == count else 0), (theirs, count, row))
        ]
        found.append((parts[0].numpy(), parts[1].numpy()))
    return found
