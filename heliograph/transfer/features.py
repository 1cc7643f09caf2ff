"""Features for a training: a network's outputs, computed on the client's side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heliograph.ir import Array

if TYPE_CHECKING:
    from torch import nn


def features(module: nn.Module, inputs: Array, *, batch: int = 256, unit: bool = True) -> Array:
    """The outputs of a PyTorch module in evaluation mode, flattened: (samples, features).

    `unit` scales each sample to length one: logits are then bounded by the size of the weights, and no single outlier
    leaves the softmax's range.
    """
    import torch

    was, made = module.training, []
    module.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(inputs), batch):
                part = torch.from_numpy(np.ascontiguousarray(inputs[start : start + batch], dtype=np.float32))
                made.append(module(part).flatten(1).double().numpy())
    finally:
        module.train(was)
    found: Array = np.concatenate(made)
    if unit:
        found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    return found
