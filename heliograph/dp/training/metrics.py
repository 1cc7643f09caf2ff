"""Loss and accuracy on public data; nothing here is ever called on training data, where every metric is a release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heliograph.dp.training.gradients import called
from heliograph.dp.training.records import Records
from heliograph.dp.training.refuse import without_dropout


@dataclass(frozen=True)
class Metrics:
    """The mean loss, and the accuracy if outputs are class scores and targets are classes."""

    loss: float
    accuracy: float | None

    def words(self) -> str:
        """Both in words."""
        return f"public loss {self.loss:.4f}" + ("" if self.accuracy is None else f", accuracy {self.accuracy:.4f}")


@torch.no_grad()
def measured(module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], records: Records, batch_size: int) -> Metrics:
    """The metrics of a module in evaluation mode; its earlier mode is restored."""
    total, right, classes = 0.0, 0, True
    with without_dropout(module):
        for _, (inputs, targets) in records.chunks(torch.arange(len(records)), max(batch_size, 1024)):
            outputs = called(module, inputs)
            value = loss(outputs, targets)
            outputs = getattr(outputs, "logits", outputs)
            total += float(value.sum()) if value.dim() else float(value) * len(targets)
            classes = (
                classes
                and isinstance(outputs, Tensor)
                and outputs.dim() == 2
                and targets.dim() == 1
                and not targets.is_floating_point()
            )
            if classes:
                right += int((outputs.argmax(1) == targets).sum())
    count = max(len(records), 1)
    return Metrics(total / count, right / count if classes else None)
