"""Per-record norms, weighted sums and gradients against autograd on batches of one record."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.nn.utils.parametrizations import weight_norm  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from heliograph.dp.training.factors import pair_norms  # noqa: E402
from heliograph.dp.training.gradients import GradientEngine  # noqa: E402
from heliograph.dp.training.refuse import check_loss, check_module  # noqa: E402
from heliograph.errors import ProgramError, UnsupportedError  # noqa: E402

RECORDS, CLASSES = 5, 3


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


class Flat(nn.Module):
    """A module's output, averaged over what lies behind the channels or positions, through a classifier."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, CLASSES)

    def forward(self, *x: Tensor) -> Tensor:
        out = self.inner(*x)
        return self.head(torch.tanh(out.flatten(1)))


class Recurrent(nn.Module):
    """Uses the outputs, the last states and, where given, learned initial states of a recurrent module."""

    def __init__(self, kind: type[nn.RNNBase], learned: bool = False, **options: object) -> None:
        super().__init__()
        self.core = kind(4, 3, **options)  # type: ignore[arg-type]
        sides = 2 if self.core.bidirectional else 1
        self.start = nn.Linear(4, 3 * sides * self.core.num_layers) if learned else None
        self.head = nn.Linear(3 * sides, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, 0]
        initial = None
        if self.start is not None:
            initial = self.start(first).view(len(x), -1, 3).transpose(0, 1).contiguous()
            if isinstance(self.core, nn.LSTM):
                initial = (initial, initial.tanh())
        out, last = self.core(x if self.core.batch_first else x.transpose(0, 1), initial)
        out = out if self.core.batch_first else out.transpose(0, 1)
        states = last if isinstance(last, Tensor) else last[0] + 2 * last[1]
        return self.head(out.cos().sum(1)) + states.sum((0, 2)).unsqueeze(1).sin() * torch.arange(CLASSES)


class Attending(nn.Module):
    """Queries from one part of the input, keys and values from others, records first or second, with masks."""

    def __init__(self, masked: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, **options)
        self.first, self.masked = options.get("batch_first", False), masked
        self.keys, self.values = options.get("kdim") or 4, options.get("vdim") or 4

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = x[:, :2, :4].sin(), x[..., : self.keys].cos(), x[..., : self.values]
        if not self.first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        masks: dict[str, Any] = {}
        if self.masked:
            masks = {"key_padding_mask": x[..., 0] > 9.0, "attn_mask": torch.eye(2, 3, dtype=torch.bool)}
        out, weights = self.attention(query, key, value, **masks)
        out = out if self.first else out.transpose(0, 1)
        return torch.cat((out.flatten(1)[:, :2], weights.flatten(1)[:, 3:4]), 1)


class Twice(nn.Module):
    """One layer used twice, on different widths of positions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(torch.tanh(self.layer(x))).flatten(2).mean(2) if x.dim() > 3 else self._rows(x))

    def _rows(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x))).mean(1)


class Tied(nn.Module):
    """The embedding is the classifier's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(CLASSES + 4, 4), nn.Linear(4, CLASSES + 4)
        self.out.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.table(tokens).tanh().sum(1))


