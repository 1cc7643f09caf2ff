"""The parts of a module whose gradients are taken together, each with its rule: factors from input and output gradient.

A part is a layer with a rule here (Linear, Conv1d, Conv2d, Embedding, EmbeddingBag; recurrent layers are in
`recurrent`, attention in `attention`), or any other module with trainable parameters of its own (norms, class tokens,
position tables), which `torch.func` differentiates record by record, children included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heliograph.dp.training.factors import Convolved, Dense, Factor, Lookup, Outer
from heliograph.errors import UnsupportedError

Factors = Sequence[tuple[Tensor | None, Factor]]
"""By parameter; those of none, or of one that is not trained, count for nothing."""
Record = Callable[[nn.Module, Tensor, Sequence[Tensor], Callable[[Tensor], Factors]], None]
"""Called with (layer, output, seen, make): make(gradient at the output) gives factors, if `seen` did not change."""


@dataclass(frozen=True)
class Use:
    """One call of a part: its arguments, and the output (0 if there is one) to which the gradient belongs."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    output: int


Rule = Callable[[nn.Module, Use, Tensor], Factors]


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The module's trainable parameters, each once, in the order of `parameters()`."""
    return [p for p in module.parameters() if p.requires_grad]


def parts(module: nn.Module) -> Iterator[nn.Module]:
    """The modules whose gradients are each taken by one rule; together they hold all trainable parameters."""
    if not trained(module):
        return
    whole = isinstance(module, nn.RNNBase | nn.MultiheadAttention)
    if whole or parametrize.is_parametrized(module) or _own(module):
        yield module
        return
    for child in module.children():
        yield from parts(child)


def _own(module: nn.Module) -> bool:
    return any(p is not None and p.requires_grad for p in module._parameters.values())


def rule_of(layer: nn.Module) -> Rule:
    """The rule for a part that is not recurrent."""
    if not parametrize.is_parametrized(layer):
        for kind, rule in _RULES.items():
            # A subclass with its own forward is a different layer.
            if isinstance(layer, kind) and type(layer).forward is kind.forward and "weight" in layer._parameters:
                return rule
        if f"{type(layer).__module__}.{type(layer).__name__}" == "transformers.pytorch_utils.Conv1D":
            return _transposed_linear
    return by_func


def _with_bias(layer: Any, weight: Factor, bias: Tensor) -> Factors:
    return [(layer.weight, weight), (layer.bias, Dense(bias))]


def _positions(x: Tensor) -> Tensor:
    """[B, ..., d] as [B, T, d]."""
    return x.reshape(x.shape[0], -1, x.shape[-1]) if x.dim() != 2 else x.unsqueeze(1)


def _linear(layer: nn.Module, use: Use, gradient: Tensor) -> Factors:
    assert isinstance(layer, nn.Linear)
    a, b = _positions(use.args[0]), _positions(gradient)
    return _with_bias(layer, Outer(a, b), b.sum(1))


def _transposed_linear(layer: nn.Module, use: Use, gradient: Tensor) -> Factors:
    """A linear layer whose weight is [inputs, outputs], as GPT-2 has it."""
    a, b = _positions(use.args[0]), _positions(gradient)
    return _with_bias(layer, Outer(b, a), b.sum(1))


def _convolution(layer: nn.Module, use: Use, gradient: Tensor) -> Factors:
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    x = use.args[0]
    # The layer's own list of paddings is right for numbers, "same" and every padding mode.
    sides = list(layer._reversed_padding_repeated_twice)
    if any(sides):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = nn.functional.pad(x, sides, mode=mode)
    return _with_bias(layer, Convolved(x, gradient, layer), gradient.flatten(2).sum(2))


def _embedding(layer: nn.Module, use: Use, gradient: Tensor) -> Factors:
    assert isinstance(layer, nn.Embedding)
    tokens = use.args[0].flatten(1)
    found = Lookup(tokens, gradient.reshape(*tokens.shape, -1), layer.num_embeddings, layer.padding_idx)
    return [(layer.weight, found)]


def _bag(layer: nn.Module, use: Use, gradient: Tensor) -> Factors:
    assert isinstance(layer, nn.EmbeddingBag)
    tokens = use.args[0]
    if layer.mode == "max" or len(use.args) > 1 or use.named or tokens.dim() != 2:
        raise UnsupportedError(
            "no per-record gradients for this use of an embedding bag",
            where=type(layer).__name__,
            hint="pass one row of tokens for each record (padding_idx for the rest), without offsets and weights, and add "
            "up or average",
        )
    ignored = layer.padding_idx
    if layer.mode == "mean":
        counted = tokens != ignored if ignored is not None else torch.ones_like(tokens)
        gradient = gradient / counted.sum(1, keepdim=True).clamp_min(1)
    spread = gradient.unsqueeze(1).expand(-1, tokens.shape[1], -1)
    return [(layer.weight, Lookup(tokens, spread, layer.num_embeddings, ignored))]


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _bag,
}


def by_func(layer: nn.Module, use: Use, gradient: Tensor) -> Factors:
    """Per-record gradients of any module whose forward works under `torch.func.vmap`."""
    names = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    given = (*use.args, *use.named.values())
    records = len(gradient)
    batched = [n for n, a in enumerate(given) if isinstance(a, Tensor) and a.dim() and len(a) == records]

    def one(values: dict[str, Tensor], tensors: list[Tensor], upstream: Tensor) -> Tensor:
        alone = list(given)
        for at, tensor in zip(batched, tensors, strict=True):
            alone[at] = tensor.unsqueeze(0)
        named = dict(zip(use.named, alone[len(use.args) :], strict=True))
        out = torch.func.functional_call(layer, values, tuple(alone[: len(use.args)]), named)
        out = out[use.output] if isinstance(out, tuple) else out
        return (out.squeeze(0) * upstream).sum()  # type: ignore[no-any-return]

    values = {name: p.detach() for name, p in names.items()}
    try:
        found = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(
            values, [given[at] for at in batched], gradient
        )
    except (RuntimeError, ValueError, AttributeError, TypeError, NotImplementedError) as error:
        raise UnsupportedError(
            "a module has its own parameters and no rule for their per-record gradients",
            where=type(layer).__name__,
            why=f"torch.func cannot differentiate it record by record: {str(error).splitlines()[0]}",
            hint="build it from standard layers, whose parameters have rules; keep randomness (dropout) out of it",
        ) from error
    return [(names[name], Dense(each)) for name, each in found.items()]
