"""Models and data sets as people have them: transformers with shared positions, batches by name, padding, compilation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from heliograph.dp.training import DPTrainer, make_private  # noqa: E402
from heliograph.dp.training.gradients import GradientEngine, called, mapped  # noqa: E402
from heliograph.errors import ProgramError, UnsupportedError  # noqa: E402

COUNT, LENGTH = 40, 6
TOKENS = torch.randint(1, 20, (COUNT, LENGTH), generator=torch.Generator().manual_seed(0))
TARGETS = (TOKENS[:, 0] > 9).long()
LOSS = nn.CrossEntropyLoss(reduction="none")


class Encoder(nn.Module):
    """Tokens and positions, as in BERT and GPT-2: the positions are looked up once for all records."""

    def __init__(self, positions: str) -> None:
        super().__init__()
        self.positions = positions
        self.tokens, self.places = nn.Embedding(20, 8, padding_idx=0), nn.Embedding(LENGTH, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        places = torch.arange(input_ids.shape[1])
        places = places if self.positions == "[T]" else places.unsqueeze(0)
        found = self.layer(self.tokens(input_ids) + self.places(places))
        if attention_mask is not None:
            found = found * attention_mask.unsqueeze(2)
        return self.out(found.mean(1))


class Classes(nn.Module):
    """A class token and a position table among the module's own parameters, as in ViT."""

    def __init__(self) -> None:
        super().__init__()
        self.cls, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, LENGTH + 1, 8))
        self.tokens, self.norm, self.out = nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = torch.cat((self.cls.expand(len(tokens), -1, -1), self.tokens(tokens)), 1) + self.places
        return self.out(torch.tanh(self.norm(rows)).mean(1))


def true_gradients(module: nn.Module, loss: Any, inputs: Any, targets: Tensor) -> list[Tensor]:
    found = []
    for n in range(len(targets)):
        value = loss(called(module, mapped(inputs, lambda t, n=n: t[n : n + 1])), targets[n : n + 1]).sum()
        parameters = [p for p in module.parameters() if p.requires_grad]
        each = torch.autograd.grad(value, parameters, allow_unused=True)
        found.append(
            torch.cat(
                [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, each, strict=True)]
            )
        )
    return found


# A batch of as many records as there are positions is the trap: rows of positions look like rows of records there.
@pytest.mark.parametrize("records", [1, 3, LENGTH, COUNT])
@pytest.mark.parametrize("module", [Encoder("[T]"), Encoder("[1, T]"), Classes()])
def test_trap_shared_positions_have_each_records_gradient(module: nn.Module, records: int) -> None:
    module = copy.deepcopy(module).double()
    inputs, targets = TOKENS[:records], TARGETS[:records]
    true = torch.stack(true_gradients(module, LOSS, inputs, targets))
    engine = GradientEngine(module, LOSS)
    found = torch.cat([g.flatten(1) for g in engine.per_sample(inputs, targets)], 1)
    torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(engine.norms(inputs, targets), true.norm(dim=1), rtol=1e-9, atol=1e-12)


def trained(module: nn.Module, data: Any, loss: Any = LOSS, optimizer: Any = None, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    parameters = [p for p in module.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    known: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "epochs": 1, "max_grad_norm": 1.0, "seed": 1}
    known |= {"public_size": COUNT, "physical_batch_size": 8, "batch_size": 10}
    trainer = DPTrainer(module, loss, torch.optim.SGD(parameters, lr=0.5), data, **(known | options))
    assert trainer.fit().steps == 4
    for was, now in zip(before, parameters, strict=True):
        assert not torch.equal(was, now)
    return module


class Items(Dataset):
    """Dictionaries with their target, as data sets of Hugging Face have them; the sentences may differ in length."""

    def __init__(self, unequal: bool = False, texts: bool = False) -> None:
        self.unequal, self.texts = unequal, texts

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = TOKENS[index, : 2 + index % 4] if self.unequal else TOKENS[index]
        item = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(TARGETS[index])}
        return item | {"text": "words"} if self.texts else item


def test_inputs_by_name_by_place_and_in_tensors_are_the_same_run() -> None:
    torch.manual_seed(0)
    module, mask = Encoder("[T]"), torch.ones_like(TOKENS)
    pairs = [({"input_ids": TOKENS[n], "attention_mask": mask[n]}, int(TARGETS[n])) for n in range(COUNT)]
    sets: list[Any] = [
        ({"input_ids": TOKENS, "attention_mask": mask}, TARGETS),
        ((TOKENS, mask), TARGETS),
        TensorDataset(TOKENS, mask, TARGETS),
        Items(),
        pairs,
        [(TOKENS[n], mask[n], int(TARGETS[n])) for n in range(COUNT)],
    ]
    first, *others = [trained(copy.deepcopy(module), each, public_set=each) for each in sets]
    workers = trained(copy.deepcopy(module), Items(), workers=2)
    for other in [*others, workers]:
        for a, b in zip(first.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)


