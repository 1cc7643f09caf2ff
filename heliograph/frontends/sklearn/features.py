"""Features that are not affine: products, comparisons with thresholds, norms, functions of each feature, columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from heliograph.errors import UnsupportedError
from heliograph.frontends.sklearn.affine import read_affine
from heliograph.frontends.sklearn.layer import Layer
from heliograph.ir import Array, Node

# Functions of numpy -> how they are written for a value.
_FUNCTIONS: dict[Any, Callable[[Layer, Node], Node]] = {
    np.exp: lambda layer, x: layer.op("exp", x),
    np.expm1: lambda layer, x: layer.op("sub", layer.op("exp", x), layer.constant(1.0, "one")),
    np.log: lambda layer, x: layer.op("log", x),
    np.log1p: lambda layer, x: layer.op("log", layer.op("add", x, layer.constant(1.0, "one"))),
    np.sqrt: lambda layer, x: layer.op("sqrt", x),
    np.reciprocal: lambda layer, x: layer.op("reciprocal", x),
    np.square: lambda layer, x: layer.op("mul", x, x),
    np.abs: lambda layer, x: layer.op("abs", x),
    np.sign: lambda layer, x: layer.op("sign", x),
    np.sin: lambda layer, x: layer.op("sin", x),
    np.cos: lambda layer, x: layer.op("cos", x),
    np.tanh: lambda layer, x: layer.op("tanh", x),
}


def known_function(layer: Layer, value: Node, function: Any) -> Node | None:
    """A function of numpy of each element; None if it is none of those that are known."""
    try:
        written = _FUNCTIONS.get(function)
    except TypeError:
        return None
    return None if written is None else written(layer, value)


def read_function(layer: Layer) -> Node:
    """A function of the features: one of numpy of each, or an affine one."""
    found = None
    if not (layer.step.kw_args or layer.step.func is None):
        found = known_function(layer, layer.value, layer.step.func)
    return read_affine(layer) if found is None else found


def read_products(layer: Layer) -> Node:
    """Products of features: a power of degree d is a product of two of half of it."""
    powers = np.asarray(layer.step.powers_, dtype=np.int64)
    made: dict[tuple[int, ...], tuple[int, int]] = {}
    # Values of each degree, and the place of each monomial among them.
    values: dict[int, Node] = {1: layer.value}
    for place, row in enumerate(np.eye(powers.shape[1], dtype=np.int64)):
        made[tuple(row)] = (1, place)
    needed = _factors(powers)
    for degree in sorted(needed):
        halves = [_halves(row) for row in needed[degree]]
        left, right = (_gathered(layer, values, made, [pair[side] for pair in halves]) for side in (0, 1))
        values[degree] = layer.op("mul", left, right)
        for place, row in enumerate(needed[degree]):
            made[row] = (degree, place)
    total = None
    bias = (powers.sum(axis=1) == 0).astype(np.float64)
    for degree, value in values.items():
        weight: Array = np.zeros((len(powers), value.type.size))  # type: ignore[union-attr]
        for output, row in enumerate(map(tuple, powers)):
            if sum(row) == degree:
                weight[output, made[row][1]] = 1.0
        if weight.any() or total is None:
            term = layer.linear(value, weight, bias if total is None else None)
            total = term if total is None else layer.op("add", total, term)
    assert total is not None
    return total


def _halves(row: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two monomials with that product; the first has the larger half of its degree."""
    factors = [place for place, power in enumerate(row) for _ in range(power)]
    first = np.bincount(factors[::2], minlength=len(row))
    second = np.bincount(factors[1::2], minlength=len(row))
    return tuple(map(int, first)), tuple(map(int, second))


def _factors(powers: Array) -> dict[int, list[tuple[int, ...]]]:
    """The monomials of each degree above 1 that are outputs or factors of others."""
    needed: dict[int, list[tuple[int, ...]]] = {}
    waiting = [tuple(map(int, row)) for row in powers]
    known = set()
    while waiting:
        row = waiting.pop()
        if sum(row) > 1 and row not in known:
            known.add(row)
            waiting.extend(_halves(row))
    for row in sorted(known, reverse=True):
        needed.setdefault(sum(row), []).append(row)
    return needed


def _gathered(
    layer: Layer, values: dict[int, Node], made: dict[tuple[int, ...], tuple[int, int]], rows: list[tuple[int, ...]]
) -> Node:
    """Monomials that are made already, of whatever degrees."""
    total = None
    for degree, value in values.items():
        weight: Array = np.zeros((len(rows), value.type.size))  # type: ignore[union-attr]
        for output, row in enumerate(rows):
            if made[row][0] == degree:
                weight[output, made[row][1]] = 1.0
        if weight.any():
            term = layer.linear(value, weight)
            total = term if total is None else layer.op("add", total, term)
    assert total is not None
    return total


