"""Masks of zeros and ones that are encrypted inputs: what hides a place then, by how much, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontends.support import Fn
from torch import nn

from heliograph.errors import HeliographError, ProgramError, UnsupportedError
from heliograph.frontends.torch.export import trace
from heliograph.frontends.torch.inputs.covers import DEPTH
from heliograph.interpret import interpret_batch
from heliograph.ir import Array, Program

TOKENS, WIDTH, HEADS = 5, 8, 2
LOWEST = torch.finfo(torch.float32).min
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


def masks(count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Masks of samples of different lengths, the first of them whole."""
    lengths = 1 + (torch.arange(count) * 3 + TOKENS - 1) % TOKENS
    return (torch.arange(TOKENS)[None] < lengths[:, None]).to(dtype)


def rows(count: int, seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return size * torch.randn(count, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def amounts(program: Program) -> list[float]:
    """The numbers that stand for huge ones."""
    return sorted(-float(held) for name, held in program.constants.items() if name.startswith("hidden_places"))


def answers(program: Program, **inputs: torch.Tensor) -> list[Array]:
    order = [str(node.attrs["name"]) for node in program.inputs]
    return interpret_batch(program, *(inputs[name].double().numpy() for name in order))


class Attention(nn.Module):
    """Self-attention of two heads; `masked` makes weights of scores and a mask, or the answer of all three parts."""

    def __init__(self, masked: Callable[..., torch.Tensor], whole: bool = False) -> None:
        super().__init__()
        self.parts = nn.Linear(WIDTH, 3 * WIDTH)
        self.masked, self.whole = masked, whole

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.parts(x).chunk(3, -1))
        if self.whole:
            made = self.masked(q, k, v, mask)
        else:
            made = self.masked(q @ k.mT, mask) @ v
        return made.transpose(1, 2).flatten(2)


def soft(scores: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores, -1)


def over_keys(mask: torch.Tensor) -> torch.Tensor:
    """A mask of places in the form that scores take."""
    return mask[:, None, None, :]


def inverted(mask: torch.Tensor) -> torch.Tensor:
    """What transformers 4 makes of a mask, by `_expand_mask`."""
    left = 1.0 - over_keys(mask).expand(-1, 1, TOKENS, TOKENS).to(torch.float32)
    return left.masked_fill(left.to(torch.bool), LOWEST)


def both(mask: torch.Tensor) -> torch.Tensor:
    """Causal attention within the tokens of a sample."""
    return CAUSAL[None, None] & over_keys(mask).bool()


WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda s, m: soft(s + (1.0 - over_keys(m).to(torch.float32)) * LOWEST),
    "product, halves": lambda s, m: soft(s + (1.0 - over_keys(m).to(torch.float32)) * torch.finfo(torch.float16).min),
    "product, -10000": lambda s, m: soft(s + (1 - over_keys(m).float()) * -10000.0),
    "product, then a scale": lambda s, m: soft((s + (1 - over_keys(m).float()) * -1e9) / math.sqrt(4)),
    "subtracted": lambda s, m: soft(s - 1e9 * (1 - over_keys(m).float())),
    "less one": lambda s, m: soft(s + (over_keys(m).float() - 1) * 1e9),
    "less one, divided": lambda s, m: soft(s + 1e4 * (over_keys(m).float() - 1.0) / math.sqrt(2)),
    "negated": lambda s, m: soft(s + -((1 - over_keys(m).float()) * 1e9)),
    "expanded, transformers 4": lambda s, m: soft(s + inverted(m)),
    "expanded, bounded below": lambda s, m: soft(torch.max(s + inverted(m), torch.tensor(LOWEST))),
    "written where 0": lambda s, m: soft(s.masked_fill(over_keys(m) == 0, -math.inf)),
    "written where not": lambda s, m: soft(s.masked_fill(~over_keys(m).bool(), -math.inf)),
    "written, lowest": lambda s, m: soft(s.masked_fill(torch.logical_not(over_keys(m).bool()), LOWEST)),
    "written, transformers 4": lambda s, m: soft(s.masked_fill((over_keys(m) == 0).expand_as(s), LOWEST)),
    "chosen above 0": lambda s, m: soft(torch.where(over_keys(m) > 0, s, LOWEST)),
    "chosen not 0": lambda s, m: soft(torch.where(over_keys(m) != 0, s, torch.tensor(-math.inf))),
    "chosen zeros, then added": lambda s, m: soft(s + torch.where(over_keys(m).bool(), 0.0, -math.inf)),
    "chosen by place, transformers 5": lambda s, m: soft(
        s
        + torch.where(m.bool()[torch.arange(len(m))[:, None, None, None], torch.arange(TOKENS)], torch.zeros(1), LOWEST)
    ),
    "filled, then cleared": lambda s, m: soft(
        s + over_keys(m).float().masked_fill(over_keys(m) == 0, -math.inf).masked_fill(over_keys(m) == 1, 0.0)
    ),
    "causal and padded": lambda s, m: soft(s + torch.where(both(m), 0.0, LOWEST)),
    "causal, then padded": lambda s, m: soft(
        s.masked_fill(~CAUSAL, LOWEST) + (1 - over_keys(m).float()) * LOWEST * torch.ones(())
    ),
    "padded, then causal": lambda s, m: soft(s.masked_fill(over_keys(m) == 0, -1e9).masked_fill(~CAUSAL, -math.inf)),
    "two masks": lambda s, m: soft(s.masked_fill(over_keys(m) == 0, -1e9) + (1 - over_keys(m).float()) * -1e9),
}
WHOLE: dict[str, Callable[..., torch.Tensor]] = {
    "attention": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, over_keys(m).bool()),
    "attention, expanded": lambda q, k, v, m: F.scaled_dot_product_attention(
        q, k, v, attn_mask=over_keys(m).bool().expand(-1, 1, TOKENS, TOKENS)
    ),
    "attention, causal and padded": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, both(m)),
    "attention, added": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, inverted(m)),
}
ALL = {**{name: (way, False) for name, way in WAYS.items()}, **{name: (way, True) for name, way in WHOLE.items()}}


