"""Private search: a server's index of vectors, and a client's query that the server does not read.

The scores of all vectors are one linear map of the encrypted query, on one level; the client decrypts them and takes the
largest. So the best hits are exact up to the error of encryption. The server learns nothing about the query. The client
learns every score: with as many queries as the vectors have components it can compute the vectors themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.errors import ProgramError
from heliograph.execution.interface import plain_values, real_numbers
from heliograph.ir import Array, Builder, Stage
from heliograph.ir.interface import TensorSpec
from heliograph.ir.labels import read_labels, with_labels
from heliograph.runtime.client.client import Client
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput

Metric = Literal["cosine", "dot"]
# What the client reads as the unit of the scores.
_UNITS: dict[Metric, str] = {"cosine": "cosine similarity", "dot": "dot product"}


class Hit(NamedTuple):
    """A vector of the index that a query found: its score, its place in the index, and its name if the index has names."""

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
    name: str = "index",
    options: Options | None = None,
) -> Artifact:
    """The artifact of an index, for `search`: its public part is for clients, the whole is the server's.

    vectors: one row for each entry, (entries, components).
    names: different short texts, one for each entry; they are in the public part, and every client can read them.
    metric: "cosine" divides rows and queries by their length; "dot" takes them as they are.
    largest: for "dot", the largest size of a component of a query.
    options: how it is compiled.

    Raises ProgramError for values that are not a matrix of finite numbers, for a row of zeros under "cosine", and for
    names that are not different texts, one a row.
    """
    rows = _rows(vectors, "the vectors of an index")
    if metric not in _UNITS:
        raise ProgramError(f"there is no metric {metric!r}", hint=f"one of {', '.join(_UNITS)}")
    if metric == "cosine":
        if largest is not None:
            raise ProgramError("a largest component is for metric='dot'", why="under 'cosine' queries have length one")
        rows, bound = _unit(rows, "row"), 1.0
    else:
        if largest is None or not 0.0 < largest < np.inf:
            raise ProgramError(
                "metric='dot' needs the largest component of a query", hint="search_index(..., largest=1.0)"
            )
        bound = float(largest)
    builder = Builder(name, Stage.TENSOR)
    query = builder.input("query", shape=rows.shape[1:], low=-bound, high=bound)
    program = builder.finish({"scores": builder.op("linear", (query,), weight=builder.constant(rows, "vectors"))})
    spec = TensorSpec("scores", rows.shape[:1], unit=_UNITS[metric])
    if names is not None:
        spec = with_labels(spec, [str(each) for each in names])
    program = replace(program, interface=replace(program.interface, outputs=(spec,)))
    return compile_program(program, options or Options())


def search(server: Evaluates, client: Client, query: Any, k: int = 10) -> Any:
    """The best hits of an encrypted query, best first: a list of `Hit`s, or a list of lists for several queries.

    server: a `Server` or `RemoteServer` that has the evaluation keys of `client`.
    client: a `Client` for an index (`search_index`).
    query: one vector (components,), or several (queries, components).
    k: how many hits each query gets, at most; of equal scores, the first in the index.

    Raises ProgramError for another shape, a zero query under "cosine", or an artifact that is no index; RangeError for a
    component beyond the index's range.
    """
    (output,) = client.public.outputs if len(client.public.outputs) == 1 else (None,)
    if output is None or output.unit not in _UNITS.values():
        raise ProgramError(f"{client.public.name} is no index", hint="make one with search_index")
    if not k >= 1:
        raise ProgramError(f"{k} hits of a query: at least one")
    given = np.asarray(plain_values(query))
    rows = _rows(given[np.newaxis] if given.ndim == 1 else given, "a query")
    if output.unit == _UNITS["cosine"]:
        rows = _unit(rows, "query")
    labels = read_labels(output)
    found = []
    for row in rows:
        scores = np.asarray(client.decrypt(server.run(client.encrypt(row))))
        found.append([Hit(float(scores[i]), i, None if labels is None else str(labels[i])) for i in best(scores, k)])
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