def read_binarizer(layer: Layer) -> Node:
    """1 for features above the threshold, else 0."""
    return layer.op("gt", layer.value, layer.constant(float(layer.step.threshold), "threshold"))


def read_bins(layer: Layer) -> Node:
    """The number of each feature's bin, or a bit for each bin: by a comparison with each edge between two bins."""
    step, edges = layer.step, layer.step.bin_edges_
    inner = [own[1:-1] for own in edges]
    features, count = len(edges), sum(map(len, inner))
    widths = [len(own) + 1 for own in inner]
    outputs = features if step.encode == "ordinal" else sum(widths)
    weight, bias = np.zeros((outputs, count)), np.zeros(outputs)
    spread: Array = np.zeros((count, features))
    start = output = 0
    for feature, own in enumerate(inner):
        stop = start + len(own)
        spread[start:stop, feature] = 1.0
        if step.encode == "ordinal":
            weight[feature, start:stop] = 1.0
        else:
            # Above the edge below, and not above the edge over it.
            bias[output] = 1.0
            for place in range(len(own)):
                weight[output + place + 1, start + place] += 1.0
                weight[output + place, start + place] -= 1.0
            output += widths[feature]
        start = stop
    if not count:
        return layer.linear(layer.value, np.zeros((outputs, features)), bias)
    placed = layer.linear(layer.value, spread, name="edges")
    above = layer.op("ge", placed, layer.constant(np.concatenate(inner), "edges"), name="above")
    return layer.linear(above, weight, bias)


def read_normalizer(layer: Layer) -> Node:
    """Each sample divided by its norm."""
    norm = layer.step.norm
    if norm == "l2":
        squared = layer.op("sum", layer.op("mul", layer.value, layer.value), axes=(0,), keepdims=True)
        return layer.op("mul", layer.value, layer.op("rsqrt", squared, name="norm"))
    size = layer.op("abs", layer.value, name="size")
    if norm == "l1":
        return layer.op("div", layer.value, layer.op("sum", size, axes=(0,), keepdims=True), name="norm")
    return layer.op("div", layer.value, layer.op("max", size, axis=0, keepdims=True, name="largest"), name="norm")


def read_scaler(layer: Layer) -> Node:
    """Features scaled to an interval, and cut at its ends if the scaler clips."""
    step = layer.step
    if not step.clip:
        return read_affine(layer)
    scaled = layer.linear(layer.value, np.diag(step.scale_), step.min_)
    low, high = step.feature_range
    return layer.op("clamp", scaled, name="clip", min=float(low), max=float(high))


def read_union(layer: Layer) -> Node:
    """The outputs of several transformers, one behind the other."""
    return _or_parts(layer, lambda: layer.joined([_weighted(layer, *part) for part in layer.step.transformer_list]))


def _weighted(layer: Layer, name: str, part: Any) -> Node:
    """The output of one transformer of a union, times its weight."""
    factor = (layer.step.transformer_weights or {}).get(name, 1.0)
    value = layer.value if part == "passthrough" else layer.reading.read(layer.inner(part, name))
    return value if factor == 1.0 else layer.op("mul", value, layer.constant(float(factor), "weight"))


def read_columns(layer: Layer) -> Node:
    """The outputs of transformers of some columns each, in the order that their estimator gives them."""
    return _or_parts(layer, lambda: _columns(layer))


def _columns(layer: Layer) -> Node:
    step, seen = layer.step, layer.seen
    # Rows may have their columns in another order than those of the training.
    columns = getattr(layer.named(seen[:1]), "columns", None)
    fitted = getattr(step, "feature_names_in_", None)
    order = (
        np.arange(step.n_features_in_)
        if columns is None or fitted is None
        else [list(columns).index(n) for n in fitted]
    )
    parts: list[tuple[slice, Node]] = []
    for name, part, _ in step.transformers_:
        place = step.output_indices_[name]
        if (isinstance(part, str) and part == "drop") or place.start == place.stop:
            continue
        own = np.asarray(order)[np.asarray(step._transformer_to_input_indices[name])]
        value = layer.linear(layer.value, np.eye(seen.shape[1])[own])
        if not (isinstance(part, str) and part == "passthrough"):
            value = layer.reading.read(layer.inner(part, name, value, seen[:, own]))
        factor = (step.transformer_weights or {}).get(name, 1.0)
        parts.append(
            (place, value if factor == 1.0 else layer.op("mul", value, layer.constant(float(factor), "weight")))
        )
    return layer.joined([value for _, value in sorted(parts, key=lambda part: part[0].start)])


def _or_parts(layer: Layer, parts: Callable[[], Node]) -> Node:
    """One affine map where there is one, else what is made of parts."""
    try:
        return read_affine(layer)
    except UnsupportedError:
        return parts()
