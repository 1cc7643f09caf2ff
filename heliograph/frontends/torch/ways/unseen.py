"""Models that merge the batch axis with others: `x.view(batch * heads, length, width)`, windows of an image, frames.

Such a model is traced with one sample. Its batch axis is then an axis of length one, which any call may merge with
others; values whose batch axis has gone into another one have all of torch's axes in their node (`Value.seen`). What one
sample gives is what the program means; that the model keeps the samples of a batch apart is seen by running it
(torch_check.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from heliograph.frontends.torch.values import UNSEEN, BySample, Value
from heliograph.ir import Builder, Location, Node


def unseen_call(
    builder: Builder, loc: Location, run: Callable[[Any, Any, Any], Any], args: Any, kwargs: Any, result: Any
) -> Any:
    """What a rule makes of operands one of which has an unseen batch axis; the others get all of torch's axes too."""

    def reshaped(node: Node, shape: tuple[int, ...]) -> Node:
        return node if node.type.shape == shape else builder.op("reshape", (node,), loc, shape=shape)  # type: ignore[union-attr]

    def whole(value: Any) -> Any:
        if not isinstance(value, Value) or not value.seen:
            return value
        shape = (*value.shape[: value.batch], 1, *value.shape[value.batch :])
        return value.each(lambda node: reshaped(node, shape), UNSEEN)

    def seen(value: Any) -> Any:
        """With a leading axis of one that stands for the batch axis: any will do for one sample."""
        if not isinstance(value, Value) or value.seen or not value.shape or value.shape[0] != 1:
            return value
        return value.each(lambda node: reshaped(node, value.shape[1:]), 0)

    leaves, spec = pytree.tree_flatten((args, kwargs))
    leaves = [whole(leaf) for leaf in leaves]

    def called(some: list[Any], recorded: Any) -> Any:
        given, named = pytree.tree_unflatten(some, spec)
        return run(given, named, recorded)

    try:
        return pytree.tree_map(seen, called(leaves, result))
    except BySample:
        pass
    # The rule works on a batch of samples, and there are several here: one at a time.
    counts = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Value)}
    if len(counts) > 1:
        raise ValueError("operands of different lengths meet by sample")
    made = []
    for place in range(counts.pop()):

        def one(leaf: Any, place: int = place) -> Any:
            if not isinstance(leaf, Value):
                return leaf
            ends = [(place, place + 1), *((0, size) for size in leaf.shape[1:])]
            starts, stops = zip(*ends, strict=True)
            part = builder.op("slice", (leaf.node,), loc, starts=starts, stops=stops, steps=(1,) * len(ends))
            return replace(leaf, node=reshaped(part, leaf.shape[1:]), batch=0)

        recorded = pytree.tree_map(lambda out: out[:1] if isinstance(out, torch.Tensor) else out, result)
        made.append(called([one(leaf) for leaf in leaves], recorded))
    return _joined(builder, loc, made)


def _joined(builder: Builder, loc: Location, made: list[Any]) -> Any:
    """One result of several by sample, one behind another along the first axis."""
    first = made[0]
    if isinstance(first, list | tuple):
        return [_joined(builder, loc, [one[i] for one in made]) for i in range(len(first))]
    if not isinstance(first, Value):
        return first
    nodes = [builder.op("reshape", (one.node,), loc, shape=(1, *one.shape)) for one in made]
    node = nodes[0] if len(nodes) == 1 else builder.op("concat", nodes, loc, axis=0)
    return replace(first, node=node, batch=UNSEEN)
