"""Differentially private training of PyTorch modules: DP-SGD and importance sampling (DPIS), every release accounted.

`DPTrainer(module, loss, optimizer, train_set, method="dpis", epsilon=2, delta=1e-5, ...).fit()` trains and returns a
`PrivacyReport`. Names are loaded when first used: importing this package does not import torch. docs/private_training.md
lists the releases, with their times, docs/privacy_proofs.md has the proofs.
"""

from __future__ import annotations

import importlib
from typing import Any

from heliograph.errors import packages_named

_PUBLIC: dict[str, str] = {
    "DPTrainer": "heliograph.dp.training.trainer",
    "ImportanceOptions": "heliograph.dp.training.settings",
    "PrivacyReport": "heliograph.dp.training.report",
    "audit_training": "heliograph.dp.training.audit",
    "make_private": "heliograph.dp.training.private",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    try:
        module = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module 'heliograph.dp.training' has no attribute {name!r}") from None
    with packages_named():
        value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
