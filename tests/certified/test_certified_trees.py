"""Certified answers of trees: comparisons with noise, under encryption as in the clear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

import heliograph as hg
from heliograph.certified.clear import Smoothed
from heliograph.errors import ProgramError

X, Y = load_iris(return_X_y=True)
CERTIFICATE = hg.Certificate("l2", sigma=0.25, tau=0.7, n=12, n0=4, alpha=0.05, zeta=0.02)
TOY = hg.Options(security_bits=None, log_ring=11)


@pytest.fixture(scope="module")
def tree() -> Any:
    random = np.random.default_rng(0)
    noisy = np.repeat(X, 10, axis=0) + 0.25 * random.normal(size=(1500, 4))
    return DecisionTreeClassifier(max_depth=2, random_state=0).fit(noisy, np.repeat(Y, 10))


@pytest.mark.parametrize("of", ["polynomials", "network"])
def test_encrypted_answers_are_those_in_the_clear(tree: Any, of: Any) -> None:
    program = hg.from_sklearn(tree, X, input_range=(0.0, 8.0))
    artifact = hg.certify(program, CERTIFICATE, held_out=X[1::2], of=of, options=TOY)
    clear, random = Smoothed(program, CERTIFICATE), np.random.default_rng(1)
    client = hg.Client(artifact.public(), allow_insecure=True)
    labels = []
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        for row in X[::30]:
            noise = {name: random.standard_normal(shape) for name, (_, shape) in artifact.drawn_inputs.items()}
            encrypted = client.encrypt(row)
            answer = client.answer(server.run(encrypted, plain=noise), of=encrypted)
            meant = clear.with_noise(row, noise)
            labels.append((answer.label, answer.certified))
            if answer.label is None:
                # A copy close to a threshold divides its vote, or one leaves a range; or nothing is certified.
                assert not answer.certified
                continue
            assert answer.label == meant.label
            assert abs(answer.votes - meant.votes) <= 1
            assert answer.certified == (answer.votes >= CERTIFICATE.target)
    # Divided votes are few: xi bounds their rate.
    assert sum(label is None for label, _ in labels) <= 2
    assert any(certified for _, certified in labels)
    assert len(set(labels)) > 1
    certificate = artifact.report.values["certificate"]
    assert certificate["radius"] == CERTIFICATE.radius
    assert CERTIFICATE.alpha < certificate["xi"] < 0.3


@pytest.mark.parametrize("binned", [True, False])
def test_rows_that_clients_encode_are_refused(tree: Any, binned: bool) -> None:
    with pytest.raises(ProgramError, match="clients encode input 'x'"):
        hg.certify(hg.from_sklearn(tree, X, binned=binned), CERTIFICATE, options=TOY)
