"""Bootstraps on the native backend: their transforms and their reduction in the clear, and the whole on toy rings."""

from __future__ import annotations

import gc
import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.backends import native, run, simulator
from numpy.polynomial import chebyshev
from runtime.bootstrapped import meaning as meaning_of
from runtime.bootstrapped import only_bootstrap, program, sample

pytest.importorskip("numba")
pytest.importorskip("openfhe")

import heliograph as hg
from heliograph.ckks import modular_reduction
from heliograph.ckks.embedding import coefficients_of, slots_of
from heliograph.ckks.fourier import FourierFactor, transform
from heliograph.ckks.noise import BOOTSTRAP_FITTED, BOOTSTRAP_REACH, bootstrap_bend, bootstrap_error, bootstrap_failure
from heliograph.ckks.ring import Ring
from heliograph.ir.bootstrap_writer import SHARE
from heliograph.runtime.native.bootstrapping import _FACTORS
from heliograph.runtime.native.tables import _PRIMES
from heliograph.runtime.residues import bit_reversed

SOURCE = """program closed
input x: secret slots[256] in [-1, 1]
y = bootstrap(x)
output w = 2 * y
"""


def applied(factors: tuple[FourierFactor, ...], back: int, values: np.ndarray) -> np.ndarray:
    """The factors on values in the clear, as they are done on ciphertexts."""
    for factor in factors:
        total, diagonals = np.zeros_like(values), factor.values()
        for group in reversed(factor.groups):
            total = np.roll(total, -factor.giant_step)
            for place, amount in zip(group, factor.babies, strict=False):
                total = total + diagonals[place] * np.roll(values, -amount)
        values = total
    return np.roll(values, -back)


@pytest.mark.parametrize(("log_slots", "budget", "babies"), [(9, 3, 0), (9, 3, 4), (10, 4, 0), (9, 1, 0), (3, 2, 0)])
def test_the_steps_are_the_transform_and_its_inverse(log_slots: int, budget: int, babies: int) -> None:
    slots, random = 1 << log_slots, np.random.default_rng(log_slots)
    ring = Ring(log_slots + 1, 60, 55, 25, 4, None, (budget, budget), bootstrap_babies=babies)
    values = random.normal(size=slots) + 1j * random.normal(size=slots)
    there = applied(*transform(ring, slots, inverse=False), values)
    coefficients = coefficients_of(there, slots)
    found = (coefficients[:slots] + 1j * coefficients[slots:])[bit_reversed(slots)]
    np.testing.assert_allclose(found, values, atol=1e-12)
    np.testing.assert_allclose(applied(*transform(ring, slots, inverse=True), there), values, atol=1e-12)
    np.testing.assert_allclose(slots_of(coefficients), there, atol=1e-12)


