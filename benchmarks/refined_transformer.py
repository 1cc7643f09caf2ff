"""The encoder of two layers of encrypted_models.py, refined: degrees, ranges and plans before and after, by price.

Reviews without labels are the samples; their held-out part judges the training, and the test reviews the accuracy.
"""

from __future__ import annotations

from common import hg  # first: it imports heliograph before torch

from typing import Any

import encrypted_models
import numpy as np
import torch
from harness import BUILD, Run, benchmark, option
from heliograph.frontends.torch.training.distill import Training

# Samples of the training, and of calibration.
SAMPLES, CALIBRATED = 6000, 512
COLUMNS = {
    "accuracy": "", "same_class": "", "range_levels": "", "levels": "", "bootstraps": "", "predicted_s": "s",
    "evaluation_key_bytes": "bytes", "minutes": "min",
}  # fmt: skip


def plan(program: hg.Program, memory: int) -> dict[str, Any]:
    report = hg.compile(program, hg.Options(memory_bytes=memory)).report.to_dict()
    return {
        "levels": report["levels"],
        "bootstraps": report["bootstraps"],
        "predicted_s": report["predicted_ms"] / 1e3,
        "evaluation_key_bytes": report["evaluation_key_bytes"],
    }


def scores(module: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(module(torch.from_numpy(x)).numpy())


@benchmark(
    option("--prices", type=float, nargs="*", default=[0.3], help="prices of the levels"),
    option("--degree", type=int, default=7, help="degree of GELU"),
    option("--epochs", type=int, default=8),
    option("--memory", type=float, default=11.0, metavar="GB", help="bound on the server's predicted peak"),
    columns=COLUMNS,
    data=("imdb_tokens_top10k.npz",),
    memory_gb=6,
    minutes=20,
)
def refined_transformer(run: Run) -> None:
    given = run.options
    module, images = encrypted_models.network({"network": "transformer", "folder": BUILD})
    memory = int(given.memory * 1e9)
    exact = scores(module, images.test)
    program = hg.trace(
        module,
        torch.from_numpy(images.test[:1]),
        input_range=images.interval,
        calibration=images.train[:CALIBRATED],
        name="transformer",
    )

    def judged(found: np.ndarray) -> dict[str, float]:
        classes = found.argmax(1)
        return {
            "accuracy": float((classes == images.test_labels).mean()),
            "same_class": float((classes == exact.argmax(1)).mean()),
        }

    def refined(price: float) -> dict[str, Any]:
        training = Training(price=price, rate=1e-3)
        made = hg.refine(program, images.train[:SAMPLES], degrees=given.degree, epochs=given.epochs, training=training)
        before, after = made.rounds[0].range_levels
        own = judged(scores(made.module, images.test))
        minutes = made.seconds / 60
        return {**own, "range_levels": f"{before} to {after}", "minutes": minutes, **plan(made.program, memory)}

    run.row({"network": "as trained"}, lambda: {**dict.fromkeys(COLUMNS), **judged(exact), **plan(program, memory)})
    for price in given.prices:
        run.row({"network": f"refined at {price:g}"}, lambda price=price: refined(price))  # type: ignore[misc]


if __name__ == "__main__":
    refined_transformer.main()
