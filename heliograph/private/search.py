"""Private search: a server's index of vectors, and a client's query that the server does not read.

The scores of all vectors are one linear map of the encrypted query, on one level, or, if the vectors are encrypted too,
one product. The client decrypts them and takes the largest. So the best hits are exact up to the error of encryption. The
server learns nothing about the query. The client learns every score: with as many queries as the vectors have components
it can compute the vectors themselves. The server may instead decide which entry is nearest, or which exceed a threshold.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.wire import PublicSpec
from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.errors import ProgramError, RangeError
from heliograph.execution.interface import plain_values, real_numbers
from heliograph.ir import Array, Builder, Node, Program, Stage, shape_of
from heliograph.ir.interface import TensorSpec
from heliograph.ir.labels import read_labels, with_labels
from heliograph.private.encrypted_index import Blocks, power_above
from heliograph.runtime.client.client import Client
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput

Metric = Literal["cosine", "dot"]
Answers = Literal["scores", "top1", "matches"]
# What the client reads as the unit of the scores, and the unit of the decisions over them.
_UNITS: dict[Metric, str] = {"cosine": "cosine similarity", "dot": "dot product"}
_KINDS: dict[Answers, str] = {
    "scores": "{}",
    "top1": "1 for the largest {}",
    "matches": "1 for a {} above the threshold",
}
# The answer and the metric of each unit.
_READ = {
    kind.format(name): (answer, metric)
    for (answer, kind), (metric, name) in itertools.product(_KINDS.items(), _UNITS.items())
}
# What follows the unit if the vectors are encrypted.
_SIZES = re.compile(r"; (\d+) entries of (\d+) components$")
# The smallest difference of cosines that a server tells apart unless another is given.
_GAP = 0.02
# The least precision of the scores of encrypted vectors.
_SCORE_BITS = 14.0
# Cosines come with an error; a decision is accurate a little beyond them.
_ROOM = 2.0**-7
# The most entries of which a server finds the nearest: it compares all pairs of them (docs/search.md).
_MOST_COMPARED = 300
# A decision above this is a hit.
_HIT = 0.5
# Decisions and encrypted vectors are simulated on this many queries unless samples are given.
_QUERIES = 8


class Hit(NamedTuple):
    """A vector of the index that a query found: its score, its place in the index, and its name if the index has names.

    If the server decides ("top1", "matches"), the score is the decision: 1, or a number between 0 and 1 for an entry that
    is within the index's gap of a tie or of the threshold.
    """

    score: float
    place: int
    name: str | None


class Evaluates(Protocol):
    """A server, here or elsewhere: `Server` or `RemoteServer`."""

    def run(self, encrypted: EncryptedInput) -> EncryptedOutput: ...


def search_index(
    vectors: Any,
    *,
    names: Iterable[str] | None = None,
    metric: Metric = "cosine",
    largest: float | None = None,
    answer: Answers = "scores",
    threshold: float | None = None,
    gap: float | None = None,
    samples: Any = None,
    encrypted: bool = False,
    name: str = "index",
    options: Options | None = None,
) -> Artifact:
    """The artifact of an index, for `search`: its public part is for clients, the whole is the server's.

    vectors: one row for each entry, (entries, components).
    names: different short texts, one for each entry; they are in the public part, and every client can read them.
    metric: "cosine" divides rows and queries by their length; "dot" takes them as they are.
    largest: for "dot", the largest size of a component of a query.
    answer: "scores": the scores of all entries. "top1": which entry is nearest, and no score. "matches": which entries
        exceed the threshold, and no score.
    threshold: for "matches".
    gap: for "top1" and "matches", the smallest difference of two scores, or of a score and the threshold, that is told
        apart (default: for "cosine" 0.02, or the smallest one of the samples if there are any).
    samples: for "top1" and "matches", queries like those to come, (samples, components): the report has the share of them
        that is decided as in the clear.
    encrypted: the vectors are encrypted too (`encrypt_index`): the artifact holds their number and length only, and for
        "dot" the power of two above their largest component. One key owns the index and asks.
    options: how it is compiled.

    Raises ProgramError for values that are not a matrix of finite numbers, for a row of zeros under "cosine", for names
    that are not different texts, one a row, for too many entries of which to find the nearest, and for samples that do not
    fit or of an encrypted index, about which the report would tell.
    """
    rows = _rows(vectors, "the vectors of an index")
    rows, bound = _measured(rows, metric, largest)
    if answer not in _KINDS:
        raise ProgramError(f"an index does not answer {answer!r}", hint=f"one of {', '.join(_KINDS)}")
    decides = answer != "scores"
    _check_decision(rows, metric, answer, threshold, gap, samples, encrypted)
    labels = None if names is None else _labels(names, len(rows))
    queries = None
    if samples is not None:
        queries = _queries(samples, rows.shape[1], metric)
    elif decides or encrypted:
        queries = _near(_stand_in(rows.shape) if encrypted else rows, bound, metric)
    if gap is None and decides and samples is None:
        gap = _GAP
    size = 1.0 if metric == "cosine" else power_above(float(np.abs(rows).max()))
    # Cosines by Cauchy and Schwarz: intervals know the components alone, and would be far wider. Dot products with vectors
    # that are encrypted by their components, of which the largest alone is known; others by intervals.
    most = 1.0 if metric == "cosine" else rows.shape[1] * bound * size if encrypted else None
    decision = _Decision(answer, threshold, gap, most)
    builder, chosen = Builder(name, Stage.TENSOR), options or Options()
    if encrypted and not decides:
        # Scores are ranked, and products of two encrypted values lose more than maps do.
        chosen = replace(chosen, precision_bits=max(chosen.bits(), _SCORE_BITS))
    if encrypted:
        blocks = Blocks.of(len(rows), rows.shape[1], decides, chosen.log_ring)
        scores = blocks.scores(builder, bound, size)
    else:
        query = builder.input("query", shape=rows.shape[1:], low=-bound, high=bound)
        scores = [builder.op("linear", (query,), weight=builder.constant(rows, "vectors"))]
    made = [decision.of(builder, each) for each in scores]
    outputs = {answer if len(made) == 1 else f"{answer}_{i}": node for i, node in enumerate(made)}
    program = builder.finish(outputs)
    if queries is not None:
        program = _calibrated(program, queries, blocks if encrypted else None, None if metric == "cosine" else size)
    unit = _KINDS[answer].format(_UNITS[metric])
    if encrypted:
        # Shapes do not tell: the last block ends in rows of zeros, and a ciphertext may have several components of a row.
        unit += f"; {len(rows)} entries of {rows.shape[1]} components"
    specs = [TensorSpec(each, shape_of(node), unit=unit) for each, node in outputs.items()]
    if labels is not None:
        specs = _named(specs, labels, len(rows))
    program = replace(program, interface=replace(program.interface, outputs=tuple(specs)))
    return compile_program(program, chosen)


def encrypt_index(client: Client, vectors: Any) -> EncryptedInput:
    """The vectors of an encrypted index, for a server that keeps them (`Server(kept=...)`).

    client: the owner's, for an index made with `search_index(..., encrypted=True)`.
    vectors: those that the index was made with, (entries, components).

    Raises ProgramError for another index or shape; RangeError for a component beyond the index's range.
    """
    made = _Made.of(client)
    if made.blocks is None:
        raise ProgramError(
            f"{client.public.name} has its vectors in the clear", hint="search_index(..., encrypted=True)"
        )
    rows = _rows(vectors, "the vectors of an index")
    if rows.shape != (made.entries, made.blocks.components):
        raise ProgramError(
            f"the vectors have shape {rows.shape}", why=f"the index is for {(made.entries, made.blocks.components)}"
        )
    return client.encrypt_some(**dict(made.blocks.values(_unit(rows, "row") if made.metric == "cosine" else rows)))


def search(server: Evaluates, client: Client, query: Any, k: int | None = None) -> Any:
    """The hits of an encrypted query, best first: a list of `Hit`s, or a list of lists for several queries.

    server: a `Server` or `RemoteServer` that has the evaluation keys of `client`, and keeps the vectors if they are
        encrypted.
    client: a `Client` for an index (`search_index`).
    query: one vector (components,), or several (queries, components).
    k: how many hits each query gets, at most (default: 10; all that the server found, if it decides); of equal scores, the
        first in the index.

    Raises ProgramError for another shape, a zero query under "cosine", or an artifact that is no index; RangeError for a
    component beyond the index's range.
    """
    made = _Made.of(client)
    if k is not None and not (isinstance(k, (int, np.integer)) and not isinstance(k, bool) and k >= 1):
        raise ProgramError(f"{k!r} hits of a query: a whole number, at least one")
    given = np.asarray(plain_values(query))
    rows = _rows(given[np.newaxis] if given.ndim == 1 else given, "a query")
    if made.metric == "cosine":
        rows = _unit(rows, "query")
    if made.blocks is not None and rows.shape[1] != made.blocks.components:
        raise ProgramError(f"a query of shape {rows.shape[1:]}: the index has {made.blocks.components} components")
    labels = made.labels()
    bound = next(spec.high for spec in client.public.given if spec.name == "query")
    if made.metric == "dot" and bound is not None and np.abs(rows).max() > bound:
        place, column = np.unravel_index(int(np.abs(rows).argmax()), rows.shape)
        raise RangeError(
            f"query {place} has the component {rows[place, column]:g} (number {column})",
            why=f"the components of this index's queries are {bound:g} at most",
            hint="make the index with a larger one, search_index(..., largest=...), or scale the query and any threshold",
        )
    found = []
    for row in rows:
        asked = row if made.blocks is None else made.blocks.query(row)
        decrypted = client.decrypt(server.run(client.encrypt_some(query=asked)))
        scores = np.concatenate(decrypted) if isinstance(decrypted, tuple) else np.asarray(decrypted)
        places = made.hits(scores[: made.entries], k)
        found.append([Hit(float(scores[i]), i, None if labels is None else labels[i]) for i in places])
    return found[0] if given.ndim == 1 else found


def best(scores: Array, k: int) -> list[int]:
    """The places of the k largest scores, largest first; of equal ones the first."""
    # By size downwards, and within one size by place upwards.
    return [int(place) for place in np.argsort(-scores, kind="stable")[:k]]


def _rows(values: Any, what: str) -> Array:
    try:
        rows = real_numbers(plain_values(values))
    except ValueError as error:
        raise ProgramError(f"{what} must be a matrix of real numbers", why=str(error)) from None
    if rows.ndim != 2 or not rows.size:
        raise ProgramError(f"{what} must be a matrix, one row each", why=f"its shape is {rows.shape}")
    if not np.isfinite(rows).all():
        place = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ProgramError(f"{what} must be finite", why=f"row {place} has NaN or infinity")
    return rows


def _unit(rows: Array, what: str) -> Array:
    """The rows divided by their lengths."""
    # Scaled first, so that no square overflows or vanishes.
    size = np.abs(rows).max(axis=1, keepdims=True)
    if not size.all():
        raise ProgramError(f"{what} {int(np.flatnonzero(size[:, 0] == 0)[0])} is zero: it has no direction")
    scaled = rows / size
    made: Array = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    return made


def _measured(rows: Array, metric: Metric, largest: float | None) -> tuple[Array, float]:
    """The rows as the metric takes them, and the largest size of a component of a query."""
    if metric not in _UNITS:
        raise ProgramError(f"there is no metric {metric!r}", hint=f"one of {', '.join(_UNITS)}")
    if metric == "cosine":
        if largest is not None:
            raise ProgramError("a largest component is for metric='dot'", why="under 'cosine' queries have length one")
        return _unit(rows, "row"), 1.0
    _check_number(largest, "largest")
    if largest is None or not 0.0 < largest < np.inf:
        raise ProgramError("metric='dot' needs the largest component of a query", hint="search_index(..., largest=1.0)")
    return rows, float(largest)


def _labels(names: Iterable[str], entries: int) -> list[str]:
    """The names as texts, one for each entry; a ProgramError if they are not, or if one repeats."""
    made = [str(each) for each in names]
    if len(made) != entries:
        raise ProgramError(f"an index of {entries} entries has {len(made)} names", hint="one for each row, in order")
    first: dict[str, int] = {}
    for place, each in enumerate(made):
        if first.setdefault(each, place) != place:
            raise ProgramError(
                f"entries {first[each]} and {place} have one name, {each[:60]!r}",
                hint="give different names, or none: hits have their places too",
            )
    return made


def _check_number(value: object, name: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating))):
        raise ProgramError(f"{name}={value!r} cannot be used", where="search_index", why="it is a number")


def _check_decision(
    rows: Array,
    metric: Metric,
    answer: Answers,
    threshold: float | None,
    gap: float | None,
    samples: Any,
    encrypted: bool,
) -> None:
    """Raise a ProgramError for what does not fit together."""
    if not isinstance(encrypted, bool):
        raise ProgramError(f"encrypted={encrypted!r} cannot be used", why="it is True or False")
    for number, what in ((threshold, "threshold"), (gap, "gap")):
        _check_number(number, what)
    if (threshold is None) == (answer == "matches"):
        raise ProgramError(
            "an index with answer='matches', and no other, has a threshold",
            hint="search_index(..., answer='matches', threshold=0.8)",
        )
    if threshold is not None and not abs(threshold) < (1.0 if metric == "cosine" else np.inf):
        raise ProgramError(f"the threshold {threshold} is no {_UNITS[metric]} that entries can exceed or not")
    if answer == "scores" and (gap is not None or samples is not None):
        raise ProgramError("a gap and samples are for answer='top1' or 'matches'", why="scores are not compared")
    if gap is not None and not 0.0 < gap < np.inf:
        raise ProgramError(f"gap = {gap}: it is the smallest difference of scores to tell apart, a positive number")
    if samples is not None and encrypted:
        raise ProgramError(
            "samples are for an index in the clear",
            why="the report of an artifact tells how its entries answer them, and the server has the artifact",
            hint="give a gap",
        )
    if answer != "scores" and metric == "dot" and gap is None and samples is None:
        raise ProgramError("decisions over dot products need a gap, or samples", hint="search_index(..., gap=0.1)")
    if answer == "top1" and not 2 <= len(rows) <= _MOST_COMPARED:
        raise ProgramError(
            f"a server finds the nearest of 2 to {_MOST_COMPARED} entries, and these are {len(rows)}",
            why="it compares all pairs of them, by polynomials of many levels (docs/search.md has times)",
            hint="answer='scores', or 'matches' with a threshold",
        )


def _queries(samples: Any, components: int, metric: Metric) -> Array:
    """The samples as the program takes them."""
    rows = _rows(samples, "samples of queries")
    if rows.shape[1] != components:
        raise ProgramError(f"samples have {rows.shape[1]} components, the index {components}")
    return _unit(rows, "sample") if metric == "cosine" else rows


@dataclass(frozen=True, slots=True)
class _Decision:
    """What the server decides over scores, and how closely.

    most: the largest size of a score, if it is known.
    """

    answer: Answers
    threshold: float | None
    gap: float | None
    most: float | None

    def of(self, builder: Builder, scores: Node) -> Node:
        """The answer; the scores themselves if nothing is decided."""
        if self.answer == "scores":
            return scores
        most = None if self.most is None else self.most * (1.0 + _ROOM)
        low, high = None if most is None else -most, most
        if self.threshold is None:
            return builder.op("argmax", (scores,), axis=0, gap=self.gap, low=low, high=high)
        if low is not None and high is not None:
            low, high = low - self.threshold, high - self.threshold
        threshold = builder.op("constant", value=builder.constant(np.array(self.threshold), "threshold"))
        return builder.op("gt", (scores, threshold), gap=self.gap, low=low, high=high)


def _calibrated(program: Program, queries: Array, blocks: Blocks | None, size: float | None) -> Program:
    """The program with queries on which it is simulated; an encrypted index takes random vectors in place of its own.

    size: for dot products, the largest component of vectors that are encrypted.
    """
    if blocks is None:
        return replace(program, calibration=(queries,))
    queries, rows = queries[:2], _stand_in((blocks.entries, blocks.components))
    if size is not None:
        # One score is the largest that there is: the ring has room for all.
        rows *= size / np.abs(rows).max()
        rows[0] = np.copysign(size, rows[0])
        queries = np.stack([queries[0], np.copysign(np.abs(queries).max(), rows[0])])
    index = dict(blocks.values(rows))
    values = {"query": np.stack([blocks.query(query) for query in queries])}
    values |= {name: np.repeat(own[np.newaxis], len(queries), axis=0) for name, own in index.items()}
    return replace(program, calibration=tuple(values[node.attrs["name"]] for node in program.inputs))


def _stand_in(shape: tuple[int, ...]) -> Array:
    """Random vectors in place of encrypted ones."""
    return _unit(np.random.default_rng(1).normal(size=shape), "row")


def _near(rows: Array, bound: float, metric: Metric) -> Array:
    """Queries near some rows: their decisions are clear."""
    random = np.random.default_rng(0)
    noise = _unit(random.normal(size=(_QUERIES, rows.shape[1])), "query")
    chosen = rows[random.integers(len(rows), size=_QUERIES)]
    # Rows of zeros have no direction.
    chosen = chosen / np.maximum(np.linalg.norm(chosen, axis=1, keepdims=True), np.finfo(float).tiny)
    queries = _unit(chosen + 0.3 * noise, "query")
    return queries if metric == "cosine" else bound * queries / np.abs(queries).max()


def _named(specs: list[TensorSpec], names: list[str], entries: int) -> list[TensorSpec]:
    """The outputs with the names of their entries; rows that fill the last block get numbers that are no names."""
    if len(specs) > 1:
        numbers = (text for i in itertools.count(entries) if (text := f"({i})") not in set(names))
        names += itertools.islice(numbers, sum(spec.shape[0] for spec in specs) - entries)
    ends = itertools.accumulate(spec.shape[0] for spec in specs)
    return [
        with_labels(spec, names[end - spec.shape[0] : end] if len(specs) > 1 else names)
        for spec, end in zip(specs, ends, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Made:
    """An index, as its public part tells.

    blocks: the layout of encrypted vectors; None for vectors in the clear.
    """

    outputs: tuple[PublicSpec, ...]
    answer: Answers
    metric: Metric
    entries: int
    blocks: Blocks | None

    @staticmethod
    def of(client: Client) -> _Made:
        """The index of a client; a ProgramError if its artifact is none."""
        outputs = tuple(client.public.outputs)
        unit, *sizes = _SIZES.split(outputs[0].unit or "")
        if unit not in _READ:
            raise ProgramError(f"{client.public.name} is no index", hint="make one with search_index")
        answer, metric = _READ[unit]
        if not sizes:
            return _Made(outputs, answer, metric, sum(spec.shape[0] for spec in outputs), None)
        (slots,) = (spec.shape[0] for spec in client.public.given if spec.name == "query")
        blocks = Blocks(int(sizes[0]), int(sizes[1]), slots)
        return _Made(outputs, answer, metric, blocks.entries, blocks)

    def labels(self) -> list[str] | None:
        """The names of the entries."""
        found = [read_labels(spec) for spec in self.outputs]
        return [str(each) for own in found if own is not None for each in own] or None

    def hits(self, values: Array, k: int | None) -> list[int]:
        """The places of the entries that an answer names, best first."""
        if self.answer == "scores":
            return best(values, 10 if k is None else k)
        places = best(values, len(values) if k is None else k)
        kept = [place for place in places if values[place] > _HIT]
        # Of near ties perhaps none comes near one: the nearest is among those that come nearest.
        return kept or (places[:1] if self.answer == "top1" else [])
