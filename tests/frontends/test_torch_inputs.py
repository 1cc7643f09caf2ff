"""What users give beside a tensor: dicts, dataclasses, token ids, pixels, loaders; and outputs that the client finishes."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import heliograph as hg
from heliograph.errors import ProgramError, UnsupportedError
from heliograph.interpret import interpret_batch

FAST = hg.Options(security_bits=None, log_ring=12)


@dataclass
class Patient:
    row: torch.Tensor
    image: torch.Tensor


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(9, 2)

    def forward(self, row: torch.Tensor, image: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        out = self.a(row) * scale
        return out if image is None else out + self.b(image.flatten(1))


class OneRecord(ByName):
    def forward(self, batch: Any) -> torch.Tensor:  # type: ignore[override]
        row, image = (batch.row, batch.image) if isinstance(batch, Patient) else (batch["row"], batch["image"])
        return super().forward(row, image)


ROWS, IMAGES = torch.randn(20, 4), torch.randn(20, 3, 3)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("module", "make", "names"),
    [
        (ByName, lambda r, i: {"image": i, "row": r}, ["row", "image"]),
        (ByName, lambda r, i: UserDict(row=r, image=i), ["row", "image"]),
        (OneRecord, lambda r, i: {"row": r, "image": i}, ["batch_row", "batch_image"]),
        (OneRecord, lambda r, i: Patient(r, i), ["batch_row", "batch_image"]),
        (ByName, lambda r, i: (r, i), ["row", "image"]),
        (ByName, lambda r, i: [r, i], ["row", "image"]),
    ],
)
def test_several_inputs_in_any_form(module: type[nn.Module], make: Any, names: list[str], batch: int) -> None:
    net = module().eval()
    program = hg.trace(net, make(ROWS[:batch], IMAGES[:batch]), calibration=make(ROWS, IMAGES))
    assert [node.attrs["name"] for node in program.inputs] == names
    with torch.no_grad():
        expected = ByName.forward(net, ROWS, IMAGES).numpy()  # type: ignore[arg-type]
    np.testing.assert_allclose(interpret_batch(program, ROWS.numpy(), IMAGES.numpy())[0], expected, atol=1e-5)
    assert [samples.shape for samples in program.calibration] == [(20, 4), (20, 3, 3)]


def test_arguments_that_are_no_tensors_are_fixed() -> None:
    net = ByName().eval()
    program = hg.trace(net, (ROWS[:1], None, 2.0), calibration=ROWS)
    np.testing.assert_allclose(interpret_batch(program, ROWS.numpy())[0], 2 * net.a(ROWS).detach().numpy(), atol=1e-5)
    for bad in ({"row": "text"}, {"row": [1.0]}):
        with pytest.raises(ProgramError, match="example_input 'row' is"):
            hg.trace(net, bad)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.table(ids)).mean(1))


IDS = torch.randint(0, 7, (30, 3), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_token_ids_are_one_hot(batch: int, dtype: torch.dtype) -> None:
    net, ids = Words().eval(), IDS.to(dtype)
    program = hg.trace(net, ids[:batch], calibration=ids)
    (node,) = program.inputs
    assert (node.attrs["shape"], node.attrs["classes"]) == ((3, 7), 7)
    expected = net(ids).detach().numpy()
    np.testing.assert_allclose(interpret_batch(program, np.eye(7)[IDS.numpy()])[0], expected, atol=1e-5)


def test_a_client_gives_token_ids() -> None:
    net = Words().eval()
    artifact = hg.compile(hg.trace(net, IDS[:1], calibration=IDS), FAST)
    expected = net(IDS[:1])[0].detach().numpy()
    assert np.abs(hg.simulate(artifact, IDS[0]) - expected).max() < 0.05
    with pytest.warns(hg.errors.InsecureWarning):
        client = hg.Client(artifact, allow_insecure=True)
    with pytest.warns(hg.errors.InsecureWarning):
        server = hg.Server(artifact, client.evaluation_keys(), allow_insecure=True)
    for given in (IDS[0], IDS[0].numpy(), np.eye(7)[IDS[0].numpy()]):
        assert np.abs(client.decrypt(server.run(client.encrypt(given))) - expected).max() < 0.05
    for given in (IDS[0].double().numpy(), IDS[0].numpy().astype(np.float32), IDS[0].tolist()):
        assert np.abs(client.decrypt(server.run(client.encrypt(given))) - expected).max() < 0.05
    for bad, words in (
        ([0, 7, 1], "outside of 0 to 6"),
        ([0.0, 7.0, 1.0], r"outside of 0 to 6 at index \(1,\)"),
        ([0, -1, 1], "outside of 0 to 6"),
        ([0.0, 1.5, 1.0], "something else than a whole number"),
        ([0.0, 1.0, np.nan], "something else than a whole number"),
        ([0, 1], r"shape \(2,\), expected \(3,\) \(or \(3, 7\) with one-hot vectors\)"),
        ([[[0.0, 1.0, 2.0]] * 2], r"has shape \(1, 2, 3, 7\), expected \(3, 7\)"),
    ):
        with pytest.raises(ProgramError, match=words):
            client.encrypt(np.array(bad))


def test_tables_of_several_heights() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Embedding(3, 2), nn.Embedding(5, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.a(ids) * 2 + self.b(ids.to(torch.int64)) + F.one_hot(ids, 5)[..., :2].float()

    net, ids = Two().eval(), torch.tensor([[0, 2], [1, 1]])
    program = hg.trace(net, ids, calibration=ids)
    np.testing.assert_allclose(
        interpret_batch(program, np.eye(3)[ids.numpy()])[0], net(ids).detach().numpy(), atol=1e-6
    )


class Shared(nn.Module):
    """Three columns that share a table, each from its own row on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(13, 2)
        self.register_buffer("starts", torch.tensor([0, 4, 7]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids + self.starts).sum(1)  # type: ignore[operator,no-any-return]


def test_without_samples_ids_are_tried_that_the_columns_allow() -> None:
    program = hg.trace(Shared().eval(), torch.zeros(1, 3, dtype=torch.int64))
    assert program.inputs[0].attrs["classes"] == 13
    assert program.comparison is not None
    assert program.comparison.samples > 1


@pytest.mark.parametrize("batch", [1, 2])
def test_a_dict_of_categories_and_numbers(batch: int) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(4, 2), nn.Embedding(6, 3)])
            self.head = nn.Linear(7, 1)

        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            found = [table(x["categorical"][:, place]) for place, table in enumerate(self.tables)]
            return self.head(torch.cat([*found, x["continuous"]], 1))  # type: ignore[no-any-return]

    net, numbers = Named().eval(), torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 5], [3, 0], [1, 2], [2, 4]] * 2)
    for samples in ({"categorical": ids, "continuous": numbers}, {"continuous": numbers, "categorical": ids}):
        program = hg.trace(net, {name: part[:batch] for name, part in samples.items()}, calibration=samples)
        given = {"x_categorical": np.eye(6)[ids.numpy()], "x_continuous": numbers.double().numpy()}
        found = interpret_batch(program, *(given[node.attrs["name"]] for node in program.inputs))[0]
        np.testing.assert_allclose(found, net(samples).detach().numpy(), atol=1e-6)


