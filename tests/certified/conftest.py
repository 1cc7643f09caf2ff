"""A small classifier of three blobs, trained with noise, and its certified artifact on a toy ring."""

from __future__ import annotations

import pytest
import torch
from helpers.blobs import Blobs, make_blobs

import heliograph as hg
from heliograph.certified.train import perceptron, train


@pytest.fixture(scope="session")
def blobs() -> Blobs:
    return make_blobs(2000)


@pytest.fixture(scope="session")
def certificate() -> hg.Certificate:
    return hg.Certificate("l2", sigma=0.1, tau=0.7, n=12, n0=4, alpha=0.05, zeta=0.02)


@pytest.fixture(scope="session")
def network(blobs: Blobs, certificate: hg.Certificate) -> hg.Program:
    torch.manual_seed(0)
    model = train(perceptron(8, 4, 3), blobs.inputs[:1500], blobs.labels[:1500], certificate, epochs=8, batch=64)
    return hg.trace(model, torch.zeros(1, 8), input_range=(0.0, 1.0), calibration=blobs.inputs[:300], name="blobs")


@pytest.fixture(scope="session")
def artifact(network: hg.Program, certificate: hg.Certificate, blobs: Blobs) -> hg.Artifact:
    options = hg.Options(security_bits=None, log_ring=11)
    return hg.certify(network, certificate, held_out=blobs.inputs[1500:1700], options=options)
