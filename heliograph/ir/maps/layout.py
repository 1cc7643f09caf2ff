"""The places of a tensor's elements in the slots of its ciphertexts."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array
from heliograph.records import bounds, check, whole

# The most elements of a tensor, and slots of a ciphertext, that files and texts may name.
MOST_ELEMENTS = 1 << 22
MOST_SLOTS = 1 << 16
# The most ciphertexts for one tensor, also where each holds one element of every sample. Nothing else bounds the size of
# a program.
MOST_STACKED = 1 << 13

# The digits of an index, lowest first, as (radix, stride): digit d contributes d * stride to a place.
Digits: TypeAlias = tuple[tuple[int, int], ...]


# No __slots__: layouts are compared by the thousand, so derived values are cached.
@dataclass(frozen=True)
class Layout:
    """A periodic layout of a tensor of `shape` in one or more ciphertexts.

    An element's place is the sum of its digits times their strides: ciphertext `place // period`, position
    `place % period`. The period repeats over the slots; each copy is moved left by `shift` more than the one before,
    counting anew every `copies` of them (see ir/maps/diagonals.py).
    The ciphertexts hold several samples: slot v of the layout of sample j is slot v * samples + j. Period and shift
    count the slots of one sample. With several groups of as many samples each group has ciphertexts of its own, those of
    the first group first.
    """

    shape: tuple[int, ...] = field(metadata=bounds(1, MOST_ELEMENTS, most=8))
    # Slots of a ciphertext, for all samples together.
    slots: int = field(metadata=bounds(1, MOST_SLOTS))
    period: int = field(metadata=bounds(1, MOST_SLOTS))
    # The digits of channel, row and column; empty where elements are in order.
    axes: tuple[tuple[tuple[int, int], ...], ...] = field(
        default=(), metadata=bounds(0, MOST_STACKED * MOST_SLOTS, most=3, optional=True)
    )
    shift: int = field(default=0, metadata=bounds(0, MOST_SLOTS, optional=True))
    copies: int = field(default=1, metadata=bounds(1, MOST_SLOTS, optional=True))
    samples: int = field(default=1, metadata=bounds(1, MOST_SLOTS, optional=True))
    groups: int = field(default=1, metadata=bounds(1, 2, optional=True))

    @property
    def batch(self) -> int:
        """The number of samples, in all groups."""
        return self.samples * self.groups

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @functools.cached_property
    def channels_rows_columns(self) -> tuple[int, int, int]:
        return channels_rows_columns(self.shape)

    @functools.cached_property
    def digits(self) -> tuple[Digits, ...]:
        """The digits of channel, row and column."""
        return self.axes or _in_order(self.shape)

    @functools.cached_property
    def contributions(self) -> tuple[Array, ...]:
        """The contributions of channel, row and column to the place of an element: (C,), (H,), (W,)."""
        made = []
        for size, digits in zip(self.channels_rows_columns, self.digits, strict=True):
            rest: Array = np.arange(size, dtype=np.int64)
            places: Array = np.zeros(size, dtype=np.int64)
            for radix, stride in digits:
                rest, digit = np.divmod(rest, radix)
                places += digit * stride
            made.append(places)
        return tuple(made)

    @functools.cached_property
    def parts(self) -> tuple[tuple[Array, Array], ...] | None:
        """The contributions of channel, row and column to an element's ciphertext and to its position there; None if
        these are not sums.
        """
        parts = tuple(np.divmod(places, self.period) for places in self.contributions)
        fits = sum(int(position.max(initial=0)) for _, position in parts) < self.period
        return parts if fits else None

    def places(self) -> Array:
        """The place of each element, (size,)."""
        c, y, x = self.contributions
        return (c[:, np.newaxis, np.newaxis] + y[:, np.newaxis] + x).reshape(-1)

    @functools.cached_property
    def chunks(self) -> int:
        """The ciphertexts of one group."""
        return self.last_place // self.period + 1

    @property
    def ciphertexts(self) -> int:
        return self.chunks * self.groups

    @property
    def own_slots(self) -> int:
        """The slots of one sample."""
        return self.slots // self.samples

    @property
    def run(self) -> int:
        """The slots after which copies are counted anew."""
        return self.period * self.copies

    @property
    def first_copy(self) -> int:
        """The slots of the first period, for all samples: `unpack` reads no others."""
        return self.period * self.samples

    @functools.cached_property
    def last_place(self) -> int:
        """The largest place."""
        return sum(_largest(*axis) for axis in zip(self.channels_rows_columns, self.digits, strict=True))

    @property
    def alike(self) -> Layout:
        """The layout with all copies alike."""
        return replace(self, shift=0, copies=1)

    @property
    def row_length(self) -> int:
        """The distance between neighbouring rows of a matrix in one ciphertext."""
        return self.digits[0][0][1] if self.digits[0] else self.period

    @property
    def positions(self) -> Array:
        """The position in each slot of one sample, (own_slots,)."""
        return positions_in_slots(self.own_slots, self.period, self.shift, self.copies)

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
        return np.repeat(there[self.positions], self.samples)

    def in_all_copies(self, vector: Array, chunk: int) -> Array:
        """The values in all copies of one ciphertext's elements, for all samples: (copies, elements)."""
        rows: Array = vector.reshape(-1, self.period, self.samples)
        if self.shift:
            rows = np.stack([np.roll(row, self.shift * (i % self.copies), axis=0) for i, row in enumerate(rows)])
        return np.asarray(rows.swapaxes(1, 2).reshape(-1, self.period)[:, self.elements(chunk)[1]])

    def pack(self, tensor: Array, only: int | None = None) -> list[Array]:
        """The slot vectors of one sample, one per ciphertext, or the vector of ciphertext `only`. Slots without an
        element hold zero.

        For several samples the tensor may have a leading axis of at most so many; the slots of missing samples hold
        zero.
        """
        samples = tensor[np.newaxis] if tensor.shape == self.shape else tensor
        if samples.shape[1:] != self.shape or not 0 < samples.shape[0] <= self.batch:
            raise ProgramError(f"expected shape {self.shape}, got {tensor.shape}")
        if self.groups > 1:
            one, empty = replace(self, groups=1), np.zeros((self.batch, *self.shape))
            empty[: samples.shape[0]] = samples
            every = [vector for part in np.split(empty, self.groups) for vector in one.pack(part)]
            return every if only is None else [every[only]]
        places, where = self.places(), self.positions
        values: Array = samples.reshape(samples.shape[0], -1).T
        count = self.chunks
        if only is not None and count > 1:
            index, places = self.elements(only)
            values, count = values[index], 1
        flat = np.zeros((count * self.period, self.samples))
        flat[places, : samples.shape[0]] = values
        chunks = flat.reshape(count, self.period, self.samples)
        return [chunk[where].reshape(-1) for chunk in chunks]

    def unpack(self, vectors: list[Array]) -> Array:
        """The tensor from its slot vectors (the first copy of each); of several samples (batch, *shape)."""
        if self.groups > 1:
            one = replace(self, groups=1)
            parts = (vectors[at : at + self.chunks] for at in range(0, self.ciphertexts, self.chunks))
            return np.concatenate([one.unpack(part).reshape(self.samples, *self.shape) for part in parts])
        flat = np.concatenate([vector[: self.first_copy].reshape(self.period, -1) for vector in vectors])
        samples = flat[self.places()].T
        return np.asarray(samples.reshape(self.shape if self.samples == 1 else (self.samples, *self.shape)))


