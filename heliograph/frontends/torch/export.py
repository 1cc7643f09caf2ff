"""From a PyTorch module to a program of the tensor stage, through `torch.export`."""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.execution.interface import columns_of
from heliograph.frontends.torch.check import compared, mixes, rows_of
from heliograph.frontends.torch.difference import Reading
from heliograph.frontends.torch.graph import all_nodes, chooses, depending, draws, export, functional, quiet
from heliograph.frontends.torch.inputs.arguments import Arguments, Inputs
from heliograph.frontends.torch.inputs.covers import as_flags, as_numbers, with_covers
from heliograph.frontends.torch.inputs.examples import (
    EXAMPLE,
    SAMPLES,
    Example,
    example_in,
    example_of,
    first_samples,
    floating,
    readable,
    tensor_inputs,
)
from heliograph.frontends.torch.inputs.reach import Reach
from heliograph.frontends.torch.inputs.tokens import NUMBERS, RENORMS, Tokens, as_number, numbers_in, token_call
from heliograph.frontends.torch.refusals import (
    complex_values,
    not_run,
    random_values,
    sequence_first,
    shape_of_known,
    shape_of_values,
    unsupported,
    user_name,
    writes_in_place,
)
from heliograph.frontends.torch.rules import (  # noqa: F401  (they register rules)
    arithmetic,
    attention,
    decisions,
    einsum,
    extrema,
    functions,
    layers,
    pooling,
    products,
    statistics,
    structure,
)
from heliograph.frontends.torch.source import (
    LayerNames,
    caller_location,
    forward_location,
    layer_text,
    module_stack,
    op_name,
    short_name,
    stack_location,
)
from heliograph.frontends.torch.training import polynomial  # noqa: F401  (it registers rules)
from heliograph.frontends.torch.training.impacts import impacts
from heliograph.frontends.torch.unbatched import unbatched
from heliograph.frontends.torch.values import (
    Call,
    Mixes,
    NoRule,
    Refused,
    TensorNames,
    Value,
    parts,
    rule_of,
    transposed_name,
    with_dtypes,
)
from heliograph.frontends.torch.ways import linear, pointwise  # noqa: F401  (they register rules)
from heliograph.frontends.torch.ways.complex import Complex, complex_call
from heliograph.frontends.torch.ways.decompose import decomposed
from heliograph.frontends.torch.ways.fuse import Fused, depending_on, fusions
from heliograph.ir import Builder, Location, Node, Program, Stage, shape_of
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.program import Comparison

# Folding these keeps the tensor's name, the path of its parameter, which the user knows.
_KEEPS_NAME = {"detach", "clone", "contiguous", "alias", "to", "lift_fresh", "lift_fresh_copy", "expand"}
_TRANSPOSES = {"t", "permute", "transpose", "numpy_T", "mT"}


def trace(
    model: torch.nn.Module | ExportedProgram,
    example_input: Any = None,
    *,
    input_range: Any = None,
    calibration: Any = None,
    name: str | None = None,
    plain: Sequence[str] = (),
    outputs: str | None = None,
    check: bool = True,
) -> Program:
    """The program of the tensor stage that computes what the module computes in eval mode, for one sample.

    `example_input` is a tensor, or a tuple of tensors for several inputs, with a batch axis (of any size) in front; the
    program has no batch axis. A dict gives arguments by name; a dict whose keys are not arguments, or a dataclass, is
    one argument. If it is left out, the first two calibration samples are the example; an `ExportedProgram` has its own.
    Integers that select rows of tables become one-hot inputs.

    `input_range` is the interval (low, high) of the input's elements. `calibration` is an array of samples with a
    leading sample axis. For several inputs both are tuples in argument order, with None for an input that has none.
    Samples may also have the form of the example, whose names identify them, or come from a DataLoader, a data set
    or a data frame (clients may then pass data frames and their rows, which are read by column name).
    Without `input_range` the range is from the smallest to the largest element of the calibration samples; without both
    it stays open. `name` is by default the module's class. `plain` names arguments that are not encrypted: the server
    supplies them at run time. With `outputs="logits"`, a softmax at the end of the model is left to
    the client, which computes it exactly after decryption (the report says so). The logarithm of a softmax at the end
    is always left to the client.

    The program is compared with the module before it is returned: both run on up to 64 different calibration samples,
    in batches of several sizes and orders and alone, or on samples like the example where there are none. `check=False`
    skips the comparison; the report says what was compared.

    The module is not changed. Parameters keep their precision, and their paths become the names of constants. Every
    node has the user's line and a layer: the path of a `torch.nn` layer, or the path of the calling module and the
    function's name, with `_1`, `_2`, ... for later calls. A layer that no line of the user's calls (in
    `nn.Sequential`) has the place `GELU()`, as it is written.

    Raises UnsupportedError for an op without a rule, training mode, dynamic shapes, control flow that depends on data,
    and a model whose outputs differ from the program's, and ProgramError for an input, range or samples that do not
    fit; each error says where, and what to do instead.
    """
    caller = caller_location()
    try:
        program = _trace(model, example_input, input_range, calibration, name, plain, outputs, check, caller)
    except UnsupportedError as error:
        hint = error.hint
        if isinstance(model, ExportedProgram):
            hint += "; or trace the module itself: an exported program may be decomposed into smaller ops"
        elif isinstance(error, Mixes) and isinstance(model, torch.nn.Module):
            hint = sequence_first(model, error.where) or hint
        if hint == error.hint:
            raise
        raise UnsupportedError(error.what, where=error.where, why=error.why, hint=hint) from None
    columns = columns_of(example_input if calibration is None else calibration)
    shapes = {node.attrs["name"]: shape_of(node) for node in program.inputs}
    if columns is None or list(shapes.values()) != [(len(columns),)]:
        return program
    given = tuple(TensorSpec(name, shape, columns=columns) for name, shape in shapes.items())
    return replace(program, interface=replace(program.interface, inputs=given))


