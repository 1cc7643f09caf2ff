"""Stand-in until the branch with ghost norms is merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class GradientEngine:
    def __init__(self, module: nn.Module, loss: Callable[..., Tensor]) -> None:
        self.module, self.loss = module, loss

    def per_sample(self, inputs: Any, targets: Any) -> list[Tensor]:
        parameters = {k: p.detach() for k, p in self.module.named_parameters() if p.requires_grad}

        def one(p: Any, x: Tensor, y: Tensor) -> Tensor:
            out = torch.func.functional_call(self.module, p, (x.unsqueeze(0),))
            return self.loss(out, y.unsqueeze(0)).sum()

        found = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(parameters, inputs, targets)
        return list(found.values())

    def norms(self, inputs: Any, targets: Any) -> Tensor:
        return torch.sqrt(sum(g.flatten(1).square().sum(1) for g in self.per_sample(inputs, targets)))

    def weighted_sum(self, inputs: Any, targets: Any, weights_of: Callable[[Tensor], Tensor]) -> Any:
        grads = self.per_sample(inputs, targets)
        norms = torch.sqrt(sum(g.flatten(1).square().sum(1) for g in grads))
        weights = weights_of(norms)
        return [torch.einsum("b,b...->...", weights.to(g.dtype), g) for g in grads], norms
