"""Compiles the kernels before they are needed: once per machine, because numba caches them on disk."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.files import lock
from heliograph.runtime.native import keyswitch
from heliograph.runtime.native.ciphertext import Ciphertext, SwitchingKey, in_words
from heliograph.runtime.native.kernels.arithmetic import UNKEPT
from heliograph.runtime.native.kernels.transforms import forward
from heliograph.runtime.native.primitives import NativePrimitives
from heliograph.runtime.native.tables import ChainTables, prime_rows

_RING = Ring(10, 59, 40, 2, 2, None)
# Primes of a larger ring. Any primes that are 1 modulo 2N and not in the chain can serve as special primes.
_SPECIAL = Ring(10, 60, 50, 1, 1, None).primes
# A file in numba's cache folder.
_LOCK = "warm.lock"
# Loading kernels from disk takes less than this.
_PATIENCE_S = 3.0


@functools.cache
def warm_up() -> None:
    """Call every kernel once. If that takes long (compilation, or a busy machine), a message goes to standard error.

    If several processes start at the same time, one compiles; the others wait and load its kernels from disk.
    """
    notice = threading.Timer(_PATIENCE_S, _tell)
    notice.daemon = True
    notice.start()
    try:
        with _first():
            _call_all()
    finally:
        notice.cancel()


@contextlib.contextmanager
def _first() -> Iterator[None]:
    """Hold a lock beside the cached kernels, unless another process held it meanwhile and called them all."""
    with contextlib.ExitStack() as held:
        # Without a folder, or a file system with locks, each process compiles for itself.
        with contextlib.suppress(OSError):
            if not UNKEPT:
                path = os.path.join(forward.stats.cache_path, _LOCK)
                handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
                held.callback(os.close, handle)
                seen = os.fstat(handle).st_mtime_ns
                lock(handle, wait=True)
                if os.fstat(handle).st_mtime_ns == seen:
                    held.push(lambda kind, *_: _done(handle, path) if kind is None else None)
                else:
                    # The processes that waited load the kernels in parallel.
                    held.close()
        yield


def _done(handle: int, path: str) -> None:
    """Update the file's time, which tells the processes that wait for the lock that nothing is left to compile."""
    with contextlib.suppress(OSError):
        os.utime(handle if os.utime in os.supports_fd else path)


def _tell() -> None:
    text = "getting kernels ready: compiled on first use (a minute or two), loaded from the disk afterwards"
    if UNKEPT:
        text = (
            "compiling kernels for this processor, a minute or two for each process: no folder for them can be written "
            "to; set NUMBA_CACHE_DIR to one"
        )
    print(text, file=sys.stderr, flush=True)


def _call_all() -> None:
    n, random = _RING.ring_dim, np.random.default_rng(0)
    primes = _RING.primes + _SPECIAL
    tables = ChainTables.of(_RING, _SPECIAL, prime_rows(n, primes))
    rows = np.stack([random.integers(prime, size=n, dtype=np.uint64) for prime in primes])
    key = SwitchingKey(np.stack([in_words(np.stack([rows] * _RING.digits), primes)] * 2))
    do = NativePrimitives(tables, lambda kind, amount: key)
    x = Ciphertext(in_words(np.stack([rows[: _RING.towers]] * 2), primes), _RING.levels)
    product = do.relinearize(do.mul(x, x))
    do.rescale(product)
    plain = do.encode(np.ones(1), 20.0, _RING.levels)
    do.rescale(do.sub(do.rotate(product, 1), do.add_plain(do.mul_plain(x, plain), plain)))
    do.mul_scalar(x, 0.5, 20.0)
    digits, constant = do.decompose(x), do.wide_constant(np.ones(1), 0.0, _RING.levels)
    wide = do.step_wide(do.rotate_wide(x, 0, None), 1, do.rotate_wide(x, 1, digits))
    do.narrow(do.wide_sums([wide], [constant], [[(0, 0)]])[0])
    do.encode(np.linspace(0.0, 1.0, n // 2), 20.0, _RING.levels)
    do.encode(np.linspace(0.0, 1.0, n // 2), 59.0, _RING.levels)
    nearest = ChainTables(n, tables.primes, tables.alpha, tables.special, tables.every, nearest=True)
    NativePrimitives(nearest, lambda kind, amount: key).relinearize(do.mul(x, x))
    raised = np.empty((2, tables.words(_RING.levels), n), dtype=np.uint32)
    keyswitch.raise_modulus(x.residues, tables.rows[0, 0], raised, tables.rows, tables.known)