def module(name: str) -> Attention:
    torch.manual_seed(0)
    return Attention(*ALL[name]).eval()


@pytest.mark.parametrize("name", ALL)
def test_a_mask_that_is_encrypted_hides_what_it_hides_in_torch(name: str) -> None:
    model = module(name)
    program = trace(model, calibration=(rows(20), masks(20)))
    assert amounts(program), "a finite number is chosen"
    assert all(DEPTH <= amount < 40 for amount in amounts(program))
    x, mask = rows(10, seed=1), masks(10).flip(0)
    (found,) = answers(program, x=x, mask=mask)
    with torch.no_grad():
        expected = model(x, mask).double().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *itertools.product(
            ("product", "written where 0", "attention", "chosen by place, transformers 5"), (torch.int64, torch.bool)
        ),
        ("product", torch.float64),
    ],
)
@pytest.mark.parametrize("example", [True, False])
def test_masks_may_be_whole_numbers_or_truth_values(name: str, dtype: torch.dtype, example: bool) -> None:
    model, mask = module(name), masks(20, dtype)
    program = trace(model, (rows(2), mask[:2]) if example else None, calibration=(rows(20), mask))
    taken = next(node for node in program.inputs if node.attrs["name"] == "mask")
    assert tuple(taken.type.shape) == (TOKENS,)  # type: ignore[union-attr]
    assert taken.attrs.get("classes") is None
    assert (taken.attrs["low"], taken.attrs["high"]) == (0.0, 1.0)
    (found,) = answers(program, x=rows(20), mask=mask)
    with torch.no_grad():
        expected = model(rows(20), mask).double().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["written where 0", "attention"])
def test_real_numbers_are_not_compared_as_zeros_and_ones(name: str) -> None:
    """A client may give any number, and torch would then compare it."""
    with pytest.raises(UnsupportedError) as caught:
        trace(module(name), calibration=(rows(20), masks(20, torch.float64)))
    assert any(words in str(caught.value) for words in ("torch.bool", "an encrypted input", "equal up to a gap"))


def test_a_comparison_of_real_numbers_stays_one() -> None:
    model = scored(lambda s, m: s * (m > 0.3))
    program = trace(model, calibration=(SEEN, HIDES.float()))
    assert {"gt", "lt", "ge", "le"} & {node.op for node in program.nodes}


# ---------------------------------------------------------------------------------------------- the number


def scored(way: Callable[..., torch.Tensor]) -> nn.Module:
    return Fn(lambda scores, mask: way(scores, mask)).eval()


PLAIN = scored(lambda s, m: soft(s.masked_fill(m == 0, -math.inf)))
SEEN = torch.tensor([[0.0, 0.0, 5.5], [1.0, 2.0, 3.0], [0.0, 1.0, 9.0]])
HIDES = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1]])


