"""The noise generator: its law, its grid, its states. Statistical tests fail by chance with probability 1e-6 each."""

from __future__ import annotations

import json
import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import binom, kstest, norm

torch = pytest.importorskip("torch")

from heliograph.dp.training import noise as noise_module  # noqa: E402
from heliograph.dp.training.noise import GaussianNoise  # noqa: E402
from heliograph.errors import ProgramError, WireError  # noqa: E402

FALSE_ALARM = 1e-6
MODES = {"secure": True, "plain": False}


def exact_quantile(tail: mpmath.mpf) -> mpmath.mpf:
    """z with P(|Z| > z) = tail, by bisection: slow, and independent of the module's own."""
    low, high = mpmath.mpf(0), mpmath.mpf(40)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mpmath.erfc(middle / mpmath.sqrt(2)) > tail else (low, middle)
    return low


@pytest.mark.parametrize("mode", MODES)
def test_noise_is_gaussian_and_uniform_is_uniform(mode: str) -> None:
    source = GaussianNoise(secure=MODES[mode])
    drawn = source.like((200_000,), 3.0).numpy()
    assert kstest(drawn / 3.0, "norm").pvalue > FALSE_ALARM
    assert kstest(np.abs(drawn[drawn != 0]) / 3.0, "halfnorm").pvalue > FALSE_ALARM
    # Neighbouring draws are independent: the correlation of 200,000 pairs is N(0, 1/n).
    lag = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(lag) * math.sqrt(len(drawn)) < norm.isf(FALSE_ALARM / 2)
    uniform = source.uniform(200_000).numpy()
    assert kstest(uniform, "uniform").pvalue > FALSE_ALARM
    assert uniform.min() > 0
    assert uniform.max() <= 1
    rate = 0.003
    hits = int((uniform < rate).sum())
    assert min(binom.cdf(hits, 200_000, rate), binom.sf(hits - 1, 200_000, rate)) > FALSE_ALARM / 2


def test_secure_integers_are_the_rounding_of_the_real_gaussian(monkeypatch: pytest.MonkeyPatch) -> None:
    # The words are known, so the quantile can be found in 60 digits; any U that starts with them lies between its ends.
    words = np.random.default_rng(1).integers(0, 1 << 64, 80, dtype=np.uint64)
    words[:5] = np.array([1 << 63, (1 << 64) - 1, (1 << 64) - 2, 1 << 35, 1 << 40], dtype=np.uint64)
    source = GaussianNoise(seed=1, secure=True)
    monkeypatch.setattr(source._stream, "words", lambda count: words[:count])
    scale = 1.7 * 2.0**32
    found = source._integers(len(words), scale)
    with mpmath.workdps(60):
        for word, k in zip(words.tolist(), found.tolist(), strict=True):
            m = word >> 11
            ends = [exact_quantile(mpmath.ldexp(tail, -53)) for tail in (m + 1, m)]
            low, high = (int(mpmath.floor(mpmath.mpf(scale) * z + 0.5)) for z in ends)
            assert low <= abs(k) <= high
            assert (k <= 0) == bool(word & 1) or k == 0


def test_a_draw_between_two_integers_is_refined_to_the_right_law(monkeypatch: pytest.MonkeyPatch) -> None:
    # U in [m, m + 1] 2^-53 spans many integers in the far tail: the refined draw must follow the tail's law in there.
    source = GaussianNoise(seed=3, secure=True)
    m, scale = 1 << 12, 2.0**33
    drawn = np.array([source._refined(m, scale) for _ in range(300)]) / scale
    tail = 2 * norm.sf(drawn)
    assert kstest(tail * 2.0**53 - m, "uniform").pvalue > FALSE_ALARM
    # And the fast path hands over such draws instead of guessing.
    calls: list[int] = []
    monkeypatch.setattr(source, "_refined", lambda prefix, scale: calls.append(prefix) or 7)
    monkeypatch.setattr(source._stream, "words", lambda count: np.array([m << 11], dtype=np.uint64))
    assert source._integers(1, scale).tolist() == [7]
    assert calls == [m]


