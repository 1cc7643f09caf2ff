"""Stand-in until the branch with secure noise is merged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class GaussianNoise:
    def __init__(self, seed: int | None = None, secure: bool = False) -> None:
        self.secure = secure
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def like(self, tensor: Tensor, std: float) -> Tensor:
        return std * torch.randn(tensor.shape, generator=self._generator, dtype=tensor.dtype)

    def release(self, value: Tensor, std: float, sensitivity: float) -> Tensor:
        return value + self.like(value, std)

    def uniform(self, n: int) -> Tensor:
        return torch.rand(n, generator=self._generator, dtype=torch.float64)

    def state(self) -> dict[str, Any]:
        return {"state": self._generator.get_state().numpy().tobytes().hex()}

    def restore(self, state: dict[str, Any]) -> None:
        self._generator.set_state(torch.frombuffer(bytearray.fromhex(state["state"]), dtype=torch.uint8))
