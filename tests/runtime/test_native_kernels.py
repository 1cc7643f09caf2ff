"""The native backend's kernels against whole numbers of Python; its primitives are tried in tests/conformance."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from heliograph.ckks.embedding import coefficients_of, coefficients_of_run, half_of_coefficients, spread
from heliograph.ckks.primes import largest_primes
from heliograph.ckks.ring import Ring
from heliograph.errors import RangeError
from heliograph.runtime import residues
from heliograph.runtime.native import warm
from heliograph.runtime.native.backend import NativeBackend
from heliograph.runtime.native.ciphertext import Ciphertext, in_words, out_of_words, residues_of
from heliograph.runtime.native.encoding import encode, encoded_bytes, evaluated, halved, rounded, rounded_bytes
from heliograph.runtime.native.kernels import arithmetic, floating, transforms
from heliograph.runtime.native.kernels.plaintexts import forward_numbers
from heliograph.runtime.native.kernels.pointers import addresses
from heliograph.runtime.native.kernels.word_transforms import LEAST, backward_words, forward_words, word_tables
from heliograph.runtime.native.primitives import NativePrimitives
from heliograph.runtime.native.tables import prime_rows, with_ratio
from heliograph.testing.bench import AMOUNTS, Bench
from heliograph.testing.reference import divided
from heliograph.testing.rings import RINGS, levels_of, name_of

# Those that need no key.
PLAIN = [ring for ring in RINGS if ring.bootstrap is None]


# --------------------------------------------------------------------------------------------- arithmetic

WORDS = st.integers(0, 2**64 - 1)
PRIMES = st.sampled_from([ring.primes[i] for ring in PLAIN for i in (0, 1)])


def test_kernels_run_where_none_can_be_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service without a home directory, on a file system that is read-only: they are compiled, and it is said why."""
    from numba.core import caching

    from heliograph.runtime.native import warm

    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    monkeypatch.setattr(arithmetic, "UNKEPT", set())
    monkeypatch.setattr(warm, "UNKEPT", arithmetic.UNKEPT)

    @arithmetic.kernel
    def double(a: Any) -> Any:
        return a + a

    @arithmetic.parallel_kernel
    def fill(out: Any) -> None:
        for i in range(len(out)):
            out[i] = double(np.uint64(i))

    out = np.zeros(5, dtype=np.uint64)
    fill(out)
    assert list(out) == [0, 2, 4, 6, 8]
    assert {"double", "fill"} == arithmetic.UNKEPT
    warm._tell()
    assert "set NUMBA_CACHE_DIR" in capsys.readouterr().err


WARMING = """
import os, sys, time
from pathlib import Path
from heliograph.runtime.native import warm

folder, count, dies = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "dies"

def call_all():
    # What numba does: load what is there, otherwise compile, and then keep it.
    if (folder / "kept").exists():
        (folder / f"loaded-{os.getpid()}").touch()
        return
    (folder / f"compiled-{os.getpid()}").touch()
    if dies and len(list(folder.glob("compiled-*"))) == 1:
        os._exit(7)
    time.sleep(1.0)
    (folder / "kept").touch()

warm._call_all = call_all
(folder / f"ready-{os.getpid()}").touch()
while len(list(folder.glob("ready-*"))) < count:
    time.sleep(0.01)
warm.warm_up()
"""


@pytest.mark.parametrize(("end", "compiled"), [("lives", 1), ("dies", 2)])
def test_of_processes_that_start_together_one_compiles(tmp_path: Path, end: str, compiled: int) -> None:
    """The others load what it kept; where it was killed, another one takes its place."""
    count = 4
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba"), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", WARMING, str(tmp_path), str(count), end]
    processes = [subprocess.Popen(arguments, env=environment) for _ in range(count)]
    codes = sorted(process.wait(120) for process in processes)
    assert codes == [0] * (count - 1) + [7 if end == "dies" else 0]
    assert len(list(tmp_path.glob("compiled-*"))) == compiled
    assert len(list(tmp_path.glob("loaded-*"))) == count - compiled
    assert len(list(tmp_path.glob("numba/*/warm.lock"))) == 1


