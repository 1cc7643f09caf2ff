"""Number-theoretic transforms modulo primes below `WORD_LIMIT`, on words of 32 bits.

The order of values is that of `transforms`. Steps on long runs work on four runs at once. The last steps work on
`TAIL` words, L vectors of L: first on whole vectors, then, transposed, on the lanes of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types

from heliograph.ir import Array
from heliograph.runtime.native.kernels import vectors
from heliograph.runtime.native.kernels.arithmetic import kernel
from heliograph.runtime.native.kernels.vectors import (
    LANES,
    LOG_LANES,
    Vector,
    Words,
    emitted,
    load,
    splat,
    store,
    times_word,
)
from heliograph.runtime.residues import bit_reversed, powers, smallest_root

# The words of a tail, and of its powers and ratios for steps on lanes.
TAIL = LANES * LANES
_TAIL_FACTORS = 2 * (LANES - 1) * LANES
# A transform has at least this many numbers, whatever the processor.
LEAST = 512
# Runs of up to this many words, half of the fastest cache, are finished one after the other.
_DEEP = 4096


@dataclass(frozen=True, slots=True, eq=False)
class WordTables:
    """The powers of psi for transforms modulo one prime, each with its ratio (see `vectors.shoup`).

    `steps`: (2, 2, N), forward and backward, numbers and ratios, in the order of `bit_reversed`.
    `lanes`: the powers for steps on lanes, forward, for N numbers, then N / 2, N / 4, ... numbers.
    `lanes_back`: the same backward, for N numbers.
    """

    steps: Array
    lanes: Array
    lanes_back: Array


def _lanes_of(numbers: Array, size: int) -> Array:
    """(tails, L - 1, 2, L) from numbers and ratios (2, N): for each tail and step, one power a lane."""
    tails, count = size // TAIL, size // LANES
    transform = np.arange(count).reshape(tails, LANES)
    made = np.empty((tails, LANES - 1, 2, LANES), dtype=np.uint32)
    for step in range(LOG_LANES):
        for i in range(1 << step):
            made[:, (1 << step) - 1 + i] = numbers[:, (count + transform << step) + i].transpose(1, 0, 2)
    return made.reshape(-1)


def word_tables(ring_dim: int, prime: int) -> WordTables:
    """The tables of a prime that is 1 modulo 2N."""
    steps = np.empty((2, 2, ring_dim), dtype=np.uint32)
    psi = smallest_root(ring_dim, prime)
    for way, root in enumerate((psi, pow(psi, -1, prime))):
        steps[way, 0] = values = powers(root, prime, ring_dim)[bit_reversed(ring_dim)]
        steps[way, 1] = (values.astype(np.uint64) << np.uint64(32)) // np.uint64(prime)
    sizes = [ring_dim >> less for less in range(ring_dim.bit_length()) if ring_dim >> less >= LEAST]
    lanes = np.concatenate([_lanes_of(steps[0], size) for size in sizes])
    return WordTables(steps, lanes, _lanes_of(steps[1], ring_dim))


# ------------------------------------------------------------------------------------ blocks of steps

# Butterflies of two steps on four runs: places, and the number of the power.
_TWICE = ((0, 2, 0), (1, 3, 0), (0, 1, 1), (2, 3, 2))


def _on_runs(butterfly: Callable[..., Any], butterflies: Sequence[tuple[int, int, int]], runs: int) -> Any:
    """The code of steps on one vector of each run. The arguments are an array, the place of the first vector, the length
    of a run, powers with their ratios, and the prime.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = Words(context, builder, signature.args[0], arguments[0])
        places = [arguments[1]]
        while len(places) < runs:
            places.append(builder.add(places[-1], arguments[2]))
        x = [words.load(place) for place in places]
        for i, j, number in butterflies:
            w, ratio = arguments[3 + 2 * number : 5 + 2 * number]
            x[i], x[j] = butterfly(builder, x[i], x[j], w, ratio, arguments[-1])
        for place, value in zip(places, x, strict=True):
            words.store(place, value)
        return context.get_dummy_value()

    return generate


@emitted
def _forth_twice(
    context: Any, a: Any, j: Any, run: Any, w1: Any, r1: Any, w2: Any, r2: Any, w3: Any, r3: Any, q: Any
) -> Any:
    """Two steps on one vector of each of four runs, from place j on."""
    return types.void(a, types.intp, types.intp, *[Vector] * 7), _on_runs(vectors.forth, _TWICE, 4)


