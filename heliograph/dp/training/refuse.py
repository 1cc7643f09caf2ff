"""Refusal of modules that cannot be trained privately record by record, with the reason and what to do.

`check_module` looks at the layers. `check_loss` runs the module: a record is exchanged, and no value of the other
records may move; and the engine's gradients are compared with those of batches of one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from heliograph.dp.training.gradients import GradientEngine, Inputs, Losses, losses_of, mapped
from heliograph.dp.training.layers import trained
from heliograph.dp.training.precision import check_rows
from heliograph.dp.training.recurrent import refused
from heliograph.errors import ProgramError, UnsupportedError


def check_module(module: nn.Module, mixed: bool = False) -> None:
    """Raise if a layer mixes records, keeps statistics of them, or has no per-record gradients (in mixed precision)."""
    if not isinstance(module, nn.Module):
        raise ProgramError(f"{type(module).__name__} is not a torch.nn.Module", where="the module")
    _distributed(module)
    for name, layer in module.named_modules():
        where = f"{name or 'the module'} ({type(layer).__name__})"
        for refuse in (_batch_statistics, _table_options, _recurrent, _uninitialised, _half_precision):
            refuse(layer, where)
        if mixed and isinstance(layer, nn.RNNBase):
            raise UnsupportedError(
                "a recurrent layer has no mixed precision",
                where=where,
                why="it is unrolled here, in the precision of its parameters",
                hint="train in full precision",
            )
    if not trained(module):
        raise ProgramError(
            "the module has no trainable parameters",
            where=type(module).__name__,
            hint="set requires_grad on the parameters to be trained",
        )


def _distributed(module: nn.Module) -> None:
    """Refuse wrappers, which average gradients before they are clipped and noised, and parts compiled apart."""
    for layer in module.modules():
        if hasattr(layer, "_orig_mod"):
            raise UnsupportedError(
                "a part of the module is compiled by itself",
                where="torch.compile",
                why="its layers are not seen one by one",
                hint="give the module uncompiled, or compile it whole: torch.compile(module)",
            )
        if isinstance(layer, nn.parallel.DistributedDataParallel | nn.DataParallel) or "FSDP" in type(layer).__name__:
            raise UnsupportedError(
                f"the module is wrapped in {type(layer).__name__}",
                where="the module",
                why="the wrapper averages gradients of batches before they are clipped and noised, or holds parts of the"
                " parameters only",
                hint="give the module itself: where torch.distributed has a process group, the trainer shares the work",
            )


def _batch_statistics(layer: nn.Module, where: str) -> None:
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise UnsupportedError(
            "instance norm with running statistics",
            where=where,
            why="the running mean and variance are released with the model, without noise",
            hint="use track_running_stats=False",
        )
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not _fixed_statistics(layer):
        raise UnsupportedError(
            "batch norm cannot be trained privately",
            where=where,
            why="it normalises every record by the others of its batch, so that one record moves all gradients and no "
            "clipping bounds that; its running statistics are released without noise",
            hint=f"use torch.nn.GroupNorm(1, {layer.num_features}), or LayerNorm, which look at one record; batch norm of a"
            " pretrained part may stay frozen: eval() it and set requires_grad_(False)",
        )


def _fixed_statistics(layer: nn.Module) -> bool:
    """Whether it is batch norm in evaluation mode, with nothing to train: a map of each record by itself."""
    if not isinstance(layer, nn.modules.batchnorm._BatchNorm) or layer.training:
        return False
    return layer.track_running_stats and not any(p.requires_grad for p in layer.parameters())


def training_modes(module: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Each layer's mode while the module is trained: the mode it has now, if the module is in training mode.

    A module in evaluation mode is trained in training mode, except frozen batch norm.
    """
    whole = module.training
    return [(layer, layer.training if whole else not _fixed_statistics(layer)) for layer in module.modules()]


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


def _half_precision(layer: nn.Module, where: str) -> None:
    for parameter in layer.parameters(recurse=False):
        if parameter.dtype in (torch.float16, torch.bfloat16):
            raise UnsupportedError(
                f"parameters in {str(parameter.dtype).removeprefix('torch.')}",
                where=where,
                why="gradients, norms and sums of so few digits err by more than clipping bounds: with 2,000 records the"
                " sum would move by several times the bound when one leaves, and the proof is for one",
                hint="keep parameters in float32 (module.float()), with precision='bfloat16' for the passes if you like, and"
                " convert the trained module",
            )