def _trace(
    model: Any,
    example_input: Any,
    input_range: Any,
    calibration: Any,
    name: str | None,
    plain: Sequence[str],
    outputs: str | None,
    check: bool,
    caller: Location,
) -> Program:
    if outputs not in (None, "logits"):
        raise ProgramError(f"outputs is {outputs!r}", where=caller, hint='outputs="logits", or nothing')
    model = getattr(model, "_orig_mod", model)  # the module that torch.compile wraps
    example_input, calibration = readable(example_input), readable(calibration)
    if isinstance(model, ExportedProgram):
        exported = model
        given = examples = example_in(exported)
        whole: frozenset[int] = frozenset()
        start = caller
    elif isinstance(model, torch.nn.Module) and any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        raise ProgramError(
            "the model is, or has within it, a TorchScript module",
            where=caller,
            hint="trace the module itself, before torch.jit.script or torch.jit.trace",
        )
    elif isinstance(model, torch.nn.Module):
        given, examples, exported, whole = _exported(model, example_input, calibration, caller)
        start = forward_location(model) or caller
    else:
        raise ProgramError(
            f"trace takes a torch.nn.Module or a torch.export.ExportedProgram, not {type(model).__name__}",
            where=caller,
            hint=_instead(model),
        )
    module = model if isinstance(model, torch.nn.Module) else None
    called = name or _name(model, exported)
    graph = functional(exported, caller)
    with quiet():
        graph = decomposed(graph, depending)
    tracer = _Tracer(graph, called, caller, start, module)
    tracer.logits = outputs == "logits"
    arguments = Arguments(graph, tracer.builder, tracer.names, frozenset(plain), caller, start, module, whole)
    inputs = arguments.read(example_input if module is None else None, given, input_range, calibration)
    runs = module
    if runs is None:
        with quiet():
            runs = exported.module()
    elif any(getattr(one, "max_norm", None) for one in runs.modules()):
        # Lookups change its table.
        runs = copy.deepcopy(runs)

    def read(wide: Program, program: Program) -> Reading:
        assert runs is not None
        return Reading(
            module=runs,
            example=examples,
            program=program,
            wide=wide,
            exported=graph,
            values=tracer.values,
            caller=caller,
            start=start,
            any_batch=module is not None,
            allowed=inputs.allowed,
            flags=inputs.flags,
            softened=tracer.softened,
        )

    try:
        wide = tracer.program(inputs)
        program = unbatched(wide, inputs.count, tracer.entries)
    except ProgramError as error:
        # A model that mixes samples is refused for that reason, rather than for a later op on the mixture.
        taken = tracer.builder.finish(tracer.builder.inputs)
        refused = None
        with contextlib.suppress(Exception):
            # The model may write to its own tensors, and may not support copies.
            runs = copy.deepcopy(runs)
            refused = mixes(read(taken, taken))
        if refused is not None and refused.what.split()[0] not in error.what:
            raise refused from None
        raise
    reading = read(wide, program)
    if not check:
        refused = mixes(reading)
        if refused is not None:
            raise refused
        return replace(program, comparison=Comparison(0))
    comparison = compared(reading, inputs.samples)
    if comparison.ties and inputs.samples:
        warnings.warn(
            f"{called}: rounding decides the answer for {comparison.ties} of the {comparison.samples} samples on which the "
            "program was compared with the model: a value equals the one that it is compared with, and the program may "
            "answer otherwise there; compare with a number between those that occur",
            stacklevel=3,
        )
    return replace(program, comparison=comparison)


