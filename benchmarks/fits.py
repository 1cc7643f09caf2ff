"""Pretrained ResNets with polynomials in the clear: ways to fit these, and corrected linear maps (`Options.correct`)."""

from __future__ import annotations

from deep_network import accuracy, scores_of  # first: it imports heliograph before torch

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from harness import Run, benchmark
from heliograph.compiler.pipeline import front_passes
from heliograph.compiler.planning.allocation import run_in_chunks
from models.cifar import NETWORKS, chosen, cifar10, pretrained, traced

# Degrees, methods of the fits, their spread (`Options.spread`), and whether linear maps are corrected.
SMALL = (
    (31, "minimax", 1.5, False), (31, "gaussian", 1.5, False), (31, "gaussian", 1.5, True), (15, "gaussian", 1.0, False),
    (15, "gaussian", 1.0, True),
)  # fmt: skip
CASES = {
    "resnet20": SMALL,
    "resnet32": SMALL,
    "ace-resnet44": ((63, "gaussian", 1.5, False), (63, "gaussian", 1.5, True)),
}


def measured(name: str, degree: int, method: str, spread: float, correct: bool) -> dict[str, Any]:
    images, module = cifar10(name), pretrained(name)
    options = replace(chosen(NETWORKS[name]), degree=degree, method=method, spread=spread, correct=correct)
    scores = scores_of(module, images.test)
    (outputs,) = run_in_chunks(front_passes(traced(name, module, images), options)[-1].program, [images.test])
    return {
        "images": len(scores), "accuracy_float": accuracy(scores, images.test_labels),
        "accuracy": accuracy(outputs, images.test_labels),
        "agreement": float((outputs.argmax(1) == scores.argmax(1)).mean()),
        "rms_error": float(np.sqrt(np.square(outputs - scores).mean())),
    }  # fmt: skip


@benchmark(
    columns=dict.fromkeys(("accuracy_float", "accuracy", "agreement", "rms_error"), ""),
    data=("cifar10_subset.npz", *(NETWORKS[name].weights for name in CASES)),
    memory_gb=4,
    minutes=15,
)
def fits(run: Run) -> None:
    for name, cases in CASES.items():
        for degree, method, spread, correct in cases:
            key = {"network": name, "degree": degree, "method": method, "spread": spread,
                   "maps": "corrected" if correct else "plain"}  # fmt: skip
            run.row(key, partial(measured, name, degree, method, spread, correct))


if __name__ == "__main__":
    fits.main()
