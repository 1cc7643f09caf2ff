"""Processors without a fused multiply-add or AVX2, forced by environment variables; other byte orders, refused in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from heliograph.ckks.ring import Ring
from heliograph.runtime import residues

# The digest of what each primitive makes of the same residues and keys, on a chain of primes of one word, on one of
# primes that are worked on as doubles where that is fast, and on one of larger primes.
SCRIPT = """
import hashlib, itertools, json
import numpy as np
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.runtime.client.cryptor import cryptor as cryptors
from heliograph.runtime.noise import SecretStream
from heliograph.runtime.native import keyswitch
from heliograph.runtime.native.kernels import floating
from heliograph.runtime.native.kernels import transforms
from heliograph.runtime.native.ciphertext import Ciphertext, SwitchingKey, in_words
from heliograph.runtime.native.primitives import NativePrimitives
from heliograph.runtime.native.tables import ChainTables, prime_rows

found = {"doubles": bool(floating.LIMIT)}
for name, ring in {
    "words": Ring(11, 30, 28, 5, 2, None, short_specials=True),
    "short": Ring(11, 49, 40, 5, 2, None),
    "long": Ring(11, 60, 55, 5, 2, None),
}.items():
    n, random = ring.ring_dim, np.random.default_rng(0)
    special = ring.special_primes
    primes = ring.primes + special
    tables = ChainTables.of(ring, special, prime_rows(n, primes))
    def rows():
        return np.stack([random.integers(prime, size=n, dtype=np.uint64) for prime in primes])
    key = SwitchingKey(np.stack([in_words(np.stack([rows() for _ in range(ring.digits)]), primes) for _ in range(2)]))
    do = NativePrimitives(tables, lambda kind, amount: key)
    x = Ciphertext(in_words(np.stack([rows()[: ring.towers] for _ in range(2)]), primes), ring.levels)
    plain = do.encode(np.linspace(-1.0, 1.0, ring.slots), 20.0, ring.levels)
    product, digits = do.mul(x, x), do.decompose(x)
    constant = do.wide_constant(np.ones(1), 0.0, ring.levels)
    wide = do.step_wide(do.rotate_wide(x, 0, None), 1, do.rotate_wide(x, 1, digits))
    made = {
        "mul": product, "relinearize": do.relinearize(product), "rotate": do.rotate(x, 1), "rescale": do.rescale(x),
        "add_plain": do.add_plain(x, plain), "mul_plain": do.mul_plain(x, plain), "sub": do.sub(x, do.rotate(x, 1)),
        "mul_scalar": do.mul_scalar(x, 0.3, 20.0), "wide": do.narrow(do.wide_sums([wide], [constant], [[(0, 0)]])[0]),
    }
    for op, value in made.items():
        found[f"{name} {op}"] = hashlib.sha256(value.residues.tobytes()).hexdigest()
    # The client's kernels: samplers, streams, sums with products, packing.
    counter = itertools.count()
    def seed():
        return next(counter).to_bytes(32, "little")
    cryptors.SecretStream, cryptors.fresh_seed = lambda: SecretStream(seed()), seed
    secret = cryptors.Cryptor(ring, tag="0" * 32)
    for op, value in {
        "secret": secret.secret_bytes(),
        "key": secret.evaluation_key_bytes(EvaluationKey("k", ring, "rotation", 1)),
        "ciphertext": secret.encrypted_bytes(np.linspace(-1, 1, ring.slots), 1, 20.0),
    }.items():
        found[f"{name} {op}"] = hashlib.sha256(value).hexdigest()
print(json.dumps(found))
"""


def digests(**forced: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **forced}, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    pytest.importorskip("numba")
    return digests()


# All kernels are compiled anew.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "forced",
    [
        # What numba takes for any processor of this kind: on x86-64 SSE2.
        {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
        # Vectors of 128 bits, and products with a sum that are rounded twice.
        pytest.param({"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"}, marks=pytest.mark.slow),
    ],
    ids=lambda forced: forced["NUMBA_CPU_NAME"],
)
def test_kernels_give_the_same_residues(forced: dict[str, str], here: dict[str, Any]) -> None:
    found = digests(**forced)
    assert found.pop("doubles") is False
    assert found == {name: digest for name, digest in here.items() if name != "doubles"}
    assert len(set(found.values())) == len(found) == 36


def test_transforms_of_numpy_are_values_of_the_polynomial() -> None:
    (q,) = Ring(10, 60, 40, 1, 1, None).primes[:1]
    row = np.zeros(1 << 10, dtype=np.uint64)
    row[1] = q - 1
    psi, order = residues.smallest_root(row.size, q), residues.bit_reversed(row.size)
    found = residues.forward(row, q)
    assert found.tolist() == [-pow(psi, 2 * int(place) + 1, q) % q for place in order]


def test_big_endian_processors_are_refused_in_words() -> None:
    code = "import sys\nsys.byteorder = 'big'\nimport heliograph"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "UnsupportedError: this processor is big-endian" in done.stderr
    assert "try: run it on x86-64 or ARM" in done.stderr