def channels_rows_columns(shape: Sequence[int]) -> tuple[int, int, int]:
    """The shape as (C, H, W): one-dimensional signals have one row, vectors one channel."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return shape[0], 1, shape[1]
    return 1, 1, math.prod(shape)


def positions_in_slots(slots: int, period: int, shift: int, copies: int) -> Array:
    """The position in each slot; copies are counted anew after `copies` of them."""
    s = np.arange(slots) % (period * copies)
    return (s + shift * (s // period)) % period


def digits_of(size: int, *digits: tuple[int, int]) -> Digits:
    """These digits of an index below `size`, without those that are always zero; the last one takes what is left."""
    made = []
    for radix, stride in (*digits[:-1], (size, digits[-1][1])):
        if min(radix, size) > 1:
            made.append((min(radix, size), stride))
        size = -(-size // radix)
    return tuple(made)


def _largest(size: int, digits: Digits) -> int:
    """The largest contribution of an index below `size`."""
    # Of the digits so far: of all their values, and of those up to the ones of the last index.
    every, largest, last = 0, 0, size - 1
    for radix, stride in digits:
        last, digit = divmod(last, radix)
        largest = max(digit * stride + largest, (digit - 1) * stride + every if digit else 0)
        every += (radix - 1) * stride
    return largest


@functools.lru_cache(maxsize=1 << 12)
def _in_order(shape: tuple[int, ...]) -> tuple[Digits, ...]:
    channels, rows, columns = channels_rows_columns(shape)
    return digits_of(channels, (0, rows * columns)), digits_of(rows, (0, columns)), digits_of(columns, (0, 1))


def gap_axes(shape: tuple[int, ...], gap: int = 1, width: int = 0, block: int = 0) -> tuple[Digits, ...]:
    """The axes of a gap layout: columns and rows are `gap` apart, with gap² channels between them, side by side and
    below each other.

    `width` is the room for one row (default: as much as it needs), `block` the room for one group of channels.
    """
    channels, rows, columns = channels_rows_columns(shape)
    width = width or columns * gap
    block = block or rows * gap * width
    axes = (
        digits_of(channels, (gap, 1), (gap, width), (0, block)),
        digits_of(rows, (0, gap * width)),
        digits_of(columns, (0, gap)),
    )
    return () if axes == _in_order(shape) else axes


def matrix_axes(
    shape: tuple[int, int], rows: tuple[int, int, int], columns: tuple[int, int, int]
) -> tuple[Digits, ...]:
    """The axes of a matrix whose rows and columns have places of two digits: the radix of the first one, its stride, and
    the stride of the second one.
    """
    both = zip(shape, (rows, columns), strict=True)
    down, across = (digits_of(size, (radix, near), (0, far)) for size, (radix, near, far) in both)
    axes = down, (), across
    return () if axes == _in_order(shape) else axes


def check_shape(shape: tuple[int, ...], what: str) -> tuple[int, ...]:
    """The shape; a ProgramError unless it is of bounded size."""
    if len(shape) > 8:
        raise ProgramError(f"the shape of {what} is malformed")
    for size in shape:
        whole(size, f"a dimension of {what}", 1, MOST_ELEMENTS)
    if math.prod(shape) > MOST_ELEMENTS:
        raise ProgramError(f"{what} has more than {MOST_ELEMENTS} elements")
    return shape


def check_layout(layout: Layout | None, slots: int, what: str) -> Layout:
    """The layout; a ProgramError unless it fits the slots and costs little to compute with."""
    if layout is None:
        raise ProgramError(f"{what} has no layout")
    check_shape(layout.shape, what)
    check(layout, f"the layout of {what}")
    whole(layout.slots, f"the slots of {what}", slots, slots)
    if slots % layout.samples or layout.own_slots % layout.period:
        raise ProgramError(f"the period of {what} does not divide the slots")
    if layout.own_slots % layout.run or layout.shift >= layout.period or (layout.copies > 1) != (layout.shift > 0):
        raise ProgramError(f"the copies of {what} do not fit the slots")
    sizes = zip(layout.channels_rows_columns, layout.digits, strict=False)
    if len(layout.digits) != 3 or any(size > math.prod(radix for radix, _ in digits) for size, digits in sizes):
        raise ProgramError(f"the axes of {what} are not those of its shape")
    if layout.ciphertexts > MOST_STACKED:
        raise ProgramError(f"{what} would take more than {MOST_STACKED} ciphertexts")
    if layout.chunks > layout.size:
        raise ProgramError(f"{what} would take more ciphertexts than it has elements")
    return layout