class Scaled(nn.Module):
    """Parameters of its own beside children: differentiated as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.inner = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.scale)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def only(module: nn.Module, *names: str) -> nn.Module:
    for name, p in module.named_parameters():
        p.requires_grad_(any(n in name for n in names))
    return module


def rows(*shape: int) -> Tensor:
    return torch.randn(RECORDS, *shape, dtype=torch.float64)


def tokens(length: int, vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (RECORDS, length))


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "linear": lambda: (nn.Linear(4, CLASSES), rows(4)),
    "linear without bias": lambda: (nn.Linear(4, CLASSES, bias=False), rows(4)),
    "linear on positions": lambda: (Flat(nn.Linear(4, 2), 14), rows(7, 4)),
    "linear on a grid": lambda: (Flat(nn.Linear(4, 2), 12), rows(2, 3, 4)),
    "in place": lambda: (nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES)), rows(4)),
    "dilated conv1d": lambda: (Flat(nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2), 16), rows(2, 8)),
    "grouped conv2d": lambda: (Flat(nn.Conv2d(4, 6, 3, padding=1, groups=2), 96), rows(4, 4, 4)),
    "depthwise conv2d": lambda: (Flat(nn.Conv2d(4, 4, (2, 3), groups=4, bias=False), 24), rows(4, 4, 4)),
    "same, circular": lambda: (
        Flat(nn.Conv2d(2, 3, (2, 3), padding="same", padding_mode="circular"), 48),
        rows(2, 4, 4),
    ),
    "strided conv2d": lambda: (Flat(nn.Conv2d(2, 3, 2, stride=3), 12), rows(2, 6, 5)),
    "conv3d": lambda: (Flat(nn.Conv3d(1, 2, 2), 8), rows(1, 3, 3, 2)),
    "transposed conv": lambda: (Flat(nn.ConvTranspose2d(2, 2, 2), 18), rows(2, 2, 2)),
    "embedding": lambda: (Flat(nn.Embedding(6, 2, padding_idx=0), 18), tokens(9, 6)),
    "bag, mean": lambda: (nn.EmbeddingBag(6, CLASSES, mode="mean", padding_idx=0), tokens(5, 6)),
    "bag, sum": lambda: (Flat(nn.EmbeddingBag(6, 2, mode="sum"), 2), tokens(5, 6)),
    "layer norm": lambda: (nn.Sequential(nn.LayerNorm([3, 4]), nn.Flatten(), nn.Linear(12, CLASSES)), rows(3, 4)),
    "group norm": lambda: (Flat(nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4)), 16), rows(2, 3, 3)),
    "instance norm": lambda: (Flat(nn.InstanceNorm2d(2, affine=True), 18), rows(2, 3, 3)),
    "lstm": lambda: (Recurrent(nn.LSTM, batch_first=True), rows(6, 4)),
    "lstm, both directions, two layers": lambda: (Recurrent(nn.LSTM, bidirectional=True, num_layers=2), rows(6, 4)),
    "lstm, learned start": lambda: (Recurrent(nn.LSTM, learned=True, bidirectional=True), rows(6, 4)),
    "lstm, recurrent weights only": lambda: (only(Recurrent(nn.LSTM), "weight_hh"), rows(6, 4)),
    "lstm, one step": lambda: (Recurrent(nn.LSTM, batch_first=True), rows(1, 4)),
    "gru": lambda: (Recurrent(nn.GRU, batch_first=True, bidirectional=True, num_layers=2), rows(6, 4)),
    "gru, learned start": lambda: (Recurrent(nn.GRU, learned=True), rows(6, 4)),
    "gru without bias": lambda: (Recurrent(nn.GRU, bias=False), rows(6, 4)),
    "rnn": lambda: (Recurrent(nn.RNN, bidirectional=True, learned=True, num_layers=2), rows(6, 4)),
    "rnn, relu": lambda: (Recurrent(nn.RNN, nonlinearity="relu", batch_first=True), rows(6, 4)),
    "linear used twice": lambda: (Twice(nn.Linear(4, 4)), rows(3, 4)),
    "conv used twice": lambda: (Twice(nn.Conv2d(4, 4, 3, padding=1)), rows(4, 3, 3)),
    "tied weights": lambda: (Tied(), tokens(4, CLASSES + 4)),
    "parameters of a container": lambda: (Flat(Scaled(), 6), rows(2, 4)),
    "attention": lambda: (Flat(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 12), rows(3, 4)),
    "attention with masks": lambda: (Attending(masked=True, batch_first=True), rows(3, 4)),
    "attention, records second": lambda: (Attending(bias=False), rows(3, 4)),
    "attention, other widths": lambda: (Attending(batch_first=True, kdim=3, vdim=2), rows(3, 4)),
    "attention, only the projection out": lambda: (only(Attending(batch_first=True), "out_proj"), rows(3, 4)),
    "weight norm": lambda: (weight_norm(nn.Linear(4, CLASSES)), rows(4)),
    "frozen first layer": lambda: (only(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, CLASSES)), "1."), rows(4)),
    "unused layer": lambda: (Unused(), rows(4)),
}


def one_by_one(module: nn.Module, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """The oracle: ordinary autograd on each record by itself."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    found = []
    for n in range(len(targets)):
        value = loss(module(inputs[n : n + 1]), targets[n : n + 1]).sum()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        found.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)])
    return [torch.stack(each) for each in zip(*found, strict=True)]


