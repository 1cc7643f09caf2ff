"""Reads of memory, training modes, known masks, comparisons of truth values, and what else was refused or crashed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reading import Case, Fn, rand, randn
from torch import nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver

from heliograph.frontends.torch import graph as torch_graph
from heliograph.frontends.torch.values import RULES, Value
from heliograph.frontends.torch.ways import linear as torch_linear

KEPT = torch.tensor([True, False, True, True])


def of(function: Callable[..., Any], **parts: Any) -> Callable[[], nn.Module]:
    """Makes a module of a function; a part that is a tensor becomes a buffer, one that makes a module is called."""

    def made() -> nn.Module:
        module = Fn(function)
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                module.register_buffer(name, part.clone())
            else:
                setattr(module, name, part())
        module.names = tuple(parts)
        return module

    return made


def small() -> torch.Tensor:
    return torch.tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.25, -2.0], [0.5, -0.5, 1.25, 2.25], [3.0, -3.0, 0.0, 1.0]])


# ---------------------------------------------------------------------------------------------- F3: reads of memory


def by_copies(patch: pytest.MonkeyPatch) -> None:
    for name in ("aten.as_strided", "aten.as_strided_copy"):
        patch.setitem(RULES, name, torch_linear.linear_by_units)


def by_shape(patch: pytest.MonkeyPatch) -> None:
    for name in ("aten.view", "aten.view_copy"):
        patch.setitem(RULES, name, lambda call, x, *args, **kwargs: Value(call.reshaped(x.node, call.shape)))


_MEMORY = ("as_strided", "it reads the memory of a tensor", "slice, transpose and reshape")
_PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every second": lambda t: t[:, ::2],
    "from the second": lambda t: t[:, 1:],
    "select": lambda t: t[:, 1],
    "narrow": lambda t: t.narrow(1, 1, 2),
    "chunk": lambda t: t.chunk(2, 1)[1],
    "diagonal": lambda t: t.view(-1, 2, 2).diagonal(0, 1, 2),
    "expand": lambda t: t[:, :1].expand(-1, 4),
    "permuted": lambda t: t.view(-1, 2, 2).permute(0, 2, 1),
    "unfold": lambda t: t.unfold(1, 2, 1),
}
MEMORY = (
    Case(
        "as_strided of a transposed value",
        "F3",
        of(lambda t: t.view(-1, 2, 2).transpose(1, 2).as_strided((t.size(0), 4), (4, 1)) * 1.0),
        small,
        says=_MEMORY,
        without=by_copies,
    ),
    Case(
        "as_strided_copy of a transposed value",
        "F3",
        of(lambda t: torch.as_strided_copy(t.view(-1, 2, 2).mT, (t.size(0), 4), (4, 1))),
        small,
        says=("as_strided_copy", *_MEMORY[1:]),
        without=by_copies,
    ),
    *(
        Case(
            f"as_strided, {name}",
            "F3",
            of(lambda t, f=f: f(t).as_strided((t.size(0),), (4,)) * 1.0),
            small,
            says=_MEMORY,
        )
        for name, f in _PARTS.items()
    ),
    Case("as_strided of what is contiguous", "F3", of(lambda t: t.as_strided((t.size(0), 2), (4, 3))), small, (1, 4)),
    Case("as_strided of a copy", "F3", of(lambda t: t.flip(1).as_strided((t.size(0), 2), (4, 1))), small, (4, 3)),
    Case(
        "bits as int32",
        "F3",
        of(lambda t: t.view(torch.int32).float()),
        small,
        says=("Tensor.view", "reads the bits of torch.float32 values as torch.int32", "on the client"),
        without=by_shape,
    ),
    Case(
        "bits as int32, view_copy",
        "F3",
        of(lambda t: torch.view_copy(t, dtype=torch.int32).float()),
        small,
        says=("torch.view_copy", "reads the bits"),
        without=by_shape,
    ),
    *(
        Case(f"bits as {kind}", "F3", of(lambda t, k=kind: t.view(k).float()), small, says=("reads the bits",))
        for kind in (torch.float16, torch.uint8, torch.float64, torch.int64)
    ),
    Case("view of the same type", "F3", of(lambda t: t.view(torch.float32) * 2), small, (2, 4, 6, 8)),
    Case("a truth value as a byte", "F3", of(lambda t: (t > 1.5).view(torch.uint8).float()), small, (0, 1, 1, 1)),
    Case(
        "what torch does not run is a refusal",
        "F3",
        of(lambda t: t.gather(1, torch.full((t.size(0), 1), 9))),
        small,
        says=("torch.gather cannot be done here", "index 9 is out of bounds"),
    ),
    Case("an index out of bounds", "F3", of(lambda t: t[:, [9]]), small, says=("index 9 is out of bounds",)),
    Case("a known value in the shape of x", "F3", of(lambda t: torch.ones(4).expand_as(t) + t), small, (2, 3, 4, 5)),
    Case(
        "a known view in the shape of x", "F3", of(lambda t: torch.ones(t.numel()).view_as(t) + t), small, (2, 3, 4, 5)
    ),
)

# ---------------------------------------------------------------------------------------------- F5: training modes


def unseen_training(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch_graph, "trains", lambda node: False)


def _trained(name: str, model: Callable[[], nn.Module], op: str, **keywords: Any) -> Case:
    says = (op, "it is in training mode", "call model.eval() before trace")
    given = {"samples": lambda: randn(16, 3, 4), "without": unseen_training, **keywords}
    return Case(name, "F5", model, says=says, training=True, **given)


def _layer(layer: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    return of(lambda t, inner: inner(t)[0], inner=lambda: layer(*args, batch_first=True, **kwargs))


TRAINING = (
    _trained("LSTM", _layer(nn.LSTM, 4, 3, 2, dropout=0.9), "torch.lstm"),
    _trained("GRU", _layer(nn.GRU, 4, 3, 2, dropout=0.9), "torch.gru"),
    _trained("RNN", _layer(nn.RNN, 4, 3, 2, dropout=0.9), "torch.rnn_tanh"),
    _trained("RNN of ReLUs", _layer(nn.RNN, 4, 3, 2, dropout=0.9, nonlinearity="relu"), "torch.rnn_relu"),
    _trained("LSTM both ways", _layer(nn.LSTM, 4, 3, 2, dropout=0.5, bidirectional=True), "torch.lstm"),
    _trained("RReLU", lambda: nn.Sequential(nn.Linear(4, 4), nn.RReLU()), "torch.rrelu"),
    _trained("rrelu", of(lambda t: F.rrelu(t, training=True)), "torch.rrelu"),
    _trained("rrelu in place", of(lambda t: F.rrelu_(t * 1.0, training=True)), "rrelu", without=None),
    _trained("Dropout", lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout()), "torch.dropout"),
    _trained("dropout by default", of(lambda t: F.dropout(t, 0.3)), "torch.dropout"),
    _trained("AlphaDropout", lambda: nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout()), "torch.alpha_dropout"),
    _trained("Dropout1d", lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout1d()), "torch.feature_dropout"),
    _trained(
        "FeatureAlphaDropout",
        lambda: nn.Sequential(nn.Linear(4, 4), nn.FeatureAlphaDropout()),
        "torch.feature_alpha_dropout",
    ),
    _trained("native_dropout", of(lambda t: torch.native_dropout(t, 0.5, True)[0]), "torch.dropout"),
    _trained("encoder", lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), "torch.dropout", without=None),
    _trained(
        "instance norm renews its statistics",
        lambda: nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True)),
        "instance_norm",
        without=None,
    ),
    Case(
        "one dropped layer alone among others in evaluation",
        "F5",
        of(lambda t, inner: inner.train()(t), inner=lambda: nn.Dropout(0.5)),
        small,
        says=("torch.dropout", "it is in training mode"),
    ),
    Case("dropout of nothing", "F5", of(lambda t: F.dropout(t, 0.0)), small, (1, 2, 3, 4), training=True),
    Case("alpha dropout of nothing", "F5", of(lambda t: F.alpha_dropout(t, 0.0, True)), small, (1, 2, 3, 4)),
    Case("rrelu of one slope", "F5", of(lambda t: F.rrelu(t - 2, 0.5, 0.5, True)), small, (-0.5, 0, 1, 2)),
    Case("rrelu in evaluation", "F5", of(lambda t: F.rrelu(t - 2, 0.25, 0.75)), small, (-0.5, 0, 1, 2)),
    Case(
        "dropout of a weight, in evaluation",
        "F5",
        of(lambda t, w: t @ F.dropout(w, 0.5, False), w=torch.eye(4) * 2),
        small,
        (2, 4, 6, 8),
    ),
)

# ---------------------------------------------------------------------------------------------- F17: known masks


def _written(t: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(4, dtype=torch.bool)
    mask[1:3] = True
    return t[:, mask]


def _aliased(t: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(2, 2, dtype=torch.bool)
    mask.view(-1)[1:3] |= True
    return t[:, mask.flatten()]


def _stored(t: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(t)
    made[:, mask] = t[:, mask] * 3
    return made


def _known(name: str, function: Callable[..., Any], right: tuple[float, ...], **keywords: Any) -> Case:
    parts = keywords.pop("parts", {"mask": KEPT})
    return Case(name, "F17", of(function, **parts), keywords.pop("samples", small), right, **keywords)


MASKS = (
    _known("a buffer", lambda t, m: t[:, m], (1, 3, 4), compiled=1e-3),
    _known("its opposite", lambda t, m: t[:, ~m], (2,)),
    _known("with an ellipsis", lambda t, m: t[..., m], (1, 3, 4)),
    _known("behind a new axis", lambda t, m: t[:, None, m], (1, 3, 4)),
    _known("of two axes", lambda t, m: t.view(-1, 2, 2)[:, m.view(2, 2)], (1, 3, 4)),
    _known("of one axis of three", lambda t, m: t.view(-1, 2, 2)[:, m[:2], 1:], (2,)),
    _known("beside a number", lambda t, m: t.view(-1, 2, 2)[:, 1, m[:2]], (3,)),
    _known("a tensor outside", lambda t: t[:, KEPT], (1, 3, 4), parts={}),
    _known("a list", lambda t: t[:, [True, False, True, True]], (1, 3, 4), parts={}),
    _known("an array", lambda t: t[:, KEPT.numpy()], (1, 3, 4), parts={}),
    _known("of a buffer, by numpy", lambda t, m: t[:, m.numpy()], (1, 3, 4)),
    _known("made inside", lambda t: t[:, torch.arange(4) % 2 == 0], (1, 3), parts={}),
    _known("written inside", _written, (2, 3), parts={}),
    _known("written through a view", _aliased, (2, 3), parts={}),
    _known("of weights", lambda t, w: t[:, w > 0], (1, 4), parts={"w": torch.tensor([0.5, -1.0, -2.0, 3.0])}),
    _known("masked_select", lambda t, m: t.masked_select(m).view(t.size(0), -1), (1, 3, 4)),
    _known("masked_select of rows", lambda t, m: torch.masked_select(t, m[None]).view(t.size(0), -1), (1, 3, 4)),
    _known("its places", lambda t, m: t[:, m.nonzero().squeeze(1)], (1, 3, 4)),
    _known("places by where", lambda t, m: t[:, torch.where(m)[0]], (1, 3, 4)),
    _known("what is read is written", _stored, (3, 0, 9, 12)),
    _known(
        "repeat_interleave",
        lambda t, n: t.repeat_interleave(n, 1),
        (1, 2, 2, 4, 4, 4),
        parts={"n": torch.tensor([1, 2, 0, 3])},
    ),
    _known("a branch", lambda t, m: t * 2 if m.any() else t, (2, 4, 6, 8)),
    _known("a count", lambda t, n: t[:, : int(n)], (1, 2), parts={"n": torch.tensor(2)}),
    _known("a count as the end of a slice", lambda t, n: t[:, :n], (1, 2), parts={"n": torch.tensor(2)}),
    _known("lengths", lambda t, n: t.split(n.tolist(), 1)[1], (4,), parts={"n": torch.tensor([3, 1])}),
    _known("unique", lambda t, n: t[:, n.unique()], (1, 3), parts={"n": torch.tensor([2, 0, 2])}),
    _known("one_hot", lambda t, n: t @ F.one_hot(n).float(), (4, 3, 2, 1), parts={"n": torch.tensor([3, 2, 1, 0])}),
    _known(
        "under no_grad",
        torch.no_grad()(lambda t, m: t[:, m]),
        (1, 3, 4),
    ),
    _known("a mask of the input", lambda t: t[t > 0], (), parts={}, says=("depends on the values", "torch.where(mask")),
    _known("a branch on the input", lambda t: t if t.sum() > 0 else -t, (), parts={}, says=("control flow depends",)),
    _known("one that does not fit", lambda t: t[:, torch.ones(5) > 0], (), parts={}, says=("shape of the mask",)),
    _known("a random one", lambda t: t[:, torch.rand(4) > 0.5], (), parts={}, says=("draws random numbers",)),
)


def _flags(name: str, function: Callable[..., Any], right: tuple[float, ...] = (), **keywords: Any) -> Case:
    return Case(name, "F17", of(function), small, right, **keywords)


# Of the first sample, 1, 2, 3, 4.
FLAGS = (
    _flags("== 0", lambda t: ((t > 1.5) == 0).float(), (1, 0, 0, 0), compiled=2e-2),
    _flags("== False", lambda t: ((t > 1.5) == False).float(), (1, 0, 0, 0)),  # noqa: E712
    _flags("== 1", lambda t: ((t > 1.5) == 1).float(), (0, 1, 1, 1)),
    _flags("== 2", lambda t: ((t > 1.5) == 2).float() + t, (1, 2, 3, 4)),
    _flags("!= 0", lambda t: ((t > 1.5) != 0).float(), (0, 1, 1, 1)),
    _flags("two unequal", lambda t: ((t > 1.5) != (t > 3.5)).float(), (0, 1, 1, 0)),
    _flags("two equal", lambda t: ((t > 1.5) == (t > 3.5)).float(), (1, 0, 0, 1)),
    _flags("equal to a known mask", lambda t: ((t > 1.5) == KEPT).float(), (0, 0, 1, 1)),
    _flags("unlike a known mask", lambda t: ((t > 1.5) != KEPT).float(), (1, 1, 0, 0)),
    _flags("as numbers, == 0", lambda t: ((t > 1.5).float() == 0).float(), (1, 0, 0, 0)),
    _flags("two by size", lambda t: ((t > 1.5) <= (t > 3.5)).float() * t, (1, 0, 0, 4)),
    _flags("counted", lambda t: (t > 1.5).count_nonzero(1).float(), (3,)),
    _flags("counted over the batch", lambda t: (t > 1.5).count_nonzero().float(), says=("batch axis",)),
    _flags("numbers that are not 0", lambda t: t.count_nonzero(1).float(), says=("beyond a gap",)),
    _flags("isfinite", lambda t: torch.isfinite(t).float() * t, (1, 2, 3, 4)),
    _flags("isnan in where", lambda t: torch.where(torch.isnan(t), torch.zeros_like(t), t), (1, 2, 3, 4)),
    _flags("isnan in masked_fill", lambda t: t.masked_fill(t.isnan(), 0.0), (1, 2, 3, 4)),
    _flags("isinf", lambda t: t * ~torch.isinf(t), (1, 2, 3, 4)),
    _flags("isposinf", lambda t: t * ~torch.isposinf(t), (1, 2, 3, 4)),
    _flags("numbers compared", lambda t: (t == 1).float(), says=("comparison (==)", "gap")),
)

# ---------------------------------------------------------------------------------------------- F19: small ones


def _put(t: torch.Tensor) -> torch.Tensor:
    made = t * 2
    made[t > 2.5] = 1.0
    return made


def _put_part(t: torch.Tensor) -> torch.Tensor:
    made = t * 2
    made[:, 1:][t[:, 1:] > 2.5] = 0.0
    return made


def _put_known(t: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(t)
    made[t > 2.5] = 1.0
    return made


def _put_rows(t: torch.Tensor) -> torch.Tensor:
    made = t * 2
    made[t[:, 0] > 0.75] = 0.5
    return made


def _put_values(t: torch.Tensor) -> torch.Tensor:
    made, mask = t * 2, t > 2.5
    made[mask] = -t[mask]
    return made


class Padded(nn.Module):
    def __init__(self, number: float | None = None) -> None:
        super().__init__()
        self.attention, self.number = nn.MultiheadAttention(4, 2, batch_first=True), number

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        mask = t[..., 0] > 0
        mask = mask if self.number is None else self.number * mask.float()
        return self.attention(t, t, t, key_padding_mask=mask)[0].mean(1)  # type: ignore[no-any-return]


def _one_bias() -> nn.Module:
    layer = nn.Linear(4, 2)
    layer.weight = nn.Parameter(torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]]))
    layer.bias = nn.Parameter(torch.tensor([0.5]))
    return layer


def _quantized(kind: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), kind())


def _stored_norm() -> nn.Module:
    norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    norm.running_mean, norm.running_var = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 1.0])
    return norm


def _small(
    name: str, function: Any, right: tuple[float, ...] = (), says: tuple[str, ...] = (), **keywords: Any
) -> Case:
    model = of(function) if not isinstance(function, tuple) else function[0]
    return Case(name, "F19", model, keywords.pop("samples", small), right, says, **keywords)


def _score(t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(t, torch.tensor([0.0, 0, 0, 1]).expand_as(t), reduction="none")


def _by_class(t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(t, torch.zeros(t.size(0), dtype=torch.long), reduction="none")


_FIRST = ("with batch_first=True",)
SMALL = (
    _small("x.data", lambda t: t.data * 2, (2, 4, 6, 8)),
    _small("weight.data", (of(lambda t, w: t @ w.data.t(), w=torch.eye(4) * 2),), (2, 4, 6, 8)),
    _small("a number of weight.data", (of(lambda t, w: t * float(w.data[0]), w=torch.ones(1) * 2),), (2, 4, 6, 8)),
    _small(
        "InstanceNorm by stored statistics", (_stored_norm,), (0, 0.5, 1, 2), samples=lambda: small().view(-1, 2, 2)
    ),
    _small("squared error", lambda t: F.mse_loss(t, t * 0 + 2, reduction="none"), (1, 0, 1, 4)),
    _small("MSELoss", lambda t: nn.MSELoss(reduction="none")(t, torch.ones_like(t)).mean(1), (3.5,)),
    _small("cross entropy", _score, (0.4401897,)),
    _small("cross entropy by class", _by_class, says=("whole numbers", "one_hot")),
    _small("mean squared error", lambda t: F.mse_loss(t, t.tanh()), says=("mse_loss", 'reduction="none"')),
    _small("summed squared error", lambda t: F.mse_loss(t, t.tanh(), reduction="sum"), says=("mse_loss",)),
    _small("writing under a mask", _put, (2, 4, 1, 1), compiled=2e-2),
    _small("writing under a part's mask", _put_part, (2, 4, 0, 0)),
    _small("writing to zeros under a mask", _put_known, (0, 0, 1, 1)),
    _small("writing to rows under a mask", _put_rows, (0.5, 0.5, 0.5, 0.5)),
    _small("writing what a mask takes", _put_values, says=("depends on the values", "torch.where(mask, value, x)")),
    _small("bias of one number", (_one_bias,), (1.5, 2.5)),
    _small("bias without axes", lambda t: F.linear(t, torch.eye(4), torch.tensor(0.5)), (1.5, 2.5, 3.5, 4.5)),
    _small("weights of one axis", lambda t: F.linear(t, torch.tensor([1.0, 1, 0, 0])), (3,)),
    _small(
        "a filter that is an input",
        lambda t, w: F.conv2d(t, w),
        says=("torch.nn.functional.unfold",),
        samples=lambda: (randn(8, 1, 3, 3), randn(8, 1, 2, 2, seed=1)),
    ),
    *(
        _small(name, (of(function, inner=inner),), says=("mixes samples", *_FIRST), samples=lambda: randn(8, 5, 4))
        for name, function, inner in (
            ("LSTM, time first", lambda t, inner: inner(t)[0], lambda: nn.LSTM(4, 3)),
            ("GRU, time first", lambda t, inner: inner(t)[0][-1], lambda: nn.GRU(4, 3)),
            ("attention, time first", lambda t, inner: inner(t, t, t)[0], lambda: nn.MultiheadAttention(4, 2)),
            ("encoder, time first", lambda t, inner: inner(t), lambda: nn.TransformerEncoderLayer(4, 2, 8)),
        )
    ),
    _small("round", lambda t: torch.round(t), says=("torch.round", "quantization, leave it out")),
    _small(
        "fake quantization",
        lambda t: torch.fake_quantize_per_tensor_affine(t, 0.1, 0, -128, 127),
        says=("fake quantization", "leave quantization out"),
    ),
    _small("FakeQuantize", (lambda: _quantized(FakeQuantize),), says=("leave quantization out",)),
    _small(
        "an observer", (lambda: nn.Sequential(nn.Linear(4, 4), MinMaxObserver()),), says=("leave quantization out",)
    ),
    _small("one_hot without classes", lambda t: F.one_hot(t.argmax(1)).float(), says=("num_classes",)),
    _small("one_hot", lambda t: F.one_hot(t.argmax(1), 4).float(), (0, 0, 0, 1)),
    _small(
        "batch norm without statistics",
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)),),
        says=("keeps no statistics", "track_running_stats=True"),
        keywords={"example_input": torch.ones(1, 4)},
    ),
    _small(
        "a padding mask", (Padded,), says=("key_padding_mask=-20.0 * mask.float()",), samples=lambda: randn(8, 5, 4)
    ),
    _small(
        "missing values",
        lambda t: torch.nan_to_num(t),
        says=("on the client, before encryption",),
        samples=lambda: torch.where(rand(8, 4) > 0.5, torch.nan, 1.0),
    ),
)

CASES: tuple[Case, ...] = (*MEMORY, *TRAINING, *MASKS, *FLAGS, *SMALL)
