"""The graph that `torch.export` makes of a module, without in-place changes, after refusals of unsupported contents."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from heliograph.errors import ProgramError, UnsupportedError, said
from heliograph.frontends.torch.inputs.examples import EXAMPLE, Example
from heliograph.frontends.torch.known import UNCOUNTED, numbers_known
from heliograph.frontends.torch.refusals import (
    CONTROL_FLOW,
    data_dependent,
    observed,
    unsupported,
    user_name,
    writes_in_place,
)
from heliograph.frontends.torch.rules import layers as torch_layers
from heliograph.frontends.torch.source import (
    error_location,
    helper_frames,
    leaf_module,
    module_stack,
    op_name,
    short_name,
    stack_location,
)
from heliograph.frontends.torch.values import Call, TensorNames
from heliograph.frontends.torch.ways.fuse import depending_on
from heliograph.ir import Builder, Location, Stage

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
# The depth to which nested lists are searched.
_DEEP = 8
# In-place in name only.
_HARMLESS = {"aten.detach_", "aten.requires_grad_"}


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[Callable[[], list[str]]]:
    """Restore every attribute of every submodule afterwards, and the contents of lists and dicts in them.

    Tracing may leave symbolic tensors behind, and models may keep results. The yielded function names the attributes
    that have changed so far.
    """
    attributes = {path: (module.__dict__, dict(module.__dict__)) for path, module in model.named_modules()}
    # By attribute: a list inside a list belongs to both.
    held = {
        (path, name): [(each, copy.copy(each)) for each in _containers(value)]
        for path, (_, saved) in attributes.items()
        for name, value in saved.items()
    }

    def changed() -> list[str]:
        found = {
            (path, name)
            for path, (now, saved) in attributes.items()
            for name in {**saved, **now}
            if now.get(name, held) is not saved.get(name, held)
        }
        found |= {place for place, contents in held.items() if any(not _same(*each) for each in contents)}
        return [f"{path}.{name}" if path else name for path, name in sorted(found)]

    try:
        yield changed
    finally:
        for now, saved in attributes.values():
            now.clear()
            now.update(saved)
        for contents in held.values():
            for each, before in contents:
                if not _same(each, before):
                    each.clear()
                    (each.extend if isinstance(each, list | deque) else each.update)(before)


def _containers(value: Any, seen: frozenset[int] = frozenset()) -> list[Any]:
    """The lists, dicts and sets that a value is or holds, including a module's own tables of parameters."""
    if not (isinstance(value, tuple) or type(value) in _CONTAINERS) or id(value) in seen or len(seen) > _DEEP:
        return []
    entries = value.values() if isinstance(value, dict) else value
    inner = [each for entry in entries for each in _containers(entry, seen | {id(value)})]
    return inner if isinstance(value, tuple) else [value, *inner]


def _same(now: Any, before: Any) -> bool:
    """Whether two containers hold the same objects."""
    if isinstance(now, set):
        return {id(each) for each in now} == {id(each) for each in before}
    mine, theirs = ([*each, *each.values()] if isinstance(each, dict) else list(each) for each in (now, before))
    return len(mine) == len(theirs) and all(one is other for one, other in zip(mine, theirs, strict=True))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress torch.export's log, warnings and graph dumps; the model's own output appears at the end."""
    printed, complaints = io.StringIO(), io.StringIO()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
            warnings.simplefilter("ignore")
            yield
        sys.stdout.write(printed.getvalue())
        sys.stderr.write(complaints.getvalue())
    finally:
        logging.disable(level)


def _exported(model: torch.nn.Module, examples: Example) -> ExportedProgram:
    """The graph, with attention written out: torch's fast kernels are one op for a layer."""
    fast, looks = torch.backends.mha.get_fastpath_enabled(), torch.nn.modules.transformer._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    # nn.Transformer checks whether a mask is causal, to choose fast kernels. The mask is applied either way.
    torch.nn.modules.transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        with numbers_known(model):
            return torch.export.export(model, examples.args, examples.kwargs, strict=False)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.nn.modules.transformer._detect_is_causal_mask = looks


