"""Helpers of the front end's tests: a module around a function, the error of a trace, and the three-way check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from heliograph.errors import HeliographError, UnsupportedError
from heliograph.frontends.torch.export import trace
from heliograph.interpret import interpret, interpret_batch
from heliograph.ir import Program
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify


class Fn(nn.Module):
    """A module whose forward is the given function; parameters and buffers as attributes."""

    def __init__(self, function: Callable[..., Any], **tensors: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args, **dict(self.named_buffers()))


def inputs(shapes: Sequence[tuple[int, ...]], batch: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Random float64 tensors with a batch axis."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, *shape, generator=generator, dtype=torch.float64) for shape in shapes)


def refusal(model: Any, *example: torch.Tensor, kind: type[HeliographError] = UnsupportedError, **options: Any) -> Any:
    """The error that a trace ends with."""
    with pytest.raises(kind) as caught:
        trace(model, example, **options)
    return caught.value


def agree(module: nn.Module, *shapes: tuple[int, ...], batch: int = 1, tolerance: float = 1e-9) -> Program:
    """Trace, verify, print and parse back, and compare with torch on five samples; the program."""
    module = module.double().eval()
    program = verify(trace(module, inputs(shapes, batch)))
    text = print_program(program)
    assert print_program(parse_program(text, program.constants)) == text
    samples = inputs(shapes, batch * 2, seed=1)
    with torch.no_grad():
        halves = [module(*(x[i * batch : (i + 1) * batch].clone() for x in samples)) for i in range(2)]
    leaves = [pytree.tree_leaves(half) for half in halves]
    expected = [torch.cat(pair).numpy() for pair in zip(*leaves, strict=True)]
    got = interpret_batch(program, *(x.numpy() for x in samples))
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=tolerance)
    single = interpret(program, *(x[0].numpy() for x in samples))
    first = single if isinstance(single, tuple) else (single,)
    for ours, theirs in zip(first, expected, strict=True):
        np.testing.assert_allclose(ours, theirs[0], rtol=0, atol=tolerance)
    return program


def ops(program: Program) -> list[str]:
    """The ops of the program in order, inputs and constants left out."""
    return [node.op for node in program.nodes if node.op not in ("input", "constant")]