def _uninitialised(layer: nn.Module, where: str) -> None:
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in layer.parameters(recurse=False)):
        raise ProgramError(
            "parameters have no shape yet",
            where=where,
            hint="run the module once on an example of public data, so that lazy layers learn their shapes",
        )


def check_loss(
    loss: Losses, module: nn.Module, sample: tuple[Inputs, Tensor], *, mixed_rows: int | None = None
) -> None:
    """Raise if the loss or the module mixes records, keeps state, or the engine's gradients would not be true.

    `sample` is (inputs, targets) of at least two records; four of them are used, on a copy of the module, so that the
    module does not change. Whether this raises depends on the sample: pass public or made-up records. With `mixed_rows`
    the check also runs in mixed precision.
    """
    count = min(4, len(sample[1]))
    if count < 2:
        raise ProgramError("a check for mixed records needs at least two records", where="check_loss")
    inputs, targets = mapped(sample[0], lambda t: t[:count]), sample[1][:count]
    try:
        probe = _Probe(copy.deepcopy(module).double(), loss, mapped(inputs, _double), _double(targets), 1e-6)
        with torch.random.fork_rng():
            probe.losses(probe.inputs, probe.targets)
    except RuntimeError:
        # Constants in float32, such as class weights, do not mix with float64: use the module's own precision.
        probe = _Probe(copy.deepcopy(module), loss, inputs, targets, 1e-3)
    with torch.random.fork_rng():
        # Check in the precision of training, too: autocast does not touch float64.
        engine = GradientEngine(copy.deepcopy(module), loss, mixed_rows)
        engine.norms(inputs, targets)
        if mixed_rows is not None:
            with without_dropout(engine.module):
                check_rows(engine, *sample)
    with torch.random.fork_rng():
        probe.check_state()
        probe.check_mixing()
        if len(sample[1]) > count:
            whole = _Probe(probe.module, loss, mapped(sample[0], probe.like), probe.like(sample[1]), probe.close)
            whole.check_places()
        with without_dropout(probe.module):
            probe.check_gradients()