def export(model: torch.nn.Module, examples: Example, caller: Location) -> ExportedProgram:
    try:
        with unchanged(model), quiet(), helper_frames(), torch.no_grad():
            return _exported(model, examples)
    except ProgramError:
        raise
    except Exception as error:
        # Any exception from the model's own code arrives here.
        raise _export_error(model, examples, error, caller) from error


def _export_error(model: torch.nn.Module, examples: Example, error: Exception, caller: Location) -> ProgramError:
    where = error_location(error) or caller
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = type(error).__name__
    norms = [
        path
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        and (module.training or module.running_mean is None)
    ]
    if norms and "when training" in first:
        return UnsupportedError(
            f"batch norm {norms[0]!r} is in training mode, or keeps no statistics",
            where=where,
            why="it would normalize by the statistics of the batch, and a program sees one sample",
            hint="call model.eval() before trace; construct the layer with track_running_stats=True",
        )
    if (
        kind in ("GuardOnDataDependentSymNode", "UncapturedHigherOrderOpError")
        or "data-dependent" in str(error).lower()
    ):
        return data_dependent(where, "a branch, a loop or a shape there needs a value that is known only in a run")
    if "need to register a pytree" in str(error):
        return UnsupportedError(
            "the model returns a type of its own",
            where=where,
            why=f"{kind}: {first}"[:300],
            hint="return tensors, or a tuple, list or dict of them; a model of transformers that returns a cache: "
            "model.config.use_cache = False",
        )
    held = {example.dtype for example in examples.tensors}
    weights = {parameter.dtype for parameter in model.parameters()}
    if held - weights and weights and "type" in first:
        return ProgramError(
            f"the model cannot be run on {examples.called}: it holds {_dtypes(held)}, the weights are {_dtypes(weights)}",
            where=where,
            why=first[:300],
            hint=f"give floating-point values in the precision of the weights: x.to(torch.{_dtypes(weights)})"
            if len(weights) == 1
            else "bring the model to one precision first: model.float()",
        )
    if "dynamic" in first.lower() and "shape" in first.lower():
        return UnsupportedError(
            "the model makes shapes that depend on values", where=where, why=first[:300], hint="use fixed shapes"
        )
    for words, what, hint in _STOPPED:
        if words in str(error):
            return UnsupportedError(what, where=where, why=f"{kind}: {first}"[:300], hint=hint)
    own = examples.called == EXAMPLE
    return ProgramError(
        said("the model cannot be run on {example_input}") if own else f"the model cannot be run on {examples.called}",
        where=where,
        why=f"{kind}: {first}"[:300],
        hint=said(
            "see whether {model(example_input) runs; example_input needs a batch axis|the model runs on it}, and forward "
            "must use torch only"
        )
        if own
        else f"see whether model(samples) runs: they have shape {_shapes(examples)}, the axis of samples in front, and "
        "forward must use torch only",
    )


# Reasons for torch.export to stop: its message, its meaning, and what to do instead.
_STOPPED = (
    (
        UNCOUNTED,
        "torch.nn.functional.one_hot is called without num_classes",
        "give the number of classes: F.one_hot(x.argmax(1), num_classes=4)",
    ),
    (
        "aten.equal",
        "the model compares whole tensors of values",
        "torch.equal, torch.cov and torch.corrcoef do so: every input has to take the same path, and samples are not mixed",
    ),
    (
        "torch.classes.quantized",
        "the model has quantized layers",
        "trace the model as it was before quantization: encrypted values have the precision of real numbers",
    ),
    (
        "argument 'size' failed to unpack",
        "the model makes shapes that depend on values",
        "use one length: pack_padded_sequence is not needed where all sequences have the same",
    ),
    (
        ".numpy() is not supported",
        "the model leaves torch for numpy",
        "write it with torch's functions; what numpy computes from weights alone belongs into __init__",
    ),
)


def _shapes(examples: Example) -> str:
    return " and ".join(str(tuple(tensor.shape)) for tensor in examples.tensors)


def _dtypes(kinds: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))