def test_the_number_follows_from_the_scores_that_samples_hide() -> None:
    program = trace(PLAIN, calibration=(SEEN, HIDES))
    assert amounts(program) == [math.ceil(5.5 + DEPTH) + 1 / 1024]
    (found,) = interpret_batch(program, SEEN.double().numpy(), HIDES.double().numpy())
    shown, hidden = (np.where(HIDES.numpy() == side, found, 0.0) for side in (1, 0))
    assert (hidden.max(-1) <= math.exp(-DEPTH) * shown.max(-1)).all()
    assert hidden.max() > 0, "it is a finite number"


def test_without_hidden_places_in_samples_any_place_may_be_hidden() -> None:
    program = trace(PLAIN, calibration=(SEEN, torch.ones(3, 3, dtype=torch.bool)))
    assert amounts(program) == [9 + DEPTH + 1 / 1024]
    program = trace(PLAIN, calibration=(SEEN, torch.ones(3, 3, dtype=torch.int64)), input_range=(None, (0, 1)))
    assert amounts(program) == [9 + DEPTH + 1 / 1024]


def test_ranges_of_the_inputs_do_as_well_as_samples() -> None:
    example = (SEEN[:1], HIDES[:1])
    program = trace(PLAIN, example, input_range=((-3, 4), (0, 1)))
    assert amounts(program)[0] == pytest.approx(7 + DEPTH, abs=1.01)
    (found,) = interpret_batch(program, SEEN.numpy() / 3, HIDES.numpy())
    expected = soft((SEEN / 3).masked_fill(HIDES == 0, -math.inf))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_one_sample_is_enough() -> None:
    program = trace(PLAIN, calibration=(SEEN[:1], HIDES[:1]))
    assert program.comparison is not None
    assert program.comparison.samples > 1


def test_a_number_that_hides_less_than_that_is_kept() -> None:
    far = SEEN * torch.tensor([1.0, 1.0, 400.0])
    model = scored(lambda s, m: soft(s + (1 - m) * -2000.0))
    program = trace(model, calibration=(far[:2], HIDES[:2]))
    assert amounts(program) == []
    (found,) = interpret_batch(program, far.double().numpy(), HIDES.double().numpy())
    np.testing.assert_allclose(found, model(far, HIDES), atol=1e-6)


def test_the_comparison_with_torch_tells_what_is_left_of_hidden_places() -> None:
    program = trace(PLAIN, calibration=(SEEN, HIDES))
    assert program.comparison is not None
    assert 1e-6 <= program.comparison.difference <= 1e-4


def test_outputs_that_hidden_places_change_are_refused() -> None:
    values = torch.tensor([[1.0], [1.0], [1e5]])
    model = scored(lambda s, m: soft(s + (1 - m) * LOWEST) @ values)
    hides = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    with pytest.raises(UnsupportedError, match=r"hides change the outputs(.|\n)*exp\(-12\)(.|\n)*1 - mask") as refused:
        trace(model, calibration=(SEEN[:2], hides))
    assert "not what the model computes" not in str(refused.value)
    own = scored(lambda s, m: soft(s - 40.0 * (1 - m)) @ values)
    assert amounts(trace(own, calibration=(SEEN[:2], hides))) == []


# ---------------------------------------------------------------------------------------------- what else reads masks