def test_the_error_allowed_to_ndtri_is_not_exceeded() -> None:
    rng = np.random.default_rng(0)
    prefixes = [*rng.integers(1, 2**53, 150).tolist(), *(2 ** rng.uniform(20, 53, 50)).astype(int).tolist(), 2**53 - 1]
    with mpmath.workdps(60):
        for m in prefixes:
            exact = exact_quantile(mpmath.ldexp(m, -53))
            double = mpmath.mpf(float(-ndtri(np.ldexp(float(m), -54))))
            assert abs(double - exact) < noise_module._SLACK / 2 * max(mpmath.mpf(1), exact)


def test_released_values_lie_on_the_grid_and_carry_enough_noise() -> None:
    source = GaussianNoise(secure=True)
    value = torch.randn(1000, 50, dtype=torch.float64)
    std, sensitivity = 0.37, 1e-3
    grid = 2.0 ** (math.floor(math.log2(std)) - 32)
    (released,) = source.release([value], std, sensitivity)
    assert released.shape == value.shape
    assert bool((torch.remainder(released, grid) == 0).all()), "low bits tell the value"
    assert not bool((torch.remainder(value + source.like(value, std), grid) == 0).all()), "the check above sees nothing"
    errors = (released - value).flatten().numpy() / std
    assert kstest(errors, "norm").pvalue > FALSE_ALARM
    # The noise covers what rounding adds to the sensitivity: with 1e-7 as sensitivity that is 13 %.
    tiny = 1e-7
    parts = [torch.zeros(20_000, dtype=torch.float64), torch.zeros(30, 1000, dtype=torch.float64)]
    enlarged = torch.cat([part.flatten() for part in source.release(parts, std, tiny)])
    expected = std * (1 + grid * math.sqrt(50_000) / tiny)
    assert expected > 1.1 * std
    assert kstest(enlarged.numpy() / expected, "norm").pvalue > FALSE_ALARM
    left, right = source.release([torch.zeros(3), torch.zeros(2, 2, dtype=torch.float64)], std, sensitivity)
    assert (left.dtype, right.dtype, right.shape) == (torch.float32, torch.float64, (2, 2))


@pytest.mark.parametrize("mode", MODES)
def test_states_are_saved_and_restored(mode: str) -> None:
    source = GaussianNoise(secure=MODES[mode])
    source.like((37,), 1.0)
    source.uniform(5)
    state = json.loads(json.dumps(source.state()))
    ahead = [source.like((100,), 2.0), source.uniform(11), *source.release([torch.zeros(3)], 1.0, 1.0)]
    other = GaussianNoise(seed=9, secure=MODES[mode])
    other.restore(state)
    again = [other.like((100,), 2.0), other.uniform(11), *other.release([torch.zeros(3)], 1.0, 1.0)]
    for left, right in zip(ahead, again, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)
    assert other.seeded is False
    with pytest.raises(WireError, match="not a state"):
        other.restore({**state, "secure": not MODES[mode]})
    with pytest.raises(WireError, match="not a state"):
        other.restore({"secure": MODES[mode], "seeded": False})


@pytest.mark.parametrize("mode", MODES)
def test_seeds_repeat_and_fresh_sources_differ(mode: str) -> None:
    def drawn(seed: int | None) -> list[float]:
        return GaussianNoise(seed, MODES[mode]).like((4,), 1.0).tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(None) != drawn(None)
    assert GaussianNoise(1, MODES[mode]).seeded
    assert not GaussianNoise(None, MODES[mode]).seeded


def test_what_cannot_be_drawn_is_refused() -> None:
    secure = GaussianNoise(secure=True)
    for call in (
        lambda: secure.like((1,), 0.0),
        lambda: secure.like((1,), math.nan),
        lambda: GaussianNoise().like((1,), -1.0),
        lambda: secure.release([torch.tensor([math.inf])], 1.0, 1.0),
        lambda: secure.release([torch.tensor([1e300], dtype=torch.float64)], 1.0, 1.0),
        lambda: secure.release([torch.zeros(1)], 1.0, 0.0),
        lambda: GaussianNoise(seed=-1),
    ):
        with pytest.raises(ProgramError):
            call()
