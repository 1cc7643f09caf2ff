"""Models of the transformers package as their authors call them, from embeddings and an encrypted mask on.

The same idioms without that package are in test_torch_encrypted_masks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.export import trace
from heliograph.interpret import interpret_batch

transformers = pytest.importorskip("transformers")

TOKENS, WIDTH = 8, 32
SIZES = {
    "vocab_size": 20,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
DISTILLED = {
    "vocab_size": 20,
    "dim": WIDTH,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 48,
    "max_position_embeddings": 16,
}
SMALL = {"vocab_size": 20, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 16, "use_cache": False}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("Bert", SIZES),
    "Roberta": ("Roberta", SIZES),
    "DistilBert": ("DistilBert", DISTILLED),
    "MPNet": ("MPNet", SIZES),
    "GPT2": ("GPT2", {**SMALL, "bos_token_id": 0, "eos_token_id": 0}),
}


def made(kind: str, **options: Any) -> nn.Module:
    """A tiny model with random weights, large enough that attention differs between tokens."""
    name, sizes = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes, **options)
    model: nn.Module = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    return model


def embedded(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def masks(count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Masks of samples of different lengths, padded behind their end; the first is whole."""
    lengths = 2 + (torch.arange(count) * 3 + TOKENS - 2) % (TOKENS - 1)
    return (torch.arange(TOKENS)[None] < lengths[:, None]).to(dtype)


def agrees(model: nn.Module, calibration: dict[str, Any], example: Any = None) -> None:
    """Trace, and compare with torch on other samples, one of them without padding."""
    program = trace(model, example, calibration=calibration)
    given = {
        "inputs_embeds": embedded(8, seed=1),
        "attention_mask": masks(8).flip(0).to(calibration["attention_mask"].dtype),
    }
    given |= {name: value[:8] for name, value in calibration.items() if name not in given}
    arrays = []
    for node in program.inputs:
        value = given[node.attrs["name"]]
        classes = node.attrs.get("classes")
        arrays.append(np.eye(classes)[value.numpy()] if classes else value.double().numpy())
    with torch.no_grad():
        outputs = model(**given)
    expected = [outputs] if isinstance(outputs, torch.Tensor) else [outputs[name] for name in program.output_names]
    for ours, theirs in zip(interpret_batch(program, *arrays), expected, strict=True):
        wanted = theirs.double().numpy()
        np.testing.assert_allclose(ours.reshape(wanted.shape), wanted, atol=1e-4 * np.abs(wanted).max())


# MPNet has no other way than its own.
@pytest.mark.parametrize(
    ("kind", "attention"),
    [*((kind, "eager") for kind in KINDS), *((kind, "sdpa") for kind in KINDS if kind != "MPNet")],
)
def test_from_embeddings_and_a_mask(kind: str, attention: str) -> None:
    model = made(kind, attn_implementation=attention)
    agrees(model, {"inputs_embeds": embedded(16), "attention_mask": masks(16)})


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
@pytest.mark.parametrize("kind", ["Bert", "GPT2"])
def test_masks_of_whole_numbers_and_truth_values(kind: str, dtype: torch.dtype) -> None:
    samples = {"inputs_embeds": embedded(16), "attention_mask": masks(16, dtype)}
    agrees(made(kind), samples, {name: value[:2] for name, value in samples.items()})


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "MPNet", "GPT2"])
def test_positions_that_are_given(kind: str) -> None:
    positions = torch.arange(TOKENS).expand(16, TOKENS)
    samples = {"inputs_embeds": embedded(16), "attention_mask": masks(16, torch.int64), "position_ids": positions}
    agrees(made(kind), samples)


class Sentence(nn.Module):
    """A sentence's vector as sentence-transformers computes it."""

    def __init__(self, model: nn.Module, positions: bool) -> None:
        super().__init__()
        self.model, self.positions = model, positions
        self.register_buffer("places", torch.arange(TOKENS)[None])

    def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        more = {"position_ids": self.places} if self.positions else {}
        found = self.model(inputs_embeds=inputs_embeds, attention_mask=attention_mask, return_dict=True, **more)
        weights = attention_mask.unsqueeze(-1).expand(found.last_hidden_state.size()).float()
        mean = torch.sum(found.last_hidden_state * weights, 1) / torch.clamp(weights.sum(1), min=1e-9)
        return F.normalize(mean, p=2, dim=1)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "MPNet"])
def test_vectors_of_sentences(kind: str) -> None:
    model = Sentence(made(kind), positions=kind != "DistilBert").eval()
    agrees(model, {"inputs_embeds": embedded(16), "attention_mask": masks(16)})


def test_a_mask_of_real_numbers_is_refused_where_the_model_compares_it() -> None:
    samples = {"inputs_embeds": embedded(16), "attention_mask": masks(16, torch.float32)}
    with pytest.raises(UnsupportedError, match=r"torch\.int64"):
        trace(made("Bert"), calibration=samples)


def test_outputs_have_the_names_that_transformers_gives_them() -> None:
    samples = {"inputs_embeds": embedded(16), "attention_mask": masks(16)}
    example: dict[str, Any] = {name: value[:2] for name, value in samples.items()}
    program = trace(made("Bert"), {**example, "return_dict": True}, calibration=samples)
    assert program.output_names == ("last_hidden_state", "pooler_output")
    program = trace(made("Bert"), {**example, "output_hidden_states": True}, calibration=samples)
    assert program.output_names[2:] == ("hidden_states.0", "hidden_states.1", "hidden_states.2")


def test_images() -> None:
    torch.manual_seed(0)
    sizes = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = transformers.ViTConfig(**sizes, intermediate_size=48, image_size=8, patch_size=4, num_channels=1)
    model = transformers.ViTModel(config).eval()
    pixels = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    program = trace(model, calibration=pixels)
    with torch.no_grad():
        expected = model(pixels).last_hidden_state.double().numpy()
    np.testing.assert_allclose(interpret_batch(program, pixels.double().numpy())[0], expected, atol=1e-5)


REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "padding in front of causal attention": (
        lambda: made("GPT2"),
        {"inputs_embeds": embedded(16), "attention_mask": masks(16).flip(1)},
        "pad samples behind their end",
    ),
    "a cache": (
        lambda: _cached(),
        {"inputs_embeds": embedded(16), "attention_mask": masks(16)},
        "model.config.use_cache = False",
    ),
    "a sample without tokens": (
        lambda: made("Bert"),
        {"inputs_embeds": embedded(16), "attention_mask": masks(16) * (torch.arange(16) != 3)[:, None]},
        "hides all places of a row",
    ),
}


def _cached() -> nn.Module:
    model = made("GPT2")
    model.config.use_cache = True
    return model


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    model, samples, words = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words):
        trace(model(), calibration=samples)
