"""Training of noise-robust networks for certificates, in torch, in a few minutes.

Inputs get the noise of the later smoothing (Cohen et al. 2019). With `consistency`, two noisy copies of an input are
trained to agree (Jeong and Shin 2020), which certifies more inputs at some cost in accuracy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from heliograph.certified.certificate import Certificate
from heliograph.errors import ProgramError
from heliograph.execution.interface import plain_values, real_numbers

Progress = Callable[[str, int, int], None]


class Square(nn.Module):
    """A learned quadratic for each of `features`: scale (x + shift)^2.

    Phoenix's c2 x^2 + c1 x, up to a constant that the next layer's bias absorbs. Its square is the only product of
    ciphertexts.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((features,), 0.1))
        self.shift = nn.Parameter(torch.full((features,), 5.0))

    def forward(self, x: Tensor) -> Tensor:
        moved = x + self.shift
        return self.scale * (moved * moved)


def perceptron(inputs: int, hidden: int, classes: int) -> nn.Sequential:
    """Phoenix's network: one hidden layer with a learned quadratic."""
    return nn.Sequential(nn.Linear(inputs, hidden), Square(hidden), nn.Linear(hidden, classes))


def train(
    model: nn.Module,
    inputs: Any,
    labels: Any,
    certificate: Certificate,
    *,
    epochs: int = 40,
    rate: float = 0.01,
    batch: int = 512,
    consistency: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:
    """Train a network on noisy copies of its inputs; returns the running mean of its parameters, in eval mode.

    `model` maps a batch (n, *shape) to logits; it is trained in place from its present state, new or already trained.
    `inputs` and `labels` are arrays or tensors with a leading axis. The learning rate rises to `rate` and falls again
    (Smith and Topin 2019). The same seed gives the same network on one machine.

    Raises ProgramError for inputs and labels that do not fit, and if the loss is no longer a number.
    """
    try:
        x = torch.as_tensor(real_numbers(plain_values(inputs)), dtype=torch.float32)
    except ValueError as error:
        raise ProgramError("the inputs are not an array of real numbers", why=str(error)) from None
    y = torch.as_tensor(np.asarray(labels)).long()
    if x.shape[0] != y.shape[0] or y.dim() != 1 or not len(y):
        raise ProgramError(f"{tuple(x.shape)} inputs and {tuple(y.shape)} labels do not go together")
    deviations = torch.as_tensor(certificate.deviations(tuple(x.shape[1:])), dtype=torch.float32)
    random = torch.Generator().manual_seed(seed)

    def noisy(part: Tensor) -> Tensor:
        if certificate.drawn == "normal":
            return part + deviations * torch.randn(part.shape, generator=random)
        return part + deviations * (2.0 * torch.rand(part.shape, generator=random) - 1.0)

    steps = epochs * math.ceil(len(x) / batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.2)
    mean = copy.deepcopy(model)
    model.train()
    for step in range(steps):
        if step % math.ceil(len(x) / batch) == 0:
            order = torch.randperm(len(x), generator=random)
        place = step % math.ceil(len(x) / batch) * batch
        chosen = order[place : place + batch]
        logits = [model(noisy(x[chosen])) for _ in range(2 if consistency else 1)]
        loss = sum(functional.cross_entropy(each, y[chosen]) for each in logits) / len(logits)
        if consistency:
            loss = loss + consistency * _disagreement(logits)
        assert isinstance(loss, Tensor)
        if not torch.isfinite(loss):
            raise ProgramError("the loss is no longer a number", where="certified.train", hint="a lower rate")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        _follow(mean, model, min(0.999, (step + 1) / (step + 10)))
        if progress is not None:
            progress("training with noise", step + 1, steps)
    model.load_state_dict(mean.state_dict())
    return model.eval()


def _disagreement(logits: list[Tensor]) -> Tensor:
    """The divergence of each answer from the mean answer, plus half the entropy of the mean answer."""
    answers = [functional.log_softmax(each, dim=1) for each in logits]
    mean = torch.stack([each.exp() for each in answers]).mean(dim=0).clamp_min(1e-20)
    apart = torch.stack([functional.kl_div(each, mean, reduction="batchmean") for each in answers]).mean()
    return apart - 0.5 * (mean * mean.log()).sum(dim=1).mean()


def _follow(mean: nn.Module, model: nn.Module, share: float) -> None:
    """Move a running mean towards the model."""
    with torch.no_grad():
        for slow, fast in zip(mean.parameters(), model.parameters(), strict=True):
            slow.mul_(share).add_(fast, alpha=1.0 - share)
        for kept, new in zip(mean.buffers(), model.buffers(), strict=True):
            kept.copy_(new)