def _exported(
    model: torch.nn.Module, example_input: Any, calibration: Any, caller: Location
) -> tuple[Example, Example, ExportedProgram, frozenset[int]]:
    """The example, the part of it with which the graph was made, the graph, and the places of tensors of whole numbers or
    truth values among those of the example as it was given.

    Samples of whole numbers that choose nothing (pixels) are floating-point.
    """
    if example_input is not None:
        examples = example_of(model, example_input)
        return examples, *_of_one(model, examples, caller), frozenset()
    first = first_samples(model, calibration)
    examples = example_of(model, first, EXAMPLE if first is None else SAMPLES)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())
    whole = {place for place, tensor in enumerate(examples.tensors) if not tensor.is_floating_point()}
    as_given = frozenset(whole)
    truths = {place for place in whole if examples.tensors[place].dtype == torch.bool}
    if truths and _runs(model, examples):
        # The model takes truth values: as numbers, a mask would be added to scores.
        whole -= truths
    if any(tensor.is_complex() for tensor in examples.tensors):
        whole = set()
    made = None
    try:
        made = _of_one(model, examples, caller)
        whole -= {place for place, node in enumerate(tensor_inputs(made[1]).values()) if chooses(node)}
    except ProgramError:
        if not whole:
            raise
    if not whole and made is not None:
        return examples, *made, as_given
    numbers = floating(examples, whole, dtype)
    try:
        return numbers, *_of_one(model, numbers, caller), as_given
    except ProgramError:
        # Messages about the samples refer to them as they were given.
        return examples, *(made or _of_one(model, examples, caller)), as_given


def _runs(model: torch.nn.Module, examples: Example) -> bool:
    """Whether the model runs on the example as it is."""
    try:
        rows_of(model, examples, examples.tensors)
    except Exception:
        return False
    return True


def _of_one(model: torch.nn.Module, examples: Example, caller: Location) -> tuple[Example, ExportedProgram]:
    """The graph of one sample, or of all samples of the example where the model runs only on that many."""
    one = examples.map(lambda tensor: tensor[:1])
    try:
        return one, export(model, one, caller)
    except ProgramError:
        if all(len(tensor) == 1 for tensor in examples.tensors):
            raise
        return examples, export(model, examples, caller)


def _instead(model: Any) -> str:
    """The hint for something that cannot be traced."""
    if str(model).endswith(".onnx") or type(model).__module__.partition(".")[0] == "onnx":
        return (
            "ONNX files are not read: trace the PyTorch module that the file was made from, or its torch.export program"
        )
    if hasattr(model, "get_params") and hasattr(model, "fit"):
        return "give its samples to from_sklearn: hg.from_sklearn(estimator, samples)"
    return "wrap a function in a module: its body is the module's forward"


def _name(model: Any, exported: ExportedProgram) -> str:
    """The class of the root module."""
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    for node in exported.graph.nodes:
        stack = module_stack(node)
        if stack:
            return stack[0][1].rsplit(".", 1)[-1]
    return "program"


def _paths(tree: Any) -> list[tuple[Any, ...]]:
    """The keys and places that lead to each leaf of nested mappings and sequences."""
    if isinstance(tree, Mapping):
        parts = list(tree.items())
    elif isinstance(tree, list | tuple):
        parts = list(enumerate(tree))
    else:
        return [()]
    return [(key, *path) for key, part in parts for path in _paths(part)]


# ---------------------------------------------------------------------------------------------- the walk