class Fields(nn.Module):
    """A table for each column."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 2) for rows in (7, 4, 5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1).sum(1)


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 2, padding_idx=0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return (self.table(ids) * (ids != 0).unsqueeze(-1)).sum(1) + (ids[..., 1:] >= 4).float().sum(1, keepdim=True)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("make", [Fields, Padded])
def test_token_ids_are_taken_apart_and_compared(make: type[nn.Module], batch: int) -> None:
    net, ids = make().eval(), torch.tensor([[0, 3, 4], [6, 0, 1], [5, 2, 0]])
    program = hg.trace(net, ids[:batch], calibration=ids)
    got = interpret_batch(program, np.eye(7)[ids.numpy()])[0]
    np.testing.assert_allclose(got, net(ids).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (lambda: nn.Embedding(100_000, 8), ["one-hot vectors", "look the vectors up on the client"]),
        (lambda: Doubled(), ["int64", "floating-point"]),
    ],
)
def test_whole_numbers_that_are_refused(module: Any, words: list[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        hg.trace(module(), torch.zeros(1, 4, dtype=torch.int64))
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(ProgramError, match="outside of 0 to 6"):
        hg.trace(Words().eval(), IDS[:1], calibration=IDS + 1)
    with pytest.raises(ProgramError, match=r"holds 1\.5 in sample 0, element \(0,\): not a whole number"):
        hg.trace(Words().eval(), IDS[:1], calibration=IDS.double() * 0 + 1.5)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).float()


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.float() / 255)


def test_pixels_that_the_model_converts() -> None:
    pixels = torch.randint(0, 256, (20, 4), dtype=torch.uint8)
    net = Pixels().eval()
    program = hg.trace(net, pixels[:1], calibration=pixels)
    np.testing.assert_allclose(
        interpret_batch(program, pixels.double().numpy())[0], net(pixels).detach().numpy(), atol=1e-5
    )
    artifact = hg.compile(program, FAST)
    assert np.abs(hg.simulate(artifact, pixels[0]) - net(pixels[:1])[0].detach().numpy()).max() < 1e-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_models_of_other_precisions(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(dtype).eval()
    for example in (ROWS[:1], ROWS[:1].double(), ROWS[:1].to(dtype)):
        program = hg.trace(net, example, calibration=ROWS.to(dtype))
        expected = net.double()(ROWS[:5].double()).detach().numpy()
        np.testing.assert_allclose(interpret_batch(program, ROWS[:5].double().numpy())[0], expected, atol=0.05)
        net.to(dtype)


def test_tensors_that_require_gradients() -> None:
    net, rows = nn.Linear(4, 2), ROWS.clone().requires_grad_()
    artifact = hg.compile(hg.trace(net, rows[:1], calibration=rows), FAST)
    assert np.abs(hg.simulate(artifact, rows[0]) - net(rows)[0].detach().numpy()).max() < 1e-3


@pytest.mark.parametrize("kind", ["tensor", "pair", "dict", "plain"])
def test_a_loader_gives_the_samples(kind: str) -> None:
    rows, labels = torch.randn(700, 4), torch.zeros(700)
    loaders: dict[str, Any] = {
        "tensor": DataLoader(rows, batch_size=64),  # type: ignore[arg-type]
        "pair": DataLoader(TensorDataset(rows, labels), batch_size=64),
        "dict": DataLoader([{"row": row} for row in rows], batch_size=100),  # type: ignore[arg-type]
        "plain": DataLoader(list(rows), batch_size=50),  # type: ignore[arg-type]
    }
    example = {"row": rows[:1]} if kind == "dict" else rows[:1]
    program = hg.trace(ByName().eval(), example, calibration=loaders[kind])
    np.testing.assert_array_equal(program.calibration[0], rows[:512].double().numpy())


def test_a_loader_of_two_inputs_and_labels() -> None:
    loader = DataLoader(TensorDataset(ROWS, IMAGES, torch.zeros(20)), batch_size=8)
    program = hg.trace(ByName().eval(), (ROWS[:1], IMAGES[:1]), calibration=loader)
    assert [samples.shape for samples in program.calibration] == [(20, 4), (20, 3, 3)]
    with pytest.raises(ProgramError, match="DataLoader is empty"):
        hg.trace(nn.Linear(4, 2), ROWS[:1], calibration=DataLoader(TensorDataset(ROWS[:0]), batch_size=2))


# ---------------------------------------------------------------------------------------------- outputs


@pytest.mark.parametrize(
    ("last", "outputs", "finish"),
    [
        (nn.LogSoftmax(-1), None, "log_softmax"),
        (nn.LogSoftmax(1), "logits", "log_softmax"),
        (nn.Softmax(-1), "logits", "softmax"),
        (nn.Softmax(-1), None, None),
    ],
)
def test_the_client_finishes_outputs(last: nn.Module, outputs: str | None, finish: str | None) -> None:
    net = nn.Sequential(nn.Linear(4, 3), last).eval()
    program = hg.trace(net, ROWS[:1], calibration=ROWS, outputs=outputs)
    assert [spec.finish for spec in program.interface.outputs] == ([finish] if finish else [])
    if finish is None:
        return
    assert [node.op for node in program.nodes] == ["input", "linear"]
    artifact = hg.compile(program, FAST)
    expected = net(ROWS[:1])[0].detach().numpy()
    assert np.abs(hg.simulate(artifact, ROWS[0]) - expected).max() < 1e-3
    assert f"the client takes the {finish} of {artifact.public().outputs[0].name} after decryption" in " ".join(
        artifact.report.full().split()
    )
    loaded = hg.Artifact.from_bytes(artifact.to_bytes()) if hasattr(artifact, "to_bytes") else artifact
    with pytest.warns(hg.errors.InsecureWarning):
        client = hg.Client(loaded.public(), allow_insecure=True)
    with pytest.warns(hg.errors.InsecureWarning):
        server = hg.Server(loaded, client.evaluation_keys(), allow_insecure=True)
    answer = server.run(client.encrypt(ROWS[0]))
    assert np.abs(client.decrypt(answer) - expected).max() < 1e-3
    assert np.abs(client.decrypt_some(answer)["y"] - expected).max() < 1e-3


def test_a_logarithm_of_a_softmax_within_a_model_is_computed() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1), nn.Linear(3, 2)).eval()
    program = hg.trace(net, ROWS[:1], calibration=ROWS)
    assert program.interface.outputs == ()
    np.testing.assert_allclose(interpret_batch(program, ROWS.numpy())[0], net(ROWS).detach().numpy(), atol=1e-5)


def test_batches_are_finished_too() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)).eval()
    artifact = hg.compile(
        hg.trace(net, ROWS[:1], calibration=ROWS), hg.Options(security_bits=None, log_ring=12, batch=4)
    )
    assert np.abs(hg.simulate(artifact, ROWS[:3]) - net(ROWS[:3]).detach().numpy()).max() < 1e-3


def test_outputs_takes_one_word() -> None:
    with pytest.raises(ProgramError, match="outputs is 'probabilities'"):
        hg.trace(nn.Linear(4, 2), ROWS[:1], outputs="probabilities")


@pytest.mark.filterwarnings("error::UserWarning")
def test_an_example_that_cannot_be_written_is_taken_in_silence() -> None:
    """As `np.load(..., mmap_mode="r")` gives it."""
    example = np.zeros((1, 3), dtype=np.float32)
    example.flags.writeable = False
    assert hg.trace(torch.nn.Linear(3, 2).eval(), example).inputs[0].type.shape == (3,)
