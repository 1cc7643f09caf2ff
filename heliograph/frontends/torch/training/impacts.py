"""Impacts of activations by gradients through the program's module (OLA, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from heliograph.frontends.torch.training.modules import ProgramModule, to_torch
from heliograph.ir import Array, Program, size_of
from heliograph.ir.analysis.loss import Loss, check_samples, has_classes
from heliograph.ir.ops.table import OPS

# The most values of all nodes in one chunk of samples: 4 bytes each, and about as much again in the backward pass.
_MOST_VALUES = 1 << 25


def impacts(program: Program, samples: Sequence[Array]) -> list[float]:
    """The impact of each secret activation of a tensor program, in program order.

    A_i = the mean over samples of sum_j (dLoss/da_ij)^2, a_ij its outputs; `ir/analysis/loss.py` says which loss.
    `samples` is one array for each input, with a leading sample axis. Raises UnsupportedError where torch has no
    counterpart of an op, ProgramError for samples of other shapes.

    The network runs in float32: on ResNet-20 in a third of float64's time, and exact to 5e-6. The derivative by the
    logits is tiny where a network is sure of itself, so it is computed in float64 without cancellation and scaled to
    size one for each sample before the backward pass; that pass is linear, so that nothing underflows.
    """
    count = check_samples(program, samples)
    module = to_torch(program).requires_grad_(False)
    order = [
        (place, node)
        for place, node in enumerate(program.nodes)
        if OPS[node.op].activation is not None and node.type.secret
    ]
    seen: dict[int, torch.Tensor] = {}
    for number, (place, _) in enumerate(order):
        module.step(place).register_forward_hook(_leaf(seen, number))
    chunks = list(_chunks(program, samples, count))
    loss = Loss()
    if not has_classes(program):
        with torch.no_grad():
            parts = [[out.numpy() for out in _run(module, chunk)] for _, chunk in chunks]
        loss = Loss.of_outputs([np.concatenate(column) for column in zip(*parts, strict=True)])
    totals = np.zeros(len(order))
    for first, chunk in chunks:
        outputs = _run(module, chunk)
        slopes = loss.slopes([out.detach().numpy() for out in outputs], first)
        totals += _squares(outputs, slopes, [seen[number] for number in range(len(order))])
    return [float(total) / count for total in totals]


def _leaf(seen: dict[int, torch.Tensor], number: int) -> Any:
    """A hook that records an activation's output as a variable for gradients."""

    def hook(step: Any, operands: Any, out: torch.Tensor) -> torch.Tensor:
        seen[number] = out if out.requires_grad or not torch.is_grad_enabled() else out.requires_grad_()
        return seen[number]

    return hook


def _chunks(program: Program, samples: Sequence[Array], count: int) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """The number of the first sample of each chunk, and its samples."""
    together = max(1, _MOST_VALUES // sum(map(size_of, program.nodes)))
    for first in range(0, count, together):
        yield (
            first,
            [torch.from_numpy(np.array(array[first : first + together], dtype=np.float32)) for array in samples],
        )


def _run(module: ProgramModule, chunk: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All outputs, each with one row for each sample."""
    got = module(*chunk)
    found = list(got.values()) if isinstance(got, dict) else [got]
    return [out.expand(len(chunk[0]), *out.shape[1:]) for out in found]


def _squares(outputs: Sequence[torch.Tensor], slopes: Sequence[Array], activations: Sequence[torch.Tensor]) -> Array:
    """The sum over samples and elements of each activation's squared derivative."""
    # One size per sample, over all outputs: together they form one loss.
    sizes = np.max([np.abs(slope).reshape(len(slope), -1).max(axis=1) for slope in slopes], axis=0)
    sizes[sizes == 0.0] = 1.0
    reached = [
        (out, torch.from_numpy((slope / sizes.reshape(-1, *(1,) * (slope.ndim - 1))).astype(np.float32)))
        for out, slope in zip(outputs, slopes, strict=True)
        if out.requires_grad
    ]
    if not reached:
        return np.zeros(len(activations))
    given, back = zip(*reached, strict=True)
    found = torch.autograd.grad(given, list(activations), back, allow_unused=True)
    # Squared in float64: the square of a float32 has half its range.
    return np.array(
        [
            0.0
            if gradient is None
            else float((gradient.double().square().flatten(1).sum(1).numpy() * np.square(sizes)).sum())
            for gradient in found
        ]
    )
