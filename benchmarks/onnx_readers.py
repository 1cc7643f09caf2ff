"""Whether onnx2torch reads what torch.onnx exports, well enough for `hg.trace`: nine small models, two exporters.

Needs onnx, onnxscript and onnx2torch, which no extra installs: docs/pytorch.md says why. Each model is exported, read back,
compared with the original (a difference above 1e-4 counts as a failure) and traced.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Run, benchmark
from torch import nn

_EXPORTERS: dict[str, dict[str, Any]] = {
    "the default (torch.export)": {"dynamo": True},
    "TorchScript, opset 17 (deprecated)": {"dynamo": False, "opset_version": 17},
}
_SAMPLES, _CALIBRATION, _CLOSE = 4, 32, 1e-4


class _Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.nn.functional.avg_pool2d(torch.relu(self.bn(self.conv(x))), 2).flatten(1))


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + torch.nn.functional.gelu(self.linear(x))).mean(-1)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


def models() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Each model with the shape of one sample."""
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    return {
        "linear, ReLU": (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)), (16,)),
        "convolution, batch norm, average pool": (_Convolutional(), (1, 8, 8)),
        "residual, GELU, layer norm": (_Residual(), (8,)),
        "attention": (_Attention(), (5, 8)),
        "GRU": (_Recurrent(), (3, 4)),
        "SiLU, softmax": (nn.Sequential(nn.Linear(6, 6), nn.SiLU(), nn.Linear(6, 4), nn.Softmax(1)), (6,)),
        "max pool": (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten()), (1, 8, 8)),
        "global average pool": (pooled, (1, 8, 8)),
        "Hardswish": (nn.Sequential(nn.Linear(6, 6), nn.Hardswish(), nn.Linear(6, 4)), (6,)),
    }


def outcome(model: nn.Module, shape: tuple[int, ...], options: dict[str, Any]) -> str:
    """ "traced", or the step that failed and why."""
    import onnx
    from onnx2torch import convert

    x = torch.randn(_SAMPLES, *shape)
    step = "export"
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            torch.onnx.export(model, (x,), path, verbose=False, **options)
            step = "read"
            found = convert(onnx.load(path)).eval()
        step = "compare"
        with torch.no_grad():
            difference = float((found(x) - model(x)).abs().max())
        if difference > _CLOSE:
            return f"compare: differs by {difference:.2g}"
        step = "trace"
        hg.trace(found, x, calibration=torch.randn(_CALIBRATION, *shape))
    except Exception as error:
        return f"{step}: {type(error).__name__}: {' '.join(str(error).split())[:90]}"
    return "traced"


def outcomes(model: nn.Module, shape: tuple[int, ...]) -> dict[str, str]:
    """What became of a model, by exporter."""
    # Read by itself first: what cannot be traced as it is would prove nothing.
    hg.trace(model.eval(), torch.randn(_SAMPLES, *shape), calibration=torch.randn(_CALIBRATION, *shape))
    return {exporter: outcome(model, shape, options) for exporter, options in _EXPORTERS.items()}


@benchmark(columns=dict.fromkeys(_EXPORTERS, ""), packages=("onnx", "onnxscript", "onnx2torch"))
def onnx_readers(run: Run) -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    for name, (model, shape) in models().items():
        run.row({"model": name}, partial(outcomes, model, shape))


if __name__ == "__main__":
    onnx_readers.main()
