"""Randomness of private training: Gaussian noise and the coins of Poisson sampling, from one generator.

**Secure mode.** Bits are a ChaCha20 key stream; its key comes from the operating system (or, with a seed, from the seed:
then it is reproducible and no secret). The Gaussian is sampled on a grid, exactly, so that the low bits of floating-point
noise, which betray the value beneath (Mironov 2012), do not exist:

- The grid is g = 2^floor(log2 std) * 2^-32. `release` rounds the value to the grid and adds k g, where k is the nearest
  integer to (std/g) Z and Z is a *real* standard Gaussian. With value on the grid, value + k g is the rounding of
  value + std Z: post-processing of the Gaussian mechanism on real numbers, so that every theorem about it holds,
  including those on Poisson sampling. (A discrete Gaussian would need its own analysis for each of these.) The sum is
  computed in integers; its rounding to float at the end is post-processing again.
- Rounding d values to the grid moves the distance of two data sets by at most g sqrt(d); the noise is enlarged by that
  over the sensitivity, about 2^-32 sqrt(d), so that the accounted multiplier is kept.
- k comes from inversion: Z = -+ndtri(U/2), U uniform. 53 bits of U and double precision bound k; if the bound leaves
  two integers (about 40 of a million), U is extended and compared, in as many digits as needed, with the probability of
  the tail beyond the midpoint between them. Assumed: scipy's `ndtri` errs by at most 16 units of round-off, relative to
  the larger of 1 and |Z| (a test compares with 60 digits).

**What is not covered.** The clipped sum itself is computed in floating point: its round-off comes before the grid,
and the sensitivity of a floating-point sum exceeds the real sum's by the round-off (Casacuberta et al. 2022). It
grows with the physical batch, whose sum is in the module's precision; batches are added in float64. A test measures
it. Timing, memory and the operating system's generator are outside too.

**Plain mode** draws from numpy's SFC64 with its floating-point Gaussian: fast, not cryptographic, and not safe
against an attacker who reads low bits. With a seed that others know, neither mode gives privacy.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from heliograph.errors import ProgramError, WireError

_GRID_BITS = 32
_SLACK = 16 * 2.0**-53
"""Relative error allowed to ndtri, in units of max(1, |Z|)."""


class _Stream:
    """A ChaCha20 key stream that can be saved: key and position."""

    def __init__(self, key: bytes, drawn: int = 0) -> None:
        self.key = key
        self.drawn = drawn
        self._rest = b""
        # Blocks are 64 bytes; the nonce's first eight bytes, little-endian, are the block counter.
        nonce = (drawn // 64).to_bytes(8, "little") + bytes(8)
        self._cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
        self._cipher.update(bytes(drawn % 64))

    def take(self, count: int) -> bytes:
        self.drawn += count
        return self._cipher.update(bytes(count))

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self.take(8 * count), dtype="<u8").astype(np.uint64, copy=False)


class GaussianNoise:
    """One source of Gaussian noise and uniform draws.

    Args:
        seed: for runs that can be repeated; whoever knows it can subtract the noise. None takes fresh entropy.
        secure: cryptographic bits and Gaussians sampled exactly on a grid, as this module's text says.
    """

    def __init__(self, seed: int | None = None, secure: bool = False) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise ProgramError(f"seed = {seed!r} must be a non-negative integer", where="seed")
        self.seeded = seed is not None
        self.secure = secure
        self._start(seed)

    def _start(self, seed: int | None) -> None:
        self._process = os.getpid()
        if self.secure:
            if seed is None:
                key = secrets.token_bytes(32)
            else:
                key = hashlib.sha256(b"heliograph noise " + str(seed).encode()).digest()
            self._stream = _Stream(key)
        else:
            self._numpy = np.random.Generator(np.random.SFC64(seed if seed is not None else secrets.randbits(256)))

    def _own(self) -> None:
        """Take fresh entropy in a forked child: with the parent's noise, both releases would reveal the values."""
        if self._process == os.getpid():
            return
        if self.seeded:
            raise ProgramError(
                "this process was forked from one that draws the same seeded noise",
                where="noise",
                why="noise that is used twice hides nothing",
                hint="make the trainer in the child, or leave the seed out",
            )
        self._start(None)

    def release(self, values: Sequence[Tensor], std: float, sensitivity: float) -> list[Tensor]:
        """One vector, given in parts, plus Gaussian noise, as a private release; dtypes and devices are kept.

        `std / sensitivity` is the accounted multiplier; in secure mode the noise is larger by the amount that rounding
        to the grid can add to the sensitivity. Values must be finite.
        """
        if not sensitivity > 0:
            raise ProgramError(f"sensitivity = {sensitivity!r} must be positive", where="release")
        sizes = [value.numel() for value in values]
        if not self.secure:
            # All noise is drawn at once: many small draws would be slow.
            parts = self.like((sum(sizes),), std).split(sizes)
            return [value + part.view(value.shape).to(value) for part, value in zip(parts, values, strict=True)]
        self._own()
        exact = np.concatenate([value.detach().cpu().double().flatten().numpy() for value in values])
        if not np.isfinite(exact).all():
            raise ProgramError("a value to be released is not finite", where="release")
        grid = self._grid(std)
        std *= 1 + grid * math.sqrt(exact.size) / sensitivity
        # Larger values are multiples of the grid anyway, but would not fit an integer.
        if float(np.abs(exact).max(initial=0.0)) / grid > 2.0**61:
            raise ProgramError(
                "a value to be released is too large for its noise",
                where="release",
                why=f"it is above 2^61 steps of the grid {grid:.3g}, which is 2^-32 of the noise",
                hint="a sum of clipped gradients is far smaller: check std and the clipping bound",
            )
        # Add integers: with floats, the rounding would depend on the values.
        integers = np.rint(exact / grid).astype(np.int64) + self._integers(exact.size, std / grid)
        # Beyond 53 bits the conversion rounds, which is post-processing; the grid is a power of two.
        parts = torch.from_numpy(integers.astype(np.float64) * grid).split(sizes)
        return [part.view(value.shape).to(value) for part, value in zip(parts, values, strict=True)]

    def like(self, given: Tensor | tuple[int, ...], std: float) -> Tensor:
        """Gaussian noise of the shape of a tensor (its dtype and device too) or of a shape (float64).

        Added to a value in floating point, secure noise loses its safety: use `release`.
        """
        shape = tuple(given.shape) if isinstance(given, Tensor) else tuple(given)
        count = math.prod(shape)
        self._own()
        if self.secure:
            grid = self._grid(std)
            drawn = self._integers(count, std / grid) * grid
        else:
            drawn = self._numpy.standard_normal(count)
            drawn *= self._positive(std)
        noise = torch.from_numpy(drawn).view(shape)
        return noise.to(given.device, given.dtype) if isinstance(given, Tensor) else noise

    def uniform(self, n: int) -> Tensor:
        """n uniform draws in (0, 1], multiples of 2^-53, float64.

        Never 0, so that `uniform(n) < p` holds with probability at most p, and never where p is 0.
        """
        self._own()
        words = self._stream.words(n) if self.secure else self._numpy.integers(0, 1 << 64, n, dtype=np.uint64)
        return torch.from_numpy(((words >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53)

    def state(self) -> dict[str, Any]:
        """Everything on which later draws depend, as JSON values. It is secret: it reveals all future noise.

        In secure mode it reveals all past noise, too.
        """
        kept: dict[str, Any] = {"secure": self.secure, "seeded": self.seeded}
        if self.secure:
            return {**kept, "key": self._stream.key.hex(), "drawn": self._stream.drawn}
        inner = self._numpy.bit_generator.state
        words = [int(w) for w in inner["state"]["state"]]
        return {**kept, "words": words, "has_uint32": inner["has_uint32"], "uinteger": inner["uinteger"]}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a saved state. Raises WireError for any other value, or another mode's state."""
        try:
            if state["secure"] is not self.secure:
                raise ValueError("it was saved in the other mode")
            if self.secure:
                key, drawn = bytes.fromhex(state["key"]), int(state["drawn"])
                if len(key) != 32 or drawn < 0:
                    raise ValueError("the key or the position is out of range")
                self._stream = _Stream(key, drawn)
            else:
                words = np.array(state["words"], dtype=np.uint64)
                self._numpy.bit_generator.state = {
                    **self._numpy.bit_generator.state,
                    "state": {"state": words},
                    "has_uint32": int(state["has_uint32"]),
                    "uinteger": int(state["uinteger"]),
                }
            self.seeded = bool(state["seeded"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError("this is not a state of this noise generator", where="restore", why=str(error)) from error

    @staticmethod
    def _positive(std: float) -> float:
        if not (math.isfinite(std) and std >= 0):
            raise ProgramError(f"std = {std!r} must be finite and not negative", where="noise")
        return float(std)

    def _grid(self, std: float) -> float:
        if not 1e-200 < self._positive(std) < 1e200:
            raise ProgramError(
                f"std = {std!r} is outside of what the secure grid covers, (1e-200, 1e200)", where="noise"
            )
        return 2.0 ** (math.floor(math.log2(std)) - _GRID_BITS)

    def _integers(self, count: int, scale: float) -> NDArray[np.int64]:
        """Nearest integers to scale times real standard Gaussians, exact in law."""
        words = self._stream.words(count)
        negative = (words & np.uint64(1)).astype(bool)
        # U lies in [m, m + 1] 2^-53, and P(|Z| > z) = U: the right end gives the lower bound of |Z|.
        m = (words >> np.uint64(11)).astype(np.float64)
        near = -ndtri((m + 1) * 2.0**-54)
        # dz = dU / (2 phi(z)); for m >= 2^20, phi agrees at both ends to 1e-5.
        width = np.where(m >= 2**20, np.exp(near * near * 0.5) * (1.01 * math.sqrt(2 * math.pi) * 2.0**-54), np.inf)
        width += 2 * _SLACK * np.maximum(near, 1)
        low = np.floor(np.maximum(scale * (near - _SLACK * np.maximum(near, 1)), 0) + 0.5)
        high = np.floor(scale * (near + width) + 0.5)
        found = low
        for at in np.flatnonzero(high != low):
            if high[at] == low[at] + 1:
                found[at] = self._decided(int(m[at]), scale, int(low[at]))
            else:
                found[at] = self._refined(int(m[at]), scale)
        made = found.astype(np.int64)
        return np.where(negative, -made, made)

    def _decided(self, prefix: int, scale: float, low: int) -> int:
        """`low` or the next integer, for a U with 53 known first bits, by the side of their midpoint that has Z."""
        bits, value = 53, prefix
        while True:
            value, bits = (value << 64) | int.from_bytes(self._stream.take(8), "little"), bits + 64
            with mpmath.workdps(20 + bits // 3):
                # |Z| is above the midpoint if U is below this tail, whose error is far below the allowed room.
                tail = mpmath.erfc((mpmath.mpf(low) + 0.5) / mpmath.mpf(scale) / mpmath.sqrt(2))
                room = tail * mpmath.mpf(10) ** -(10 + bits // 3)
                if mpmath.ldexp(value + 1, -bits) < tail - room:
                    return low + 1
                if mpmath.ldexp(value, -bits) > tail + room:
                    return low

    def _refined(self, prefix: int, scale: float) -> int:
        """The integer for a U that starts with 53 known bits, from as many further bits as needed."""
        bits, value = 53, prefix
        while True:
            value, bits = (value << 64) | int.from_bytes(self._stream.take(8), "little"), bits + 64
            if value == 0:
                continue
            with mpmath.workdps(30 + bits // 3):
                step = mpmath.mpf(10) ** -(bits // 4)
                near, far = (_quantile(mpmath.ldexp(tail, -bits)) for tail in (value + 1, value))
                ends = [mpmath.floor(mpmath.mpf(scale) * z + mpmath.mpf(0.5)) for z in (near - step, far + step)]
            if ends[0] == ends[1]:
                return int(ends[0])


def _quantile(tail: Any) -> Any:
    """z with P(|Z| > z) = tail, by Newton's method at mpmath's precision, from double precision."""
    z = mpmath.mpf(-ndtri(float(tail) / 2))
    for _ in range(6):
        move = (mpmath.erfc(z / mpmath.sqrt(2)) - tail) / (2 * mpmath.npdf(z))
        z += move
        # Quadratic convergence: the remaining error is about z move^2.
        if abs(move) < mpmath.mpf(10) ** -(mpmath.mp.dps // 2):
            break
    return z