def norms_of(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten(1) for g in gradients], 1).norm(dim=1)


@pytest.mark.parametrize("case", CASES)
def test_every_layer_agrees_with_batches_of_one(case: str) -> None:
    torch.manual_seed(len(case))
    module, inputs = CASES[case]()
    module = module.double()
    targets = torch.randint(0, CLASSES, (RECORDS,))
    expected = one_by_one(module, inputs, targets)
    before = copy.deepcopy(module.state_dict())
    engine = GradientEngine(module, loss)
    scale = float(norms_of(expected).max())
    for ours, theirs in zip(engine.per_sample(inputs, targets), expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-12 * scale)
    torch.testing.assert_close(engine.norms(inputs, targets), norms_of(expected), rtol=1e-6, atol=0)
    # Weights that depend on the norms, some of them zero.
    sums, norms = engine.weighted_sum(inputs, targets, lambda n: (n > n.median()) * scale / n)
    weights = (norms > norms.median()) * scale / norms
    torch.testing.assert_close(norms, norms_of(expected), rtol=1e-6, atol=0)
    for ours, theirs in zip(sums, expected, strict=True):
        torch.testing.assert_close(ours, torch.tensordot(weights, theirs, 1), rtol=1e-6, atol=1e-9 * scale)
    # The module is as it was: no hooks, no replaced forward, no gradients.
    assert all(not m._forward_hooks and "forward" not in vars(m) for m in module.modules())
    assert all(p.grad is None for p in module.parameters())
    torch.testing.assert_close(module.state_dict(), before)