@pytest.mark.parametrize("broken", ["no folder", "no locks", "nothing is kept"])
def test_without_a_lock_each_process_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    called = []
    monkeypatch.setattr(warm, "_call_all", lambda: called.append(1))
    kept = tmp_path / "gone" if broken == "no folder" else tmp_path
    monkeypatch.setattr(warm, "forward", SimpleNamespace(stats=SimpleNamespace(cache_path=str(kept))))
    if broken == "no locks":
        monkeypatch.setattr(warm, "lock", lambda handle, wait: os.close(-1))
    monkeypatch.setattr(warm, "UNKEPT", {"double"} if broken == "nothing is kept" else set())
    open_files = len(os.listdir("/proc/self/fd"))
    warm.warm_up.__wrapped__()
    assert called == [1]
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert (tmp_path / "warm.lock").exists() == (broken == "no locks")


@arithmetic.kernel
def _product(a: Any, b: Any, q: Any, bits: Any, ratio: Any) -> Any:
    return arithmetic.product(a, b, q, bits, ratio)


@arithmetic.kernel
def _reduced(high: Any, low: Any, q: Any, bits: Any, ratio: Any) -> Any:
    return arithmetic.reduced(high, low, q, bits, ratio)


@arithmetic.kernel
def _constant(a: Any, w: Any, ratio: Any, q: Any) -> Any:
    return arithmetic.times_constant(a, w, ratio, q)


@arithmetic.kernel
def _settled(a: Any, q: Any) -> Any:
    return arithmetic.settled(a, q)


