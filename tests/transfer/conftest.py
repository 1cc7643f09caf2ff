"""A small training: three blobs, four steps in an epoch, on a toy ring."""

from __future__ import annotations

import numpy as np
import pytest

import heliograph as hg
from heliograph.transfer.data import TransferData
from heliograph.transfer.settings import TransferSettings
from heliograph.transfer.step import compile_step

TOY = hg.Options(security_bits=None, log_ring=10)


def blobs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    middles = np.random.default_rng(5).normal(0.0, 0.5, (3, 6))
    return np.clip(middles[labels] + rng.normal(0.0, 0.35, (count, 6)), -2, 2), labels


@pytest.fixture(scope="session")
def blobs_data() -> TransferData:
    return TransferData(*blobs(128, 1), *blobs(40, 2))


@pytest.fixture(scope="session")
def settings() -> TransferSettings:
    return TransferSettings(
        batch=32, rate=2.0, logit_range=8.0, weight_range=4.0, patience=1, most_epochs=2, softmax_error=1e-3
    )


@pytest.fixture(scope="session")
def artifact(blobs_data: TransferData, settings: TransferSettings) -> hg.Artifact:
    return compile_step(blobs_data, settings, TOY)
