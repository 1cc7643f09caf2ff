"""Number-theoretic transforms modulo primes below `WORD_LIMIT`, on words of 32 bits.

The order of values is that of `transforms`. Steps on long runs work on four runs at once. The last steps work on
`TAIL` words, L vectors of L: first on whole vectors, then, transposed, on the lanes of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types

from heliograph.ir import Array
from heliograph.runtime.native.kernels import vectors
from heliograph.runtime.native.kernels.arithmetic import kernel
from heliograph.runtime.native.kernels.vectors import LANES, LOG_LANES, Vector, Words, load, splat, store, times_word
from heliograph.runtime.residues import bit_reversed, powers, smallest_root

# The words of a tail.
TAIL = LANES * LANES
# A transform has at least this many numbers, whatever the processor.
LEAST = 512
# Runs of up to this many words, half of the fastest cache, are finished one after the other.
_DEEP = 4096


@dataclass(frozen=True, slots=True, eq=False)
class WordTables:
    """The powers of psi for transforms modulo one prime, each with its ratio (see `vectors.shoup`).

    `steps`: (2, 2, N), forward and backward, numbers and ratios, in the order of `bit_reversed`.
    `lanes`: the powers for steps on lanes, forward, for N numbers, then N / 2, N / 4, ... numbers (`lanes_at`).
    `lanes_back`: the same backward, for N numbers.
    """

    steps: Array
    lanes: Array
    lanes_back: Array


def lanes_size(size: int) -> int:
    """The words of the table for steps on lanes, for a transform of `size` numbers."""
    return 2 * (LANES - 1) * (size // LANES)


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


def _factors(arguments: Any) -> list[tuple[Any, Any]]:
    """Pairs of powers and ratios."""
    return list(zip(arguments[::2], arguments[1::2], strict=True))


@vectors.intrinsic
def _forth_twice(
    context: Any, a: Any, j: Any, run: Any, w1: Any, r1: Any, w2: Any, r2: Any, w3: Any, r3: Any, q: Any
) -> Any:
    """Two steps on one vector of each of four runs, from place j on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = Words(context, builder, signature.args[0], arguments[0])
        places = _places(builder, arguments[1], arguments[2])
        (first, second, third), prime = _factors(arguments[3:9]), arguments[9]
        x = [words.load(place) for place in places]
        for i, j, (w, ratio) in ((0, 2, first), (1, 3, first), (0, 1, second), (2, 3, third)):
            x[i], x[j] = vectors.forth(builder, x[i], x[j], w, ratio, prime)
        for place, value in zip(places, x, strict=True):
            words.store(place, value)
        return context.get_dummy_value()

    return types.void(a, types.intp, types.intp, *[Vector] * 7), generate


@vectors.intrinsic
def _back_twice(
    context: Any, a: Any, j: Any, run: Any, w1: Any, r1: Any, w2: Any, r2: Any, w3: Any, r3: Any, q: Any
) -> Any:
    """The two steps the other way."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = Words(context, builder, signature.args[0], arguments[0])
        places = _places(builder, arguments[1], arguments[2])
        (first, second, third), prime = _factors(arguments[3:9]), arguments[9]
        x = [words.load(place) for place in places]
        for i, j, (w, ratio) in ((0, 1, second), (2, 3, third), (0, 2, first), (1, 3, first)):
            x[i], x[j] = vectors.back(builder, x[i], x[j], w, ratio, prime)
        for place, value in zip(places, x, strict=True):
            words.store(place, value)
        return context.get_dummy_value()

    return types.void(a, types.intp, types.intp, *[Vector] * 7), generate


def _places(builder: Any, first: Any, run: Any) -> list[Any]:
    """The places of four runs."""
    places = [first]
    for _ in range(3):
        places.append(builder.add(places[-1], run))
    return places


@vectors.intrinsic
def _forth_once(context: Any, a: Any, j: Any, run: Any, w: Any, ratio: Any, q: Any) -> Any:
    """One step on one vector of each of two runs."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = Words(context, builder, signature.args[0], arguments[0])
        here, there = arguments[1], builder.add(arguments[1], arguments[2])
        x, y = vectors.forth(builder, words.load(here), words.load(there), *arguments[3:])
        words.store(here, x)
        words.store(there, y)
        return context.get_dummy_value()

    return types.void(a, types.intp, types.intp, *[Vector] * 3), generate


