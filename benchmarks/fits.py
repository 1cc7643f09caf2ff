"""Pretrained ResNets with polynomials in the clear: ways to fit these, and corrected linear maps (`Options.correct`)."""

from __future__ import annotations

from common import hg  # first: it imports heliograph before torch

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from deep_network import accuracy, scores_of
from harness import Run, benchmark
from heliograph.compiler.pipeline import front_passes
from heliograph.interpret import interpret_many
from models.cifar import NETWORKS, chosen, cifar10, pretrained, traced

# Degrees, methods of the fits, and whether linear maps are corrected; the networks that take them.
SMALL = (
    (31, "minimax", False),
    (31, "gaussian", False),
    (31, "gaussian", True),
    (15, "gaussian", False),
    (15, "gaussian", True),
)
CASES = {
    "resnet20": SMALL,
    "resnet32": SMALL,
    "ace-resnet44": ((63, "gaussian", False), (63, "gaussian", True)),
}  # fmt: skip
# Images whose two largest logits of the float network are nearer than this.
NEAR = 3.0
_PART = 50


def evaluated(program: hg.Program, images: np.ndarray) -> np.ndarray:
    parts = [interpret_many(program, [images[i : i + _PART]])[0] for i in range(0, len(images), _PART)]
    return np.concatenate(parts)


def root(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


def measured(name: str, degree: int, method: str, correct: bool) -> dict[str, Any]:
    images, module = cifar10(name), pretrained(name)
    options = replace(chosen(NETWORKS[name]), degree=degree, method=method, correct=correct)
    scores = scores_of(module, images.test)
    outputs = evaluated(front_passes(traced(name, module, images), options)[-1].program, images.test)
    ordered = np.sort(scores, axis=1)
    near = ordered[:, -1] - ordered[:, -2] < NEAR
    return {
        "images": len(scores), "accuracy_float": accuracy(scores, images.test_labels),
        "accuracy": accuracy(outputs, images.test_labels),
        "agreement": float((outputs.argmax(1) == scores.argmax(1)).mean()), "rms_error": root(outputs - scores),
        "rms_error_near": root((outputs - scores)[near]), "images_near": int(near.sum()),
    }  # fmt: skip


@benchmark(
    columns=dict.fromkeys(
        ("accuracy_float", "accuracy", "agreement", "rms_error", "rms_error_near", "images_near"), ""
    ),
    data=("cifar10_subset.npz", *(NETWORKS[name].weights for name in CASES)),
    memory_gb=4,
    minutes=15,
)
def fits(run: Run) -> None:
    for name, cases in CASES.items():
        for degree, method, correct in cases:
            maps = "corrected" if correct else "plain"
            key = {"network": name, "degree": degree, "method": method, "maps": maps}
            run.row(key, partial(measured, name, degree, method, correct))


if __name__ == "__main__":
    fits.main()
