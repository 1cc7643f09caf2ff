"""Vectors of 32-bit words as values in kernels: loads, stores, sums, products, and the reductions modulo a prime.

numba's own loops over 32-bit words do not use the products of 32-bit words that vector units have, with 64-bit results.
A `Vector` is such a vector of `LANES` words. Its operations are intrinsics: functions that emit instructions for LLVM,
which splits vectors that are longer than a processor's. Sums of products are kept as a `Pair`: 64-bit sums of the even
and of the odd lanes.

The primes are below `WORD_LIMIT`. Each function states the bounds of its operands and of its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic, models, register_model

from heliograph.runtime.native.kernels.arithmetic import processor_has

# numba's decorators are untyped.
emitted: Callable[[Callable[..., Any]], Any] = intrinsic
_register: Any = register_model

# Products that are summed before the sum is reduced.
SUMMANDS = 8
# The words of a vector.
LANES = 16 if processor_has("avx512bw") else 8
LOG_LANES = LANES.bit_length() - 1

# The instruction that permutes the lanes of a vector, where there is one.
_PERMUTE = "llvm.x86.avx512.permvar.si.512" if LANES == 16 else "llvm.x86.avx2.permd" if processor_has("avx2") else None
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I32, LANES)
_HALVES = ir.VectorType(_I64, LANES // 2)


class VectorType(types.Type):
    """A vector of `LANES` unsigned 32-bit words."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector{LANES}")


Vector = VectorType()
# Sums of products: of the even lanes, and of the odd lanes.
Pair: Any = UniTuple(Vector, 2)


@_register(VectorType)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _WORDS)


# ------------------------------------------------------------------------------- instructions, for emitters


def _const(values: Any) -> Any:
    return ir.Constant(ir.VectorType(_I32, len(values)), [int(value) for value in values])


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def shuffled(builder: Any, x: Any, y: Any, places: Any) -> Any:
    """The lanes at `places` of x followed by y."""
    return builder.shuffle_vector(x, y, _const(places))


def smaller(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_unsigned("<", x, y), x, y)


def once_less(builder: Any, x: Any, q: Any) -> Any:
    """x modulo q, for x below 2 q."""
    return smaller(builder, x, builder.sub(x, q))


def _even(builder: Any, x: Any) -> Any:
    """The even lanes as 64-bit numbers."""
    return builder.and_(builder.bitcast(x, _HALVES), _all(_HALVES, 0xFFFFFFFF))


def _odd(builder: Any, x: Any) -> Any:
    return builder.lshr(builder.bitcast(x, _HALVES), _all(_HALVES, 32))


def _high_words(builder: Any, even: Any, odd: Any) -> Any:
    """The high words of 64-bit numbers, of the even and of the odd lanes, in their lanes."""
    places = [LANES + i if i % 2 else i + 1 for i in range(LANES)]
    return shuffled(builder, builder.bitcast(even, _WORDS), builder.bitcast(odd, _WORDS), places)


def high_words(builder: Any, x: Any, y: Any) -> Any:
    """The high words of the products x y."""
    even = builder.mul(_even(builder, x), _even(builder, y))
    odd = builder.mul(_odd(builder, x), _odd(builder, y))
    return _high_words(builder, even, odd)


def shoup(builder: Any, x: Any, w: Any, ratio: Any, q: Any) -> Any:
    """x w modulo q, below 2 q, for any x; `ratio` is floor(w 2^32 / q) (Shoup's product)."""
    quotient = high_words(builder, x, ratio)
    return builder.sub(builder.mul(x, w), builder.mul(quotient, q))


def forth(builder: Any, x: Any, y: Any, w: Any, ratio: Any, q: Any) -> tuple[Any, Any]:
    """A butterfly, from numbers below 2 q to numbers below 2 q."""
    low = once_less(builder, x, q)
    turned = once_less(builder, shoup(builder, y, w, ratio, q), q)
    return builder.add(low, turned), builder.add(builder.sub(low, turned), q)


