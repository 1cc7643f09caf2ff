"""Argmax of real logits, and softmax of full ciphertexts, at 128 bits.

A ReLU network on MNIST with its argmax in one artifact, top-1 only output: agreement with the clear argmax, seconds of the
argmax part, keys, memory. Then softmax of 10 columns on [-32, 32] for as many rows as a ciphertext holds.
"""

from __future__ import annotations

from common import hg, mnist, mnist_mlp, polynomial_logits  # first: it imports heliograph before torch

import argparse
from typing import Any

import numpy as np
import torch

from harness import BACKEND, Run, benchmark, option
from heliograph.ir import Builder, Stage
from heliograph.tools.measure import Measurement, measure, peak_rss_bytes

CLASSES, COLUMNS, LIMIT = 10, 10, 32.0
ARGMAX_LAYER = "argmax"
# Of the logits' range: the smallest difference that must be told apart.
GAP = 1e-3


def classifier(options: argparse.Namespace) -> dict[str, Any]:
    """The network and its argmax as one encrypted program."""
    x_train, _, x_test, _ = mnist()
    x_train, x_test = x_train.reshape(-1, 784), x_test.reshape(-1, 784)
    module = mnist_mlp(512, options.epochs)
    program = hg.trace(module, torch.from_numpy(x_test[:1]), input_range=(0.0, 1.0), calibration=x_train[:512])
    with torch.no_grad():
        logits = module(torch.from_numpy(x_test)).numpy()
        seen = module(torch.from_numpy(x_train[:512])).numpy()
    gap = GAP * float(seen.max() - seen.min())
    compiled = hg.Options(degree=options.degree)
    decided = hg.top1(program, gap=gap)
    artifact = hg.compile(decided, compiled)
    # The argmax alone, on all test images: against the argmax of the very logits that it is given.
    given = polynomial_logits(program, compiled, x_test)
    told_apart = np.diff(np.sort(given, axis=1)[:, -2:], axis=1)[:, 0] >= gap
    right_there = polynomial_logits(decided, compiled, x_test).argmax(1) == given.argmax(1)
    ordered = np.sort(logits, axis=1)
    measured = measure(artifact, list(x_test[: options.images]), cache_bytes=2 << 30, backend=options.backend)
    answers = np.stack(measured.outputs)
    wide = (ordered[: options.images, -1] - ordered[: options.images, -2]) >= gap
    clear = np.eye(CLASSES)[logits[: options.images].argmax(1)]
    right = answers.argmax(1) == logits[: options.images].argmax(1)
    layers = measured.ms_by_layer
    return {
        "images": options.images,
        "gap": gap,
        "test_images": len(x_test),
        "test_images_with_gap": int(told_apart.sum()),
        "argmax_right_with_gap": float(right_there[told_apart].mean()),
        "images_with_gap": int(wide.sum()),
        "agreement_with_gap": float(right[wide].mean()),
        "agreement": float(right.mean()),
        "measured_error": float(np.abs(answers - clear)[wide].max()),
        "alone": f"{layers.get(ARGMAX_LAYER, 0.0) / 1e3:.2f} s",
        "argmax_ms": sum(ms for layer, ms in layers.items() if layer == ARGMAX_LAYER),
        "network_ms": sum(ms for layer, ms in layers.items() if layer != ARGMAX_LAYER),
        **figures(artifact, measured),
    }


def softmax(options: argparse.Namespace) -> dict[str, Any]:
    """As many rows of 10 columns as the slots of the ring hold."""
    rows = 1 << (options.log_ring - 1 - 4)  # ten columns take sixteen places
    builder = Builder("softmax", Stage.TENSOR)
    x = builder.input("x", shape=(COLUMNS, rows), low=-LIMIT, high=LIMIT)
    program = builder.finish({"y": builder.op("softmax", (x,), axis=0)})
    artifact = hg.compile(program, hg.Options(log_ring=options.log_ring, target_error=options.softmax_error))
    sample = np.random.default_rng(0).uniform(-LIMIT, LIMIT, size=(COLUMNS, rows))
    measured = measure(artifact, [sample] * 2, backend=options.backend)
    shifted = np.exp(sample - sample.max(axis=0))
    error = np.abs(measured.outputs[0] - shifted / shifted.sum(axis=0))
    return {
        "columns": COLUMNS,
        "rows": rows,
        "limit": LIMIT,
        "measured_error": float(error.max()),
        "mean_error": float(error.max(axis=0).mean()),
        "alone": f"{measured.measured_ms / rows:.2g} ms ({rows:,} rows)",
        "ms_per_row": measured.measured_ms / rows,
        **figures(artifact, measured),
    }


def figures(artifact: Any, measured: Measurement) -> dict[str, Any]:
    values = artifact.report.to_dict()
    composed = values["ranges"][-1]
    kind = {"argmax": "signs of degrees {}", "softmax": "exp of degree {}, normalised and squared"}
    return {
        "polynomials": kind[composed["function"]].format(", ".join(map(str, composed["degrees"]))),
        "proved_error": composed["max_error"],
        **{
            key: values[key]
            for key in (
                "security_bits", "ring_dim", "log_pq", "depth", "levels", "digits", "scale_bits", "rotations",
                "rotation_keys", "key_switches", "ciphertext_products", "plaintext_products", "evaluation_key_bytes",
                "predicted_ms", "predicted_max_abs_error", "server_peak_bytes",
            )
        },
        "ranges": [
            {key: entry.get(key) for key in ("layer", "function", "degrees", "gap", "max_error")}
            for entry in values["ranges"]
        ],
        "measured_ms": measured.measured_ms,
        "floor_ms": measured.floor_ms,
        "over_floor": measured.over_floor,
        "first_ms": measured.first_ms,
        "keygen_s": measured.keygen_s,
        "compile_s": artifact.compile_s,
        "peak_rss_bytes": peak_rss_bytes(),
    }  # fmt: skip


PARTS = {"argmax": classifier, "softmax": softmax}


@benchmark(
    option("--images", type=int, default=10, help="encrypted test images"),
    option("--degree", type=int, default=15, help="degree of the network's activation"),
    option("--epochs", type=int, default=3),
    option("--log-ring", type=int, default=16, help="ring of the softmax"),
    option("--softmax-error", type=float, default=1e-3, help="largest error of the softmax's polynomials"),
    option("--parts", nargs="*", choices=tuple(PARTS), default=list(PARTS)),
    BACKEND,
    columns={
        "security_bits": "", "ring_dim": "", "levels": "", "key_switches": "", "ciphertext_products": "",
        "rotation_keys": "", "evaluation_key_bytes": "bytes", "predicted_ms": "ms", "measured_ms": "ms", "floor_ms": "ms",
        "keygen_s": "s", "compile_s": "s", "server_peak_bytes": "bytes", "peak_rss_bytes": "bytes",
    },
    data=("mnist.npz",),
    memory_gb=6,
    minutes=3,
)  # fmt: skip
def non_arithmetic(run: Run) -> None:
    for part in run.options.parts:
        run.row({"part": part}, lambda part=part: PARTS[part](run.options))  # type: ignore[misc]


if __name__ == "__main__":
    non_arithmetic.main()
