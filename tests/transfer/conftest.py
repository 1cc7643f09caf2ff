"""A small training: three blobs, four steps in an epoch, on a toy ring."""

from __future__ import annotations

import pytest
from helpers.trainings import TOY, blobs

import heliograph as hg
from heliograph.transfer.data import TransferData
from heliograph.transfer.settings import TransferSettings
from heliograph.transfer.step import compile_step


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
