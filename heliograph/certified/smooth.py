"""A smoothed classifier with its votes, its guess and its test, as one program on tensors.

    copies:  x + noise through the network, n of them that vote and n0 whose mean logits name a class
    votes:   one-hot argmax of each copy, added up
    answer:  one-hot guess times (votes - (target - 1)): above zero if the guessed class is certified

The guess is an argmax like the votes: if there is room, it is one more column beside them (`Columns.joined`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from heliograph.approx.compositions.argmax import argmax
from heliograph.certified.certificate import Certificate
from heliograph.certified.copies import Averaged, Copies, Value, averages, moved_columns
from heliograph.errors import ProgramError
from heliograph.ir import Array, Builder, Location, Node, Program, Stage, shape_of
from heliograph.ir.node import next_power_of_two

NOISE, GUESS_NOISE = "noise", "guess noise"
# Votes are as exact as sums of this many times their number require, if possible.
_HIDDEN = (8, 4, 2)
# Slots of a ciphertext that carries an argmax.
_SLOTS = 1 << 15


@dataclass(frozen=True, slots=True)
class Range:
    """The assumption about the logits of a copy: at most `spread` apart, the largest at least `gap` above the next."""

    spread: float
    gap: float


@dataclass(frozen=True, slots=True)
class Columns:
    """The places of the copies on the last axis of the network's values.

    `joined`: the guess has a column beside the votes, and one argmax serves both.
    `averaged`: the guess's copies are merged into one with their mean noise (`copies.Averaged`); otherwise they come
    after the votes and are added up.
    """

    votes: int
    guesses: int
    joined: bool
    averaged: bool

    @property
    def start(self) -> int:
        """The first of the guess's copies, if they come after the votes."""
        return -(-self.votes // self.guesses) * self.guesses

    @property
    def width(self) -> int:
        """The number of columns that vote, a power of two."""
        if not self.joined:
            return next_power_of_two(self.votes)
        return next_power_of_two(self.votes + 1 if self.averaged else self.start + self.guesses)

    @property
    def guess(self) -> int:
        """The column of the mean logits, among the voting columns."""
        return self.votes

    @property
    def unused(self) -> int:
        return self.width - self.votes - self.joined

    def used(self) -> Array:
        """1 for the columns of votes, and for the guess if it is a single copy, (width,)."""
        return (np.arange(self.width) < self.votes + (self.joined and self.averaged)).astype(np.float64)


def smooth(
    network: Program,
    certificate: Certificate,
    range_: Range,
    columns: Columns,
    sizes: Mapping[Node, float] | None = None,
    resolved: float = 1.0,
) -> Program:
    """The smoothed program; `network` has linear maps, polynomials and functions (from `FuseLinear`) and one input.

    `sizes` are the sizes of the network's products, if known. `resolved` is the share of the gap that the polynomials
    of an argmax resolve.
    """
    (source,) = (node for node in network.inputs if node.type.secret)
    classes = shape_of(network.outputs[0])[0]
    near = resolved * range_.gap / range_.spread
    builder = Builder(network.name, Stage.TENSOR, network)
    builder.ranges, builder.calibration = [], ()
    loc = replace(network.outputs[0].loc, layer="certificate")
    x = builder.copy(source, ())
    noisy = _Noisy(builder, network, certificate, x, sizes or {}, loc)
    copies = noisy.voting(columns)
    votes = moved_columns(builder, copies.output, np.diag(columns.used()), loc)
    if columns.joined and not columns.averaged:
        means = copies.mean_output(columns.guesses)
        place = np.zeros((columns.width, columns.width // columns.guesses))
        place[columns.guess, columns.start // columns.guesses] = 1.0
        votes = builder.op("add", (votes, moved_columns(builder, means, place, loc)), loc)
    shift = np.full(classes, -(certificate.target - 1.0))
    if columns.joined:
        # The guess is itself one of the counted votes: in its own class, it voted for itself.
        shift -= 1.0
    if columns.unused:
        # A tie may vote for any class: columns without a copy are made to vote for the first one.
        bias = np.zeros((classes, columns.width))
        bias[0, columns.width - columns.unused :] = range_.spread / 2
        votes = builder.op("add", (votes, builder.op("constant", (), loc, value=builder.constant(bias, "unused"))), loc)
        shift[0] -= columns.unused

    def largest(logits: Node, added: int, layer: str) -> Node:
        attrs = {"gap": range_.gap, "spread": range_.spread, "count": _exact_for(classes, near, added)}
        return builder.op("argmax_rows", (logits,), replace(loc, layer=layer), **attrs)

    one_hot = largest(votes, columns.width, "votes")
    counted = builder.op("sum_runs", (one_hot,), replace(loc, layer="counts"), count=columns.width)
    if columns.joined:
        guess = _column(builder, one_hot, columns.guess, replace(loc, layer="guess"))
    else:
        means = noisy.guessing(columns)
        # Put it beside an empty column: extracting it again is a map, which can lead to the layout of the counts.
        pair = moved_columns(builder, means, np.array([[1.0], [0.0]]), replace(loc, layer="guess"))
        # This one-hot vector multiplies the counts, so it must be as exact as the votes.
        guess = largest(pair, certificate.n, "guess")
        guess = _column(builder, guess, 0, replace(loc, layer="guess"))
    test = replace(loc, layer="test")
    offset = builder.op("constant", (), test, value=builder.constant(shift, "target"))
    answer = builder.op("mul", (guess, builder.op("add", (counted, offset), test)), test)
    return builder.finish({"answer": answer})


def _exact_for(classes: int, near: float, votes: int) -> int:
    """The number of one-hot results whose sum must be exact: several times the votes, if that can be proved.

    The remainders at other classes, the guess's remainder times their votes, are then far below the server's noise.
    """
    for times in _HIDDEN:
        with contextlib.suppress(ProgramError):
            argmax(classes, near, times * votes)
            return times * votes
    return votes


@dataclass(frozen=True, slots=True)
class _Noisy:
    builder: Builder
    network: Program
    certificate: Certificate
    x: Node
    sizes: Mapping[Node, float]
    loc: Location

    def voting(self, columns: Columns) -> Copies:
        """The voting copies, including the guess's copies if they are joined."""
        noise = self._noise(NOISE, columns.width)
        if not (columns.joined and columns.averaged):
            return self._copies(noise, columns.width, None)
        return self._averaged(columns, noise, columns.width, columns.guess)

    def guessing(self, columns: Columns) -> Node:
        """The mean logits of the guess's copies, separate from the votes, (classes, 1)."""
        if columns.averaged:
            return self._averaged(columns, None, 1, 0).output
        return self._copies(self._noise(GUESS_NOISE, columns.guesses), columns.guesses, None).mean_output(
            columns.guesses
        )

    def _averaged(self, columns: Columns, noise: Node | None, count: int, column: int) -> Copies:
        """`count` copies, one of which is the mean of the guess's copies."""
        drawn = self._noise(GUESS_NOISE, columns.guesses)
        aside = Copies(self.builder, self.network, {self.source: Value(self.x, drawn)}, columns.guesses, {})
        return self._copies(noise, count, Averaged(column, aside))

    def _copies(self, noise: Node | None, count: int, averaged: Averaged | None) -> Copies:
        inputs = {self.source: Value(self.x, noise)}
        return Copies(self.builder, self.network, inputs, count, self.sizes, averaged)

    @property
    def source(self) -> Node:
        (source,) = self.network.inputs
        return source

    def _noise(self, name: str, count: int) -> Node:
        """The noise of `count` copies, (*shape, count), which the server draws as the plain input of this name."""
        builder, shape, loc = self.builder, shape_of(self.x), replace(self.loc, layer=name)
        drawn = builder.input(name, loc, shape=(*shape, count), secret=False, drawn=self.certificate.drawn)
        deviations = self.certificate.deviations(shape)[..., np.newaxis]
        if (deviations == deviations.flat[0]).all():
            deviations = np.array(deviations.flat[0])
        scale = builder.op("constant", (), loc, value=builder.constant(deviations, "deviation"))
        return builder.op("mul", (drawn, scale), loc)


def _column(builder: Builder, values: Node, column: int, loc: Location) -> Node:
    """One column of (classes, columns), (classes,)."""
    classes, width = shape_of(values)
    alone = moved_columns(builder, values, np.eye(1, width, column), loc)
    return builder.op("reshape", (alone,), loc, shape=(classes,))


def columns_of(network: Program, certificate: Certificate) -> Columns:
    """The columns of the copies: the guess is beside the votes if all pairs of classes then fit one ciphertext.

    Otherwise a column for the guess would double the votes' ciphertexts, and a separate guess is cheaper.
    """
    classes, averaged = shape_of(network.outputs[0])[0], averages(network)
    joined = Columns(certificate.n, certificate.n0, True, averaged)
    pairs = next_power_of_two(max(1, classes * (classes - 1) // 2))
    return joined if joined.width * pairs <= _SLOTS else replace(joined, joined=False)


def check_network(program: Program) -> None:
    """Raise a ProgramError unless the program has one encrypted input and gives the logits of a few classes."""
    secret = [node for node in program.inputs if node.type.secret]
    if program.stage is not Stage.TENSOR or len(secret) != 1 or len(program.outputs) != 1:
        raise ProgramError(
            f"certify takes a network with one encrypted input and one output, the logits; {program.name!r} has "
            f"{len(secret)} and {len(program.outputs)}"
        )
    shape = shape_of(program.outputs[0])
    if len(shape) != 1 or shape[0] < 2 or math.prod(shape) > 1000:
        raise ProgramError(f"certify takes logits, at least two; {program.name!r} gives {shape}")
    encoded = next((spec for spec in program.interface.inputs if spec.encoding is not None), None)
    if encoded is not None:
        raise ProgramError(
            f"certify takes rows as they are, and clients encode input {encoded.name!r} of {program.name!r}",
            why="the server adds noise to what it gets, and the radius would be one of encoded rows",
            hint="hg.from_sklearn(model, samples, input_range=(low, high)) sends numbers as they are",
        )
