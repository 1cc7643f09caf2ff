"""Small networks on MNIST, trained here, evaluated on encrypted test images at 128 bits.

`--network mlp`: 784-512-10 with a ReLU. `cnn`: LeNet's size, two convolutions, average pooling, two linear layers.
"""

from __future__ import annotations

from common import hg, mnist, mnist_mlp, polynomial_logits, train  # first: it imports heliograph before torch

import argparse
from typing import Any

import numpy as np
import torch
from harness import BACKEND, Run, benchmark, option
from heliograph.tools.measure import measure, peak_rss_bytes
from torch import nn

# Room for all encoded plaintexts; with the default of 1 GiB a third of LeNet's are encoded anew for every image.
CACHE_BYTES = {"mlp": 1 << 30, "cnn": 4 << 30}
NAMES = {"mlp": "MNIST 784-512-10", "cnn": "LeNet"}
REPORTED = (
    "predicted_max_abs_error", "scheme_error", "security_bits", "ring_dim", "log_pq", "depth", "levels", "rotations",
    "rotation_keys", "key_switches", "ciphertext_products", "plaintext_products", "evaluation_key_bytes",
    "ciphertext_bytes", "server_peak_bytes", "predicted_ms",
)  # fmt: skip
MEASURED = ("measured_ms", "floor_ms", "over_floor", "first_ms", "encrypt_ms", "decrypt_ms", "keygen_s")


class LeNet(nn.Module):
    """Two convolutions with ReLU and average pooling, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.AvgPool2d(2)
        self.fc1 = nn.Linear(400, 84)
        self.fc2 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def network(name: str, epochs: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A trained network and the shape of one image."""
    if name == "mlp":
        return mnist_mlp(512, epochs), (784,)
    x, y, _, _ = mnist()
    torch.manual_seed(1)
    module = LeNet()
    train(module, x[:, None], y, epochs)
    return module, (1, 28, 28)


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Accuracy clear, polynomial and encrypted, and every figure of the encrypted runs."""
    module, shape = network(given.network, given.epochs)
    x_train, _, x_test, y_test = mnist()
    x_train, x_test = x_train.reshape(-1, *shape), x_test.reshape(-1, *shape)
    program = hg.trace(
        module, torch.from_numpy(x_test[:1]), input_range=(0.0, 1.0), calibration=x_train[:512], name=given.network
    )
    options = hg.Options(degree=given.degree, batch=given.batch)
    artifact, images = hg.compile(program, options), given.images
    with torch.no_grad():
        clear = module(torch.from_numpy(x_test)).numpy()
    polynomial = polynomial_logits(program, options, x_test)
    report = artifact.report.to_dict()
    batch = report["batch"]
    groups = [x_test[i : i + batch] for i in range(0, images, batch)] if batch > 1 else list(x_test[:images])
    found = measure(artifact, groups, cache_bytes=CACHE_BYTES[given.network], backend=given.backend)
    encrypted = (np.concatenate if batch > 1 else np.stack)(found.outputs)[:images]
    return {
        "accuracy_clear": float((clear.argmax(1) == y_test).mean()),
        "accuracy_polynomial": float((polynomial.argmax(1) == y_test).mean()),
        "accuracy_clear_on_images": float((clear[:images].argmax(1) == y_test[:images]).mean()),
        "accuracy_encrypted": float((encrypted.argmax(1) == y_test[:images]).mean()),
        "agreement": float((encrypted.argmax(1) == clear[:images].argmax(1)).mean()),
        "max_abs_error": float(np.abs(encrypted - clear[:images]).max()),
        "max_scheme_error": float(np.abs(encrypted - polynomial[:images]).max()),
        **{name: report[name] for name in REPORTED},
        "images": images,
        "batch": batch,
        "measured_ms_per_image": found.measured_ms / batch,
        **{name: getattr(found, name) for name in MEASURED},
        given.backend: f"{report['predicted_ms']:.0f} / {found.measured_ms:.0f} / {found.floor_ms:.0f}",
        "compile_s": artifact.compile_s,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def size(text: str) -> int | str:
    return text if text == "max" else int(text)


@benchmark(
    option("--network", choices=tuple(NAMES), default="mlp"),
    option("--images", type=int, default=100, help="encrypted test images"),
    option("--degree", type=int, default=15, help="degree of the activations"),
    option("--epochs", type=int, default=3),
    option("--batch", type=size, default=1, help='images in the same ciphertexts: a power of two, or "max"'),
    BACKEND,
    columns={
        **dict.fromkeys(("accuracy_clear", "accuracy_polynomial", "accuracy_encrypted", "agreement", *REPORTED), ""),
        "max_abs_error": "", "max_scheme_error": "", "measured_ms": "ms", "floor_ms": "ms", "first_ms": "ms",
        "encrypt_ms": "ms", "decrypt_ms": "ms", "keygen_s": "s", "compile_s": "s", "peak_rss_bytes": "bytes",
    },
    data=("mnist.npz",),
    memory_gb=5,
    minutes=2,
    runs=((), ("--network", "cnn", "--images", "8")),
)  # fmt: skip
def small_networks(run: Run) -> None:
    run.row({"network": NAMES[run.options.network]}, lambda: measured(run.options))


if __name__ == "__main__":
    small_networks.main()
