"""Differentially private training of PyTorch modules: DP-SGD and importance sampling (DPIS), every release accounted.

`DPTrainer(module, loss, optimizer, train_set, method="dpis", epsilon=2, delta=1e-5, ...).fit()` trains and returns a
`PrivacyReport`. Names are loaded when first used: importing this package does not import torch. docs/private_training.md
lists the releases, with their times, docs/privacy_proofs.md has the proofs.
"""

from __future__ import annotations

from typing import Any

from heliograph import dp

__all__ = [name for name, module in dp._MODULES.items() if module.startswith(f"{__name__}.")]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'heliograph.dp.training' has no attribute {name!r}")
    return getattr(dp, name)


def __dir__() -> list[str]:
    return sorted(__all__)
