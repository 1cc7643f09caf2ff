"""The user's example or samples (tensors, dicts, dataclasses, a DataLoader) as calls of the model."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from heliograph.errors import ProgramError, said
from heliograph.execution.interface import real_numbers
from heliograph.ir import Location

# The number of samples taken from a DataLoader for calibration, and in one batch of a data set without one.
_LOADED, _BATCH = 512, 64
# The name of the example in error messages: the user's own, or taken from samples.
EXAMPLE, SAMPLES = "example_input", "the first calibration samples"


@dataclass(frozen=True, slots=True)
class Example:
    """The arguments of one call of the model, with tensors anywhere in them; `called` is their name in errors."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    called: str = EXAMPLE

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors in the order of the inputs of the exported program."""
        return tuple(leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor))

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Example:
        """The example with the function applied to each tensor."""

        def each(leaf: Any) -> Any:
            return function(leaf) if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = pytree.tree_map(each, (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)


def readable(given: Any) -> Any:
    """The value as torch takes it: arrays in native byte order, data frames as arrays, data sets as loaders."""
    if isinstance(given, torch.Tensor):
        return given.detach()
    if isinstance(given, DataLoader):
        return given
    if isinstance(given, Dataset):
        return DataLoader(given, batch_size=_BATCH)
    if isinstance(given, np.ndarray):
        return _native(given)
    for method in ("to_numpy", "__array__"):
        if hasattr(given, method) and not isinstance(given, type | np.generic):
            return _native(np.asarray(getattr(given, method)()))
    if isinstance(given, Mapping):
        return {name: readable(item) for name, item in given.items()}
    if _is_record(given):
        fields = {field.name: readable(getattr(given, field.name)) for field in dataclasses.fields(given) if field.init}
        return replace(given, **fields)
    if type(given) in (list, tuple) and not all(isinstance(item, int | float) for item in given):
        return type(given)(readable(item) for item in given)
    return given


def _native(array: Any) -> Any:
    """An array as contiguous numbers of a type that torch has; an array of another kind unchanged."""
    if isinstance(array, np.ma.MaskedArray):
        array = np.ma.filled(array.astype(np.float64), np.nan)
    if array.dtype.kind == "O":
        try:
            array = real_numbers(array)
        except ValueError:
            return array  # its reader reports what it is instead
    dtype = array.dtype.newbyteorder("=")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        dtype = np.dtype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        dtype = np.dtype(np.int64)
    return np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)


def floating(examples: Example, places: Collection[int], dtype: torch.dtype) -> Example:
    """The example with the tensors at these places converted to floating point."""
    count = iter(range(len(examples.tensors)))
    return examples.map(lambda tensor: tensor.to(dtype) if next(count) in places else tensor)


def example_of(model: torch.nn.Module, given: Any, called: str = EXAMPLE) -> Example:
    """The example inputs as a call, floating-point ones in the precision of the model's parameters.

    A tuple or list is the arguments in order. A dict is passed by keyword where its keys are parameters of `forward`,
    else as one argument; a dataclass is one argument. Raises a ProgramError that describes any other value.
    """
    if given is None:
        raise ProgramError(
            said("trace needs {example_input}"),
            hint="give one tensor, or a tuple of tensors, with a batch axis; or calibration samples for every input",
        )
    for path, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise ProgramError(
                f"parameter {path!r} has no values yet",
                hint="load the weights (and run the model once if it has lazy layers) before trace",
            )
    # The types of the weights. Without weights, or with several types, tensors are left as they are.
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())
    args, kwargs = _call(model, given)
    names = [str(position) for position in range(len(args))] + [repr(name) for name in kwargs]
    words = "example_input" if called == EXAMPLE else "calibration of input"

    def tensor(name: str, leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, bool | int | float) or (isinstance(leaf, str) and name != "0"):
            return leaf
        if isinstance(leaf, np.ndarray):
            # torch warns about read-only arrays, such as those of a memory-mapped file.
            try:
                leaf = torch.as_tensor(np.require(leaf, requirements="W"))
            except TypeError:
                raise ProgramError(
                    f"{words} {name} is not an array of real numbers",
                    why=f"its elements are {leaf.dtype}: {leaf.flat[0]!r} is the first one" if leaf.size else "",
                    hint="give numbers alone: columns of text are encoded on the client",
                ) from None
            leaf = leaf.to(dtype) if leaf.is_floating_point() else leaf
        if leaf.ndim == 0:
            raise ProgramError(f"{words} {name} has no axes", hint="give it a batch axis in front: x.reshape(1, ...)")
        if leaf.numel() == 0:
            raise ProgramError(
                f"{words} {name} of shape {tuple(leaf.shape)} holds no element", hint="one sample is enough"
            )
        if leaf.is_floating_point() and len(kinds) == 1:
            leaf = leaf.to(dtype)
        return leaf.detach()

    made = []
    for name, item in zip(names, (*args, *kwargs.values()), strict=True):
        leaves, spec = pytree.tree_flatten(item)
        arrays = [isinstance(leaf, torch.Tensor | np.ndarray) for leaf in leaves]
        plain = item is None or (isinstance(item, bool | int | float) and name != "0")
        if not any(arrays) and not plain:
            raise ProgramError(
                f"{words} {name} is {type(item).__name__}, not a tensor",
                hint="give one tensor, a tuple of tensors in the order of forward's arguments, or a dict of them by name",
            )
        made.append(pytree.tree_unflatten([tensor(name, leaf) for leaf in leaves], spec))
    return Example(tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True)), called)


def example_in(exported: ExportedProgram) -> Example:
    """The example of an exported program; zeros if its file has none."""
    if exported.example_inputs is not None:
        return Example(*exported.example_inputs)
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
    pairs = zip(nodes, exported.graph_signature.input_specs, strict=True)
    leaves = [
        torch.zeros(node.meta["val"].shape, dtype=node.meta["val"].dtype)
        if isinstance(node.meta.get("val"), torch.Tensor)
        else getattr(spec.arg, "value", None)
        for node, spec in pairs
        if spec.kind.name == "USER_INPUT"
    ]
    return Example(*pytree.tree_unflatten(leaves, exported.call_spec.in_spec))


def first_samples(model: torch.nn.Module, samples: Any) -> Any:
    """The first two calibration samples as an example with a batch axis; None if some input has no samples."""
    wanted = [
        parameter.name
        for parameter in inspect.signature(model.forward).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if isinstance(samples, DataLoader):
        samples = next(iter(samples), None)
        if isinstance(samples, Mapping):
            samples = {name: samples[name] for name in wanted if name in samples} or samples
        elif isinstance(samples, list | tuple):
            samples = tuple(samples[: max(1, len(wanted))])
    if samples is None or (isinstance(samples, list | tuple) and any(part is None for part in samples)):
        return None
    if isinstance(samples, list) and len(wanted) == 1:
        samples = _stacked(samples)
    return pytree.tree_map(lambda leaf: leaf[:2] if isinstance(leaf, torch.Tensor | np.ndarray) else leaf, samples)


def _call(model: torch.nn.Module, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments."""
    signature = inspect.signature(model.forward).parameters
    parameters = list(signature)
    if isinstance(given, Mapping) and parameters:
        more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.values())
        if set(given) <= set(parameters) or (more and set(given) & set(parameters)):
            order = [
                *(name for name in parameters if name in given),
                *(name for name in given if name not in parameters),
            ]
            return (), {name: _known(given[name]) for name in order}
    if isinstance(given, list | tuple):
        return tuple(_known(item) for item in given), {}
    return (_known(given),), {}