def back(builder: Any, x: Any, y: Any, w: Any, ratio: Any, q: Any) -> tuple[Any, Any]:
    """The butterfly the other way, from numbers below q to numbers below q."""
    turned = shoup(builder, builder.add(builder.sub(x, y), q), w, ratio, q)
    return once_less(builder, builder.add(x, y), q), once_less(builder, turned, q)


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The transpose of `LANES` vectors: lane j of vector i becomes lane i of vector j."""
    rows = list(rows)
    distance = 1
    while distance < LANES:
        first = [i if not i & distance else LANES + i - distance for i in range(LANES)]
        second = [i + distance if not i & distance else LANES + i for i in range(LANES)]
        for i in range(LANES):
            if not i & distance:
                x, y = rows[i], rows[i + distance]
                rows[i], rows[i + distance] = shuffled(builder, x, y, first), shuffled(builder, x, y, second)
        distance *= 2
    return rows


def splatted(builder: Any, x: Any) -> Any:
    """A vector of one word."""
    nothing = ir.Constant(_WORDS, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, x, _I32(0)), nothing, _const([0] * LANES))


class Words:
    """Loads and stores of an array of words, by the place of the first word."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any) -> None:
        self._builder, self._data = builder, context.make_array(kind)(context, builder, array).data

    def _at(self, place: Any) -> Any:
        return self._builder.bitcast(self._builder.gep(self._data, [place]), _WORDS.as_pointer())

    def load(self, place: Any) -> Any:
        found = self._builder.load(self._at(place))
        found.align = 4
        return found

    def store(self, place: Any, value: Any) -> None:
        self._builder.store(value, self._at(place)).align = 4

    def word(self, place: Any) -> Any:
        """One word in all lanes."""
        return splatted(self._builder, self._builder.load(self._builder.gep(self._data, [place])))


# ---------------------------------------------------------------------------------------- in kernels


def _generator(emit: Callable[..., Any]) -> Any:
    """The code generator of an intrinsic; `emit(builder, *operands)`, where pairs are tuples."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        operands = [
            tuple(builder.extract_value(argument, i) for i in range(2)) if kind == Pair else argument
            for kind, argument in zip(signature.args, arguments, strict=True)
        ]
        made = emit(builder, *operands)
        return context.make_tuple(builder, Pair, made) if isinstance(made, tuple) else made

    return generate


def _of_one(result: Any, emit: Callable[..., Any]) -> Any:
    @emitted
    def operation(context: Any, x: Any) -> Any:
        return result(x), _generator(emit)

    return operation


def _of_two(result: Any, emit: Callable[..., Any]) -> Any:
    @emitted
    def operation(context: Any, x: Any, y: Any) -> Any:
        return result(x, y), _generator(emit)

    return operation


def _of_three(result: Any, emit: Callable[..., Any]) -> Any:
    @emitted
    def operation(context: Any, x: Any, y: Any, z: Any) -> Any:
        return result(x, y, z), _generator(emit)

    return operation


def _of_four(result: Any, emit: Callable[..., Any]) -> Any:
    @emitted
    def operation(context: Any, x: Any, y: Any, z: Any, w: Any) -> Any:
        return result(x, y, z, w), _generator(emit)

    return operation


@emitted
def load(context: Any, array: Any, place: Any) -> Any:
    """The words of a contiguous array from `place` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return Words(context, builder, signature.args[0], arguments[0]).load(arguments[1])

    return Vector(array, types.intp), generate


@emitted
def pair_at(context: Any, array: Any, place: Any) -> Any:
    """`LANES` 64-bit numbers of a contiguous array of words, from the word at `place` on, as a `Pair`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = Words(context, builder, signature.args[0], arguments[0])
        other = builder.add(arguments[1], arguments[1].type(LANES))
        made = _evens_and_odds(builder, words.load(arguments[1]), words.load(other))
        return context.make_tuple(builder, Pair, made)

    return Pair(array, types.intp), generate


@emitted
def load_at(context: Any, address: Any, place: Any) -> Any:
    """The words from `place` on of the words at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = builder.inttoptr(arguments[0], _I32.as_pointer())
        found = builder.load(builder.bitcast(builder.gep(data, [arguments[1]]), _WORDS.as_pointer()))
        found.align = 4
        return found

    return Vector(types.uint64, types.intp), generate


@emitted
def store(context: Any, array: Any, place: Any, value: Any) -> Any:
    """Write a vector into a contiguous array from `place` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        Words(context, builder, signature.args[0], arguments[0]).store(arguments[1], arguments[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@emitted
def splat(context: Any, word: Any) -> Any:
    """One 32-bit word in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splatted(builder, arguments[0])

    return Vector(types.uint32), generate


def _reversed(builder: Any, x: Any) -> Any:
    return shuffled(builder, x, x, range(LANES - 1, -1, -1))


def _total(builder: Any, x: Any, y: Any, q: Any) -> Any:
    return once_less(builder, builder.add(x, y), q)


def _difference(builder: Any, x: Any, y: Any, q: Any) -> Any:
    less = builder.sub(x, y)
    return smaller(builder, less, builder.add(less, q))


def _times(builder: Any, x: Any, w: Any, ratio: Any, q: Any) -> Any:
    return once_less(builder, shoup(builder, x, w, ratio, q), q)


