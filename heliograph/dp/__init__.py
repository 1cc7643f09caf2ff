"""Differential privacy: accounting, calibration, auditing and training. It is independent of the compiler.

    from heliograph import dp
    dp.epsilon_at(dp.SampledGaussian(0.01, 1.0) * 1000, 1e-5)

Names are loaded when first used; only those of training import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from heliograph.errors import packages_named

# The module of each public name. Type checkers read the imports below instead; a test keeps both equal.
_MODULES: dict[str, str] = {
    "Bracket": "heliograph.dp.accounting",
    "Tolerance": "heliograph.dp.accounting",
    "delta_at": "heliograph.dp.accounting",
    "epsilon_at": "heliograph.dp.accounting",
    "AllocatedGaussian": "heliograph.dp.batches",
    "FixedSizeGaussian": "heliograph.dp.batches",
    "TruncatedGaussian": "heliograph.dp.batches",
    "WithReplacementGaussian": "heliograph.dp.batches",
    "Calibration": "heliograph.dp.calibrate",
    "largest_p": "heliograph.dp.calibrate",
    "most_steps": "heliograph.dp.calibrate",
    "noise_multiplier": "heliograph.dp.calibrate",
    "smallest_noise": "heliograph.dp.calibrate",
    "Composition": "heliograph.dp.composition",
    "Zcdp": "heliograph.dp.concentrated",
    "parse": "heliograph.dp.language",
    "Approximate": "heliograph.dp.mechanisms",
    "DiscreteGaussian": "heliograph.dp.mechanisms",
    "DiscreteLaplace": "heliograph.dp.mechanisms",
    "Gaussian": "heliograph.dp.mechanisms",
    "Laplace": "heliograph.dp.mechanisms",
    "MixtureGaussian": "heliograph.dp.mechanisms",
    "Pure": "heliograph.dp.mechanisms",
    "RandomizedResponse": "heliograph.dp.mechanisms",
    "SampledGaussian": "heliograph.dp.mechanisms",
    "SampledLaplace": "heliograph.dp.mechanisms",
    "AllocationSampler": "heliograph.dp.samplers",
    "FixedSizeSampler": "heliograph.dp.samplers",
    "PoissonSampler": "heliograph.dp.samplers",
    "TruncatedPoissonSampler": "heliograph.dp.samplers",
    "audit_training": "heliograph.dp.training.audit",
    "make_private": "heliograph.dp.training.private",
    "PrivacyReport": "heliograph.dp.training.report",
    "ImportanceOptions": "heliograph.dp.training.settings",
    "DPTrainer": "heliograph.dp.training.trainer",
}
_PARTS = ("accounting", "audit", "calibrate", "mechanisms", "samplers", "training")

if TYPE_CHECKING:
    from heliograph.dp.accounting import Bracket as Bracket
    from heliograph.dp.accounting import Tolerance as Tolerance
    from heliograph.dp.accounting import delta_at as delta_at
    from heliograph.dp.accounting import epsilon_at as epsilon_at
    from heliograph.dp.batches import AllocatedGaussian as AllocatedGaussian
    from heliograph.dp.batches import FixedSizeGaussian as FixedSizeGaussian
    from heliograph.dp.batches import TruncatedGaussian as TruncatedGaussian
    from heliograph.dp.batches import WithReplacementGaussian as WithReplacementGaussian
    from heliograph.dp.calibrate import Calibration as Calibration
    from heliograph.dp.calibrate import largest_p as largest_p
    from heliograph.dp.calibrate import most_steps as most_steps
    from heliograph.dp.calibrate import noise_multiplier as noise_multiplier
    from heliograph.dp.calibrate import smallest_noise as smallest_noise
    from heliograph.dp.composition import Composition as Composition
    from heliograph.dp.concentrated import Zcdp as Zcdp
    from heliograph.dp.language import parse as parse
    from heliograph.dp.mechanisms import Approximate as Approximate
    from heliograph.dp.mechanisms import DiscreteGaussian as DiscreteGaussian
    from heliograph.dp.mechanisms import DiscreteLaplace as DiscreteLaplace
    from heliograph.dp.mechanisms import Gaussian as Gaussian
    from heliograph.dp.mechanisms import Laplace as Laplace
    from heliograph.dp.mechanisms import MixtureGaussian as MixtureGaussian
    from heliograph.dp.mechanisms import Pure as Pure
    from heliograph.dp.mechanisms import RandomizedResponse as RandomizedResponse
    from heliograph.dp.mechanisms import SampledGaussian as SampledGaussian
    from heliograph.dp.mechanisms import SampledLaplace as SampledLaplace
    from heliograph.dp.samplers import AllocationSampler as AllocationSampler
    from heliograph.dp.samplers import FixedSizeSampler as FixedSizeSampler
    from heliograph.dp.samplers import PoissonSampler as PoissonSampler
    from heliograph.dp.samplers import TruncatedPoissonSampler as TruncatedPoissonSampler
    from heliograph.dp.training.audit import audit_training as audit_training
    from heliograph.dp.training.private import make_private as make_private
    from heliograph.dp.training.report import PrivacyReport as PrivacyReport
    from heliograph.dp.training.settings import ImportanceOptions as ImportanceOptions
    from heliograph.dp.training.trainer import DPTrainer as DPTrainer

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with packages_named():
        value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])