class _Tracer:
    """Walks the exported graph once; the environment holds a `Value`, a plain tensor or a list for each torch value."""

    def __init__(
        self,
        exported: ExportedProgram,
        name: str,
        caller: Location,
        start: Location,
        module: torch.nn.Module | None,
    ) -> None:
        self.exported = exported
        self.module = module
        self.caller = caller
        self.start = start
        self.builder = Builder(name, Stage.TENSOR)
        self.names = TensorNames()
        self.layers = LayerNames(all_nodes(exported))
        self.logits = False
        self.entries: set[Node] = set()
        # The result of each call of the graph.
        self.values: dict[Any, Any] = {}
        self.finals: dict[Node, tuple[str, Node, int]] = {}
        self.softened: dict[str, int] = {}
        self.reach = Reach(self.builder)

    # ------------------------------------------------------------------ calls

    def program(self, inputs: Inputs) -> Program:
        """The finished program."""
        self.reach = Reach(self.builder, inputs.calibration)
        results = self.run(self.exported.graph_module, inputs.arguments)
        nodes = next(node for node in self.exported.graph.nodes if node.op == "output").args[0]
        outputs, sources = [], []
        for spec, result, node in zip(self.exported.graph_signature.output_specs, results, nodes, strict=True):
            kind = spec.kind.name
            if kind == "PARAMETER_MUTATION" and node.op == "call_function" and short_name(node.target) in RENORMS:
                continue  # max_norm: the lookups read the table with shorter rows
            if kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION", "PARAMETER_MUTATION"):
                what = "an input" if kind.startswith("USER") else "a buffer or parameter"
                raise writes_in_place(what, str(spec.target), self.location(node, named=False))
            outputs.append(as_number(self._call_at(node), result) if isinstance(result, Tokens) else result)
            sources.append(node)
        named = dict(zip(self._output_names(len(outputs)), zip(outputs, sources, strict=True), strict=True))
        checked = {name: self._output(name, value, node) for name, (value, node) in named.items() if value is not None}
        if not checked:
            raise ProgramError("the model returns no tensor", where=self.start, hint="return the values to decrypt")
        specs = []
        for name, made in checked.items():
            kind, source, axis = self.finals.get(made, ("", made, 0))
            left = kind == "log_softmax" or (kind == "softmax" and self.logits)
            checked[name] = source if left else made
            finish = {"finish": kind, "finish_axis": axis} if left else {}
            specs.append(TensorSpec(name, tuple(source.type.shape), **finish))
        program = replace(self.builder.finish(checked), calibration=inputs.calibration, gradients=impacts)
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
        if value.cover is not None:
            value = as_numbers(self._call_at(node), value)
        if value.hidden is not None and not value.hidden.finite:
            raise UnsupportedError(
                f"output {name!r} holds minus infinity",
                where=where,
                why="it was written to some places as a mask, which has a meaning before a softmax only: encrypted values "
                "are finite numbers",
                hint="return the values before the mask, and apply the mask on the client",
            )
        return value.node

    def _output_names(self, count: int) -> list[str]:
        """`y` for one tensor, `y0`, `y1`, ... for a tuple or list, keys for a dict, joined by dots where nested."""
        from torch.utils import _pytree as pytree

        spec = self.exported.call_spec.out_spec
        tree = pytree.tree_unflatten(list(range(count)), spec) if spec is not None else list(range(count))
        try:
            paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
        except ValueError:
            # A type that is registered without the names of its parts, as the outputs of transformers 4.
            paths = _paths(tree)
        names = []
        for path in paths:
            parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
            name = ".".join(parts)
            names.append(name if name and not name[0].isdigit() else f"y{name}")
        return names

    def run(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Any:
        """The outputs of a graph for these arguments."""
        values = self.values
        remaining = iter(arguments)
        nodes = list(module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        secret = depending_on(
            nodes, {node for node, value in zip(inputs, arguments, strict=False) if isinstance(value, Value)}
        )
        fused = fusions(nodes, secret)
        within = {node: one for one in fused.values() for node in one.nodes[:-1]}
        for node in nodes:
            whole = within.get(node)
            if whole is not None and all(one in values for one in whole.numbers) and self._fused(whole) is None:
                # Parts may be fused where fusing the whole is not worth it.
                del fused[whole.last]
                within = {inner: one for inner, one in within.items() if one is not whole}
                inside = whole.parts()
                fused |= inside
                within |= {inner: one for one in inside.values() for inner in one.nodes[:-1]}
            name = self._fused(fused[node]) if node in fused else None
            if name is not None:
                x = values[fused[node].source]
                made = self.builder.op(name, (x.node,), self.location(node))
                values[node] = with_dtypes(Value(made), node.meta.get("val"))
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
                    # This call is part of a fused function, which will be emitted as one op without this part.
                    values[node] = Refused(error)
        raise ProgramError("the exported graph has no output", where=self.caller)

    def _fused(self, fused: Fused) -> str | None:
        """The name of the activation that replaces several calls; None where they are better left alone."""
        source = self.values[fused.source]
        if isinstance(source, Value) and source.cover is not None:
            return None
        reaches = fused.pieces and isinstance(source, Value)
        # As far from 0 as samples and ranges show.
        return fused.name(self.values, self.reach.size(source.node) if reaches else 0.0)

    def _attribute(self, module: torch.fx.GraphModule, target: str) -> Any:
        value: Any = module
        for part in target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            value = value.detach()
            self.names.set(value, target)
        return value

    def location(self, node: Any, named: bool = True) -> Location:
        """The user's line of a call, and its layer if it makes a node."""
        place = stack_location(node.meta.get("stack_trace"))
        written = Location(layer_text(node, self.module))
        if not named:
            return place or self.caller or written
        # Of a layer that no line of the user's calls (in nn.Sequential), the line of `trace` says nothing.
        return replace(place or written or self.caller, layer=self.layers.name(node))

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
        if any(parts((args, kwargs), Tokens)):
            made = self._with_tokens(node, args, kwargs)
            if not isinstance(made, tuple):
                return made
            args, kwargs = made
        mixed = next(parts((args, kwargs), Complex), None) is not None
        if not mixed and not any(parts((args, kwargs), Value)):
            return self._fold(node, args, kwargs)
        result = node.meta.get("val")
        if mixed or (isinstance(result, torch.Tensor) and result.is_complex()):
            return self._complex(node, args, kwargs)
        if isinstance(result, torch.Tensor) and any(not isinstance(size, int) for size in result.shape):
            secret = any(parts((args[1:], kwargs), Value)) or not any(parts((args[1:], kwargs), torch.Tensor))
            raise (shape_of_values if secret else shape_of_known)(node, self.location(node, named=False))
        if isinstance(result, torch.Tensor) and not result.numel() and all(user.op != "output" for user in node.users):
            # The empty rest of a partial rotary embedding, for example, which the next op concatenates.
            return torch.empty(tuple(result.shape), dtype=result.dtype)
        key = name if rule_of(name) is not None else name.removesuffix("_")
        loc = self.location(node)
        rule = rule_of(key) or pointwise.rule_by_tag(target)
        if rule is None:
            drawn = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
            raise random_values(node, loc) if drawn else unsupported(node, loc)

        call = self._call_at(node, loc)
        call.op = key
        try:
            inspect.signature(rule).bind(call, *args, **kwargs)
        except TypeError as error:
            raise call.refuse(
                f"{name} is called in a form that has no rule: {error}", "use its ordinary form"
            ) from None
        try:
            return as_flags(call, args, kwargs, with_dtypes(with_covers(call, rule, args, kwargs), result))
        except NoRule:
            raise unsupported(node, loc) from None
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise not_run(node, loc, error) from error

    def _call_at(self, node: Any, loc: Location | None = None) -> Call:
        """The call of a node of the graph, in the form that a rule takes."""
        target, result = node.target, node.meta.get("val")
        loc = loc or self.location(node)
        call = Call(self.builder, self.names, loc, op_name(target), user_name(target), result, target)
        call.entries, call.finals, call.reach, call.node = self.entries, self.finals, self.reach, node
        call.softened = self.softened
        return call

    def _with_tokens(self, node: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call on whole numbers that are looked up.

        For a call that an ordinary rule is to take: its operands, with numbers in place of the tokens, as a pair.
        """
        call = self._call_at(node)
        made = token_call(call, args, kwargs)
        return numbers_in(call, args, kwargs) if made is NUMBERS else with_dtypes(made, call.result)

    def _complex(self, node: Any, args: Any, kwargs: Any) -> Any:
        call = self._call_at(node)
        try:
            return with_dtypes(complex_call(call, args, kwargs), call.result)
        except NoRule:
            raise complex_values(call.loc, f"the result of {call.user_name}") from None

    def _fold(self, node: Any, args: Any, kwargs: Any) -> Any:
        """The result that torch computes from plain tensors and numbers alone."""
        target = node.target
        # Layers that are dropped in training draw numbers nevertheless, and nothing reads them.
        if draws(node) and any(reader.op == "output" for reader in depending_on(node.graph.nodes, {node})):
            raise random_values(node, self.location(node))
        try:
            with torch.no_grad():
                result = target(*args, **kwargs)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            raise not_run(node, self.location(node), error) from error
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
