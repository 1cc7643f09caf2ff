"""From a PyTorch module to a program of the tensor stage, through `torch.export`."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import operator
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.frontends import (  # noqa: F401  (they register rules)
    torch_arithmetic,
    torch_attention,
    torch_decisions,
    torch_einsum,
    torch_extrema,
    torch_functions,
    torch_layers,
    torch_linear,
    torch_pointwise,
    torch_polynomial,
    torch_pooling,
    torch_products,
    torch_statistics,
    torch_structure,
)
from heliograph.frontends.torch_complex import Complex, complex_call
from heliograph.frontends.torch_decompose import decomposed
from heliograph.frontends.torch_examples import Example, example_of, samples_of
from heliograph.frontends.torch_fuse import depending_on, fusions
from heliograph.frontends.torch_impacts import impacts
from heliograph.frontends.torch_inputs import calibration_arrays, ranges
from heliograph.frontends.torch_masks import with_masks
from heliograph.frontends.torch_refusals import (
    CONTROL_FLOW,
    complex_values,
    data_dependent,
    dynamic_shape,
    random_values,
    unsupported,
    user_name,
)
from heliograph.frontends.torch_source import (
    LayerNames,
    caller_location,
    error_location,
    forward_location,
    helper_frames,
    layer_text,
    leaf_module,
    module_stack,
    op_name,
    short_name,
    stack_location,
)
from heliograph.frontends.torch_tokens import Tokens, check_size, classes_of, token_call
from heliograph.frontends.torch_unseen import samples_apart, unseen_call
from heliograph.frontends.torch_values import (
    Call,
    Merges,
    NoRule,
    Refused,
    TensorNames,
    Value,
    parts,
    rule_of,
    transposed_name,
    with_dtypes,
)
from heliograph.ir import Builder, Location, Node, Program, Stage
from heliograph.ir.interface import Interface, TensorSpec

# Folding these keeps the name of the tensor: the user knows it by its parameter's path.
_KEEPS_NAME = {"detach", "clone", "contiguous", "alias", "to", "lift_fresh", "lift_fresh_copy", "expand"}
_TRANSPOSES = {"t", "permute", "transpose", "numpy_T", "mT"}
# In-place in name only.
_HARMLESS = {"aten.detach_", "aten.requires_grad_"}


def trace(
    model: torch.nn.Module | ExportedProgram,
    example_input: Any = None,
    *,
    input_range: Any = None,
    calibration: Any = None,
    name: str | None = None,
    plain: Sequence[str] = (),
    outputs: str | None = None,
) -> Program:
    """The program of the tensor stage that computes what the module computes in eval mode, for one sample.

    `example_input` is a tensor, or a tuple of tensors for several inputs, with a batch axis (of any size) in front; the
    program has none. A dict gives arguments by name; one whose keys are no arguments, or a dataclass, is one argument. An
    `ExportedProgram` brings its own and needs none. Whole numbers that choose rows of tables are one-hot inputs.

    `input_range` is the interval (low, high) of the input's elements; `calibration` is an array of samples with a leading
    sample axis; with several inputs both are tuples in argument order, None where an input has none. Samples may come in
    the form of the example too, or from a DataLoader. Without `input_range` the range is the smallest and largest element
    of the calibration samples, and without both it stays open. `name` is the module's class by default. `plain` names
    arguments that are not encrypted: the server gives them at run time. With `outputs="logits"` a softmax that the model
    ends in is left to the client, which computes it exactly after decryption (the report says so); the logarithm of a
    softmax at the end always is.

    The module is left as it was. Parameters keep their precision and their paths as names of constants. Every node has
    the user's line and a layer: the path of a `torch.nn` layer, or the path of the calling module and the function's
    name, with `_1`, `_2`, ... for later calls. A call without a line of the user's (a layer of `nn.Sequential`) has that of
    this call, or where that is in no file the layer as it was written.

    Raises UnsupportedError for an op without a rule, training mode, dynamic shapes and control flow that depends on
    data, ProgramError for input, range or samples that do not fit; each says where and what to do instead.
    """
    caller = caller_location()
    try:
        return _trace(model, example_input, input_range, calibration, name, plain, outputs, caller)
    except UnsupportedError as error:
        if not isinstance(model, ExportedProgram):
            raise
        hint = f"{error.hint}; or trace the module itself: an exported program may be decomposed into smaller ops"
        raise UnsupportedError(error.what, where=error.where, why=error.why, hint=hint) from None


def _trace(
    model: Any,
    example_input: Any,
    input_range: Any,
    calibration: Any,
    name: str | None,
    plain: Sequence[str],
    outputs: str | None,
    caller: Location,
) -> Program:
    if outputs not in (None, "logits"):
        raise ProgramError(f"outputs is {outputs!r}", where=caller, hint='outputs="logits", or nothing')
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if isinstance(model, ExportedProgram):
        exported = model
        start = caller
    elif isinstance(model, torch.nn.Module) and any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        raise ProgramError(
            "the model is, or has within it, a TorchScript module",
            where=caller,
            hint="trace the module itself, before torch.jit.script or torch.jit.trace",
        )
    elif isinstance(model, torch.nn.Module):
        examples = example_of(model, example_input)
        exported = _export(model, examples, caller)
        start = forward_location(model) or caller
    else:
        raise ProgramError(
            f"trace takes a torch.nn.Module or a torch.export.ExportedProgram, not {type(model).__name__}",
            where=caller,
            hint="give its samples to from_sklearn: hg.from_sklearn(estimator, samples)"
            if hasattr(model, "get_params") and hasattr(model, "fit")
            else "wrap a function in a module: its body is the module's forward",
        )
    module = model if isinstance(model, torch.nn.Module) else None
    if module is not None:
        _check_batch_numbers(module, examples, exported, caller)
    called = name or _name(model, exported)

    def made(exported: ExportedProgram) -> tuple[Program, list[UnsupportedError]]:
        exported = _functional(exported, caller)
        with _quiet():
            exported = decomposed(exported, _depending)
        tracer = _Tracer(exported, called, caller, start, frozenset(plain), module)
        tracer.logits = outputs == "logits"
        tracer.read_inputs(example_input if module is None else None, input_range, calibration)
        try:
            return tracer.program(), tracer.merged
        except Merges:
            if module is None:
                raise tracer.merged[0] from None
            raise

    try:
        program, merged = made(exported)
    except Merges:
        # The model merges the batch axis with others: with one sample that axis is nothing but an axis of one.
        program, merged = made(_export(model, examples.map(lambda tensor: tensor[:1]), caller))
    if merged and (module is None or not samples_apart(module, examples)):
        raise merged[0]
    return program


def _name(model: Any, exported: ExportedProgram) -> str:
    """The class of the root module."""
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    for node in exported.graph.nodes:
        stack = module_stack(node)
        if stack:
            return stack[0][1].rsplit(".", 1)[-1]
    return "program"


# ---------------------------------------------------------------------------------------------- export


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Give every attribute of every submodule back as it was: tracing may leave symbolic tensors behind."""
    tables = ("_parameters", "_buffers", "_modules")
    saved = [
        (module, dict(module.__dict__), {table: dict(module.__dict__[table]) for table in tables})
        for module in model.modules()
    ]
    try:
        yield
    finally:
        for module, attributes, contents in saved:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for table, entries in contents.items():
                module.__dict__[table].clear()
                module.__dict__[table].update(entries)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch.export's log, warnings and dumps of graphs away; what the model prints comes through at the end."""
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
    """The graph, attention written out: torch's fast kernels are one op for a layer."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return torch.export.export(model, examples.args, examples.kwargs, strict=False)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _export(model: torch.nn.Module, examples: Example, caller: Location) -> ExportedProgram:
    try:
        with _unchanged(model), _quiet(), helper_frames(), torch.no_grad():
            return _exported(model, examples)
    except ProgramError:
        raise
    except Exception as error:
        # Everything that a model's own code can raise comes out here.
        raise _export_error(model, examples, error, caller) from error


def _export_error(model: torch.nn.Module, examples: Example, error: Exception, caller: Location) -> ProgramError:
    where = error_location(error) or caller
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = type(error).__name__
    norms = [
        path
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training
    ]
    if norms and "when training" in first:
        return UnsupportedError(
            f"batch norm {norms[0]!r} is in training mode",
            where=where,
            why="it would normalize by the statistics of the batch, and a program sees one sample",
            hint="call model.eval() before trace",
        )
    if (
        kind in ("GuardOnDataDependentSymNode", "UncapturedHigherOrderOpError")
        or "data-dependent" in str(error).lower()
    ):
        return data_dependent(where, f"torch.export stopped there: {first}"[:300])
    held = {example.dtype for example in examples.tensors}
    weights = {parameter.dtype for parameter in model.parameters()}
    if held - weights and weights and "type" in first:
        return ProgramError(
            f"the model cannot be run on example_input: it holds {_dtypes(held)}, the weights are {_dtypes(weights)}",
            where=where,
            why=first[:300],
            hint=f"give floating-point values in the precision of the weights: example_input.to(torch.{_dtypes(weights)})"
            if len(weights) == 1
            else "bring the model to one precision first: model.float()",
        )
    if "dynamic" in first.lower() and "shape" in first.lower():
        return UnsupportedError(
            "the model makes shapes that depend on values", where=where, why=first[:300], hint="use fixed shapes"
        )
    return ProgramError(
        "the model cannot be run on example_input",
        where=where,
        why=f"{kind}: {first}"[:300],
        hint="see whether model(example_input) runs; example_input needs a batch axis, and forward must use torch only",
    )


def _dtypes(kinds: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))


def _functional(exported: ExportedProgram, caller: Location) -> ExportedProgram:
    """The exported program without in-place ops, after errors for what trains or branches."""
    mutable, secret = False, _depending(exported)
    for node in _all_nodes(exported):
        if node.op != "call_function":
            continue
        target, arguments = op_name(node.target), node.args
        if node not in secret and (len(arguments) < 4 or arguments[3] is None):
            # What is computed from weights alone normalizes weights, and has no running statistics to change.
            pass
        elif target in ("aten.batch_norm", "aten.native_batch_norm") and len(arguments) > 5:
            if arguments[5] or arguments[3] is None:
                raise torch_layers.training_batch_norm(_plain_call(node, caller))
        elif target.startswith("aten._native_batch_norm_legit") and not target.endswith("no_training"):
            raise torch_layers.training_batch_norm(_plain_call(node, caller))
        elif short_name(node.target).endswith("dropout") and len(arguments) > 2 and arguments[2]:
            raise torch_layers.training_dropout(_plain_call(node, caller))
        elif short_name(node.target) in CONTROL_FLOW:
            raise unsupported(node, stack_location(node.meta.get("stack_trace")) or caller)
        schema = getattr(node.target, "_schema", None)
        mutable = mutable or (schema is not None and schema.is_mutable and target not in _HARMLESS)
    if not mutable:
        return exported
    with _quiet():
        functional: ExportedProgram = exported.run_decompositions({})
    return functional


# Ops that compute with a number where one is among their arguments; a shape is none of these.
_WITH_NUMBERS = frozenset(
    {"add", "sub", "rsub", "mul", "div", "pow", "true_divide", "multiply", "divide", "lerp", "where"}
)


def _check_batch_numbers(
    model: torch.nn.Module, examples: Example, exported: ExportedProgram, caller: Location
) -> None:
    """Raise an UnsupportedError where the model computes with the size of its batch, `x / x.size(0)`.

    An exported graph holds the example's size as a number like any other. Where it computes with numbers at all, the model
    is exported again with one sample more, and those that differ are sizes of the batch.
    """
    found = _numbers(exported)
    if not found:
        return
    grown = examples.map(lambda tensor: torch.cat([tensor, tensor[:1]]))
    try:
        with _unchanged(model), _quiet(), helper_frames(), torch.no_grad():
            other = _numbers(_exported(model, grown))
    except Exception:
        # A model that takes one size of batch only says nothing by it.
        return
    if [node.target for node, _ in found] != [node.target for node, _ in other]:
        return
    for (node, numbers), (_, others) in zip(found, other, strict=True):
        if numbers != others:
            raise UnsupportedError(
                f"{user_name(node.target)} computes with the size of the batch",
                where=stack_location(node.meta.get("stack_trace")) or caller,
                why=f"the number is {numbers[0]:g} for {examples.tensors[0].shape[0]} samples and {others[0]:g} for one "
                "more; a program sees one sample, whatever the size of the batch",
                hint="write the number that is meant, or divide by it on the client",
            )


def _numbers(exported: ExportedProgram) -> list[tuple[Any, list[float]]]:
    """The calls that compute with numbers, each with these."""
    found = []
    for node in _all_nodes(exported):
        if node.op == "call_function" and short_name(node.target) in _WITH_NUMBERS:
            arguments = [*node.args, *node.kwargs.values()]
            numbers = [float(value) for value in arguments if isinstance(value, int | float)]
            if numbers:
                found.append((node, numbers))
    return found


def _depending(exported: ExportedProgram) -> set[Any]:
    """The nodes that depend on an input of the user's; all of those in graphs inside the graph."""
    names = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    nodes = exported.graph_module.graph.nodes
    inside = {node for node in _all_nodes(exported) if node.graph is not exported.graph_module.graph}
    return inside | depending_on(nodes, {node for node in nodes if node.op == "placeholder" and node.name in names})