@pytest.mark.parametrize("shape", [(4, 40, 3, 2), (4, 3, 20, 30), (3, 1, 5, 6)])
def test_both_ways_to_a_norm_agree_and_blocks_do_not_matter(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    records, positions, d, p = shape
    a = torch.randn(records, positions, d, dtype=torch.float64)
    b = torch.randn(records, positions, p, dtype=torch.float64)
    expected = (b.mT @ a).square().sum((1, 2))
    for way in (True, False, None):
        torch.testing.assert_close(pair_norms(a, b, way), expected, rtol=1e-10, atol=0)
    monkeypatch.setattr("heliograph.dp.training.factors.BLOCK", 1)
    for way in (True, False):
        torch.testing.assert_close(pair_norms(a, b, way), expected, rtol=1e-10, atol=0)


def test_a_norm_by_gram_matrices_is_not_too_small_where_positions_cancel() -> None:
    # Sum over positions: huge parts that cancel up to one in 10^4. A norm that came out small would be clipped too little.
    torch.manual_seed(0)
    a = torch.randn(200, 2, 3)
    b = torch.randn(200, 1, 4)
    b = torch.cat((b, -b + 1e-4 * torch.randn(200, 1, 4)), 1)
    a = torch.cat((a[:, :1], a[:, :1]), 1)
    true = (b.double().mT @ a.double()).square().sum((1, 2))
    assert bool((pair_norms(a, b, True) >= true * (1 - 1e-3)).all())
    without = ((a @ a.mT) * (b @ b.mT)).sum((1, 2))
    assert bool((without < true * (1 - 1e-3)).any()), "the test would not notice a plain Gram sum"


def test_zero_gradients_count_nothing_whatever_their_weight() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, CLASSES, bias=False)).double()
    with torch.no_grad():
        module[0].bias.zero_()
    inputs = rows(4)
    inputs[2] = 0  # the hidden layer is zero, so nothing reaches a weight
    engine = GradientEngine(module, loss)
    targets = torch.zeros(RECORDS, dtype=torch.long)
    assert float(engine.norms(inputs, targets)[2]) == 0
    sums, norms = engine.weighted_sum(inputs, targets, lambda n: 1 / n)
    rest = torch.arange(RECORDS) != 2
    expected = one_by_one(module, inputs, targets)
    for ours, theirs in zip(sums, expected, strict=True):
        torch.testing.assert_close(ours, torch.tensordot(1 / norms[rest], theirs[rest], 1))


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made inside holds."""

    size = 0

    def __torch_dispatch__(
        self, function: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        made = function(*args, **(kwargs or {}))  # type: ignore[operator]
        tensors = made if isinstance(made, tuple | list) else [made]
        self.size = max([self.size, *(t.numel() for t in tensors if isinstance(t, Tensor))])
        return made


@pytest.mark.parametrize("case", ["linear", "positions", "conv", "lstm", "embedding"])
def test_gradients_of_single_records_are_never_made(case: str) -> None:
    records = 64
    module, inputs = {
        "linear": lambda: (nn.Linear(512, 512), torch.randn(records, 512)),
        "positions": lambda: (nn.Sequential(nn.Linear(256, 256), nn.Flatten()), torch.randn(records, 4, 256)),
        "conv": lambda: (nn.Sequential(nn.Conv2d(96, 96, 3), nn.Flatten()), torch.randn(records, 96, 6, 6)),
        "lstm": lambda: (nn.Sequential(nn.LSTM(128, 128, batch_first=True), Last()), torch.randn(records, 5, 128)),
        "embedding": lambda: (nn.Sequential(nn.Embedding(5000, 8), nn.Flatten()), torch.randint(0, 5000, (records, 6))),
    }[case]()
    engine = GradientEngine(module, loss)
    targets = torch.zeros(records, dtype=torch.long)
    all_of_them = records * max(p.numel() for p in module.parameters())
    with Largest() as watch:
        engine.norms(inputs, targets)
        engine.weighted_sum(inputs, targets, lambda n: 1 / n)
    assert watch.size < all_of_them / 4
    with Largest() as watch:
        engine.per_sample(inputs, targets)
    assert watch.size >= all_of_them, "the watch would not notice"


class Last(nn.Module):
    def forward(self, output: tuple[Tensor, object]) -> Tensor:
        return output[0][:, -1]


def test_weights_that_are_all_zero() -> None:
    for case in ("strided conv2d", "lstm", "embedding", "group norm"):
        module, inputs = CASES[case]()
        engine = GradientEngine(module.double(), loss)
        sums, _ = engine.weighted_sum(inputs, torch.zeros(RECORDS, dtype=torch.long), torch.zeros_like)
        assert [s.shape for s in sums] == [p.shape for p in module.parameters()]
        assert all(float(s.abs().max()) == 0 for s in sums)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("case", ["linear", "strided conv2d", "lstm"])
def test_a_record_without_a_finite_gradient_is_left_out(case: str, bad: float) -> None:
    module, inputs = CASES[case]()
    module = module.double()
    targets = torch.zeros(RECORDS, dtype=torch.long)
    rest = torch.arange(RECORDS) != 1
    engine = GradientEngine(module, loss)
    expected, norms = engine.weighted_sum(inputs[rest], targets[rest], lambda n: 1 / n)
    inputs[1] = bad
    sums, found = engine.weighted_sum(inputs, targets, lambda n: 1 / n)
    assert float(found[1]) == 0
    torch.testing.assert_close(found[rest], norms)
    torch.testing.assert_close(sums, expected)


@pytest.mark.parametrize("records", [0, 1])
def test_small_batches(records: int) -> None:
    module, inputs = CASES["strided conv2d"]()
    module = module.double()
    engine = GradientEngine(module, loss)
    targets = torch.zeros(records, dtype=torch.long)
    sums, norms = engine.weighted_sum(inputs[:records], targets, lambda n: torch.ones_like(n))
    assert norms.shape == (records,)
    assert engine.norms(inputs[:records], targets).shape == (records,)
    assert [g.shape for g in engine.per_sample(inputs[:records], targets)] == [
        (records, *p.shape) for p in module.parameters()
    ]
    if not records:
        assert all(float(s.abs().max()) == 0 for s in sums)


def test_recurrent_values_are_those_of_the_fused_module() -> None:
    module, inputs = CASES["lstm, both directions, two layers"]()
    module = module.double()
    seen = []

    def watching(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs)
        return loss(outputs, targets)

    GradientEngine(module, watching).norms(inputs, torch.zeros(RECORDS, dtype=torch.long))
    torch.testing.assert_close(seen[0], module(inputs), rtol=1e-12, atol=1e-12)


def test_what_has_no_record_dimension_is_refused() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.flatten(0, 1)).view(len(x), -1, CLASSES).mean(1)

    targets = torch.zeros(RECORDS, dtype=torch.long)
    with pytest.raises(UnsupportedError, match="records must stay the first dimension"):
        GradientEngine(Folded().double(), loss).norms(rows(2, 4), targets)
    with pytest.raises(ProgramError, match="reduction='none'"):
        GradientEngine(nn.Linear(4, CLASSES).double(), cross_entropy).norms(rows(4), targets)
    with pytest.raises(UnsupportedError, match="proj_size"):
        GradientEngine(Recurrent(nn.LSTM, proj_size=2).double(), loss).norms(rows(3, 4), targets)

    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            out = self.inner(x)
            x.zero_()
            return out

    with pytest.raises(UnsupportedError, match="changed in place"):
        GradientEngine(Overwriting().double(), loss).norms(rows(4), targets)


def test_several_inputs_and_dropout_seen_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.drop = nn.Linear(4, CLASSES), nn.Linear(2, CLASSES), nn.Dropout(0.5)

        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            return self.drop(self.left(x)) + self.right(z)

    module = Two().double()
    engine = GradientEngine(module, loss)
    targets = torch.zeros(RECORDS, dtype=torch.long)
    torch.manual_seed(3)
    sums, norms = engine.weighted_sum((rows(4), rows(2)), targets, lambda n: 1 / n)
    # Norm and sum come from one draw of the masks: every record adds exactly one unit.
    assert float(torch.cat([s.flatten() for s in sums]).norm()) <= RECORDS
    assert bool((norms > 0).all())


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_has_the_values_of_the_module_and_the_gradients_of_its_own_dropout(need_weights: bool) -> None:
    torch.manual_seed(0)
    x, mask = rows(5, 8), torch.zeros(5, 5, dtype=torch.float64).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = (
                nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True),
                nn.Linear(8, CLASSES),
            )

        def forward(self, x: Tensor) -> Tensor:
            out, weights = self.attention(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)
            return self.head(out.mean(1)) + (0 if weights is None else weights.sum((1, 2)).unsqueeze(1))

    for module, inputs in ((Layer(), x), (CASES["attention"]()[0].train(), rows(3, 4)), (stock(), rows(3, 8))):
        module = module.double()
        for each in module.modules():
            if isinstance(each, nn.Dropout):
                # It draws in the order of memory, which torch's own attention turns.
                each.p = 0.0
        seen: list[Tensor] = []

        def watched(outputs: Tensor, targets: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(outputs.detach())
            return loss(outputs, targets)

        targets = torch.randint(0, CLASSES, (RECORDS,))
        # Dropout draws the same numbers there and here, so that ordinary autograd knows the sum of all gradients.
        torch.manual_seed(1)
        watched(module(inputs), targets).sum().backward()
        torch.manual_seed(1)
        found = GradientEngine(module, watched).per_sample(inputs, targets)
        torch.testing.assert_close(seen[0], seen[1], rtol=1e-9, atol=1e-12)
        for p, each in zip(module.parameters(), found, strict=True):
            torch.testing.assert_close(each.sum(0), p.grad, rtol=1e-7, atol=1e-12)


def test_stock_encoder_layers_are_trained_as_they_are() -> None:
    torch.manual_seed(0)
    module, inputs = stock().train(), rows(3, 8).float()
    check_module(module)
    check_loss(loss, module, (inputs, torch.randint(0, CLASSES, (RECORDS,))))
    sums, norms = GradientEngine(module, loss).weighted_sum(
        inputs, torch.randint(0, CLASSES, (RECORDS,)), lambda n: 1 / n
    )
    assert float(torch.cat([s.flatten() for s in sums]).norm()) <= RECORDS
    assert bool((norms > 0).all())


def stock() -> nn.Module:
    """Encoder layers as torch makes them, with dropout of a tenth."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return Flat(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 24)


def test_attention_of_another_kind_is_refused_in_words() -> None:
    targets = torch.zeros(RECORDS, dtype=torch.long)
    module = Attending(batch_first=True, add_bias_kv=True).double()
    with pytest.raises(UnsupportedError, match="does not map tensors to one tensor"):
        GradientEngine(module, loss).norms(rows(3, 4), targets)