class Pooled(nn.Module):
    """The mean of rows over a mask, as sentence-transformers writes it, with length one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = self.layer(x)
        weights = mask.unsqueeze(-1).expand(found.size()).float()
        mean = torch.sum(found * weights, 1) / torch.clamp(weights.sum(1), min=1e-9)
        return F.normalize(mean, p=2, dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_means_over_a_mask(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, mask = Pooled().eval(), masks(20, dtype)
    program = trace(model, (rows(2), mask[:2]), calibration=(rows(20), mask))
    (found,) = answers(program, x=rows(10, seed=1), mask=masks(10))
    with torch.no_grad():
        expected = model(rows(10, seed=1), masks(10, dtype))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_number_that_a_ciphertext_can_hold_is_read_by_any_op() -> None:
    model = scored(lambda s, m: (s + (1 - m) * -1e4).sum(-1, keepdim=True) * 1e-3)
    program = trace(model, calibration=(SEEN, HIDES))
    (found,) = interpret_batch(program, SEEN.double().numpy(), HIDES.double().numpy())
    np.testing.assert_allclose(found, model(SEEN, HIDES), rtol=1e-5)
    model = scored(lambda s, m: torch.where(m.bool(), s, -5000.0).mean(-1, keepdim=True))
    program = trace(model, calibration=(SEEN, HIDES))
    (found,) = interpret_batch(program, SEEN.double().numpy(), HIDES.double().numpy())
    np.testing.assert_allclose(found, model(SEEN, HIDES), rtol=1e-5)


def test_comparisons_of_zeros_and_ones_are_exact() -> None:
    model = scored(lambda s, m: s * (m > 0) + (m == 0).float() * 3 - (m.bool() & (m < 1)).float())
    program = trace(model, calibration=(SEEN, HIDES))
    assert not {"gt", "lt", "ge", "le"} & {node.op for node in program.nodes}
    (found,) = interpret_batch(program, SEEN.double().numpy(), HIDES.double().numpy())
    np.testing.assert_allclose(found, model(SEEN, HIDES), atol=1e-12)


# ---------------------------------------------------------------------------------------------- refusals


def refused(model: nn.Module, *given: Any, **keywords: Any) -> str:
    with pytest.raises(HeliographError) as caught:
        trace(model, *given, **keywords)
    assert isinstance(caught.value, UnsupportedError | ProgramError)
    return str(caught.value)


@pytest.mark.parametrize("name", ["product", "written where 0", "attention"])
def test_a_row_without_a_visible_place_is_refused(name: str) -> None:
    mask = masks(20)
    mask[3] = 0
    text = refused(module(name), calibration=(rows(20), mask))
    assert "a calibration sample's mask hides all places of a row" in text or "finite numbers" in text
    # Padding in front leaves the first rows of causal attention nothing.
    text = refused(module("attention, causal and padded"), calibration=(rows(20), masks(20).flip(1)))
    assert "hides all places of a row (row 0)" in text
    assert "pad samples behind their end" in text


def test_without_samples_and_ranges_it_is_refused() -> None:
    assert "calibration samples" in refused(module("product"), (rows(2), masks(2)))
    assert "calibration samples" in refused(module("attention"), (rows(2), masks(2)))
    text = refused(module("attention"), (rows(2), masks(2, torch.bool)))
    assert "nothing is known of the scores" in text
    assert "input_range=(0, 1)" in refused(module("written where 0"), (rows(2), masks(2, torch.int64)))


def test_what_is_not_a_mask_is_no_mask() -> None:
    text = refused(module("product"), calibration=(rows(20), masks(20) * 0.5))
    assert "not known to be 0 or 1" in text
    assert "zeros and ones" in refused(module("attention"), calibration=(rows(20), masks(20) * 0.5))
    text = refused(module("chosen above 0"), calibration=(rows(20), masks(20) * 0.5))
    assert "a number that stands for one" in text


def test_only_a_softmax_reads_a_huge_number() -> None:
    text = refused(scored(lambda s, m: s.masked_fill(m == 0, -math.inf).amax(-1)), calibration=(SEEN, HIDES))
    assert "before a softmax only" in text
    text = refused(scored(lambda s, m: s + (1 - m) * LOWEST), calibration=(SEEN, HIDES))
    assert "before a softmax only" in text


# ---------------------------------------------------------------------------------------------- how models are called


class Keywords(nn.Module):
    """A model that takes what it does not name."""

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        return x * more.get("factor", 1.0)


def test_keywords_beyond_those_that_forward_names() -> None:
    samples = rows(4)
    program = trace(Keywords(), {"x": samples[:2], "factor": 3.0}, calibration={"x": samples})
    np.testing.assert_allclose(answers(program, x=samples)[0], 3 * samples.double().numpy())


class Outputs(dict[str, torch.Tensor]):
    """What a model returns, in a type of its own; torch is not told the names of its parts."""


torch.utils._pytree.register_pytree_node(
    Outputs, lambda one: (list(one.values()), list(one)), lambda parts, names: Outputs(zip(names, parts, strict=True))
)


def test_outputs_of_a_type_that_torch_has_no_names_for() -> None:
    model = Fn(lambda x: Outputs(last=x * 2, pooled=x.mean(1)))
    program = trace(model, calibration=rows(4))
    assert program.output_names == ("last", "pooled")


def test_known_entries_are_gathered_at_whole_numbers() -> None:
    torch.manual_seed(0)
    table, kinds = nn.Embedding(2, 3), torch.tensor([[0, 1, 1, 0]])

    def looked_up(ids: torch.Tensor) -> torch.Tensor:
        return table(kinds.expand(ids.shape[0], -1).gather(1, ids))

    ids = torch.tensor([[0, 1, 2], [3, 3, 1]])
    program = trace(Fn(looked_up).eval(), calibration=ids)
    found = interpret_batch(program, np.eye(4)[ids.numpy()])[0]
    with torch.no_grad():
        np.testing.assert_allclose(found, looked_up(ids), atol=1e-6)
