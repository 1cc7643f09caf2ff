"""What cannot be trained privately is refused, and what can is let through."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy, mse_loss  # noqa: E402

from heliograph.dp.training.refuse import check_loss, check_module  # noqa: E402
from heliograph.errors import ProgramError, UnsupportedError  # noqa: E402


def each(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def sample(*shape: int, records: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(records, *shape), torch.arange(records) % 3


@pytest.mark.parametrize(
    ("layer", "hint"),
    [
        (nn.BatchNorm1d(4), "GroupNorm"),
        (nn.BatchNorm2d(4, track_running_stats=False), "GroupNorm"),
        (nn.SyncBatchNorm(4), "GroupNorm"),
        (nn.InstanceNorm1d(4, affine=True, track_running_stats=True), "track_running_stats=False"),
        (nn.Embedding(5, 4, max_norm=1.0), "max_norm"),
        (nn.Embedding(5, 4, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.EmbeddingBag(5, 4, max_norm=1.0), "max_norm"),
        (nn.LSTM(4, 4, proj_size=2), "proj_size"),
        (nn.LazyLinear(3), "run the module once"),
    ],
)
def test_layers_that_mix_records_or_keep_them_are_refused(layer: nn.Module, hint: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer))
    with pytest.raises(ProgramError) as found:
        check_module(module)
    assert "1.0" in found.value.where  # the layer's name
    assert hint in found.value.hint


def test_wrappers_that_average_gradients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="DataParallel"):
        check_module(nn.Sequential(nn.DataParallel(nn.Linear(4, 3))))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        check_module(nn.Linear(4, 3))
        with pytest.raises(UnsupportedError, match="DistributedDataParallel"):
            check_module(nn.parallel.DistributedDataParallel(nn.Linear(4, 3)))
    finally:
        torch.distributed.destroy_process_group()


def test_modules_without_trainable_parameters_are_refused() -> None:
    with pytest.raises(ProgramError, match="no trainable parameters"):
        check_module(nn.Flatten())
    with pytest.raises(ProgramError, match="not a torch"):
        check_module(each)  # type: ignore[arg-type]


def test_ordinary_modules_and_losses_pass() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = {name: p.clone() for name, p in module.state_dict().items()}
    records = sample(4)
    generator = torch.random.get_rng_state()
    check_module(module)
    check_loss(each, module, records)
    assert torch.equal(generator, torch.random.get_rng_state()), "the check draws from the user's generator"
    assert module.training
    assert module[2].training
    assert all(p.grad is None for p in module.parameters())
    torch.testing.assert_close(module.state_dict(), before)
    # Constants in float32, targets that are real, several inputs, tokens.
    weights = torch.tensor([1.0, 2.0, 3.0])
    check_loss(lambda o, y: cross_entropy(o, y, weight=weights, reduction="none"), module, sample(4))
    check_loss(
        lambda o, y: mse_loss(o, y, reduction="none").mean(1), nn.Linear(4, 2), (sample(4)[0], torch.randn(4, 2))
    )
    check_loss(each, nn.Bilinear(4, 2, 3), ((sample(4)[0], sample(2)[0]), sample(4)[1]))
    tokens = torch.randint(0, 6, (4, 5))
    check_loss(each, nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(15, 3)), (tokens, sample(4)[1]))


class Counting(nn.Module):
    """Adds something that grows from batch to batch, as an attribute or as a buffer."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        if buffer:
            self.register_buffer("seen", torch.zeros(4))
        else:
            self.seen = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 0.1 * x.detach().mean(0)
        return self.inner(x + self.seen)


class Centred(nn.Module):
    """Batch norm by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - x.mean(0))


class ByHand(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) @ self.first.weight)


class PositionsFirst(nn.Module):
    """As many positions as records, positions first: shapes alone do not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(0, 1)).tanh().mean(0)


@pytest.mark.parametrize(
    ("module", "loss", "shape", "match"),
    [
        (Counting(buffer=True), each, (4,), "a buffer changes"),
        (Counting(buffer=False), each, (4,), "different losses"),
        (Centred(), each, (4,), "depends on another record"),
        (nn.Linear(4, 3), lambda o, y: each(o, y) / each(o, y).sum(), (4,), "depends on another record"),
        (nn.Linear(4, 3), lambda o, y: each(o - o.detach().mean(0), y), (4,), "depends on another record"),
        (nn.Linear(4, 3), lambda o, y: each(o, y).sum(), (4,), "reduction='none'"),
        (nn.Linear(4, 3), lambda o, y: mse_loss(o, o.detach() + 1, reduction="none"), (4,), "reduction='none'"),
        (ByHand(), each, (4,), "first.weight"),
        (PositionsFirst(), each, (4, 2), "records must stay|records are not the first dimension"),
    ],
)
def test_what_mixes_records_is_found(module: nn.Module, loss: object, shape: tuple[int, ...], match: str) -> None:
    check_module(module)
    with pytest.raises(ProgramError, match=match):
        check_loss(loss, module, sample(*shape))  # type: ignore[arg-type]


def test_one_record_is_too_few() -> None:
    with pytest.raises(ProgramError, match="at least two"):
        check_loss(each, nn.Linear(4, 3), sample(4, records=1))


def test_refusals_name_the_reason() -> None:
    with pytest.raises(UnsupportedError) as found:
        check_module(nn.BatchNorm2d(6))
    assert "by the others of its batch" in found.value.why
    assert "GroupNorm(1, 6)" in found.value.hint
