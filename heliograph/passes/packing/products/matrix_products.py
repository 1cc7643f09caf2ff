"""Products of two encrypted matrices on slots: which elements meet, by which rotations.

One operand is *big*, X with rows f and columns n (in training: features and samples, in either order), the other
*small*, with few rows c (classes). A row of X takes `block` B slots, one for each column; a ciphertext holds T rows,
and there are J ciphertexts. There are two products:

* **combine**: out[c, n] = sum over f of W[c, f] X[f, n]. In turn d, the slots of row t take the weight of class t - d
  (mod C). The sum of the J ciphertexts of a turn is relinearized once; a rotation by d rows aligns its classes, and
  log2(T / C) rotations add up the rows of each class. Rows are cyclic: no slot is wrong, no mask is needed.
* **gather**: out[c, f] = sum over n of E[c, n] X[f, n]. Slot r of a row belongs to class r mod C; in turn e it takes
  entry r + e of E and X (mod B). The sum of the C products of a ciphertext is relinearized once. Rotations then add up
  slots of a row until `folded` of them are left, and one map adds up the rest and puts the results of all J ciphertexts
  into one.

The result of `gather`, and the weights of `combine`, are *packed*: class c, row f = j T + t at slot t B + j C + c.

With *halves*, class c + C/2 is the imaginary part of class c. This takes half as many turns, and so half of almost all
work, at the price of at most three conjugations. `combine` then takes one more level to put its two parts side by side,
and so does `gather` if a class without data has to stay empty.

HETAL (ICML 2023, section 4.2) also turns the small operand for each class, but sums every turn separately. `fold.py`
has a way modelled on HETAL's, which competes with these where it fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import scipy.sparse

from heliograph.ir import Array, Builder, Node, Program, SparseMatrix, Stage
from heliograph.ir.maps.layout import Layout, matrix_axes
from heliograph.ir.node import next_power_of_two
from heliograph.ir.ops.matrices import KINDS
from heliograph.ir.writer import SlotWriter
from heliograph.passes.packing.products.fold import Fold, folds


class Way(Protocol):
    """A way to compute a product from the slots of two operands."""

    @property
    def way(self) -> str:
        """The name of the way."""
        ...

    @property
    def more_levels(self) -> int:
        """Levels beyond the usual three."""
        ...

    @property
    def wants_zeros(self) -> bool:
        """Whether sums include slots of the small operand beside its elements, which must hold zeros."""
        ...

    def write(self, writer: SlotWriter, small: Sequence[Node], big: Sequence[Node], scale: float) -> list[Node]:
        """The slot vectors of the result, times `scale`."""
        ...


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a product in slots: see the module."""

    # The slots of one sample.
    slots: int
    classes: int
    rows: int
    columns: int
    halves: bool = False

    @property
    def block(self) -> int:
        return next_power_of_two(self.columns)

    @property
    def room(self) -> int:
        """C: the classes, padded to a power of two by classes without data."""
        return next_power_of_two(self.classes)

    @property
    def turns(self) -> int:
        """The number of turns for all classes."""
        return self.room // 2 if self.halves else self.room

    @property
    def height(self) -> int:
        """T: rows in one ciphertext."""
        return min(self.slots // self.block, max(self.room, next_power_of_two(self.rows)))

    @property
    def period(self) -> int:
        return self.height * self.block

    @property
    def ciphertexts(self) -> int:
        """J: the number of ciphertexts of X."""
        return -(-self.rows // self.height)

    @property
    def packed(self) -> int:
        """P: the slots that packed values take in a row."""
        return next_power_of_two(self.ciphertexts * self.room)

    @property
    def folded(self) -> int:
        """The slots of a row over which `gather` leaves its partial sums to the final map.

        It is the width with the fewest rotations: the folding of each ciphertext's rows and the map together.
        """
        widths = [self.turns << i for i in range((self.block // self.turns).bit_length())]

        def rotations(width: int) -> int:
            groups = range(0, width, self.turns)
            moves = {group - j * self.room for group in groups for j in range(self.ciphertexts)} - {0}
            return self.ciphertexts * ((self.block // width).bit_length() - 1) + len(moves)

        return min(widths, key=lambda width: (rotations(width), width))

    @property
    def fit(self) -> bool:
        if self.block > self.slots or self.room > min(self.height, self.block) or not self.turns:
            return False
        return self.packed <= self.block


@dataclass(frozen=True)
class MatrixProduct:
    """One way to lower a product."""

    how: Way
    # The place of the big operand.
    big: int
    # The layouts of the operands and of the result.
    left: Layout
    right: Layout
    out: Layout
    scale: float
    # Whether the small operand is masked first, for a level: the slots beside its elements become zero.
    cleaned: bool = False

    @property
    def more_levels(self) -> int:
        """Levels beyond the usual three."""
        return self.how.more_levels + self.cleaned

    def scaled(self, scale: float) -> MatrixProduct:
        """The same product times a number."""
        return replace(self, scale=self.scale * scale)

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        return self.left, self.right, self.out

    def program(self) -> Program:
        """The product alone, at the packed stage."""
        writer = SlotWriter(Builder("product", Stage.PACKED), batch=self.out.samples)
        left, right = (
            [writer.builder.input(name, slots=layout.slots, chunk=chunk) for chunk in range(layout.ciphertexts)]
            for name, layout in (("left", self.left), ("right", self.right))
        )
        return writer.builder.finish(self.write(writer, left, right))

    def write(self, writer: SlotWriter, left: Sequence[Node], right: Sequence[Node]) -> list[Node]:
        """The slot vectors of the result."""
        big, small = (left, right) if self.big == 0 else (right, left)
        if self.cleaned:
            layout = self.layouts[1 - self.big]
            small = [writer.mask(value, _elements(layout, chunk)) for chunk, value in enumerate(small)]
        return self.how.write(writer, small, big, self.scale)


def _elements(layout: Layout, chunk: int) -> Array:
    """A mask of the elements' slots, for one sample."""
    used = layout.used(chunk)[:: layout.samples]
    return np.asarray(used[: layout.period], dtype=np.float64)


@dataclass(frozen=True)
class _Maps:
    """The maps of one product, as matrices between slot positions of one period."""

    sizes: Sizes

    @cached_property
    def _slot(self) -> tuple[Array, Array]:
        """The row of each slot, and the place in its row."""
        slot = np.arange(self.sizes.period)
        return slot // self.sizes.block, slot % self.sizes.block

    def _picked(self, source: Array, kept: Array | None = None, value: float = 1.0, period: int = 0) -> SparseMatrix:
        """The map by which slot i takes `value` times slot source[i], for the `kept` slots only."""
        period = period or self.sizes.period
        to = np.arange(period) if kept is None else np.flatnonzero(kept)
        entries = (np.full(to.size, value), (to, np.asarray(source)[to]))
        return SparseMatrix.of(scipy.sparse.csr_array(entries, shape=(period, period)))

    def weights_of(self, ciphertext: int, scale: float) -> SparseMatrix:
        """From packed weights, repeated over their rows, to `scale` times one ciphertext's: class r mod C in slot r."""
        s = self.sizes
        row, place = self._slot
        source = row * s.block + place // s.packed * s.packed + ciphertext * s.room + place % s.turns
        return self._picked(source, row + ciphertext * s.height < s.rows, scale)

    def turned_weights(self, turn: int) -> SparseMatrix:
        """From the result of `weights_of` to the weight of class row - turn in every slot of the row."""
        s = self.sizes
        row, place = self._slot
        wanted = (row - turn) % s.turns
        return self._picked(row * s.block + place - place % s.turns + wanted, wanted < min(s.classes, s.turns))

    def turned_rows(self, turn: int) -> SparseMatrix:
        """Slot r of a row takes slot r + turn (mod B) of the row."""
        s = self.sizes
        row, place = self._slot
        return self._picked(row * s.block + (place + turn) % s.block, (place + turn) % s.block < s.columns)

    def turned_classes(self, turn: int, first: int = 0) -> SparseMatrix:
        """Slot r of every row takes entry r + turn (mod B) of class `first` + r modulo the turns; zero for no class."""
        s = self.sizes
        period = s.room * s.block
        place = np.arange(period) % s.block
        wanted, entry = first + place % s.turns, (place + turn) % s.block
        return self._picked(wanted * s.block + entry, (wanted < s.classes) & (entry < s.columns), period=period)

    def classes(self) -> list[SparseMatrix]:
        """Maps for the packed classes of the first half, which stay, and of the second half, which move to their
        places.
        """
        s = self.sizes
        _, place = self._slot
        there = place < s.ciphertexts * s.room
        lower = self._picked(np.arange(s.period), there & (place % s.room < s.turns))
        upper = self._picked(
            np.arange(s.period) - s.turns,
            there & (place % s.room >= s.turns) & (place % s.room < s.classes),
        )
        return [lower, upper]

    def parts(self) -> list[SparseMatrix]:
        """Maps that keep the rows of the first half of the classes, and of the second half."""
        s = self.sizes
        period = s.room * s.block
        row = np.arange(period) // s.block
        kept_rows = (row < s.turns, (row >= s.turns) & (row < s.classes))
        return [self._picked(np.arange(period), kept, period=period) for kept in kept_rows]

    def into_packed(self, ciphertext: int, scale: float) -> SparseMatrix:
        """The sums over the rest of each row, put where the results of one ciphertext are kept."""
        s = self.sizes
        groups = s.folded // s.turns
        rows = np.arange(min(s.height, s.rows - ciphertext * s.height))
        row, group, wanted = (
            axis.ravel()
            for axis in np.meshgrid(rows, np.arange(groups), np.arange(min(s.classes, s.turns)), indexing="ij")
        )
        to = row * s.block + ciphertext * s.room + wanted
        source = row * s.block + group * s.turns + wanted
        entries = (np.full(to.size, scale), (to, source))
        return SparseMatrix.of(scipy.sparse.csr_array(entries, shape=(s.period, s.period)))


@dataclass(frozen=True, slots=True)
class Combine(Sizes):
    """out[c, n] = sum over f of W[c, f] X[f, n]."""

    way: ClassVar[str] = "combine"
    wants_zeros: ClassVar[bool] = True

    @property
    def more_levels(self) -> int:
        return int(self.halves)

    def write(self, writer: SlotWriter, small: Sequence[Node], big: Sequence[Node], scale: float) -> list[Node]:
        s, maps, weights = self, _Maps(self), small[0]
        # The other slots of a row are zero, so sums over them make copies.
        for step in folds(s.block, s.packed):
            weights = writer.op("add_ct", weights, writer.rotate(weights, (s.period - step) % s.period))
        if s.halves:
            weights = writer.op("complex_of", weights, writer.rotate(weights, s.turns))
        spread = [writer.transform([weights], [maps.weights_of(j, scale)]) for j in range(s.ciphertexts)]
        parts = []
        for turn in range(s.turns):
            matrix = maps.turned_weights(turn)
            turned = [writer.transform([own], [matrix]) for own in spread]
            made = writer.sum("add_ct", [writer.op("mul_ct", own, x) for own, x in zip(turned, big, strict=True)])
            parts.append(writer.rotate(made, turn * s.block) if turn else made)
        total = writer.sum("add_ct", parts)
        for step in folds(s.period, s.turns * s.block):
            total = writer.op("add_ct", total, writer.rotate(total, step))
        if not s.halves:
            return [total]
        parts = [writer.op("real_part", total), writer.op("imaginary_part", total)]
        return [writer.transform(parts, maps.parts(), (0,), (0,))]


@dataclass(frozen=True, slots=True)
class Gather(Sizes):
    """out[c, f] = sum over n of E[c, n] X[f, n]."""

    way: ClassVar[str] = "gather"
    wants_zeros: ClassVar[bool] = False

    @property
    def more_levels(self) -> int:
        return int(self.halves and self.classes < self.room)

    def write(self, writer: SlotWriter, small: Sequence[Node], big: Sequence[Node], scale: float) -> list[Node]:
        s, maps = self, _Maps(self)
        turned, moved = [], []
        for turn in range(s.turns):
            # Wrapping around the end of a row moves one row further, so all turns share the steps over rows.
            babies = [row * s.block for row in range(s.room)]
            own = writer.transform(small, [maps.turned_classes(turn)], babies, (turn,))
            if s.halves:
                # Rows after the classes may hold any values.
                other = writer.transform(small, [maps.turned_classes(turn, s.turns)], babies, (turn,))
                own = writer.op("complex_of", own, other)
            turned.append(own)
            step = maps.turned_rows(turn)
            moved.append([writer.transform([x], [step]) if turn else x for x in big])
        folded = []
        for j in range(s.ciphertexts):
            products = [writer.op("mul_ct", own, xs[j]) for own, xs in zip(turned, moved, strict=True)]
            made = writer.sum("add_ct", products)
            for step_ in folds(s.block, s.folded):
                made = writer.op("add_ct", made, writer.rotate(made, step_))
            folded.append(made)
        matrices = [maps.into_packed(j, scale) for j in range(s.ciphertexts)]
        made = writer.transform(folded, matrices, (0,), None)
        if not s.halves:
            return [made]
        real, imaginary = writer.op("real_part", made), writer.op("imaginary_part", made)
        if s.classes == s.room:
            # The slots for the second half of the classes hold zeros.
            return [writer.op("add_ct", real, writer.rotate(imaginary, s.period - s.turns))]
        return [writer.transform([real, imaginary], maps.classes(), (0,), (0, s.period - s.turns))]


def ways(kind: str, shapes: Sequence[tuple[int, int]], slots: int, samples: int, scale: float) -> list[MatrixProduct]:
    """All ways to lower a product of these shapes, with their layouts."""
    found: list[MatrixProduct] = []
    turned = KINDS[kind]
    # For each operand, the summed axis.
    inner = (0 if turned[0] else 1, 1 if turned[1] else 0)
    result = (shapes[0][1 - inner[0]], shapes[1][1 - inner[1]])
    for big in (0, 1):
        axes = _Axes((shapes[0], shapes[1]), result, inner, big, slots, samples)
        for halves in (False, True):
            found += _products(axes, Combine(*axes.combined, halves), scale)
            found += _products(axes, Gather(*axes.gathered, halves), scale)
        found += _folded(axes, scale)
    return found


@dataclass(frozen=True, slots=True)
class _Axes:
    """The matrices of a product.

    `shapes`, `result`: the shapes of the operands and of the result.
    `inner`: the summed axis of each operand.
    `big`: the place of the big operand.
    `slots`, `samples`: the slots of a ciphertext, and the number of samples side by side.
    """

    shapes: tuple[tuple[int, int], tuple[int, int]]
    result: tuple[int, int]
    inner: tuple[int, int]
    big: int
    slots: int
    samples: int

    @property
    def classes(self) -> int:
        small = 1 - self.big
        return self.shapes[small][1 - self.inner[small]]

    @property
    def combined(self) -> tuple[int, int, int, int]:
        """(slots of a sample, classes, rows of X, columns of X) where the sum is over X's rows."""
        own, inner = self.shapes[self.big], self.inner[self.big]
        return self.slots // self.samples, self.classes, own[inner], own[1 - inner]

    @property
    def gathered(self) -> tuple[int, int, int, int]:
        """(slots of a sample, classes, rows of X, columns of X) where the sum is over X's columns."""
        slots, classes, rows, columns = self.combined
        return slots, classes, columns, rows

    def layout(self, shape: tuple[int, int], period: int, first: int, places: Sequence[tuple[int, int, int]]) -> Layout:
        """The layout of a matrix; axis `first` has the first of the places (see `matrix_axes`)."""
        rows, columns = places if first == 0 else reversed(places)
        return Layout(shape, self.slots, period, matrix_axes(shape, rows, columns), samples=self.samples)

    def product(self, how: Way, x: Layout, small: Layout, out: Layout, scale: float) -> MatrixProduct:
        both = (x, small) if self.big == 0 else (small, x)
        return MatrixProduct(how, self.big, *both, out, scale)


def _products(axes: _Axes, sizes: Combine | Gather, scale: float) -> Iterator[MatrixProduct]:
    """The products for a way of this module, if it fits."""
    if not sizes.fit:
        return
    big, small, combines = axes.big, 1 - axes.big, isinstance(sizes, Combine)
    # For X, the axis of its rows; for the small operand and the result, the axis of the classes.
    f_axis = axes.inner[big] if combines else 1 - axes.inner[big]
    c_axis, out_c = 1 - axes.inner[small], small
    block, room, height, period = sizes.block, sizes.room, sizes.height, sizes.period
    far = period * sizes.ciphertexts
    columns_at, rows_at, packed = (block, 1, far), (height, block, period), (height, block, room)
    wide, kept = (room, block, far), (room, 1, far)
    # Repeated rows do as well as zeros: they meet no weight, and their results are not kept.
    few = min(height, next_power_of_two(sizes.rows)) if sizes.ciphertexts == 1 else height
    repeated = axes.layout(axes.shapes[big], few * block, f_axis, ((few, block, few * block), columns_at))
    x = axes.layout(axes.shapes[big], period, f_axis, (rows_at, columns_at))
    if combines:
        w = axes.layout(axes.shapes[small], period, c_axis, (kept, packed))
        out = axes.layout(axes.result, room * block, out_c, (wide, columns_at))
    else:
        w = axes.layout(axes.shapes[small], room * block, c_axis, (wide, columns_at))
        out = axes.layout(axes.result, period, out_c, (kept, packed))
    yield axes.product(sizes, x, w, out, scale)
    if few < height:
        yield axes.product(sizes, repeated, w, out, scale)


def _folded(axes: _Axes, scale: float) -> Iterator[MatrixProduct]:
    """The product for the way of `fold.py`, if it fits."""
    sizes = Fold(*axes.gathered)
    if not sizes.fits:
        return
    big, small = axes.big, 1 - axes.big
    slots, height, width, room = sizes.slots, sizes.height, sizes.width, sizes.room
    rows_at, period = (height, width, slots), room * width
    x = axes.layout(axes.shapes[big], slots, 1 - axes.inner[big], (rows_at, (width, 1, slots)))
    # The small operand: rows of classes over the columns of X, repeated below each other. The result: rows of X with
    # the classes side by side.
    w = axes.layout(axes.shapes[small], period, 1 - axes.inner[small], ((room, width, period), (width, 1, period)))
    out = axes.layout(axes.result, slots, small, ((room, 1, slots), rows_at))
    yield axes.product(sizes, x, w, out, scale)