@dataclass
class _Probe:
    """A few records and a copy of the module for trials; gradients within `close`, relative, are the same."""

    module: nn.Module
    loss: Losses
    inputs: Inputs
    targets: Tensor
    close: float

    def losses(self, x: Inputs, y: Tensor, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        return losses_of(self.module, self.loss, x, y)

    def gradients(self, value: Tensor) -> Tensor:
        """The gradient of one loss over all trainable parameters, as one vector."""
        parameters = trained(self.module)
        found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)]
        )

    def same(self, a: Tensor, b: Tensor) -> bool:
        if not bool(torch.isfinite(a).all() & torch.isfinite(b).all()):
            return bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
        return bool((a - b).norm() <= self.close * (torch.maximum(a.norm(), b.norm()) + self.close))

    def check_state(self) -> None:
        """Run twice: no buffer moves, no loss moves."""
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        first, second = (self.losses(self.inputs, self.targets).detach() for _ in range(2))
        for name, buffer in self.module.named_buffers():
            if name not in before or not torch.equal(before[name], buffer):
                raise UnsupportedError(
                    "a buffer changes in the forward pass",
                    where=name,
                    why="what it keeps of the records is released with the model, without noise",
                    hint="leave the layer out, or write it such that it keeps nothing",
                )
        if not self.same(first, second):
            raise UnsupportedError(
                "the same records give different losses, with the same random numbers",
                where=type(self.module).__name__,
                why="the module keeps state from one batch to the next, or draws from a generator of its own",
                hint="make the forward pass a function of parameters, inputs and torch's random numbers only",
            )

    def check_mixing(self) -> None:
        """Exchange one record: losses and gradients of the others stay."""

        def each(x: Inputs, y: Tensor) -> list[Tensor]:
            return [torch.cat((value.detach().view(1), self.gradients(value))) for value in self.losses(x, y)]

        before = each(self.inputs, self.targets)
        for changed in range(len(self.targets)):
            after = each(
                mapped(self.inputs, partial(_exchanged, at=changed)), _exchanged(self.targets, changed, exact=True)
            )
            for n in range(len(self.targets)):
                if n != changed and not self.same(before[n], after[n]):
                    raise UnsupportedError(
                        "the loss of one record depends on another record of the batch",
                        where="loss",
                        why=f"exchanging record {changed} moved the loss or the gradient of record {n}; clipping each "
                        "record's gradient then bounds nothing",
                        hint="use losses and layers that look at one record: no contrastive losses, no batch statistics, "
                        "no means over the batch",
                    )

    def like(self, given: Tensor) -> Tensor:
        """A tensor of inputs or targets in this probe's precision."""
        floats = next((t for t in (self.inputs, self.targets) if isinstance(t, Tensor) and t.is_floating_point()), None)
        double = floats is not None and floats.dtype == torch.float64
        return _double(given) if double or next(self.module.parameters()).dtype == torch.float64 else given

    def check_places(self) -> None:
        """In a whole batch: exchange or leave out a record, and no value of the others moves.

        All others at once, weighted at random: effects that four records do not show (statistics of large batches, room
        for the first few records) appear here.
        """
        count = len(self.targets)
        weights = torch.rand(count, generator=torch.Generator().manual_seed(1)).to(self.targets.device) + 0.5

        def others(x: Inputs, y: Tensor, kept: Tensor, weighted: Tensor) -> Tensor:
            values = self.losses(x, y)[kept]
            return torch.cat((values.detach(), self.gradients((values * weighted.to(values)).sum())))

        everyone = torch.arange(count, device=self.targets.device)
        for left_out in sorted({0, count // 2, count - 1}):
            rest = everyone[everyone != left_out]
            before = others(self.inputs, self.targets, rest, weights[rest])
            exchanged = mapped(self.inputs, partial(_exchanged, at=left_out))
            after = others(exchanged, _exchanged(self.targets, left_out, exact=True), rest, weights[rest])
            cases = [("exchanging", before, after)]
            with without_dropout(self.module):
                if torch.equal(self._drawn(0), self._drawn(1)):
                    whole = others(self.inputs, self.targets, rest, weights[rest])
                    fewer = mapped(self.inputs, partial(torch.index_select, dim=0, index=rest))
                    alone = others(fewer, self.targets[rest], everyone[:-1], weights[rest])
                    cases.append(("leaving out", whole, alone))
            for done, before, after in cases:
                if not self.same(before, after):
                    raise UnsupportedError(
                        "the loss of one record depends on the others of a large batch",
                        where="the module or the loss",
                        why=f"{done} record {left_out} of {count} moved losses or gradients of others; clipping each"
                        " record's gradient then bounds nothing",
                        hint="use layers that look at one record: no batch statistics, no room for the first records only",
                    )

    def _drawn(self, seed: int) -> Tensor:
        """The losses with random numbers from a seed: two seeds show whether the module draws any."""
        return self.losses(self.inputs, self.targets, seed).detach()

    def check_gradients(self) -> None:
        """Compare the engine with autograd on batches of one."""
        found = GradientEngine(self.module, self.loss).per_sample(self.inputs, self.targets)
        for n in range(len(self.targets)):
            x = mapped(self.inputs, lambda t, at=n: t[at : at + 1])  # type: ignore[misc]
            true = self.gradients(self.losses(x, self.targets[n : n + 1]).sum())
            if not self.same(true, torch.cat([each[n].flatten() for each in found])):
                names = [name for name, p in self.module.named_parameters() if p.requires_grad]
                parts = true.split([each[n].numel() for each in found])
                wrong = [
                    name
                    for name, part, each in zip(names, parts, found, strict=True)
                    if not self.same(part, each[n].flatten())
                ]
                raise UnsupportedError(
                    "per-record gradients of this module cannot be computed from its layers",
                    where=", ".join(wrong[:3]) or "the module",
                    why="they differ from the gradients of batches of one record: a parameter is used outside of its "
                    "layer, or records are not the first dimension of a layer's input",
                    hint="call layers instead of using their weights by hand, and keep records the first dimension",
                )


def _exchanged(tensor: Tensor, at: int, exact: bool = False) -> Tensor:
    """The tensor with another record's value in one record's place; a little more than that for real inputs."""
    out = tensor.clone()
    out[at] = tensor[(at + 1) % len(tensor)]
    if tensor.is_floating_point() and not exact:
        out[at] = 1.5 * out[at] + 0.1
    return out


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """Turn off dropout, which draws one mask for a batch: batches of one cannot be compared with it.

    All layers are put into evaluation mode: attention drops weights by a function, not by a layer.
    """
    switched = [layer for layer in module.modules() if layer.training]
    for layer in switched:
        layer.training = False
    try:
        yield
    finally:
        for layer in switched:
            layer.training = True
