"""What cannot be trained privately record by record, refused with the reason and what to do.

`check_module` looks at the layers. `check_loss` runs the module: a record is exchanged, and nothing of the other records
may move; and the gradients that the engine finds are compared with those of batches of one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heliograph.dp.training.gradients import GradientEngine, Inputs, Losses
from heliograph.dp.training.layers import trained
from heliograph.dp.training.recurrent import refused
from heliograph.errors import ProgramError, UnsupportedError

_CLOSE = 1e-6
"""Relative difference, in float64, above which two gradients are not the same."""


def check_module(module: nn.Module) -> None:
    """Raise where a layer mixes records, keeps statistics of them, or has no per-record gradients."""
    where = "the module" if not isinstance(module, nn.Module) else ""
    if where:
        raise ProgramError(f"{type(module).__name__} is not a torch.nn.Module", where=where)
    for name, layer in module.named_modules():
        for refuse in (_batch_statistics, _table_options, _recurrent, _uninitialised):
            refuse(layer, f"{name or 'the module'} ({type(layer).__name__})")
    if not trained(module):
        raise ProgramError(
            "the module has no trainable parameters",
            where=type(module).__name__,
            hint="set requires_grad on the parameters to be trained",
        )


def _batch_statistics(layer: nn.Module, where: str) -> None:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        instance = isinstance(layer, nn.modules.instancenorm._InstanceNorm)
        if instance and not layer.track_running_stats:
            return
        if instance:
            raise UnsupportedError(
                "instance norm with running statistics",
                where=where,
                why="the running mean and variance are released with the model, without noise",
                hint="use track_running_stats=False",
            )
        raise UnsupportedError(
            "batch norm cannot be trained privately",
            where=where,
            why="it normalises every record by the others of its batch, so that one record moves all gradients and no "
            "clipping bounds that; its running statistics are released without noise",
            hint=f"use torch.nn.GroupNorm(1, {layer.num_features}), or LayerNorm, which look at one record",
        )


def _table_options(layer: nn.Module, where: str) -> None:
    if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return
    if layer.max_norm is not None:
        raise UnsupportedError(
            "an embedding with max_norm",
            where=where,
            why="it rescales the rows that a batch uses during the forward pass: a change of the model without noise",
            hint="leave max_norm out; private updates are small",
        )
    if layer.scale_grad_by_freq:
        raise UnsupportedError(
            "an embedding with scale_grad_by_freq",
            where=where,
            why="a record's gradient is divided by how often the batch, all records of it, holds the token",
            hint="leave scale_grad_by_freq out",
        )


def _recurrent(layer: nn.Module, where: str) -> None:
    reason = refused(layer) if isinstance(layer, nn.RNNBase) else ""
    if reason:
        raise UnsupportedError(
            "no per-record gradients for this recurrent layer", where=where, why=reason, hint="leave proj_size out"
        )


def _uninitialised(layer: nn.Module, where: str) -> None:
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in layer.parameters(recurse=False)):
        raise ProgramError(
            "parameters have no shape yet",
            where=where,
            hint="run the module once on an example of public data, so that lazy layers learn their shapes",
        )


def check_loss(loss: Losses, module: nn.Module, sample: tuple[Inputs, Tensor], *, most: int = 4) -> None:
    """Raise where the loss or the module mixes records, keeps state, or the engine's gradients would not be true.

    `sample` is (inputs, targets) of at least two records; `most` of them are used, on a copy of the module in float64, so
    that nothing of the module changes. Whether this raises depends on the sample: take public or made-up records.
    """
    count = min(most, len(sample[1]))
    if count < 2:
        raise ProgramError("a check for mixed records needs at least two records", where="check_loss")
    inputs, targets = _first(sample[0], count), sample[1][:count]
    twin = _in_double(module)
    inputs, targets = _map(inputs, _double), _double(targets)

    def losses(x: Inputs, y: Tensor) -> Tensor:
        torch.manual_seed(0)
        outputs = twin(*x) if isinstance(x, tuple) else twin(x)
        found = loss(outputs, y)
        if not isinstance(found, Tensor) or found.shape != (len(y),):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ProgramError(
                f"the loss gave {shape} for {len(y)} records",
                where="loss",
                why="a private gradient needs the loss of each record by itself",
                hint="give a loss with reduction='none' and one value for each record",
            )
        return found

    with torch.random.fork_rng():
        _check_state(twin, lambda: losses(inputs, targets))
        _check_mixing(twin, losses, inputs, targets)
        with _without_dropout(twin):
            _check_gradients(twin, loss, losses, inputs, targets)


def _check_state(twin: nn.Module, run: Callable[[], Tensor]) -> None:
    before = {name: b.clone() for name, b in twin.named_buffers()}
    first, second = run().detach(), run().detach()
    for name, buffer in twin.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            raise UnsupportedError(
                "a buffer changes in the forward pass",
                where=name,
                why="what it keeps of the records is released with the model, without noise",
                hint="leave the layer out, or put it into eval mode before training",
            )
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise UnsupportedError(
            "the same records give different losses, with the same random numbers",
            where=type(twin).__name__,
            why="the module keeps state from one batch to the next, or draws from a generator of its own",
            hint="make the forward pass a function of parameters, inputs and torch's random numbers only",
        )


def _check_mixing(twin: nn.Module, losses: Losses, inputs: Inputs, targets: Tensor) -> None:
    """Exchange one record; losses and gradients of the others must stay."""
    parameters = trained(twin)

    def each(x: Inputs, y: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        values = losses(x, y)
        gradients = []
        for n in range(len(values)):
            found = torch.autograd.grad(values[n], parameters, retain_graph=True, allow_unused=True)
            zeros = (torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True))
            gradients.append(list(zeros))
        return values.detach(), gradients

    before, old = each(inputs, targets)
    for changed in range(len(targets)):
        after, new = each(_map(inputs, lambda t, at=changed: _exchanged(t, at)), _exchanged(targets, changed, True))
        for n in range(len(targets)):
            if n == changed:
                continue
            if not _same([before[n]], [after[n]]) or not _same(old[n], new[n]):
                raise UnsupportedError(
                    "the loss of one record depends on another record of the batch",
                    where="loss",
                    why=f"exchanging record {changed} moved the loss or the gradient of record {n}; clipping each record's "
                    "gradient then bounds nothing",
                    hint="use losses and layers that look at one record: no contrastive losses, no batch statistics, no "
                    "means over the batch",
                )


def _check_gradients(twin: nn.Module, loss: Losses, losses: Losses, inputs: Inputs, targets: Tensor) -> None:
    """The engine against autograd on batches of one."""
    parameters = trained(twin)
    found = GradientEngine(twin, loss).per_sample(inputs, targets)
    for n in range(len(targets)):
        value = losses(_map(inputs, lambda t, at=n: t[at : at + 1]), targets[n : n + 1]).sum()
        alone = torch.autograd.grad(value, parameters, allow_unused=True)
        true = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, alone, strict=True)]
        if not _same(true, [each[n] for each in found]):
            names = [name for name, p in twin.named_parameters() if p.requires_grad]
            wrong = [
                name for name, t, each in zip(names, true, found, strict=True) if not _same([t], [each[n]], scale=true)
            ]
            raise UnsupportedError(
                "per-record gradients of this module cannot be had from its layers",
                where=", ".join(wrong[:3]) or "the module",
                why="they differ from the gradients of batches of one record: a parameter is used outside of its layer, or "
                "records are not the first dimension of a layer's input",
                hint="call layers instead of using their weights by hand, and keep records the first dimension",
            )


def _same(left: list[Tensor], right: list[Tensor], scale: list[Tensor] | None = None) -> bool:
    a, b = (torch.cat([t.flatten() for t in side]) for side in (left, right))
    size = torch.cat([t.flatten() for t in scale]).norm() if scale else torch.maximum(a.norm(), b.norm())
    if not bool(torch.isfinite(a).all() & torch.isfinite(b).all()):
        return bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
    return bool((a - b).norm() <= _CLOSE * size + 1e-12)


def _exchanged(tensor: Tensor, at: int, target: bool = False) -> Tensor:
    """The tensor with another record's value (and, for real inputs, a little more) in one record's place."""
    out = tensor.clone()
    other = (at + 1) % len(tensor)
    out[at] = tensor[other]
    if tensor.is_floating_point() and not target:
        out[at] = 1.5 * tensor[other] + 0.1
    return out


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double() if tensor.is_floating_point() else tensor.detach().cpu()


def _map(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    return tuple(function(t) for t in inputs) if isinstance(inputs, tuple) else function(inputs)


def _first(inputs: Inputs, count: int) -> Inputs:
    return _map(inputs, lambda t: t[:count])


def _in_double(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module).cpu().double()
    except Exception as error:  # a module's own __deepcopy__ may fail in any way
        raise ProgramError(
            "the module cannot be copied to be checked", where=type(module).__name__, why=str(error)
        ) from error


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """Dropout draws one mask for a batch: batches of one cannot be compared with it."""
    kinds = (nn.modules.dropout._DropoutNd, nn.RNNBase)
    before: list[tuple[Any, float | bool]] = []
    for layer in module.modules():
        if isinstance(layer, kinds):
            before.append((layer, layer.training))
            layer.training = False
    try:
        yield
    finally:
        for layer, mode in before:
            layer.training = mode
