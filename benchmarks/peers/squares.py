"""Networks of layers with squares between them, as modules of torch."""

from __future__ import annotations

import numpy as np
import torch


class Squares(torch.nn.Module):
    """Layers with squares between them."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number:
                x = x * x
            if isinstance(layer, torch.nn.Linear) and x.dim() > 2:
                x = x.flatten(1)
            x = layer(x)
        return x


def filled(layers: list[torch.nn.Module], given: dict[str, np.ndarray]) -> Squares:
    """The network with the weights w0, b0, w1, ... of the inputs; those without a bias have none."""
    for number, layer in enumerate(layers):
        layer.weight.data = torch.from_numpy(given[f"w{number}"]).float()
        if layer.bias is not None:
            layer.bias.data = torch.from_numpy(given[f"b{number}"]).float()
    return Squares(*layers).eval()