def _as_words(builder: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return builder.bitcast(pair[0], _WORDS), builder.bitcast(pair[1], _WORDS)


def _as_halves(builder: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return builder.bitcast(pair[0], _HALVES), builder.bitcast(pair[1], _HALVES)


def _products(builder: Any, x: Any, y: Any) -> tuple[Any, Any]:
    even = builder.mul(_even(builder, x), _even(builder, y))
    return _as_words(builder, (even, builder.mul(_odd(builder, x), _odd(builder, y))))


def _plus_products(builder: Any, sums: Any, x: Any, y: Any) -> tuple[Any, Any]:
    (even, odd), (e, o) = _as_halves(builder, sums), _as_halves(builder, _products(builder, x, y))
    return _as_words(builder, (builder.add(even, e), builder.add(odd, o)))


def _settled(builder: Any, sums: Any, q: Any, minus: Any) -> Any:
    """Montgomery's reduction: the sums times 2^-32 modulo q, canonical. `minus` is -1 / q modulo 2^32."""
    even, odd = _as_halves(builder, sums)
    q_half, minus_half = _even(builder, q), _even(builder, minus)
    low = _all(_HALVES, 0xFFFFFFFF)

    def high(total: Any) -> Any:
        m = builder.and_(builder.mul(builder.and_(total, low), minus_half), low)
        return builder.add(total, builder.mul(m, q_half))

    found = _high_words(builder, high(even), high(odd))
    found = once_less(builder, found, builder.add(q, q))
    return once_less(builder, found, q)


def _evens_and_odds(builder: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Two vectors of 64-bit numbers, x before y, as the even ones and the odd ones, in the order of a `Pair`."""
    x, y = builder.bitcast(x, _HALVES), builder.bitcast(y, _HALVES)
    half = LANES // 2
    return _as_words(
        builder,
        (
            shuffled(builder, x, y, [2 * i for i in range(half)]),
            shuffled(builder, x, y, [2 * i + 1 for i in range(half)]),
        ),
    )


def _nothing(builder: Any, x: Any) -> tuple[Any, Any]:
    return _all(_WORDS, 0), _all(_WORDS, 0)


def _above(builder: Any, x: Any, limit: Any, y: Any) -> Any:
    return builder.select(builder.icmp_unsigned(">", x, limit), y, _all(_WORDS, 0))


def _plus_pieces(builder: Any, sums: Any, numbers: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Add products of 60-bit numbers: their lower 30 bits times `low`, the others times `high`."""
    mask, shift = _all(_HALVES, (1 << 30) - 1), _all(_HALVES, 30)
    w0, w1 = _even(builder, low), _even(builder, high)
    made = []
    for total, number in zip(_as_halves(builder, sums), _as_halves(builder, numbers), strict=True):
        lower = builder.mul(builder.and_(number, mask), w0)
        made.append(builder.add(total, builder.add(lower, builder.mul(builder.lshr(number, shift), w1))))
    return _as_words(builder, (made[0], made[1]))


# x + y and x - y modulo q, canonical; x w modulo q, canonical, for any x (see `shoup`).
word_total = _of_three(Vector, _total)
word_difference = _of_three(Vector, _difference)
times_word = _of_four(Vector, _times)
# The lanes in reverse order.
mirrored = _of_one(Vector, _reversed)
# The products of two vectors, and their addition to such sums; at most `SUMMANDS` products of residues.
products = _of_two(Pair, _products)
plus_products = _of_three(Pair, _plus_products)
# Such sums times 2^-32 modulo q, canonical: (sums, q, -1 / q).
settled_words = _of_three(Vector, _settled)
# Sums of no products, in whatever vector.
no_sum = _of_one(Pair, _nothing)
# (sums, numbers, low, high): 60-bit numbers in a pair, their lower 30 bits times `low`, the others times `high`.
plus_pieces = _of_four(Pair, _plus_pieces)
# (x, limit, y): y in the lanes where x is above the limit, zero in the others.
above = _of_three(Vector, _above)


@emitted
def permuted(context: Any, x: Any, places: Any) -> Any:
    """The lanes of x at `places`, a vector of numbers below `LANES`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, where = arguments
        if _PERMUTE is None:
            made = ir.Constant(_WORDS, ir.Undefined)
            for i in range(LANES):
                lane = builder.extract_element(value, builder.extract_element(where, _I32(i)))
                made = builder.insert_element(made, lane, _I32(i))
            return made
        known = builder.module.globals.get(_PERMUTE)
        return builder.call(
            known or ir.Function(builder.module, ir.FunctionType(_WORDS, [_WORDS, _WORDS]), _PERMUTE), [value, where]
        )

    return Vector(x, places), generate