@vectors.intrinsic
def _back_once(context: Any, a: Any, j: Any, run: Any, w: Any, ratio: Any, q: Any) -> Any:
    """The step the other way."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = Words(context, builder, signature.args[0], arguments[0])
        here, there = arguments[1], builder.add(arguments[1], arguments[2])
        x, y = vectors.back(builder, words.load(here), words.load(there), *arguments[3:])
        words.store(here, x)
        words.store(there, y)
        return context.get_dummy_value()

    return types.void(a, types.intp, types.intp, *[Vector] * 3), generate


def _shifted(builder: Any, number: Any, step: int, more: int) -> Any:
    """number 2^step + more."""
    kind = number.type
    return builder.add(builder.shl(number, kind(step)), kind(more))


def _pairs(step: int) -> list[tuple[int, int, int]]:
    """The butterflies of one step on `LANES` vectors: (block, place, place)."""
    distance = LANES >> step + 1
    return [
        (block, begin, begin + distance)
        for block in range(1 << step)
        for begin in range(2 * block * distance, (2 * block + 1) * distance)
    ]


@vectors.intrinsic
def _tail_forth(
    context: Any, a: Any, j: Any, numbers: Any, ratios: Any, first: Any, lanes: Any, at: Any, q: Any
) -> Any:
    """The last steps on `TAIL` words from place j on, from numbers below 2 q to canonical values.

    `first`: the place in the tables of the tail's power in its first step.
    `at`: the place of the tail in the table for lanes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        words = Words(context, builder, kinds[0], arguments[0])
        powers_of = Words(context, builder, kinds[2], arguments[2])
        ratios_of = Words(context, builder, kinds[3], arguments[3])
        table = Words(context, builder, kinds[5], arguments[5])
        begin, root, at, prime = arguments[1], arguments[4], arguments[6], arguments[7]
        places = [builder.add(begin, begin.type(LANES * i)) for i in range(LANES)]
        x = [words.load(place) for place in places]
        for step in range(LOG_LANES):
            known = -1
            for block, i, j in _pairs(step):
                if block != known:
                    place, known = _shifted(builder, root, step, block), block
                    w, ratio = powers_of.word(place), ratios_of.word(place)
                x[i], x[j] = vectors.forth(builder, x[i], x[j], w, ratio, prime)
        x = vectors.transposed(builder, x)
        for step in range(LOG_LANES):
            known = -1
            for block, i, j in _pairs(step):
                if block != known:
                    place, known = (1 << step) - 1 + block, block
                    w, ratio = _lane_factors(builder, table, at, place)
                x[i], x[j] = vectors.forth(builder, x[i], x[j], w, ratio, prime)
        x = [vectors.once_less(builder, value, prime) for value in x]
        for place, value in zip(places, vectors.transposed(builder, x), strict=True):
            words.store(place, value)
        return context.get_dummy_value()

    return types.void(a, types.intp, numbers, ratios, types.intp, lanes, types.intp, Vector), generate


@vectors.intrinsic
def _tail_back(context: Any, a: Any, j: Any, numbers: Any, ratios: Any, first: Any, lanes: Any, at: Any, q: Any) -> Any:
    """The first steps the other way, on canonical values."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        words = Words(context, builder, kinds[0], arguments[0])
        powers_of = Words(context, builder, kinds[2], arguments[2])
        ratios_of = Words(context, builder, kinds[3], arguments[3])
        table = Words(context, builder, kinds[5], arguments[5])
        begin, root, at, prime = arguments[1], arguments[4], arguments[6], arguments[7]
        places = [builder.add(begin, begin.type(LANES * i)) for i in range(LANES)]
        x = vectors.transposed(builder, [words.load(place) for place in places])
        for step in reversed(range(LOG_LANES)):
            known = -1
            for block, i, j in _pairs(step):
                if block != known:
                    place, known = (1 << step) - 1 + block, block
                    w, ratio = _lane_factors(builder, table, at, place)
                x[i], x[j] = vectors.back(builder, x[i], x[j], w, ratio, prime)
        x = vectors.transposed(builder, x)
        for step in reversed(range(LOG_LANES)):
            known = -1
            for block, i, j in _pairs(step):
                if block != known:
                    place, known = _shifted(builder, root, step, block), block
                    w, ratio = powers_of.word(place), ratios_of.word(place)
                x[i], x[j] = vectors.back(builder, x[i], x[j], w, ratio, prime)
        for place, value in zip(places, x, strict=True):
            words.store(place, value)
        return context.get_dummy_value()

    return types.void(a, types.intp, numbers, ratios, types.intp, lanes, types.intp, Vector), generate


def _lane_factors(builder: Any, table: Words, at: Any, place: int) -> tuple[Any, Any]:
    """The powers and ratios of one vector of a tail's table."""
    here = builder.add(at, at.type(2 * LANES * place))
    return table.load(here), table.load(builder.add(here, at.type(LANES)))


# ------------------------------------------------------------------------------------------ transforms


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
        at += 2 * (LANES - 1) * (size // LANES)
        size >>= 1
    run, count, odd = a.size, 1 << half, False
    while run > TAIL:
        run >>= 1
        odd = not odd
    run = a.size
    if odd:
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
            place = at + (first + i) * 2 * (LANES - 1) * LANES
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
    length, odd = a.size, False
    run = a.size
    while run > TAIL:
        run >>= 1
        odd = not odd
    if odd:
        length >>= 1
    while length > _DEEP:
        length >>= 2
    for block in range(a.size // length):
        inside = length // TAIL
        base, first = a.size // TAIL, block * inside
        for i in range(inside):
            place = (first + i) * 2 * (LANES - 1) * LANES
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
