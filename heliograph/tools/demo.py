"""An end-to-end demonstration on real images: train, trace, compile, encrypt, evaluate, decrypt, compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.dsl.parse import parse
from heliograph.errors import HeliographError
from heliograph.ir import Array
from heliograph.tools.measure import Measurement, measure

HIDDEN = 64
EPOCHS = 60
CALIBRATION = 512
# A program that calls the kernels of client and server.
_SMALL = "program small\ninput x: secret slots[4] in [-1, 1]\noutput y = x * x + rotate(x, 1)\n"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of the demonstration: one row per image, and the bill with its measured column."""

    artifact: Artifact
    labels: Array
    clear: Array
    encrypted: Array
    measurement: Measurement

    def to_dict(self) -> dict[str, Any]:
        """The output of `heliograph demo --json`."""
        report = self.artifact.report.to_dict()
        clear, encrypted = self.clear.argmax(1), self.encrypted.argmax(1)
        names = (
            "predicted_max_abs_error", "security_bits", "ring_dim", "log_pq", "depth", "levels", "rotations",
            "rotation_keys", "evaluation_key_bytes", "ciphertext_bytes",
        )  # fmt: skip
        return {
            "images": len(self.labels),
            "accuracy_clear": float((clear == self.labels).mean()),
            "accuracy_encrypted": float((encrypted == self.labels).mean()),
            "agreement": float((clear == encrypted).mean()),
            "max_abs_error": float(np.abs(self.clear - self.encrypted).max()),
            **{name: report[name] for name in names},
            "predicted_ms": report["predicted"]["evaluate_ms"],
            "measured_ms": self.measurement.measured_ms,
            "floor_ms": self.measurement.floor_ms,
            "peak_rss_bytes": self.measurement.peak_rss_bytes,
            "compile_s": self.artifact.compile_s,
        }


def run_demo(images: int = 40, progress: Callable[[str, int, int], None] | None = None) -> DemoResult:
    """Train a 64-64-10 ReLU network on scikit-learn's handwritten digits and run test images encrypted, one by one.

    `progress(stage, done, total)` is called after every step.
    """
    try:
        import torch
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise HeliographError(
            f"the demonstration needs {error.name}", hint="pip install 'heliograph[demo]', or run make demo"
        ) from None
    from heliograph.frontends.torch.export import trace

    def tell(stage: str, done: int, total: int) -> None:
        if progress is not None:
            progress(stage, done, total)

    digits = load_digits()
    pixels = (digits.data / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(pixels))
    pixels, labels = pixels[order], digits.target[order]
    if not 1 <= images <= 397:
        raise HeliographError(f"the demonstration has 397 test images, {images} were asked for", where="images")
    train_x, train_y = torch.from_numpy(pixels[:1400]), torch.from_numpy(labels[:1400])
    test_x, test_y = pixels[1400 : 1400 + images], labels[1400 : 1400 + images]

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=1e-4)
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(train_x), train_y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        tell("train", epoch + 1, EPOCHS)
    module.eval()
    with torch.no_grad():
        clear = module(torch.from_numpy(test_x)).numpy()

    tell("compile", 0, 1)
    program = trace(module, train_x[:1], input_range=(0.0, 1.0), calibration=train_x[:CALIBRATION], name="digits")
    artifact = compile_program(program, Options(security_bits=128))
    tell("compile", 1, 1)
    # Compiling kernels, once for each machine, is no part of the times that the table compares.
    tell("kernels", 0, 1)
    measure(compile_program(parse(_SMALL), Options()), [np.zeros(4)])
    tell("kernels", 1, 1)
    measurement = measure(
        artifact, list(test_x), lambda done, total: tell("encrypted images", done, total), expected=list(clear)
    )
    return DemoResult(artifact, test_y, clear, np.stack(measurement.outputs), measurement)