def test_the_factor_that_goes_round_has_half_the_diagonals() -> None:
    ring = Ring(16, 60, 55, 23, 4, None, (3, 3))
    factors, _ = transform(ring, 1 << 14, inverse=True)
    assert [factor.diagonals for factor in factors] == [32, 63, 31]
    for factor in factors:
        assert sum(map(len, factor.groups)) == len(factor.values()) == factor.diagonals
        assert len(factor.groups) == -(-factor.diagonals // factor.giant)


@pytest.mark.parametrize("share", [SHARE, 32, 16])
def test_the_reduction_takes_off_every_multiple_that_can_come_in(share: int) -> None:
    """In floating point, up to the largest multiple of a secret of this weight and the largest message."""
    random, most = np.random.default_rng(0), math.floor(BOOTSTRAP_REACH)
    u = np.concatenate([random.uniform(-2, 2, 20_000), [2.0, -2.0]])
    multiples = np.concatenate([random.integers(-most, most + 1, 20_000), [most, -most]])
    reach = BOOTSTRAP_REACH + 2 / share
    y = (multiples + u / share) / reach
    assert np.abs(y).max() <= 1.0
    w = chebyshev.chebval(y, modular_reduction.exponential(reach)) ** 2**modular_reduction.SQUARINGS
    a, b = modular_reduction.angle(share)
    # In units of the first modulus the polynomial errs by 2^-32.9 in the mean, 2^-30 at most.
    bend, polynomial = u - (a * w - b * w**2).imag, share * 2.0**-30
    ring = Ring(12, 40 + share.bit_length() - 1, 40, 20, 7, None, (3, 3), bootstrap_by="native")
    # What is left is what the simulator says it is.
    np.testing.assert_allclose(bend, bootstrap_bend(ring, u), atol=0.04 * np.abs(bend).max() + polynomial)
    near = bend[np.abs(u) <= BOOTSTRAP_FITTED]
    assert np.abs(near).max() < 1.04 * bootstrap_bend(ring, np.array([BOOTSTRAP_FITTED]))[0] + polynomial


@pytest.mark.parametrize(
    ("ring", "slots"),
    [
        (Ring(11, 60, 55, 20, 4, None, (3, 3)), 1024),
        (Ring(11, 60, 55, 20, 4, None, (3, 3)), 32),
        (Ring(11, 60, 57, 18, 3, None, (2, 2)), 512),
        (Ring(11, 60, 55, 18, 3, None, (1, 1)), 16),
    ],
)
def test_values_come_back_with_23_bits(ring: Ring, slots: int) -> None:
    made, x = only_bootstrap(ring, slots), np.random.default_rng(1).uniform(-1.9, 1.9, slots)
    x[:2] = 1.9, -1.9
    ((found,), _) = run(made, [x], native(made))
    assert np.std(found - x) < 2.0**-23
    assert np.abs(found - x).max() < 2.0**-21


@pytest.mark.parametrize(
    ("ring", "slots"),
    [
        (Ring(11, 39, 35, 20, 7, None, (3, 3), bootstrap_by="native"), 1024),
        (Ring(11, 39, 35, 20, 7, None, (3, 3), bootstrap_by="native"), 64),
        (Ring(12, 36, 32, 18, 4, None, (3, 2), bootstrap_by="native"), 2048),
        (Ring(12, 36, 32, 18, 4, None, (3, 2), bootstrap_by="native", short_specials=True), 2048),
        (Ring(12, 50, 42, 17, 2, None, (2, 2), bootstrap_by="native"), 512),
        (Ring(12, 60, 53, 17, 2, None, (2, 2), bootstrap_by="native"), 2048),
    ],
)
def test_coarse_chains_err_as_the_simulator_says(ring: Ring, slots: int) -> None:
    made = only_bootstrap(ring, slots)
    session, simulated = native(made), simulator(made)
    errors: dict[str, list[np.ndarray]] = {"run": [], "simulated": []}
    for seed in range(4):
        x = np.random.default_rng(seed).uniform(-1, 1, slots)
        for name, backend in (("run", session), ("simulated", simulated)):
            ((found,), _) = run(made, [x], backend)
            errors[name].append(found - x)
    found, predicted = (np.std(each) for each in errors.values())
    # Of two large factors with few slots the model says a bit more.
    assert 0.5 < found / predicted < 1.3
    assert found < 1.1 * bootstrap_error(ring)
    # No slot is worse than the others: key switches are rounded to the nearest.
    worst = np.sqrt(np.mean(np.square(errors["run"]), axis=0)).max()
    assert worst < 5 * found


def test_a_second_iteration_takes_off_what_the_first_left() -> None:
    ring = Ring(11, 60, 57, 18, 4, None, (2, 2), bootstrap_iterations=2)
    made, x = only_bootstrap(ring, 256), np.random.default_rng(2).uniform(-1.9, 1.9, 256)
    ((found,), _) = run(made, [x], native(made))
    # Eight keys gave 2^-30.1 to 2^-32; a ninth 2^-29.7.
    assert np.std(found - x) < 2.0**-29


@pytest.mark.parametrize("chains", [True, False])
def test_a_bootstrapped_program_means_what_it_says(chains: bool) -> None:
    made, x = program(chains), sample()
    (found, shifted), _ = run(made, [x], native(made))
    expected = meaning_of(x)
    np.testing.assert_allclose(found, expected[0], atol=2.0**-18)
    np.testing.assert_allclose(shifted, expected[1], atol=2.0**-33)


def _closed_while_it_runs(artifact: hg.Artifact) -> None:
    client = hg.Client(artifact.public(), allow_insecure=True)
    server = hg.Server(artifact, client.evaluation_keys(), backend="native", allow_insecure=True)
    x = np.random.default_rng(3).uniform(-1, 1, 256)
    answer = server.run(client.encrypt(x), lambda stage, done, total: server.close())
    np.testing.assert_allclose(client.decrypt(answer), 2 * x, atol=1e-4)
    with pytest.raises(hg.ProgramError, match="closed"):
        server.run(client.encrypt(x))


def test_a_server_that_is_closed_ends_the_run_that_goes_on_and_lets_everything_go() -> None:
    # A ring that nothing else in the process has.
    artifact = hg.compile(hg.parse(SOURCE), hg.Options(security_bits=None, log_ring=11, scale_bits=43))
    _closed_while_it_runs(artifact)
    gc.collect()
    assert not any(ring.log_ring == 11 and ring.scale_bits == 43 for ring, *_ in _FACTORS._known)
    assert not any(
        dim == artifact.ring.ring_dim and artifact.ring.primes[1] in primes for dim, primes in _PRIMES._known
    )


def test_the_probability_that_a_bootstrap_fails() -> None:
    openfhe = Ring(11, 60, 55, 24, 4, bootstrap=(3, 3))
    # OpenFHE names 2^-137 for all coefficients of N = 2^17.
    assert math.log2(bootstrap_failure(replace(openfhe, log_ring=17))) == pytest.approx(-137.7, abs=0.1)
    # The tail of Irwin and Hall's distribution, where it can be seen: of five, the last half of 2.5.
    drawn = np.random.default_rng(0).uniform(-0.5, 0.5, size=(1 << 20, 5)).sum(axis=1)
    assert float((np.abs(drawn) > 2.0).mean()) == pytest.approx(2 * 0.5**5 / math.factorial(5), rel=0.1)
    assert bootstrap_failure(replace(openfhe, bootstrap_by="native")) == 0.0