def _known(item: Any) -> Any:
    """The item in a form that torch takes apart: any mapping becomes a dict, and a dataclass is registered."""
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        if type(item) not in pytree.SUPPORTED_NODES:
            torch.export.register_dataclass(type(item))
        return item
    return dict(item) if isinstance(item, Mapping) else item


def _stacked(samples: Sequence[Any]) -> torch.Tensor:
    """A list of samples as one tensor."""
    try:
        return torch.stack([torch.as_tensor(sample) for sample in samples])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ProgramError(
            "the calibration samples in the list are not arrays of real numbers of one shape",
            why=str(error).splitlines()[0][:200],
            hint="give one array with a leading sample axis",
        ) from None


def samples_of(
    module: torch.nn.Module | None, exported: ExportedProgram, samples: Any, names: Sequence[str], where: Location
) -> Any:
    """Calibration samples as a tuple of arrays in the order of the inputs, from a DataLoader, dicts or dataclasses.

    Entries of dicts and dataclasses are found by their names, wherever the example has one. From a DataLoader's batches
    the first entries are taken, or the ones in the example. Arrays, and tuples of them, are returned unchanged. `names`
    are the names of the inputs. Raises a ProgramError where the names differ.
    """
    loaded = isinstance(samples, DataLoader)
    tree = pytree.tree_unflatten(list(range(exported.call_spec.in_spec.num_leaves)), exported.call_spec.in_spec)
    args, kwargs = tree
    if loaded:
        samples = _loaded(samples, len(args) + len(kwargs), len(names))
    ours = list(inspect.signature(module.forward).parameters) if module is not None else list(names)
    wanted = {**dict(zip(ours, args, strict=False)), **kwargs}
    tensors = set(tensor_inputs(exported))
    nested = [item for item in wanted.values() if not isinstance(item, int)]
    if isinstance(samples, Mapping) and not (len(wanted) == 1 and nested and not set(samples) <= set(ours)):
        given: Any = dict(samples)
    elif len(wanted) == 1 and nested and (isinstance(samples, Mapping) or _is_record(samples)):
        given = dict.fromkeys(wanted, samples)
    elif isinstance(samples, list | tuple) and nested and len(samples) == len(wanted) and any(map(_has_parts, samples)):
        given = dict(zip(wanted, samples, strict=True))
    else:
        return samples
    found: dict[int, Any] = {}
    try:
        _match(wanted, given, tensors, found, loaded)
    except ProgramError as error:
        raise ProgramError(error.what, where=where, why=error.why, hint=error.hint) from None
    return tuple(found[place] for place in sorted(tensors))