def _barrett(q: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    return np.uint64(q), np.uint64(q.bit_length()), np.uint64(transforms.barrett_ratio(q))


@settings(max_examples=500, deadline=None)
@given(q=PRIMES, a=WORDS, b=WORDS)
def test_products_are_exact(q: int, a: int, b: int) -> None:
    assert int(_product(np.uint64(a % q), np.uint64(b % q), *_barrett(q))) == a * b % q
    assert int(_product(np.uint64(q - 1), np.uint64(q - 1), *_barrett(q))) == 1


@settings(max_examples=500, deadline=None)
@given(q=PRIMES, wide=st.integers(0, 2**128 - 1))
def test_reductions_are_exact_up_to_their_bound(q: int, wide: int) -> None:
    for number in (wide % (bound := 16 * q << q.bit_length()), bound - 1, 0, q - 1, q):
        found = _reduced(np.uint64(number >> 64), np.uint64(number & (1 << 64) - 1), *_barrett(q))
        assert int(found) == number % q


@settings(max_examples=500, deadline=None)
@given(q=PRIMES, a=st.integers(0, 2**63 - 1), w=WORDS)
def test_products_with_constants_stay_below_four_times_the_prime(q: int, a: int, w: int) -> None:
    for factor in (w % q, q - 1, 0):
        ratio = np.uint64(transforms.ratio_of(factor, q))
        for number in (a, 2**63 - 1, 0):
            found = int(_constant(np.uint64(number), np.uint64(factor), ratio, np.uint64(q)))
            assert found < 4 * q
            assert found % q == number * factor % q
    assert int(_settled(np.uint64(a % (8 * q)), np.uint64(q))) == a % (8 * q) % q


def test_without_openmp_and_tbb_one_thread_calls_kernels_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    with arithmetic._guard() as nothing:
        assert nothing is None, "this machine has OpenMP"
    monkeypatch.setattr(arithmetic.importlib, "import_module", missing)
    guard: Any = arithmetic._guard()
    with guard:
        assert guard.locked()


# ----------------------------------------------------------------------------------------- floating point

# Of 28 to 49 bits: the last are as large as primes that are worked on as doubles may be.
DOUBLES = st.sampled_from([q for bits in (28, 40, 49) for q in Ring(12, 60, bits, 2, 1, None).primes[1:]])


@arithmetic.kernel
def _product_near(a: Any, b: Any, q: Any) -> Any:
    return floating.product_near(a, b, q, 1.0 / q)


@arithmetic.kernel
def _nearest(a: Any, q: Any) -> Any:
    return floating.nearest(a, q, 1.0 / q)


@arithmetic.kernel
def _canonical(a: Any, q: Any) -> Any:
    return floating.canonical(floating.near(a) - q, q)


@settings(max_examples=500, deadline=None)
@given(q=DOUBLES, a=WORDS, b=WORDS)
def test_products_of_doubles_are_exact_and_small(q: int, a: int, b: int) -> None:
    """As large as transforms let them become: 3.7 q times half of q."""
    assert q < int(floating.LIMIT) or not floating.LIMIT
    top = int(3.7 * q)
    for x in (a % (2 * top + 1) - top, top, -top):
        for w in (b % q - q // 2, q // 2, -(q // 2)):
            found = float(_product_near(float(x), float(w), float(q)))
            assert found.is_integer()
            assert (int(found) - x * w) % q == 0
            assert abs(found) <= q * (0.5 + 1.5 * 2.0**-52 * abs(x * w) / q) + 1


@settings(max_examples=500, deadline=None)
@given(q=DOUBLES, a=WORDS)
def test_doubles_are_made_small_and_canonical(q: int, a: int) -> None:
    bound = min(2**53, q << 50)
    for x in (a % (2 * bound - 1) - bound + 1, bound - 1, 1 - bound, q // 2 + 1, 0):
        found = float(_nearest(float(x), float(q)))
        assert (int(found) - x) % q == 0
        assert abs(found) <= q / 2 + 1
    for x in (a % q, q - 1, 0):
        assert int(_canonical(np.uint64(x), float(q))) == x


@pytest.mark.parametrize("ring_dim", [1 << 10, 1 << 15, 1 << 16])
@pytest.mark.parametrize("bits", [28, 49])
def test_transforms_on_doubles_are_those_on_whole_numbers(
    ring_dim: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With residues that make sums as large as they get, too."""
    if not floating.LIMIT:
        pytest.skip("this processor has no fused multiply-add")
    prime = Ring(ring_dim.bit_length() - 1, 60, bits, 2, 1, None).primes[1]
    q, doubles = np.uint64(prime), transforms.prime_tables(ring_dim, prime)
    assert q < floating.LIMIT
    with monkeypatch.context() as patch:
        patch.setattr(transforms, "LIMIT", 0)
        whole = transforms.prime_tables(ring_dim, prime)
    random = np.random.default_rng(bits)
    for values in (
        random.integers(prime, size=ring_dim, dtype=np.uint64),
        np.full(ring_dim, q - np.uint64(1)),
        random.integers(2, size=ring_dim).astype(np.uint64) * (q - np.uint64(1)),
    ):
        found, expected = values.copy(), values.copy()
        transforms.forward(found, doubles.outer[0], doubles.inner[0], q)
        transforms.forward_whole(expected, whole.outer[0], whole.inner[0], q)
        assert np.array_equal(found, expected)
        found, expected = values.copy(), values.copy()
        transforms.backward(found, doubles.outer[1], doubles.inner[1], doubles.last, q)
        transforms.backward_whole(expected, whole.outer[1], whole.inner[1], whole.last, q)
        assert np.array_equal(found, expected)


@pytest.mark.slow
def test_without_a_fused_multiply_add_results_are_the_same() -> None:
    """The suite for backends, on kernels for a processor that has none."""
    suite = Path(__file__).parents[1] / "conformance" / "test_backends.py"
    transforms_too = f"{__file__}::{test_transforms_are_values_at_odd_powers_of_the_smallest_root.__name__}"
    asked = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:xdist",
            "-k",
            "native",
            f"{suite}::test_backends",
            transforms_too,
        ],
        env=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


# --------------------------------------------------------------------------------------------- transforms


@pytest.mark.parametrize("ring_dim", [1 << 10, 1 << 11, 1 << 13])
@pytest.mark.parametrize("bits", [60, 35])
def test_transforms_are_values_at_odd_powers_of_the_smallest_root(ring_dim: int, bits: int) -> None:
    q = Ring(ring_dim.bit_length() - 1, 60, 35, 2, 1, None).primes[0 if bits == 60 else 1]
    assert q.bit_length() in (bits, bits + 1)
    table = transforms.prime_tables(ring_dim, q)
    polynomial = np.random.default_rng(0).integers(q, size=ring_dim, dtype=np.uint64)
    values = polynomial.copy()
    transforms.forward(values, table.outer[0], table.inner[0], np.uint64(q))
    _check_values(values, polynomial, q)
    transforms.backward(values, table.outer[1], table.inner[1], table.last, np.uint64(q))
    assert np.array_equal(values, polynomial)


@pytest.mark.parametrize("ring_dim", [1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17])
@pytest.mark.parametrize("bits", [30, 27])
def test_transforms_on_words_are_values_at_odd_powers_of_the_smallest_root(ring_dim: int, bits: int) -> None:
    """With residues that make sums as large as they get, too, and with numbers up to twice the prime."""
    q = largest_primes(ring_dim.bit_length() - 1, bits, 1, ())[0]
    random, table = np.random.default_rng(0), word_tables(ring_dim, q)
    ((last, ratio),) = with_ratio([pow(ring_dim, -1, q)], [q])
    for polynomial in (
        random.integers(q, size=ring_dim, dtype=np.uint64),
        np.full(ring_dim, q - 1, dtype=np.uint64),
        random.integers(2, size=ring_dim).astype(np.uint64) * np.uint64(q - 1),
    ):
        values = polynomial.astype(np.uint32)
        forward_words(values, table.steps[0], table.lanes, np.uint64(q))
        _check_values(values, polynomial, q)
        larger = (polynomial + np.uint64(q) * random.integers(2, size=ring_dim).astype(np.uint64)).astype(np.uint32)
        forward_words(larger, table.steps[0], table.lanes, np.uint64(q))
        assert np.array_equal(larger, values)
        backward_words(
            values, table.steps[1], table.lanes_back, np.uint32(last), np.uint32(int(ratio) >> 32), np.uint64(q)
        )
        assert np.array_equal(values, polynomial)


def _check_values(values: Any, polynomial: Any, q: int) -> None:
    """Some values of a transform, by whole numbers of Python."""
    ring_dim = polynomial.size
    psi, order = residues.smallest_root(ring_dim, q), residues.bit_reversed(ring_dim)
    assert pow(psi, ring_dim, q) == q - 1
    for j in (0, 1, 2, ring_dim // 2 + 3, ring_dim - 1):
        point, expected = pow(psi, 2 * int(order[j]) + 1, q), 0
        for coefficient in reversed(polynomial.tolist()):
            expected = (expected * point + coefficient) % q
        assert int(values[j]) == expected


@pytest.mark.parametrize("ring_dim", [1 << 11, 1 << 12, 1 << 15])
def test_transforms_of_repeated_and_of_real_slots_are_parts_of_the_whole(ring_dim: int) -> None:
    """With coefficients as large as they get, too, and primes of both kinds."""
    log_ring, random = ring_dim.bit_length() - 1, np.random.default_rng(ring_dim)
    # Coefficients are below the primes that are not worked on as doubles; without such work, below all.
    small, size = (30, 49) if floating.LIMIT else (50, 29)
    primes = Ring(log_ring, 60, small, 2, 1, None).primes + Ring(log_ring, 50, 49, 3, 1, None).primes
    tables = prime_rows(ring_dim, primes)

    def transformed(numbers: list[Any], mirrored: bool) -> Any:
        out = np.empty((len(numbers), tables.words(*primes), ring_dim >> mirrored), np.uint32)
        sizes = np.array([each.size for each in numbers])
        where = addresses([each.view(np.uint32) for each in numbers])
        forward_numbers(where, sizes, mirrored, out, tables.rows(primes), tables.known)
        return out_of_words(out, primes)

    extreme = np.full(ring_dim, 2.0**size - 1)
    for numbers in (random.integers(-(2**size), 2**size, ring_dim).astype(float), extreme, -extreme):
        whole = transformed([numbers], False)[0]
        for j, prime in enumerate(primes):
            table, expected = (
                transforms.prime_tables(ring_dim, prime),
                (numbers.astype(np.int64).astype(object) % prime).astype(np.uint64),
            )
            transforms.forward(expected, table.outer[0], table.inner[0], np.uint64(prime))
            assert np.array_equal(whole[j], expected)
        sizes = [ring_dim // times for times in (1, 2, 4, 32) if ring_dim // times >= LEAST]
        short = [numbers[:size].copy() for size in sizes]
        for found, each in zip(transformed(short, False), short, strict=True):
            assert np.array_equal(found, transformed([spread(each, ring_dim)], False)[0])
        halves = [numbers[: size // 2].copy() for size in sizes]
        for found, half in zip(transformed(halves, True), halves, strict=True):
            mirrored = np.concatenate([half, [0.0], -half[:0:-1]])
            (expected,) = transformed([mirrored], False)
            assert np.array_equal(found, expected[:, : ring_dim // 2])
            assert np.array_equal(found, expected[:, : ring_dim // 2 - 1 : -1])


# ----------------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize("size", [1, 2, 4, 64, 512])
def test_real_slots_have_mirrored_coefficients(size: int) -> None:
    values = np.random.default_rng(size).normal(size=size)
    half, whole = half_of_coefficients(values), coefficients_of_run(values)
    np.testing.assert_allclose(half, whole[:size], atol=1e-14)
    np.testing.assert_allclose(np.concatenate([[0.0], -half[:0:-1]]), whole[size:], atol=1e-14)


@pytest.mark.parametrize("size", [1, 8, 512])
def test_slots_are_values_at_powers_of_five(size: int) -> None:
    slots, random = 512, np.random.default_rng(size)
    values = random.normal(size=size) + 1j * random.normal(size=size)
    coefficients = coefficients_of(values, slots)
    points = [np.exp(1j * np.pi * pow(5, j, 4 * slots) / (2 * slots)) for j in range(slots)]
    found = np.polynomial.polynomial.polyval(np.array(points), coefficients)
    np.testing.assert_allclose(found, np.tile(values, slots // size), atol=1e-10)


# --------------------------------------------------------------------------------------------- plaintexts


@pytest.fixture(scope="module", params=PLAIN, ids=name_of)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(NativeBackend, request.param)
    yield made
    made.backend.release()


def native(bench: Bench) -> NativePrimitives:
    do = bench.do(0)
    assert isinstance(do, NativePrimitives)
    return do


def test_halves_of_plaintexts_give_what_the_whole_gives(bench: Bench) -> None:
    ring, do, random = bench.ring, native(bench), np.random.default_rng(6)
    scale = float(min(ring.scale_bits, 40))
    for level in levels_of(ring):
        values = [bench.operand(level, kind) for kind in "xyz"]
        halves = [do.encode(random.normal(size=size), scale, level) for size in (ring.slots, 8) * 6]
        assert {plain.shape[1] for plain in halves} == {ring.ring_dim >> halved(ring.ring_dim)}
        primes = ring.primes[: level + 1]
        wholes = [each if each.shape[1] == ring.ring_dim else _unfolded(each, primes) for each in halves]
        # As they wait as coefficients, among others; of more terms than are made residues at once.
        waiting = [rounded(random.normal(size=size), scale, level, do.tables) for size in (ring.slots, 8) * 20]
        terms = [(values[i % 3], plain) for i, plain in enumerate([*waiting, *halves])]
        made = [*(evaluated(plain, do.tables) for plain in waiting), *wholes]
        plains = [plain for _, plain in terms]
        places = [(i % 3, i) for i in range(len(terms))]
        for groups in ([places], [places[:5], places[5:6], places[6:]]):
            found, expected = (do.sums_of_products(values, each, groups) for each in (plains, made))
            for one, other in zip(found, expected, strict=True):
                assert np.array_equal(one.residues, other.residues)


def _unfolded(half: Any, primes: Any) -> Any:
    """A plaintext of which the first half is stored, whole."""
    (found,) = out_of_words(half[np.newaxis], primes)
    (whole,) = in_words(np.hstack([found, found[:, ::-1]])[np.newaxis], primes)
    return whole


@pytest.mark.parametrize("scale", [20.0, 40.0, 58.0])
def test_plaintexts_take_the_bytes_that_are_reserved_for_them(bench: Bench, scale: float) -> None:
    ring, tables, random = bench.ring, native(bench).tables, np.random.default_rng(12)
    for level in range(2, ring.levels + 1):
        for size in (ring.slots, 8, 1):
            values = random.uniform(-1.0, 1.0, size)
            for make, reserved in ((encode, encoded_bytes), (rounded, rounded_bytes)):
                assert make(values, scale, level, tables).nbytes == reserved(
                    size, scale, ring.ciphertext_bytes(level, parts=1), ring.ring_dim
                )


def test_wide_plaintexts_are_one_polynomial_modulo_all_primes(bench: Bench) -> None:
    do, ring, random = native(bench), bench.ring, np.random.default_rng(8)
    # Coefficients are below half of every prime.
    scale = 20.0
    for level in levels_of(ring):
        for values in (random.normal(size=8), random.normal(size=ring.slots) * 1j):
            wide, narrow = do.wide_constant(values, scale, level), do.encode(values, scale, level)
            assert np.array_equal(wide[: do.tables.words(level)], narrow)
            primes = do.tables.basis(level, True)[0]
            (rows,) = out_of_words(
                (_unfolded(wide, primes) if wide.shape[1] < ring.ring_dim else wide)[np.newaxis], primes
            )
            found = []
            for row, prime in zip(rows, primes, strict=True):
                table, residues = transforms.prime_tables(ring.ring_dim, prime), row.copy()
                transforms.backward(residues, table.outer[1], table.inner[1], table.last, np.uint64(prime))
                whole = residues.astype(object)
                found.append(np.where(whole > prime // 2, whole - prime, whole))
            assert all((each == found[0]).all() for each in found)


def test_a_rescale_after_a_key_switch_divides_once_to_the_nearest(bench: Bench) -> None:
    do, ring = native(bench), bench.ring
    for level in filter(None, levels_of(ring)):
        x = bench.operand(level, "x")
        wide = do.rotate_wide(x, AMOUNTS[0], do.decompose(x))
        primes, special = do.tables.primes[: level + 1], do.tables.special
        rows = out_of_words(wide, primes + special).astype(object)
        *kept, last = primes
        expected = np.stack([divided(part, kept, [last, *special], True) for part in rows])
        narrowed = do.narrow(wide)
        assert do.describe(narrowed) == (level, 2)
        assert (residues_of(do.rescale(narrowed), primes) == expected).all()
        # Once it is divided, the rescale is a division of its own.
        read = do.rescale(Ciphertext(narrowed.residues, level))
        assert np.array_equal(do.rescale(narrowed).residues, read.residues)


def test_the_refusal_of_a_plaintext_does_not_tell_its_values() -> None:
    """Whoever reads it may be another than whose values they are."""
    do = native(Bench(NativeBackend, PLAIN[0]))
    with pytest.raises(RangeError, match="too large at scale") as refused:
        do.encode(np.full(4, 7.654321), 1000.0, 1)
    assert "7.65" not in str(refused.value)