@emitted
def _back_twice(
    context: Any, a: Any, j: Any, run: Any, w1: Any, r1: Any, w2: Any, r2: Any, w3: Any, r3: Any, q: Any
) -> Any:
    """The two steps the other way."""
    return types.void(a, types.intp, types.intp, *[Vector] * 7), _on_runs(vectors.back, _TWICE[2:] + _TWICE[:2], 4)


@emitted
def _forth_once(context: Any, a: Any, j: Any, run: Any, w: Any, ratio: Any, q: Any) -> Any:
    """One step on one vector of each of two runs."""
    return types.void(a, types.intp, types.intp, *[Vector] * 3), _on_runs(vectors.forth, [(0, 1, 0)], 2)


@emitted
def _back_once(context: Any, a: Any, j: Any, run: Any, w: Any, ratio: Any, q: Any) -> Any:
    """The step the other way."""
    return types.void(a, types.intp, types.intp, *[Vector] * 3), _on_runs(vectors.back, [(0, 1, 0)], 2)


def _pairs(step: int) -> list[tuple[int, int, int]]:
    """The butterflies of one step on `LANES` vectors: places, and the block of the step."""
    distance = LANES >> step + 1
    return [
        (i, i + distance, block)
        for block in range(1 << step)
        for i in range(2 * block * distance, (2 * block + 1) * distance)
    ]


