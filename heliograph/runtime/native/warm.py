"""Compiling the kernels before they are needed: once on a machine, for numba keeps them on disk."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.files import lock
from heliograph.runtime.native import keyswitch
from heliograph.runtime.native.arithmetic import UNKEPT
from heliograph.runtime.native.ciphertext import Ciphertext, SwitchingKey
from heliograph.runtime.native.primitives import NativePrimitives
from heliograph.runtime.native.tables import ChainTables, prime_rows

_RING = Ring(10, 59, 40, 2, 2, None)
# Primes such as a larger ring has. Any that are 1 modulo 2N and not in the chain can serve as special primes.
_SPECIAL = Ring(10, 60, 50, 1, 1, None).primes
# Loading kernels from disk takes less than this.
_PATIENCE_S = 3.0


@functools.cache
def warm_up() -> None:
    """Call every kernel once. Says so on standard error where that takes long: they are compiled, or the machine is busy."""
    notice = threading.Timer(_PATIENCE_S, _tell)
    notice.daemon = True
    notice.start()
    try:
        with _alone():
            _call_all()
    finally:
        notice.cancel()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """While it lasts no other process of this user gets kernels ready: each would compile all of them."""
    # Beside the kernels, where numba keeps them.
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent / "__pycache__")
    with contextlib.ExitStack() as stack:
        # Without a lock all that is lost is work.
        with contextlib.suppress(OSError):
            handle = os.open(folder / "kernels.lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            stack.callback(os.close, handle)
            lock(handle, wait=True)
        yield


def _tell() -> None:
    text = "getting kernels ready: compiled on first use (about half a minute), loaded from the disk afterwards"
    if UNKEPT:
        text = (
            "compiling kernels for this processor, about half a minute for each process: no folder for them can be written "
            "to; set NUMBA_CACHE_DIR to one"
        )
    print(text, file=sys.stderr, flush=True)


def _call_all() -> None:
    n, random = _RING.ring_dim, np.random.default_rng(0)
    tables = ChainTables.of(_RING, _SPECIAL, prime_rows(n, _RING.primes + _SPECIAL))
    primes = _RING.primes + _SPECIAL
    rows = np.stack([random.integers(prime, size=n, dtype=np.uint64) for prime in primes])
    key = SwitchingKey(np.stack([np.stack([rows] * _RING.digits)] * 2))
    do = NativePrimitives(tables, lambda kind, amount: key)
    x = Ciphertext(np.stack([rows[: _RING.towers]] * 2))
    product = do.relinearize(do.mul(x, x))
    plain = do.encode(np.ones(1), 20.0, _RING.levels)
    do.rescale(do.sub(do.rotate(product, 1), do.add_plain(do.mul_plain(x, plain), plain)))
    do.mul_scalar(x, 0.5, 20.0)
    digits, constant = do.decompose(x), do.wide_constant(np.ones(1), 0.0, _RING.levels)
    wide = do.step_wide(do.rotate_wide(x, 0, None), 1, do.rotate_wide(x, 1, digits))
    do.narrow(do.wide_sums([wide], [constant], [[(0, 0)]])[0])
    nearest = ChainTables(n, tables.primes, tables.alpha, tables.special, tables.known, nearest=True)
    NativePrimitives(nearest, lambda kind, amount: key).relinearize(do.mul(x, x))
    raised = np.empty((2, _RING.towers, n), dtype=np.uint64)
    known = tables.known
    keyswitch.raise_modulus(
        x.residues[:, 0], np.uint64(primes[0]), raised, tables.rows, known.moduli, known.outer, known.inner
    )