def _plain_call(node: Any, caller: Location) -> Call:
    """A call that can only be refused."""
    place = stack_location(node.meta.get("stack_trace")) or caller
    layer = module_stack(node)[-1][0] if leaf_module(node) else ""
    loc = replace(place, layer=layer)
    return Call(Builder("", Stage.TENSOR), TensorNames(), loc, 1, op_name(node.target), user_name(node.target), None)


def _all_nodes(exported: ExportedProgram) -> list[Any]:
    """The nodes of the graph and of the graphs inside it (blocks under torch.no_grad)."""
    return [
        node
        for module in exported.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    ]


# ---------------------------------------------------------------------------------------------- the walk


class _Tracer:
    """Walks the exported graph once; the environment holds a `Value`, a plain tensor or a list for each torch value."""

    def __init__(
        self,
        exported: ExportedProgram,
        name: str,
        caller: Location,
        start: Location,
        plain: frozenset[str],
        module: torch.nn.Module | None,
    ) -> None:
        self.exported = exported
        self.module = module
        self.plain = plain
        self.caller = caller
        self.start = start
        self.builder = Builder(name, Stage.TENSOR)
        self.names = TensorNames()
        self.layers = LayerNames(_all_nodes(exported))
        self.batch_size = 1
        self.logits = False
        self.arguments: list[Any] = []
        # Shared weights have several paths; the first that the module lists is the name.
        self.paths: dict[Any, str] = {}
        for path, tensor in exported.state_dict.items():
            self.paths.setdefault(_storage(tensor), path)
        self.calibration: tuple[Any, ...] = ()
        self.merged: list[UnsupportedError] = []
        # Inputs of whole numbers that choose rows of tables, with the number of rows.
        self.classes: dict[Any, int] = {}
        self.finals: dict[Node, tuple[str, Node, int]] = {}

    # ------------------------------------------------------------------ inputs

    def read_inputs(self, example_input: Any, input_range: Any, calibration: Any) -> None:
        """Turn placeholders into inputs and named tensors."""
        placeholders = [node for node in self.exported.graph.nodes if node.op == "placeholder"]
        specs = self.exported.graph_signature.input_specs
        users = []
        for node, spec in zip(placeholders, specs, strict=True):
            if spec.kind.name == "USER_INPUT" and isinstance(node.meta.get("val"), torch.Tensor):
                users.append(node)
        for node in users:
            if not node.meta["val"].is_floating_point():
                found = classes_of(node, self._tables(placeholders, specs))
                if found is not None:
                    self.classes[node] = found
        shapes = [self._input_shape(node) for node in users]
        if not shapes:
            raise ProgramError("the model takes no tensor", where=self.caller, hint="give it an input to encrypt")
        if example_input is not None:
            given = tuple(example_input) if isinstance(example_input, list | tuple) else (example_input,)
            if [tuple(item.shape) for item in given] != shapes:
                raise ProgramError(
                    f"example_input has shapes {[tuple(item.shape) for item in given]}, the exported program {shapes}",
                    where=self.caller,
                )
        batches = {shape[0] for shape in shapes}
        if len(batches) > 1:
            raise ProgramError(
                f"the inputs have different batch sizes: shapes {' and '.join(map(str, shapes))}",
                where=self.caller,
                why="axis 0 of every input is the batch axis",
                hint="give every example_input the same batch axis, for example x.unsqueeze(0)",
            )
        self.batch_size = batches.pop()
        names = [str(node.name) for node in users]
        unknown = sorted(self.plain - set(names))
        if unknown or self.plain == set(names):
            raise ProgramError(
                f"plain names {unknown[0]!r}, which is no input" if unknown else "plain names every input",
                where=self.caller,
                hint=f"the inputs are {', '.join(names)}; at least one of them is to be encrypted",
            )
        bare = [shape[1:] for shape in shapes]
        calibration = samples_of(self.module, calibration, len(names))
        self.calibration = calibration_arrays(calibration, names, bare, self.caller)
        self.calibration = self._one_hot(users)
        for position, node in enumerate(users):
            if node in self.classes:
                check_size(names[position], bare[position], self.classes[node], self.caller)
                bare[position] = (*bare[position], self.classes[node])
        bounds = ranges(input_range, self.calibration, names, self.caller)
        for node, spec in zip(placeholders, specs, strict=True):
            self.arguments.append(self._argument(node, spec, users, bare, bounds))

    def _tables(self, placeholders: list[Any], specs: Any) -> dict[Any, torch.Tensor]:
        """The tensors of the placeholders that are parameters."""
        state = self.exported.state_dict
        return {
            node: state[spec.target]
            for node, spec in zip(placeholders, specs, strict=True)
            if spec.kind.name == "PARAMETER" and spec.target in state
        }

    def _one_hot(self, users: list[Any]) -> tuple[Any, ...]:
        """The calibration samples, whole numbers that are looked up as one-hot vectors."""
        made = []
        for node, samples in zip(users, self.calibration, strict=False):
            count = self.classes.get(node)
            if count is not None and samples.size and (samples.min() < 0 or samples.max() >= count):
                raise ProgramError(
                    f"calibration of input {str(node.name)!r} holds a number outside of 0 to {count - 1}",
                    where=self.caller,
                    why=f"it chooses one of {count} rows of a table",
                )
            made.append(samples if count is None else np.eye(count)[samples.astype(np.int64)])
        return tuple(made)

    def _input_shape(self, node: Any) -> tuple[int, ...]:
        value = node.meta["val"]
        if any(not isinstance(size, int) for size in value.shape):
            raise dynamic_shape(node.name, tuple(map(str, value.shape)))
        if value.is_complex():
            raise complex_values(self.caller, f"input {node.name!r}")
        if not value.is_floating_point() and node not in self.classes and not _becomes_floating(node):
            raise UnsupportedError(
                f"input {node.name!r} holds {str(value.dtype).removeprefix('torch.')} values",
                where=self.caller,
                why="encrypted values are real numbers; whole numbers, as indices of an embedding, look nothing up",
                hint="give floating-point values: example_input.float(); what chooses rows of a table is looked up on the "
                "client, and the model is given the vectors",
            )
        if value.ndim == 0:
            raise ProgramError(
                f"input {node.name!r} has no axes",
                where=self.caller,
                hint="give example_input a batch axis: x.reshape(1, ...)",
            )
        return tuple(value.shape)

    def _argument(
        self, node: Any, spec: Any, users: list[Any], shapes: list[tuple[int, ...]], bounds: list[Any]
    ) -> Any:
        if node in users:
            position = users.index(node)
            low, high = bounds[position] or (None, None)
            loc = replace(self.start, layer=str(node.name))
            secret = False if str(node.name) in self.plain else None
            attrs = {"shape": shapes[position], "low": low, "high": high, "secret": secret}
            if node in self.classes:
                attrs |= {"low": 0.0, "high": 1.0, "classes": self.classes[node]}
                return Tokens(self.builder.input(str(node.name), loc, **attrs), self.classes[node])
            made = self.builder.input(str(node.name), loc, **attrs)
            return Value(made, 0, node.meta["val"].dtype)
        if spec.kind.name == "USER_INPUT":
            return getattr(spec.arg, "value", None)
        if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            state = self.exported.state_dict
            tensor = state[spec.target] if spec.target in state else self.exported.constants[spec.target]
            name = self.paths.get(_storage(tensor), str(spec.target))
            tensor = tensor.detach()
            self.names.set(tensor, name)
            return tensor
        raise UnsupportedError(
            f"the exported program has an argument of kind {spec.kind.name.lower()}", where=self.caller, why=str(spec)
        )

    # ------------------------------------------------------------------ calls

    def program(self) -> Program:
        """The finished program."""
        results = self.run(self.exported.graph_module, self.arguments)
        nodes = next(node for node in self.exported.graph.nodes if node.op == "output").args[0]
        outputs, sources = [], []
        for spec, result, node in zip(self.exported.graph_signature.output_specs, results, nodes, strict=True):
            kind = spec.kind.name
            if kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION", "PARAMETER_MUTATION"):
                what = "an input" if kind.startswith("USER") else "a buffer or parameter"
                raise UnsupportedError(
                    f"the model writes to {what} in place: {spec.target!r}",
                    where=self.location(node, named=False),
                    why="a program has no state: it only returns its outputs",
                    hint="work on a copy (x = x + 1 instead of x += 1), and return what must be kept",
                )
            outputs.append(result)
            sources.append(node)
        named = dict(zip(self._output_names(len(outputs)), zip(outputs, sources, strict=True), strict=True))
        checked = {name: self._output(name, value, node) for name, (value, node) in named.items() if value is not None}
        if not checked:
            raise ProgramError("the model returns no tensor", where=self.start, hint="return what is to be decrypted")
        specs = []
        for name, made in checked.items():
            kind, source, axis = self.finals.get(made, ("", made, 0))
            left = kind == "log_softmax" or (kind == "softmax" and self.logits)
            checked[name] = source if left else made
            finish = {"finish": kind, "finish_axis": axis} if left else {}
            specs.append(TensorSpec(name, tuple(source.type.shape), **finish))
        program = replace(self.builder.finish(checked), calibration=self.calibration, gradients=impacts)
        if any(spec.finish for spec in specs):
            return replace(program, interface=Interface(outputs=tuple(specs)))
        return program

    def _output(self, name: str, value: Any, node: Any) -> Any:
        where = self.location(node, named=False) if isinstance(node, torch.fx.Node) else self.start
        if isinstance(value, Refused):
            raise value.error
        if isinstance(value, Complex):
            raise complex_values(where, f"output {name!r}")
        if not isinstance(value, Value):
            raise ProgramError(
                f"output {name!r} does not depend on an input",
                where=where,
                why="there is nothing to encrypt in it",
                hint="return it from your own code, and leave it out of the model's outputs",
            )
        if value.hidden is not None and not value.hidden.finite:
            raise UnsupportedError(
                f"output {name!r} holds minus infinity",
                where=where,
                why="it was written to some places as a mask, and encrypted values are finite numbers",
                hint="return what the mask is applied to, and apply it on the client",
            )
        if not value.seen:
            raise self.merged[0]
        if value.batch:
            raise UnsupportedError(
                f"output {name!r} has its batch axis at position {value.batch}",
                where=where,
                why="axis 0 of every output is the batch axis",
                hint="permute the batch axis to the front before returning",
            )
        return value.node

    def _output_names(self, count: int) -> list[str]:
        """`y` for one tensor, `y0`, `y1`, ... for a tuple or list, keys for a dict, joined by dots where nested."""
        from torch.utils import _pytree as pytree

        spec = self.exported.call_spec.out_spec
        tree = pytree.tree_unflatten(list(range(count)), spec) if spec is not None else list(range(count))
        names = []
        for path, _ in pytree.tree_flatten_with_path(tree)[0]:
            parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
            name = ".".join(parts)
            names.append(name if name and not name[0].isdigit() else f"y{name}")
        return names

    def run(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Any:
        """The outputs of a graph for these arguments."""
        values: dict[Any, Any] = {}
        remaining = iter(arguments)
        nodes = list(module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        secret = depending_on(
            nodes, {node for node, value in zip(inputs, arguments, strict=False) if isinstance(value, Value)}
        )
        fused = fusions(nodes, secret)
        within = {node for one in fused.values() for node in one.nodes[:-1]}
        for node in nodes:
            name = fused[node].name(values) if node in fused else None
            if name is not None:
                x = values[fused[node].source]
                made = self.builder.op(name, (x.node,), self.location(node))
                values[node] = with_dtypes(Value(made, x.batch), node.meta.get("val"))
            elif node.op == "placeholder":
                values[node] = next(remaining)
            elif node.op == "get_attr":
                values[node] = self._attribute(module, str(node.target))
            elif node.op == "output":
                return torch.fx.node.map_arg(node.args[0], values.__getitem__)
            else:
                args = torch.fx.node.map_arg(node.args, values.__getitem__)
                kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
                try:
                    values[node] = self._call(node, args, kwargs)
                except UnsupportedError as error:
                    if node not in within:
                        raise
                    # It is met again as a part of a function that has no such part left.
                    values[node] = Refused(error)
        raise ProgramError("the exported graph has no output", where=self.caller)

    def _attribute(self, module: torch.fx.GraphModule, target: str) -> Any:
        value: Any = module
        for part in target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            value = value.detach()
            self.names.set(value, target)
        return value

    def location(self, node: Any, named: bool = True) -> Location:
        """The user's line of a call; its layer too where it makes a node."""
        place = stack_location(node.meta.get("stack_trace")) or self.caller
        place = place or Location(layer_text(node, self.module))
        return replace(place, layer=self.layers.name(node)) if named else place

    def _call(self, node: Any, args: Any, kwargs: Any) -> Any:
        target = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        name = op_name(target)
        no_rule = next(parts((args, kwargs), Refused), None)
        if no_rule is not None:
            raise no_rule.error
        if name == "wrap_with_set_grad_enabled":
            return self.run(args[1], args[2:])
        if name == "wrap_with_autocast":
            return self.run(args[4], args[5:])
        tokens = next(parts((args, kwargs), Tokens), None)
        if tokens is not None:
            call = Call(
                self.builder, self.names, self.location(node), self.batch_size, name, user_name(target), None, target
            )
            return with_dtypes(token_call(call, args, tokens), node.meta.get("val"))
        mixed = next(parts((args, kwargs), Complex), None) is not None
        if not mixed and not any(parts((args, kwargs), Value)):
            return self._fold(node, args, kwargs)
        result = node.meta.get("val")
        if mixed or (isinstance(result, torch.Tensor) and result.is_complex()):
            return self._complex(node, args, kwargs)
        if isinstance(result, torch.Tensor) and any(not isinstance(size, int) for size in result.shape):
            raise data_dependent(
                self.location(node, named=False), f"the shape of {user_name(target)} depends on values, as with a mask"
            )
        key = name if rule_of(name) is not None else name.removesuffix("_")
        loc = self.location(node)
        rule = rule_of(key) or torch_pointwise.rule_by_tag(target)
        if rule is None:
            raise unsupported(node, loc)

        def run(args: Any, kwargs: Any, result: Any) -> Any:
            call = Call(self.builder, self.names, loc, self.batch_size, key, user_name(target), result, target)
            call.merged, call.finals = self.merged, self.finals
            try:
                inspect.signature(rule).bind(call, *args, **kwargs)
            except TypeError as error:
                raise call.refuse(
                    f"{name} is called in a form that has no rule: {error}", "use its ordinary form"
                ) from None
            try:
                return with_dtypes(with_masks(call, rule, args, kwargs), result)
            except NoRule:
                raise unsupported(node, loc) from None

        if all(value.seen for value in parts((args, kwargs), Value)):
            return run(args, kwargs, result)
        return unseen_call(self.builder, loc, run, args, kwargs, result)

    def _complex(self, node: Any, args: Any, kwargs: Any) -> Any:
        name, target = op_name(node.target), node.target
        result, loc = node.meta.get("val"), self.location(node)
        call = Call(self.builder, self.names, loc, self.batch_size, name, user_name(target), result, target)
        try:
            return with_dtypes(complex_call(call, args, kwargs), result)
        except NoRule:
            raise complex_values(loc, f"the result of {user_name(target)}") from None

    def _fold(self, node: Any, args: Any, kwargs: Any) -> Any:
        """What torch computes from plain tensors and numbers alone."""
        target = node.target
        if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
            raise random_values(node, self.location(node))
        with torch.no_grad():
            result = target(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            tensors = [value for value in args if isinstance(value, torch.Tensor)]
            base = self.names.get(tensors[0], "") if tensors else ""
            short = short_name(target)
            label = base if base and short in _KEEPS_NAME else f"{base}.{short}" if base else short
            if base and short in _TRANSPOSES and result.ndim == 2:
                label = transposed_name(base)
            if not any(result is tensor for tensor in tensors):
                self.names.set(result, label)
        return result


def _becomes_floating(node: Any) -> bool:
    """Whether an input of whole numbers is turned into floating-point numbers wherever it is read."""
    users = [user for user in node.users if isinstance(user.meta.get("val"), torch.Tensor)]
    return bool(users) and all(
        user.meta["val"].is_floating_point() and short_name(user.target) in ("to", "type_as", "div", "true_divide")
        for user in users
    )


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are one array in memory, read the same way."""
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