class _Tail:
    """A tail in vectors. The arguments are those of `_tail_forth`."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        arrays = {i: Words(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 3, 5)}
        self._builder, self._words, self._powers, self._ratios, self._lanes = builder, *arrays.values()
        self._first, self._at, self._prime = arguments[4], arguments[6], arguments[7]
        place = arguments[1]
        self._places = [builder.add(place, place.type(LANES * i)) for i in range(LANES)]
        self.x = [self._words.load(place) for place in self._places]

    def store(self) -> None:
        for place, value in zip(self._places, self.x, strict=True):
            self._words.store(place, value)

    def step(self, butterfly: Callable[..., Any], step: int, on_lanes: bool) -> None:
        """One step, on whole vectors or on lanes."""
        factors = {block: self._factors(step, block, on_lanes) for block in range(1 << step)}
        for i, j, block in _pairs(step):
            self.x[i], self.x[j] = butterfly(self._builder, self.x[i], self.x[j], *factors[block], self._prime)

    def _factors(self, step: int, block: int, on_lanes: bool) -> tuple[Any, Any]:
        """The powers of a block, and their ratios."""
        builder, kind = self._builder, self._at.type
        if on_lanes:
            here = builder.add(self._at, kind(2 * LANES * ((1 << step) - 1 + block)))
            return self._lanes.load(here), self._lanes.load(builder.add(here, kind(LANES)))
        here = builder.add(builder.shl(self._first, kind(step)), kind(block))
        return self._powers.word(here), self._ratios.word(here)


def _emit_forth(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    tail = _Tail(context, builder, signature, arguments)
    for on_lanes in (False, True):
        for step in range(LOG_LANES):
            tail.step(vectors.forth, step, on_lanes)
        if on_lanes:
            tail.x = [vectors.once_less(builder, value, arguments[7]) for value in tail.x]
        tail.x = vectors.transposed(builder, tail.x)
    tail.store()
    return context.get_dummy_value()


def _emit_back(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    tail = _Tail(context, builder, signature, arguments)
    for on_lanes in (True, False):
        tail.x = vectors.transposed(builder, tail.x)
        for step in reversed(range(LOG_LANES)):
            tail.step(vectors.back, step, on_lanes)
    tail.store()
    return context.get_dummy_value()


@emitted
def _tail_forth(
    context: Any, a: Any, j: Any, numbers: Any, ratios: Any, first: Any, lanes: Any, at: Any, q: Any
) -> Any:
    """The last steps on `TAIL` words from place j on, from numbers below 2 q to canonical values.

    `numbers`, `ratios`: the powers of `WordTables.steps`.
    `first`: the place there of the tail's power in its first step.
    `at`: the place of the tail in the table for lanes.
    """
    return types.void(a, types.intp, numbers, ratios, types.intp, lanes, types.intp, Vector), _emit_forth


@emitted
def _tail_back(context: Any, a: Any, j: Any, numbers: Any, ratios: Any, first: Any, lanes: Any, at: Any, q: Any) -> Any:
    """The first steps the other way, on canonical values."""
    return types.void(a, types.intp, numbers, ratios, types.intp, lanes, types.intp, Vector), _emit_back


# ------------------------------------------------------------------------------------------ transforms


@kernel
def _has_single_step(size: Any) -> Any:
    """Whether the steps before the tails do not go in pairs, so that the first one stands alone."""
    single = False
    while size > TAIL:
        size >>= 1
        single = not single
    return single


@kernel
def forward_words(a: Any, steps: Any, lanes: Any, prime: Any, half: int = 0) -> None:
    """The transform of a polynomial, in place: numbers below 2 q become canonical values.

    `steps` are the forward half, (2, N). With `half` = 1 it computes the first half, from the result of the first
    step. A shorter polynomial takes fewer steps.
    """
    numbers, ratios, q = steps[0], steps[1], splat(np.uint32(prime))
    # The table for lanes of this size follows those of larger ones.
    size, at = numbers.size, 0
    while size > a.size << half:
        at += _TAIL_FACTORS * (size // TAIL)
        size >>= 1
    run, count = a.size, 1 << half
    if _has_single_step(run):
        run >>= 1
        for i in range(count >> half):
            w, ratio, begin = splat(numbers[count + i]), splat(ratios[count + i]), 2 * i * run
            for j in range(begin, begin + run, LANES):
                _forth_once(a, j, run, w, ratio, q)
        count <<= 1
    while run > _DEEP:
        run >>= 2
        for i in range(count >> half):
            _forth_four(a, 4 * i * run, run, numbers, ratios, count, i, q)
        count <<= 2
    blocks, length = count >> half, run
    for block in range(blocks):
        run, base, first, inside = length, count, block, 1
        while run > TAIL:
            run >>= 2
            for i in range(inside):
                _forth_four(a, block * length + 4 * i * run, run, numbers, ratios, base, first + i, q)
            base, first, inside = 4 * base, 4 * first, 4 * inside
        for i in range(inside):
            place = at + (first + i) * _TAIL_FACTORS
            _tail_forth(a, block * length + i * TAIL, numbers, ratios, base + first + i, lanes, place, q)


@kernel
def _forth_four(a: Any, begin: Any, run: Any, numbers: Any, ratios: Any, base: Any, i: Any, q: Any) -> None:
    """Two steps on four runs from `begin` on, block i of its step."""
    w1, r1 = splat(numbers[base + i]), splat(ratios[base + i])
    w2, r2 = splat(numbers[2 * (base + i)]), splat(ratios[2 * (base + i)])
    w3, r3 = splat(numbers[2 * (base + i) + 1]), splat(ratios[2 * (base + i) + 1])
    for j in range(begin, begin + run, LANES):
        _forth_twice(a, j, run, w1, r1, w2, r2, w3, r3, q)


@kernel
def _back_four(a: Any, begin: Any, run: Any, numbers: Any, ratios: Any, base: Any, i: Any, q: Any) -> None:
    """The two steps the other way."""
    w1, r1 = splat(numbers[base + i]), splat(ratios[base + i])
    w2, r2 = splat(numbers[2 * (base + i)]), splat(ratios[2 * (base + i)])
    w3, r3 = splat(numbers[2 * (base + i) + 1]), splat(ratios[2 * (base + i) + 1])
    for j in range(begin, begin + run, LANES):
        _back_twice(a, j, run, w1, r1, w2, r2, w3, r3, q)


@kernel
def backward_words(a: Any, steps: Any, lanes: Any, last: Any, ratio: Any, prime: Any) -> None:
    """The polynomial of canonical values times a constant, `last` with its `ratio`, in place, canonical.

    `steps` are the backward half, (2, N).
    """
    numbers, ratios, q = steps[0], steps[1], splat(np.uint32(prime))
    length = a.size >> 1 if _has_single_step(a.size) else a.size
    while length > _DEEP:
        length >>= 2
    for block in range(a.size // length):
        inside = length // TAIL
        base, first = a.size // TAIL, block * inside
        for i in range(inside):
            place = (first + i) * _TAIL_FACTORS
            _tail_back(a, block * length + i * TAIL, numbers, ratios, base + first + i, lanes, place, q)
        run = TAIL
        while run < length:
            base, first, inside = base >> 2, first >> 2, inside >> 2
            for i in range(inside):
                _back_four(a, block * length + 4 * i * run, run, numbers, ratios, base, first + i, q)
            run <<= 2
    run, count = length, a.size // length
    while count >= 4:
        count >>= 2
        for i in range(count):
            _back_four(a, 4 * i * run, run, numbers, ratios, count, i, q)
        run <<= 2
    if count == 2:
        w, r = splat(numbers[1]), splat(ratios[1])
        for j in range(0, run, LANES):
            _back_once(a, j, run, w, r, q)
    w, r = splat(np.uint32(last)), splat(np.uint32(ratio))
    for j in range(0, a.size, LANES):
        store(a, j, times_word(load(a, j), w, r, q))
