"""Cases of models that are read: what was tried, the right value beside it, and what must become of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import heliograph as hg
from heliograph.interpret import interpret_batch
from heliograph.ir import Array, Program


class Fn(nn.Module):
    """A module that computes a function of its inputs and of the parts that are given by name."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)
        self.names = tuple(parts)

    def forward(self, *args: Any) -> Any:
        return self.function(*args, *(getattr(self, name) for name in self.names))


@dataclass(frozen=True)
class Case:
    """One model and what must become of it.

    name: what was tried.
    fault: the number of the finding that it belongs to, `F1` to `F20`.
    model: makes the module.
    samples: makes the calibration, a tensor or a tuple of tensors with a leading sample axis.
    right: the first sample's output, flattened, as it is known without Heliograph; empty where the case is refused.
    says: words that the refusal holds; empty where the model is compiled.
    compiled: the largest error allowed of the compiled program, as a share of the largest output; None: it is not compiled.
    tolerance: the same for the traced program.
    keywords: what else `trace` is given.
    training: whether the model stays in training mode.
    without: switches the mend off; the check of `trace` must then refuse the model. None where a check of traces has
        nothing to say (the case is refused, or the fault is not one of reading).
    """

    name: str
    fault: str
    model: Callable[[], nn.Module]
    samples: Callable[[], Any]
    right: Sequence[float] = ()
    says: Sequence[str] = ()
    compiled: float | None = None
    tolerance: float = 1e-4
    keywords: dict[str, Any] = field(default_factory=dict)
    training: bool = False
    without: Callable[[pytest.MonkeyPatch], None] | None = None

    def __str__(self) -> str:
        return f"{self.fault} {self.name}"

    def made(self) -> nn.Module:
        """The module, with the same weights each time."""
        torch.manual_seed(0)
        module = self.model()
        return module if self.training else module.eval()


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    """Uniform numbers in [0, 1), the same each time."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def ids(classes: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers from 0 to classes - 1, the same each time."""
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def wanted(module: nn.Module, samples: Any) -> list[Array]:
    """What torch computes, an array (samples, ...) for each output."""
    with torch.no_grad():
        outputs = module(*(samples if isinstance(samples, tuple) else (samples,)))
    return [leaf.double().numpy() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def traced(program: Program, samples: Any) -> list[Array]:
    """What the traced program computes, finished as the client does it."""
    given = []
    for node, tensor in zip(program.inputs, samples if isinstance(samples, tuple) else (samples,), strict=True):
        classes = node.attrs.get("classes")
        given.append(np.eye(classes)[tensor.long().numpy()] if classes else tensor.double().numpy())
    found = interpret_batch(program, *given)
    specs = program.interface.outputs or (None,) * len(found)
    return [out if spec is None else spec.finished(out) for out, spec in zip(found, specs, strict=True)]


def largest_share(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest difference, as a share of the largest value of its output."""
    assert len(found) == len(expected)
    shares = [0.0]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.size == theirs.size, f"{ours.shape} for {theirs.shape}"
        scale = max(float(np.abs(theirs).max(initial=0.0)), 1e-12)
        shares.append(float(np.abs(ours.reshape(theirs.shape) - theirs).max(initial=0.0)) / scale)
    return max(shares)


def simulated(artifact: Any, samples: Any, count: int) -> list[Array]:
    """What the simulator answers for the first samples."""
    tensors = samples if isinstance(samples, tuple) else (samples,)
    rows = []
    for place in range(count):
        answer = hg.simulate(artifact, *(tensor[place].numpy() for tensor in tensors))
        rows.append(answer if isinstance(answer, tuple) else (answer,))
    return [np.stack([np.asarray(row[output]) for row in rows]) for output in range(len(rows[0]))]