def tensor_inputs(exported: ExportedProgram) -> dict[int, Any]:
    """The inputs of the graph that are tensors, each with its index among the leaves of the example."""
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
    pairs = zip(nodes, exported.graph_signature.input_specs, strict=True)
    users = [node for node, spec in pairs if spec.kind.name == "USER_INPUT"]
    return {place: node for place, node in enumerate(users) if isinstance(node.meta.get("val"), torch.Tensor)}


def _match(wanted: Any, given: Any, tensors: set[int], found: dict[int, Any], loaded: bool) -> None:
    """Collect the entries of `given` at the places where `wanted`, the example, has the numbers of its leaves."""
    if isinstance(wanted, int):
        found[wanted] = given
        return
    theirs, ours = _named(given), _named(wanted)
    needed = [name for name, part in ours.items() if any(leaf in tensors for leaf in pytree.tree_leaves(part))]
    lacking = [name for name in needed if name not in theirs]
    if lacking or (not loaded and not set(theirs) <= set(ours)):
        raise ProgramError(
            f"calibration has {', '.join(map(repr, theirs)) or 'no entries'}, the example {', '.join(map(repr, ours))}",
            why="samples are found by the names that the example has",
            hint="give the samples under the same names",
        )
    for name in needed:
        _match(ours[name], theirs[name], tensors, found, loaded)


def _named(value: Any) -> dict[Any, Any]:
    """The parts of a dict, a dataclass or a sequence by name or place."""
    if isinstance(value, Mapping):
        return dict(value)
    if _is_record(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(enumerate(value)) if isinstance(value, list | tuple) else {}


def _has_parts(value: Any) -> bool:
    """Whether the value consists of several samples' arrays, rather than one array."""
    return isinstance(value, Mapping | tuple) or _is_record(value)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _loaded(loader: DataLoader[Any], arguments: int, inputs: int) -> Any:
    """The first samples of a loader, as one batch of its kind: the parts of a tuple that the model takes."""
    batches, seen = [], 0
    for batch in loader:
        batches.append(batch)
        sizes = [int(leaf.shape[0]) for leaf in _arrays_in(batch) if leaf.ndim]
        if not sizes:
            raise ProgramError("the DataLoader gives no tensors", hint="give one whose batches are tensors")
        seen += sizes[0]
        if seen >= _LOADED:
            break
    if not batches:
        raise ProgramError("the DataLoader is empty", hint="give one with samples")
    joined = _joined(batches)
    if isinstance(joined, tuple):
        count = arguments if any(map(_has_parts, joined[:arguments])) else inputs
        return joined[0] if count == 1 else joined[:count]
    return joined


def _arrays_in(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor | np.ndarray):
        return [value]
    return [array for part in _named(value).values() for array in _arrays_in(part)]


def _joined(parts: Sequence[Any]) -> Any:
    """Batches joined, each part by itself; a part that is not an array comes from the first batch."""
    first = parts[0]
    if not _arrays_in(first):
        return first
    if isinstance(first, torch.Tensor | np.ndarray):
        return torch.cat([torch.as_tensor(part) for part in parts])[:_LOADED]
    if isinstance(first, Mapping) or _is_record(first):
        made = {name: _joined([_named(part)[name] for part in parts]) for name in _named(first)}
        return made if isinstance(first, Mapping) else replace(first, **made)
    if isinstance(first, list | tuple):
        return tuple(_joined([part[place] for part in parts]) for place in range(len(first)))
    return first
