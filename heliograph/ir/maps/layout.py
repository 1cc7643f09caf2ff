"""The places of a tensor's elements in the slots of its ciphertexts."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.maps.diagonals import positions_in_slots
from heliograph.ir.node import Array
from heliograph.records import bounds

# The most elements of a tensor, and slots of a ciphertext, that files and texts may name.
MOST_ELEMENTS = 1 << 22
MOST_SLOTS = 1 << 16


# No __slots__: layouts are compared by the thousand, so derived values are cached.
@dataclass(frozen=True)
class Layout:
    """A periodic layout of a tensor of `shape` in one or more ciphertexts.

    Element i of the flattened tensor has place `place(i)`: ciphertext `place // period`, position `place % period`. The
    period repeats over the slots; each copy is moved left by `shift` more than the one before, counting anew
    every `run` slots (see ir/maps/diagonals.py).
    Places follow the gap layout: channel c, row y, column x of a (C, H, W) tensor with `gap` g have place
    `(c // g²) * block + (g*y + (c % g²) // g) * width + g*x + c % g`; vectors have gap 1 and are in order.
    `block` is the room for one group of channels, `width` the room for one row.
    With `split` = (radix, step, far) for rows, then columns, the element in row i and column j of a matrix has place
    (i % radix) * step + (i // radix) * far plus the same for j; gap, width and block have no effect.
    With a `stride` k the ciphertexts hold k samples: slot v of the layout of sample j is slot v * k + j. Period, shift
    and run count the slots of one sample.
    """

    shape: tuple[int, ...] = field(metadata=bounds(1, MOST_ELEMENTS, most=8))
    slots: int = field(metadata=bounds(1, MOST_SLOTS))
    period: int = field(metadata=bounds(1, MOST_SLOTS))
    shift: int = field(default=0, metadata=bounds(0, MOST_SLOTS))
    gap: int = field(default=1, metadata=bounds(1, MOST_SLOTS))
    width: int = field(default=0, metadata=bounds(0, MOST_ELEMENTS))
    block: int = field(default=0, metadata=bounds(0, MOST_ELEMENTS))
    run: int = field(default=0, metadata=bounds(0, MOST_SLOTS))
    stride: int = field(default=1, metadata=bounds(1, MOST_SLOTS, optional=True))
    split: tuple[int, ...] = field(default=(), metadata=bounds(most=6, optional=True))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @functools.cached_property
    def channels_rows_columns(self) -> tuple[int, int, int]:
        """The shape as (C, H, W): one-dimensional signals have one row, vectors one channel."""
        if len(self.shape) == 3:
            return self.shape[0], self.shape[1], self.shape[2]
        if len(self.shape) == 2:
            return self.shape[0], 1, self.shape[1]
        return 1, 1, self.size

    @property
    def split_fits(self) -> bool:
        """Whether `split`, if given, fits a matrix."""
        if not self.split:
            return True
        two = self.channels_rows_columns[1] == 1
        return two and len(self.split) == 6 and min(self.split) >= 0 and min(self.split[::3]) > 0

    @functools.cached_property
    def axes(self) -> tuple[Array, Array, Array]:
        """The contributions of channel, row and column to the place of an element: (C,), (H,), (W,)."""
        channels, rows, columns = self.channels_rows_columns
        if self.split:
            places = [
                index % radix * step + index // radix * far
                for index, (radix, step, far) in zip(
                    (np.arange(channels), np.arange(columns)), (self.split[:3], self.split[3:]), strict=True
                )
            ]
            return places[0], np.zeros(1, dtype=np.int64), places[1]
        g, width = self.gap, self.width or columns * self.gap
        block = self.block or rows * g * width
        c = np.arange(channels, dtype=np.int64)
        inner = c % (g * g)
        return (
            (c // (g * g)) * block + inner // g * width + inner % g,
            np.arange(rows) * g * width,
            np.arange(columns) * g,
        )

    @functools.cached_property
    def parts(self) -> tuple[tuple[Array, Array], ...] | None:
        """The contributions of channel, row and column to an element's ciphertext and to its position there; None if
        these are not sums.
        """
        parts = tuple(np.divmod(axis, self.period) for axis in self.axes)
        fits = sum(int(position.max(initial=0)) for _, position in parts) < self.period
        return parts if fits else None

    def places(self) -> Array:
        """The place of each element, (size,)."""
        c, y, x = self.axes
        return (c[:, np.newaxis, np.newaxis] + y[:, np.newaxis] + x).reshape(-1)

    @functools.cached_property
    def ciphertexts(self) -> int:
        return self.last_place // self.period + 1

    @property
    def copies_moved(self) -> int:
        """The number of copies that are moved against each other within a run."""
        return self.run // self.period if self.shift else 1

    @functools.cached_property
    def last_place(self) -> int:
        """The largest place."""
        return sum(int(axis.max(initial=0)) for axis in self.axes)

    def elements(self, chunk: int) -> tuple[Array, Array]:
        """The flat indices of the elements in one ciphertext, and their positions there."""
        places = self.places()
        if chunk == 0 and int(places.max(initial=0)) < self.period:
            return np.arange(places.size), places
        index = np.flatnonzero(places // self.period == chunk)
        return index, places[index] % self.period

    def used(self, chunk: int) -> Array:
        """A mask of the slots of one ciphertext that hold an element, (slots,)."""
        there = np.zeros(self.period, dtype=bool)
        there[self.elements(chunk)[1]] = True
        own = positions_in_slots(self.slots // self.stride, self.period, self.shift, self.run)
        return np.repeat(there[own], self.stride)

    def copies(self, vector: Array, chunk: int) -> Array:
        """The values in all copies of one ciphertext's elements, for all samples: (copies, elements)."""
        rows: Array = vector.reshape(-1, self.period, self.stride)
        if self.shift:
            count = (self.run or self.slots // self.stride) // self.period
            rows = np.stack([np.roll(row, self.shift * (i % count), axis=0) for i, row in enumerate(rows)])
        return np.asarray(rows.swapaxes(1, 2).reshape(-1, self.period)[:, self.elements(chunk)[1]])

    def pack(self, tensor: Array, only: int | None = None) -> list[Array]:
        """The slot vectors of one sample, one per ciphertext, or the vector of ciphertext `only`. Slots without an
        element hold zero.

        With a stride k > 1 the tensor may have a leading axis of at most k samples; the slots of missing samples
        hold zero.
        """
        samples = tensor[np.newaxis] if tensor.shape == self.shape else tensor
        if samples.shape[1:] != self.shape or not 0 < samples.shape[0] <= self.stride:
            raise ProgramError(f"expected shape {self.shape}, got {tensor.shape}")
        where = positions_in_slots(self.slots // self.stride, self.period, self.shift, self.run)
        places = self.places()
        values: Array = samples.reshape(samples.shape[0], -1).T
        count = self.ciphertexts
        if only is not None and count > 1:
            index, places = self.elements(only)
            values, count = values[index], 1
        flat = np.zeros((count * self.period, self.stride))
        flat[places, : samples.shape[0]] = values
        chunks = flat.reshape(count, self.period, self.stride)
        return [chunk[where].reshape(-1) for chunk in chunks]

    def unpack(self, vectors: list[Array]) -> Array:
        """The tensor from its slot vectors (the first copy of each); with a stride, (stride, *shape)."""
        flat = np.concatenate([vector[: self.period * self.stride].reshape(self.period, -1) for vector in vectors])
        samples = flat[self.places()].T
        return np.asarray(samples.reshape(self.shape if self.stride == 1 else (self.stride, *self.shape)))
