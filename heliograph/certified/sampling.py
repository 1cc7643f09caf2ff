"""A network in the clear on many noisy copies of an input: logits, and whether a value left its interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.certified.certificate import Certificate
from heliograph.execution.interface import draw
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Builder, Node, Program, shape_of, size_of

# The most numbers held at once in one value of the network.
_MOST_HELD = 1 << 24


@dataclass(frozen=True, slots=True)
class Sampled:
    """Logits (copies, classes) of the certified and of the evaluated network, and whether polynomials' inputs left.

    `left`: for each copy, whether a polynomial's input left its interval.
    """

    exact: Array
    evaluated: Array
    left: Array

    @property
    def gaps(self) -> Array:
        """The difference between the largest and the next evaluated logit of each copy."""
        two = np.sort(self.evaluated, axis=1)[:, -2:]
        return np.asarray(two[:, 1] - two[:, 0])

    @property
    def spread(self) -> Array:
        """The difference between the largest and the smallest evaluated logit of each copy."""
        return np.asarray(self.evaluated.max(axis=1) - self.evaluated.min(axis=1))

    @property
    def behind(self) -> Array:
        """The distance of each evaluated logit from the largest, (copies, classes).

        It is infinite for the class that the certified network chooses; another class with a small distance may
        wrongly get the vote.
        """
        distance = self.evaluated.max(axis=1, keepdims=True) - self.evaluated
        distance[np.arange(len(distance)), self.exact.argmax(axis=1)] = np.inf
        return np.asarray(distance)


class Sampler:
    """Draws noisy copies. `exact` and `evaluated` are tensor-stage programs with one input; they may be the same.

    If only one map reads the input and has fewer results than elements, normal noise is drawn after the map, with the
    covariance that it has there: the same distribution, for a fraction of the work.
    """

    def __init__(self, exact: Program, evaluated: Program, certificate: Certificate, rng: np.random.Generator) -> None:
        self.certificate, self.rng = certificate, rng
        self.programs = (exact,) if exact is evaluated else (exact, evaluated)
        (source,) = exact.inputs
        self.shape = shape_of(source)
        self.deviations = certificate.deviations(self.shape)
        self._behind = _behind_first_map(exact) if exact is evaluated and certificate.drawn == "normal" else None
        if self._behind is not None:
            tail, matrix, _ = self._behind
            self.programs = (tail,)
            scaled = matrix * self.deviations.ravel()
            # A square root of the covariance that also works for a map of lower rank.
            values, vectors = np.linalg.eigh(scaled @ scaled.T)
            self._root = vectors * np.sqrt(np.maximum(values, 0.0))
        self._largest = max(size_of(node) for program in self.programs for node in program.nodes)

    def __call__(self, x: Array, copies: int) -> Sampled:
        """The copies of one input."""
        found: list[list[Array]] = [[] for _ in self.programs]
        left = np.zeros(copies, dtype=bool)
        step = max(1, _MOST_HELD // self._largest)
        for start in range(0, copies, step):
            count = min(step, copies - start)
            noisy = self._noisy(x, count)
            for rows, program in zip(found, self.programs, strict=True):
                made, out = run_watched(program, noisy)
                rows.append(made)
                left[start : start + count] |= out
        exact, *more = (np.concatenate(rows) for rows in found)
        return Sampled(exact, more[0] if more else exact, left)

    def _noisy(self, x: Array, count: int) -> Array:
        if self._behind is None:
            return np.asarray(x + self.deviations * self.draw((count, *self.shape)))
        _, matrix, bias = self._behind
        drawn = self.rng.standard_normal((count, len(bias)))
        made: Array = matrix @ x.ravel() + bias + drawn @ self._root.T
        return made

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Numbers of the certificate's distribution."""
        return draw(self.certificate.drawn, shape, self.rng)


def run_watched(program: Program, values: Array) -> tuple[Array, Array]:
    """The single output for inputs with a leading axis, and which inputs left the interval of a polynomial."""
    (source,) = program.inputs
    left = np.zeros(values.shape[0], dtype=bool)
    bounds = {
        node.inputs[0]: (node.attrs["low"], node.attrs["high"])
        for node in program.nodes
        if node.op == "poly" and node.type.secret
    }

    def watch(node: Node, value: Array) -> None:
        if node in bounds:
            low, high = bounds[node]
            flat = value.reshape(value.shape[0], -1)
            left[:] |= ~((flat >= low) & (flat <= high)).all(axis=1)

    with np.errstate(all="ignore"):
        (made,) = run_nodes(program, {source: values}, watch)
    return np.asarray(made), left


def _behind_first_map(program: Program) -> tuple[Program, Array, Array] | None:
    """The program after the only map that reads the input, and this map's matrix and bias; None if it saves nothing."""
    (source,) = program.inputs
    readers = [node for node in program.nodes if source in node.inputs]
    if len(readers) != 1 or readers[0].op != "affine" or readers[0].inputs != (source,):
        return None
    (first,) = readers
    if size_of(first) >= size_of(source) or source in program.outputs:
        return None
    (name,) = first.attrs["matrices"]
    matrix = program.linear_map(name).csr().toarray()
    bias = program.array(first.attrs["bias"]) if "bias" in first.attrs else np.zeros(len(matrix))
    builder = Builder(program.name, program.stage, program)
    new: dict[Node, Node] = {}
    for node in program.nodes:
        if node is source:
            continue
        if node is first:
            new[node] = builder.input("first map", node.loc, shape=shape_of(first))
        else:
            new[node] = builder.copy(node, [new[operand] for operand in node.inputs])
    return builder.finish_as(program, new), np.asarray(matrix), np.asarray(bias)


def gradient_of(program: Program) -> Any:
    """The network as a torch module with a batch axis in front, in float32; for attacks on it."""
    from heliograph.frontends.torch.training.modules import to_torch

    return to_torch(program).requires_grad_(False)