def test_records_of_unequal_length_are_padded_to_a_public_one() -> None:
    with pytest.raises(ProgramError, match="different shapes") as caught:
        trained(Encoder("[1, T]"), Items(unequal=True))
    assert "length=" in (caught.value.hint or "")
    torch.manual_seed(0)
    module = Encoder("[1, T]")
    padded = torch.stack([torch.where(torch.arange(4) < 2 + n % 4, TOKENS[n, :4], 0) for n in range(COUNT)])
    data = ({"input_ids": padded, "attention_mask": (padded > 0).long()}, TARGETS)
    first = trained(copy.deepcopy(module), data)
    second = trained(copy.deepcopy(module), Items(unequal=True), length=4)

    seen: set[int] = set()

    def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
        seen.add(len(items))
        ids = nn.functional.pad(items[0]["input_ids"], (0, 4))[:4].unsqueeze(0)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([items[0]["labels"]])}

    third = copy.deepcopy(module)
    torch.manual_seed(0)
    loader = DataLoader(Items(unequal=True), batch_size=10, collate_fn=collate)
    options: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "epochs": 1, "max_grad_norm": 1.0, "seed": 1}
    optimizer = torch.optim.SGD(third.parameters(), lr=0.5)
    make_private(third, optimizer, loader, loss=LOSS, public_size=COUNT, physical_batch_size=8, **options).fit()
    assert seen == {1}
    for a, b, c in zip(first.parameters(), second.parameters(), third.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    with pytest.raises(ProgramError, match="not a tensor"):
        trained(module, Items(texts=True))


@pytest.mark.parametrize("where", ["whole", "in place", "a part"])
def test_compiled_modules(where: str) -> None:
    module: Any = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(24, 2))
    if where == "in place":
        module.compile()
        compiled = module._compiled_call_impl
        trained(module, (TOKENS, TARGETS))
        assert module._compiled_call_impl is compiled
    elif where == "whole":
        trained(torch.compile(module), (TOKENS, TARGETS))
    else:
        module[2] = torch.compile(module[2])
        with pytest.raises(UnsupportedError, match="compiled by itself"):
            trained(module, (TOKENS, TARGETS))


def logits(outputs: Any, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.logits, targets, reduction="none")


class Adapted(nn.Module):
    """LoRA: a frozen layer and a product of two small ones."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + self.up(self.down(x))


def adapted(module: nn.Module) -> nn.Module:
    """The module frozen but for its head, with adapters at all its other maps of vectors."""
    module.requires_grad_(False)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if name in ("classifier", "score"):
                child.requires_grad_(True)
            elif type(child).__name__ in ("Linear", "Conv1D"):
                shape = child.weight.shape if type(child).__name__ == "Conv1D" else child.weight.shape[::-1]
                setattr(parent, name, Adapted(child, *shape))
    return module


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", ["Bert", "GPT2", "ViT"])
def test_models_of_hugging_face(name: str, lora: bool) -> None:
    models = pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    inputs: dict[str, Tensor] = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    if name == "Bert":
        config = models.BertConfig(vocab_size=20, max_position_embeddings=8, **small)
        module = models.BertForSequenceClassification(config)
    elif name == "GPT2":
        config = models.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, pad_token_id=0)
        module = models.GPT2ForSequenceClassification(config)
    else:
        module = models.ViTForImageClassification(models.ViTConfig(image_size=8, patch_size=4, num_channels=1, **small))
        inputs = {"pixel_values": torch.randn(COUNT, 1, 8, 8)}
    module.train()
    trained(adapted(module) if lora else module, (inputs, TARGETS), logits, public_set=(inputs, TARGETS))
    # Exact, without dropout, record by record.
    exact, inputs = copy.deepcopy(module).double().eval(), {key: value[:5] for key, value in inputs.items()}
    inputs = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    true = torch.stack(true_gradients(exact, logits, inputs, TARGETS[:5])).norm(dim=1)
    torch.testing.assert_close(GradientEngine(exact, logits).norms(inputs, TARGETS[:5]), true, rtol=1e-8, atol=1e-12)
