"""What a user gives as an example or as samples (tensors, dicts, dataclasses, a DataLoader), as calls of the model."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from heliograph.errors import ProgramError

# The number of samples taken from a DataLoader for calibration.
_LOADED = 512


@dataclass(frozen=True, slots=True)
class Example:
    """The arguments of one call of the model, tensors anywhere in them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """In the order of the inputs of the exported program."""
        return tuple(leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor))

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Example:
        """The same with another tensor for each."""

        def each(leaf: Any) -> Any:
            return function(leaf) if isinstance(leaf, torch.Tensor) else leaf

        return Example(*pytree.tree_map(each, (self.args, self.kwargs)))


def example_of(model: torch.nn.Module, given: Any) -> Example:
    """The example inputs as a call, floating-point ones in the precision of the model's parameters.

    A tuple or list is the arguments in order. A dict is given by keyword where its keys are parameters of `forward`, else
    as one argument; a dataclass is one argument. Raises a ProgramError that says what else was given.
    """
    if given is None:
        raise ProgramError(
            "trace needs example_input",
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

    def tensor(name: str, leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, bool | int | float) or (isinstance(leaf, str) and name != "0"):
            return leaf
        if isinstance(leaf, np.ndarray):
            # torch warns about read-only arrays, such as those of a memory-mapped file.
            leaf = torch.as_tensor(np.require(leaf, requirements="W"))
            leaf = leaf.to(dtype) if leaf.is_floating_point() else leaf
        if leaf.ndim == 0:
            raise ProgramError(
                f"example_input {name} has no axes", hint="give it a batch axis in front: x.reshape(1, ...)"
            )
        if leaf.numel() == 0:
            raise ProgramError(
                f"example_input {name} of shape {tuple(leaf.shape)} holds no element", hint="one sample is enough"
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
                f"example_input {name} is {type(item).__name__}, not a tensor",
                hint="give one tensor, a tuple of tensors in the order of forward's arguments, or a dict of them by name",
            )
        made.append(pytree.tree_unflatten([tensor(name, leaf) for leaf in leaves], spec))
    return Example(tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True)))


def first_samples(model: torch.nn.Module, samples: Any) -> Any:
    """The first two calibration samples as an example with a batch axis; None where some input has no samples.

    One would leave open which axis of one is the batch axis.
    """
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
        samples = torch.as_tensor(np.asarray(samples))
    return pytree.tree_map(lambda leaf: leaf[:2] if isinstance(leaf, torch.Tensor | np.ndarray) else leaf, samples)


def _call(model: torch.nn.Module, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by place and by name."""
    parameters = list(inspect.signature(model.forward).parameters)
    if isinstance(given, Mapping) and parameters and set(given) <= set(parameters):
        return (), {name: _known(given[name]) for name in parameters if name in given}
    if isinstance(given, list | tuple):
        return tuple(_known(item) for item in given), {}
    return (_known(given),), {}


def _known(item: Any) -> Any:
    """The item as one that torch takes apart: any mapping is a dict, and a dataclass is registered."""
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        if type(item) not in pytree.SUPPORTED_NODES:
            torch.export.register_dataclass(type(item))
        return item
    return dict(item) if isinstance(item, Mapping) else item


def samples_of(model: torch.nn.Module | None, samples: Any, count: int) -> Any:
    """Calibration samples as a tuple of arrays in the order of the inputs, from a DataLoader, a dict or a dataclass.

    Of a DataLoader's batches the first `count` entries are taken, or those by name; anything else is given back.
    """
    if isinstance(samples, DataLoader):
        samples = _loaded(samples, count)
    if model is not None and (isinstance(samples, Mapping) or _is_record(samples)):
        args, kwargs = _call(model, samples)
        leaves = pytree.tree_leaves((args, kwargs))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor | np.ndarray | list))
    return samples


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _loaded(loader: DataLoader[Any], count: int) -> Any:
    """The first samples of a loader, as one batch of its kind."""
    batches, seen = [], 0
    for batch in loader:
        batches.append(batch)
        leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        if not leaves:
            raise ProgramError("the DataLoader gives no tensors", hint="give one whose batches are tensors")
        seen += int(leaves[0].shape[0])
        if seen >= _LOADED:
            break
    if not batches:
        raise ProgramError("the DataLoader is empty", hint="give one with samples")
    first = batches[0]
    if isinstance(first, Mapping):
        return {name: _joined([batch[name] for batch in batches]) for name in first}
    if isinstance(first, list | tuple):
        parts = [_joined([batch[place] for batch in batches]) for place in range(min(count, len(first)))]
        return parts[0] if count == 1 else tuple(parts)
    return _joined(batches)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([torch.as_tensor(part) for part in parts])[:_LOADED]
