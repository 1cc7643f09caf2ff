"""Baby and giant steps for a set of diagonals, chosen by the measured cost of their calls."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.execution.prices import Prices, Spent
from heliograph.ir import Array
from heliograph.ir.maps.offsets import distinct

# The most splits tried on one set of offsets: enough for every split of three axes of a convolution.
_MOST_SPLITS = 3000
# The price of one more key, in rotations: keys fill a server's memory, so a plan that needs fewer may take longer.
_KEY_SHARE = 0.2
# With more diagonals than this, most of the time goes into products, and splitting by axes would save little.
_MOST_OFFSETS = 2048


@dataclass(frozen=True, slots=True)
class Steps:
    """Every offset is one baby step plus one giant step, modulo the period; `cost_ms` prices the whole transform."""

    baby: tuple[int, ...]
    giant: tuple[int, ...]
    cost_ms: float

    @property
    def rotations(self) -> int:
        return sum(1 for step in (*self.baby, *self.giant) if step)


def rotation_calls(babies: Array, giants: Array, inputs: int = 1, outputs: int = 1) -> dict[Spent, Array]:
    """The rotation calls of plans with `babies` baby steps of each input and `giants` giant steps of each output.

    Steps by zero are not counted; the arrays have one number for each plan. Several giant steps are added in the
    extended basis (`Run.transform`).
    """
    hoisted, wide = inputs * (babies > 1), outputs * (giants > 1)
    return {
        ("decompose", 0, 2): hoisted + wide * giants,
        ("rotate_hoisted", 0, 2): hoisted * babies,
        ("rotate", 0, 2): (inputs - hoisted) * babies + (outputs - wide) * giants,
        ("rotate_wide", 0, 2): wide * giants,
        ("narrow", 0, 2): wide,
    }


def centred(values: Array, modulus: int) -> Array:
    """The representatives in (-modulus/2, modulus/2]."""
    return (values + (modulus - 1) // 2) % modulus - (modulus - 1) // 2


def _by_modulus(array: Array, thorough: bool) -> list[Array]:
    """Baby parts by residues modulo powers of two and, if `thorough`, modulo frequent distances of the diagonals."""
    moduli = {1 << i for i in range(int(array.max()).bit_length() + 1)}
    if thorough and 1 < array.size <= _MOST_OFFSETS:
        for stride in (1, 2, 3, 4, 5, 7, 9):
            distances, counts = np.unique(array[stride:] - array[:-stride], return_counts=True)
            moduli.update(int(d) for d in distances[np.argsort(-counts)[:12]])
    parts = []
    for modulus in sorted(m for m in moduli if m > 0):
        parts += [array % modulus, (array + modulus // 2) % modulus - modulus // 2]
    return parts


def _coordinates(array: Array, strides: Sequence[int]) -> list[tuple[int, Array]]:
    """The offsets as sums of whole multiples of the strides, largest first, without axes along which all are zero."""
    axes, rest = [], array.copy()
    for stride in sorted(set(strides) | {1}, reverse=True):
        along = (rest + stride // 2) // stride
        rest = rest - along * stride
        if along.any():
            axes.append((stride, along))
    return axes


def _by_axes(array: Array, strides: Sequence[int]) -> list[Array]:
    """Baby parts from a stretch along each axis of the grid that a convolution's offsets form."""
    axes = _coordinates(array, strides)
    choices: list[list[Array]] = []
    for stride, along in axes:
        low, high = int(along.min()), int(along.max())
        count = high - low + 1
        lengths = set(range(1, min(count, 8) + 1)) | {count} | {-(-count // i) for i in range(1, 9)}
        parts = []
        for length in sorted(lengths):
            # Stretches begin where the axis does, shifted so that baby and giant steps both include zero where
            # possible.
            first = low % length - (length if low % length else 0)
            parts.append(((along - first) % length + first) * stride)
        choices.append(parts)
    total = 1
    for parts in choices:
        total *= len(parts)
    if total > _MOST_SPLITS:
        return []
    return [sum(parts, np.zeros_like(array)) for parts in itertools.product(*choices)]


def plan_steps(
    offsets: Sequence[int],
    slots: int,
    prices: Prices,
    level: int,
    *,
    encoded: bool = False,
    modulus: int | None = None,
    strides: Sequence[int] = (),
    inputs: int = 1,
    outputs: int = 1,
    products: int | None = None,
    thorough: bool = True,
    held: Collection[int] | None = None,
) -> Steps:
    """The cheapest baby-step giant-step plan for these diagonals at a level.

    `encoded`: each run encodes every diagonal.
    `modulus`: rotations that differ by it serve the same diagonal (default: only equal ones do).
    `strides`: the distances in slots between neighbouring rows, columns and channels; partial grids with them are tried
    as baby steps.
    `inputs`, `outputs`: each input pays for all baby steps, each output for all giant steps.
    `products`: the number of diagonals of all blocks (default: the number of offsets).
    `thorough`: if false, only residues of powers of two are tried.
    `held`: the amounts that already have a key; every other amount costs a part of a rotation more.
    """
    modulus = modulus or slots
    array = np.array(sorted(offsets), dtype=np.int64)
    parts = [(array, baby) for baby in _by_modulus(array, thorough)]
    if strides and array.size <= _MOST_OFFSETS:
        grid = np.sort(centred(array, modulus))
        parts += [(grid, baby) for baby in _by_axes(grid, [s for s in strides if 0 < s < modulus])]
    keys = None if held is None else np.array(sorted({0, *held}), dtype=np.int64)
    every = ([baby for _, baby in parts], [source - baby for source, baby in parts])
    best: tuple[float, int, int] | None = None
    babies, giants = (_nonzero(steps, modulus) for steps in every)
    rotations = np.asarray(prices.ms(rotation_calls(babies, giants, inputs, outputs).items(), level))
    numbers = babies * inputs + giants * outputs
    single = prices.at("rotate", level)
    for place, (price, number) in enumerate(zip(rotations.tolist(), numbers.tolist(), strict=True)):
        if keys is not None:
            fresh = np.setdiff1d(
                np.concatenate([_smallest(steps[place], modulus, slots) for steps in every]), keys
            ).size
            price += fresh * _KEY_SHARE * single
        if best is None or (price < best[0] - 1e-9 or (price < best[0] + 1e-9 and number < best[1])):
            best = (price, number, place)
    assert best is not None
    baby, giant = (np.sort(_smallest(steps[best[2]], modulus, slots)) for steps in every)
    product = prices.at("summed_product", level)
    if encoded:
        product += prices.costs.encode_ms(prices.rings[0], level)
    terms = len(offsets) if products is None else products
    return Steps(tuple(map(int, baby)), tuple(map(int, giant)), float(rotations[best[2]]) + terms * product)


def _smallest(steps: Array, modulus: int, slots: int) -> Array:
    """The distinct steps, reduced to their smallest representative, so that maps with different periods share keys."""
    return centred(distinct(steps % modulus, modulus), modulus) % slots


def _nonzero(many: Sequence[Array], modulus: int) -> Array:
    """The number of distinct nonzero steps of each row, modulo the period."""
    rows = np.array(many) % modulus
    # Numbers of 16 bits are sorted by radix.
    rows = np.sort(rows.astype(np.uint16 if modulus <= 1 << 16 else np.int64), axis=1, kind="stable")
    return np.asarray(np.count_nonzero(rows[:, 1:] != rows[:, :-1], axis=1) + (rows[:, 0] != 0))
