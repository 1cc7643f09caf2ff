"""The suite of a backend's primitives, on every ring, level, number of digits and part of a chain, with exact integers.

        exact                  all results except those below: the residues equal those of reference.py, to the last bit
    encode                 coefficients are at most max(2, 2^(scale - 46)) away from the exact ones
    mul_scalar             of a negative number: its product with the scale may be rounded up or down
    bootstrap              the root mean square of the error is at most twice what ckks/noise.py says
    key switches           exact too; where a backend asks for `switches="bounded"`, their message may be off by what the
                           roundings of ckks/noise.py add: eight standard deviations in any coefficient

Wide values have the backend's own form: narrowed, they equal the results of the calls on ciphertexts.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.ckks.noise import BOOTSTRAP_REACH, bootstrap_error, switch_std
from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.testing.bench import AMOUNTS, BOOTSTRAPPED, PAIRED, Bench, Benches, Check, Maker, compare, vectors
from heliograph.testing.reference import backward, centred, coefficients, column
from heliograph.testing.rings import RINGS, levels_of, name_of

# (primitives, x, y, plaintexts) -> one or several ciphertexts, from a backend or exact.
Case = Callable[[Any, Any, Any, Sequence[Any]], Any]
FIRST, SECOND = AMOUNTS
# More terms than are summed before a reduction, in groups that share values and plaintexts.
_GROUPS = [[(i % 2, i % 3) for i in range(33)], [(1, 2)], [(0, 0)] * 9]
_WEIGHTS = np.array([[0.7306, 1.5], [0.0, 0.25]])

LINEAR: dict[str, Case] = {
    "add": lambda do, x, y, p: do.add(x, y),
    "sub": lambda do, x, y, p: do.sub(x, y),
    "negate": lambda do, x, y, p: do.negate(x),
    "accumulate": lambda do, x, y, p: do.accumulate(do.add(x, y), y),
    "mul": lambda do, x, y, p: do.mul(x, y),
    "sums of two and three parts": lambda do, x, y, p: do.add(do.sub(do.mul(x, y), do.mul(x, x)), y),
    "times_i": lambda do, x, y, p: do.times_i(x),
    "rescale": lambda do, x, y, p: do.rescale(x),
    "level_drop": lambda do, x, y, p: do.level_drop(x, 1),
    "reread": lambda do, x, y, p: do.reread(x, 20.5),
    "mul_scalar": lambda do, x, y, p: do.mul_scalar(x, 0.7306, 20.0),
    "mul_scalar beyond floating point": lambda do, x, y, p: do.mul_scalar(x, 0.75, 80.0),
    "weighted_sums": lambda do, x, y, p: do.weighted_sums([x, y], scipy.sparse.csr_array(_WEIGHTS), 25.0),
    "add_plain": lambda do, x, y, p: do.add_plain(x, p[0]),
    "mul_plain": lambda do, x, y, p: do.mul_plain(x, p[1]),
    "mul_plain of complex numbers": lambda do, x, y, p: do.mul_plain(x, p[2]),
    "mul_plain of three parts": lambda do, x, y, p: do.mul_plain(do.mul(x, y), p[0]),
    "sums_of_products": lambda do, x, y, p: do.sums_of_products([x, y], p, _GROUPS),
}
SWITCHES: dict[str, Case] = {
    "relinearize": lambda do, x, y, p: do.relinearize(do.mul(x, y)),
    "rotate": lambda do, x, y, p: do.rotate(x, FIRST),
    "rotate_hoisted": lambda do, x, y, p: do.rotate_hoisted(x, SECOND, do.decompose(x)),
    "conjugate": lambda do, x, y, p: do.conjugate(x),
}
# Narrowed, the wide value on the left is the ciphertext on the right.
WIDE: dict[str, tuple[Case, Case]] = {
    "rotate_wide": (
        lambda do, x, y, p: _wide_of_shared_digits(do, x),
        lambda do, x, y, p: do.rotate(x, FIRST),
    ),
    "rotate_wide by nothing": (lambda do, x, y, p: do.rotate_wide(x, 0, None), lambda do, x, y, p: x),
    "rotate_wide onto another": (
        lambda do, x, y, p: do.rotate_wide(
            y, 0, None, do.rotate_wide(x, FIRST, do.decompose(x), do.rotate_wide(y, 0, None))
        ),
        lambda do, x, y, p: do.add(do.add(do.rotate(x, FIRST), y), y),
    ),
    "step_wide": (
        lambda do, x, y, p: do.step_wide(do.rotate_wide(x, 0, None), FIRST, do.rotate_wide(y, 0, None)),
        lambda do, x, y, p: do.add(do.rotate(x, FIRST), y),
    ),
    "wide_sums": (
        lambda do, x, y, p: do.wide_sums([do.rotate_wide(each, 0, None) for each in (x, y)], p[3:], [_GROUPS[0]])[0],
        lambda do, x, y, p: do.sums_of_products([x, y], p[:3], [_GROUPS[0]])[0],
    ),
}


def _wide_of_shared_digits(do: Any, x: Any) -> Any:
    digits = do.decompose(x)
    do.rotate_hoisted(x, SECOND, digits)
    return do.rotate_wide(x, FIRST, digits)


def primitive_checks(make: Maker, rings: Sequence[Ring] = RINGS, *, switches: str = "exact") -> Iterator[Check]:
    """The checks of all primitives of the backend from `make`; `switches` is "exact" or "bounded".

    In rings with bootstraps only bootstraps are tried; leave out rings in which the backend does not bootstrap.
    """
    assert switches in ("exact", "bounded"), switches
    benches = Benches(make)
    calls: dict[str, Callable[[Bench], None]] = {"encode": _encodings, "mul_scalar of negative numbers": _negative}
    calls |= {name: functools.partial(_tried, name, case) for name, case in LINEAR.items()}
    calls |= {name: functools.partial(_tried, name, case, switches=switches) for name, case in SWITCHES.items()}
    calls |= {name: functools.partial(_wide, name, *cases) for name, cases in WIDE.items()}
    calls |= {
        "rescale after a key switch": _at_once,
        "lower part": functools.partial(_lower, switches=switches),
        "threads": _threads,
    }
    refreshing: dict[str, Callable[[Bench], None]] = {
        "bootstrap": functools.partial(_bootstrap, paired=False),
        "bootstrap of a pair": functools.partial(_bootstrap, paired=True),
        "raise_modulus": functools.partial(_raise, switches=switches),
    }
    for ring in rings:
        yield from benches.checks(ring, calls if ring.bootstrap is None else refreshing)


# ------------------------------------------------------------------------------------------------ exact results


# Residues that are tried at a low level; key switches use only the first pair.
_FAR_OUT = ("tops", "tops"), ("halves", "zeros"), ("ones", "tops")


def _tried(name: str, case: Case, bench: Bench, switches: str = "exact") -> None:
    for level in levels_of(bench.ring):
        _exactly(bench, name, case, level, "x", "y", switches=switches)
    for pair in _FAR_OUT[: 1 if name in SWITCHES else None]:
        _exactly(bench, name, case, 1, *pair, switches=switches)


def _exactly(
    bench: Bench, name: str, case: Case, level: int, *kinds: str, chain: int = 0, switches: str = "exact"
) -> None:
    """Compare a case on the backend with the same case on exact integers."""
    material, do = bench.material, bench.do(chain)
    ring = material.exact[chain].ring
    what = f"{name} on {name_of(ring)}, level {level}, {ring.digits} digits, {' and '.join(kinds)}"
    operands = [material.residues(level, kind) for kind in kinds]
    ours = [bench.operand(level, kind) for kind in kinds]
    if chain:
        ours = [do.move(each, level) for each in ours]
    plains, known = bench.plaintexts(level) if "pla" in name or "product" in name else ([], [])
    x, y = (each.astype(object) for each in operands)
    key = None if known else (name, level, chain, *kinds)
    expected = material.known(key, lambda: case(material.exact[chain], x, y, known))
    made = case(do, ours[0], ours[1], plains)
    several = isinstance(made, list)
    for one, wanted in zip(made if several else [made], expected if several else [expected], strict=True):
        described = do.describe(one)
        assert described == material.exact[chain].describe(wanted), f"{what}: described as (level, parts) {described}"
        _agree(bench, what, bench.residues(one), wanted, ring, switches)
    for one, before in zip(ours, operands, strict=True):
        compare(f"an operand after {what}", bench.residues(one), before)


def _agree(bench: Bench, what: str, found: Array, expected: Array, ring: Ring, switches: str) -> None:
    if switches == "exact":
        compare(what, found, expected)
        return
    primes = bench.ring.primes[: expected.shape[1]]
    assert found.shape == expected.shape, f"{what}: expected the shape {expected.shape}, found {found.shape}"
    assert (found < column(primes)).all(), f"{what}: residues are not below their primes"
    apart = centred(backward(phase(bench, found) - phase(bench, expected), primes), primes)
    # The bound is for two key switches; `switch_std` is for a slot. One switch may have a bias of half the number of
    # special primes in both parts, and the second part is multiplied by the secret.
    bias = ring.special / 2 * (1 + 6 * math.sqrt(2 * ring.ring_dim / 3))
    bound = 8 * math.sqrt(2) * switch_std(ring, len(primes) - 1) / math.sqrt(ring.ring_dim / 2) + bias
    largest = int(np.abs(apart).max())
    assert largest <= bound, f"{what}: a coefficient of the message is off by {largest}, more than {bound:.0f}"


def phase(bench: Bench, residues: Array) -> Array:
    """The phase of a ciphertext, message plus error, as values modulo its primes."""
    primes = bench.ring.primes[: residues.shape[1]]
    secret = np.frombuffer(bench.material.cryptor.secret_bytes(), "<u8").reshape(-1, bench.ring.ring_dim)
    found, power = np.zeros(residues.shape[1:], dtype=object), np.ones(residues.shape[1:], dtype=object)
    for part in residues.astype(object):
        found = (found + part * power) % column(primes)
        power = power * secret[: len(primes)].astype(object) % column(primes)
    return found


# ------------------------------------------------------------------------------------------------ plaintexts and numbers


def _encodings(bench: Bench) -> None:
    ring, do, scale = bench.ring, bench.do(0), float(bench.ring.scale_bits)
    bound = max(2.0, 2.0 ** (scale - 46))
    for level in levels_of(ring):
        primes = ring.primes[: level + 1]
        one, zero = bench.given(bench.constant(level, 1)), bench.given(bench.constant(level, 0))
        tried: list[Any] = [*vectors(ring), 0.3] if level == ring.levels else vectors(ring)[:1]
        for values in tried:
            what = f"encode on {name_of(ring)}, level {level}, scale {scale}, {np.size(values)} values"
            exact = (
                np.rint(coefficients(np.atleast_1d(values), ring.slots) * 2.0**scale).astype(np.int64).astype(object)
            )
            made = [
                do.mul_plain(one, do.encode(values, scale, level)),
                do.mul_plain(one, do.constant(values, scale, level)),
            ]
            made += do.sums_of_products([one], [do.diagonal(np.atleast_1d(values), scale, level)], [[(0, 0)]])
            if not np.iscomplexobj(values):
                made.append(do.add_plain(zero, do.encode(values, scale, level, zero)))
            for rows in {part.tobytes(): part for part in (bench.residues(each)[0] for each in made)}.values():
                apart = (backward(rows.astype(object), primes) - exact) % column(primes)
                furthest = np.minimum(apart, column(primes) - apart).max()
                assert furthest <= bound, f"{what}: a coefficient is off by {furthest}, more than {bound:.0f}"


def _negative(bench: Bench) -> None:
    level = bench.ring.levels
    x = bench.material.residues(level, "x")
    found = bench.residues(bench.do(0).mul_scalar(bench.operand(level, "x"), -0.7306, 20.0))
    primes = column(bench.ring.primes)
    options = [x.astype(object) * number % primes for number in (-766090, -766089)]
    if not any((found == each).all() for each in options):
        compare(f"mul_scalar by -0.7306 on {name_of(bench.ring)}", found, options[0])


# ------------------------------------------------------------------------------------------------ more than one call


def _wide(name: str, wide: Case, case: Case, bench: Bench) -> None:
    do, scale = bench.do(0), float(min(bench.ring.scale_bits, 40))
    for level in levels_of(bench.ring):
        x, y = (bench.operand(level, kind) for kind in ("x", "y"))
        plains = []
        if name == "wide_sums":
            plains = [
                *bench.plaintexts(level)[0],
                *(do.wide_constant(each, scale, level) for each in vectors(bench.ring)),
            ]
        expected = bench.residues(case(do, x, y, plains))
        what = f"{name} on {name_of(bench.ring)}, level {level}, {bench.ring.digits} digits"
        compare(what, bench.residues(do.narrow(wide(do, x, y, plains))), expected)


def _at_once(bench: Bench) -> None:
    """Check that a rescale right after a key switch, which may divide by all primes at once, is off by at most one from
    one after a division.
    """
    do = bench.do(0)
    for level in filter(None, levels_of(bench.ring)):
        x, y = (bench.operand(level, kind) for kind in ("x", "y"))
        primes = bench.ring.primes[:level]
        for what, switched in {
            "relinearize": do.relinearize(do.mul(x, y)),
            "narrow": do.narrow(do.rotate_wide(x, FIRST, do.decompose(x))),
        }.items():
            at_once = bench.residues(do.rescale(switched)).astype(object)
            bench.residues(switched)
            expected = bench.residues(do.rescale(switched)).astype(object)
            for one, other in zip(at_once, expected, strict=True):
                apart = np.abs(centred(backward((one - other) % column(primes), primes), primes)).max()
                assert apart <= 1, f"rescale after {what} on {name_of(bench.ring)}, level {level}: off by {apart}"


def _lower(bench: Bench, switches: str) -> None:
    """Check calls in a lower part of the chain, with its keys, and back in the whole chain."""
    level = bench.material.exact[1].ring.levels
    for name in ("add", "mul", "rescale", "level_drop", "times_i"):
        _exactly(bench, f"{name} in the lower part", LINEAR[name], level, "x", "y", chain=1)
    for name in ("relinearize", "rotate"):
        for each in (level, 1):
            _exactly(bench, f"{name} in the lower part", SWITCHES[name], each, "x", "y", chain=1, switches=switches)
    x = bench.material.residues(level, "x")
    back = bench.do(0).move(bench.do(1).move(bench.operand(level, "x"), level), level)
    compare(f"move on {name_of(bench.ring)}, level {level}", bench.residues(back), x)


def _threads(bench: Bench) -> None:
    """Check that simultaneous calls in several threads give the same results as calls one by one."""
    do, level = bench.do(0), bench.ring.levels
    x, y = (bench.operand(level, kind) for kind in ("x", "y"))

    def call(number: int) -> Any:
        return do.rotate(x, AMOUNTS[number % 2]) if number % 4 < 2 else do.relinearize(do.mul(x, y))

    expected = [bench.residues(call(number)) for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for number, made in enumerate(pool.map(call, range(12))):
            compare(f"one of several threads on {name_of(bench.ring)}", bench.residues(made), expected[number % 4])


# ------------------------------------------------------------------------------------------------ bootstraps


def _bootstrap(bench: Bench, paired: bool) -> None:
    ring, do, cryptor = bench.ring, bench.do(0), bench.material.cryptor
    slots, scale, level = PAIRED if paired else BOOTSTRAPPED, float(ring.scale_bits), ring.bootstrap_input_level
    values = [np.resize(np.random.default_rng(seed).uniform(-1, 1, slots), ring.slots) for seed in (1, 2)]
    x, y = (bench.read(cryptor.encrypted_bytes(each, level, scale), level) for each in values)
    if paired:
        made = bench.refreshed(do.add(x, do.times_i(y)), paired)
        mirrored = do.conjugate(made)
        doubled = do.add(made, mirrored), do.times_i(do.sub(mirrored, made))
        results = list(zip(doubled, values, (2.0, 2.0), strict=True))
    else:
        results = [(bench.refreshed(x, paired), values[0], 1.0)]
    bound = 2 * bootstrap_error(ring)
    for result, expected, factor in results:
        what = f"bootstrap{' of a pair' * paired} of {slots} slots on {name_of(ring)}"
        described = do.describe(result)
        assert described == (ring.bootstrap_level, 2), f"{what}: described as (level, parts) {described}"
        found = cryptor.decrypted(bench.residues(result), scale)[0] / factor
        error = math.sqrt(float(np.mean(np.square(found - expected))))
        assert error <= bound, f"{what}: the root mean square of the error is {error:.3g}, more than {bound:.3g}"


def _raise(bench: Bench, switches: str) -> None:
    what = f"raise_modulus on {name_of(bench.ring)}"
    x = bench.material.residues(0, "x")
    found = bench.residues(bench.do(0).raise_modulus(bench.given(x), BOOTSTRAPPED))
    expected = bench.material.known(
        "raise", lambda: bench.material.exact[0].raise_modulus(x.astype(object), BOOTSTRAPPED)
    )
    # With different rounding, a coefficient may be off by a further multiple of the first prime.
    exactly = switches == "exact"
    _agree(
        bench, what, found if exactly else found[:, :1], expected if exactly else expected[:, :1], bench.ring, switches
    )
    primes = bench.ring.primes
    multiples = np.abs(centred(backward(phase(bench, found), primes), primes)).max() / primes[0]
    assert multiples <= BOOTSTRAP_REACH + 1, f"{what}: off by {multiples:.1f} times the first prime"