def functional(exported: ExportedProgram, caller: Location) -> ExportedProgram:
    """The exported program without in-place ops, after errors for training mode and for branches."""
    mutable, secret = False, depending(exported)
    for node in all_nodes(exported):
        if node.op != "call_function":
            continue
        target, arguments = op_name(node.target), node.args
        stack = module_stack(node)
        if node in secret and stack and stack[-1][1].startswith("torch.ao.quantization."):
            raise observed(stack[-1][0], stack_location(node.meta.get("stack_trace")) or caller)
        if node not in secret and (len(arguments) < 4 or arguments[3] is None):
            # Computed from weights alone: it normalizes weights, and has no running statistics to change.
            pass
        elif target in ("aten.batch_norm", "aten.native_batch_norm") and len(arguments) > 5:
            if arguments[5] or arguments[3] is None:
                raise torch_layers.training_batch_norm(_plain_call(node, caller))
        elif target.startswith("aten._native_batch_norm_legit") and not target.endswith("no_training"):
            raise torch_layers.training_batch_norm(_plain_call(node, caller))
        elif trains(node):
            raise torch_layers.training(_plain_call(node, caller))
        elif short_name(node.target) in CONTROL_FLOW:
            raise unsupported(node, stack_location(node.meta.get("stack_trace")) or caller)
        schema = getattr(node.target, "_schema", None)
        mutable = mutable or (schema is not None and schema.is_mutable and target not in _HARMLESS)
        # torch.vmap: after a second export its calls work on whole batches.
        mutable = mutable or target == "_vmap_increment_nesting"
    if not mutable:
        return exported
    try:
        with quiet():
            changed: ExportedProgram = exported.run_decompositions({})
    except RuntimeError as error:
        constant = re.match(r"Constant (\S+) is mutated", str(error))
        if constant is None:
            raise
        raise writes_in_place("a tensor that it holds", constant[1], caller) from None
    return changed


# Ops that take whole numbers as indices.
_LOOKUPS = frozenset(
    {
        *("embedding", "embedding_bag", "_embedding_bag", "index", "_unsafe_index", "index_select", "gather", "take"),
        *("take_along_dim", "one_hot", "index_put", "scatter", "scatter_add", "index_add", "index_copy", "index_fill"),
    }
)


def chooses(node: Any) -> bool:
    """Whether whole numbers serve as indices somewhere."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        return False
    return any(short_name(user.target) in _LOOKUPS or chooses(user) for user in node.users if user.op != "output")


def _given(node: Any) -> dict[str, Any]:
    """The arguments of a call by their names in its schema, with the defaults."""
    schema = getattr(node.target, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    known = {argument.name: argument.default_value for argument in arguments}
    return {**known, **dict(zip(known, node.args, strict=False)), **node.kwargs}


def draws(node: Any) -> bool:
    """Whether a call draws random numbers; dropout does so in training mode only."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return trains(node) if {"train", "training"} & set(_given(node)) else True


def trains(node: Any) -> bool:
    """Whether a call draws random numbers, or takes statistics of the batch, as layers do in training mode."""
    given = _given(node)
    short = short_name(node.target)
    if short == "instance_norm":
        # In training mode it also updates its running statistics, and in evaluation it reads them.
        return bool(given["use_input_stats"]) and given["running_mean"] is not None
    if short.startswith("rrelu"):
        return bool(given.get("training")) and given.get("lower") != given.get("upper")
    # Dropout, and recurrent layers with dropout between them.
    dropped = given.get("dropout", given.get("p"))
    several = given.get("num_layers", 2) > 1
    return bool(given.get("train")) and several and bool(dropped)


def depending(exported: ExportedProgram) -> set[Any]:
    """The nodes that depend on an input of the user's, and all nodes of graphs inside the graph."""
    names = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    nodes = exported.graph_module.graph.nodes
    inside = {node for node in all_nodes(exported) if node.graph is not exported.graph_module.graph}
    return inside | depending_on(nodes, {node for node in nodes if node.op == "placeholder" and node.name in names})


def _plain_call(node: Any, caller: Location) -> Call:
    """A call that serves for a refusal only."""
    place = stack_location(node.meta.get("stack_trace")) or caller
    layer = module_stack(node)[-1][0] if leaf_module(node) else ""
    loc = replace(place, layer=layer)
    return Call(Builder("", Stage.TENSOR), TensorNames(), loc, op_name(node.target), user_name(node.target), None)


def all_nodes(exported: ExportedProgram) -> list[Any]:
    """The nodes of the graph and of the graphs inside it (blocks under torch.no_grad)."""
    return [
        node
        for module in exported.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    ]
