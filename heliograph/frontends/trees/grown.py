"""A tree from the nodes of an untrusted file: those that the root reaches, each once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.frontends.trees.ensemble import MOST_DEPTH, Tree
from heliograph.ir.node import Array


def grown(
    feature: Array,
    threshold: Array,
    left: Array,
    right: Array,
    value: Array,
    missing_left: Array,
    categories: Mapping[int, frozenset[float]] | None = None,
) -> Tree:
    """The tree whose root is node 0, from arrays as in `Tree`.

    Nodes that pruning left behind, which the root does not reach, may hold anything and are dropped. A ProgramError if a
    child does not exist or has two parents, an UnsupportedError if a path is longer than `MOST_DEPTH`.
    """
    nodes = len(feature)
    if not nodes:
        raise ProgramError("a tree of the model has no nodes")
    levels: list[Array] = [np.zeros(1, dtype=np.int64)]
    reached = 1
    while True:
        parents = levels[-1][feature[levels[-1]] >= 0]
        if not parents.size:
            break
        level = np.concatenate([left[parents], right[parents]])
        reached += level.size
        if level.min() < 0 or level.max() >= nodes:
            raise ProgramError("a tree of the model names a node that does not exist")
        # A walk in a circle meets more nodes than there are.
        if reached > nodes:
            raise ProgramError("a tree of the model is none: a node has two parents")
        if len(levels) > MOST_DEPTH:
            raise UnsupportedError(
                f"a tree of the model has paths of more than {MOST_DEPTH} decisions",
                why="all nodes are evaluated under encryption, and so many have no use",
                hint="train with a smaller max_depth",
            )
        levels.append(level)
    order = np.concatenate(levels)
    if np.unique(order).size != order.size:
        raise ProgramError("a tree of the model is none: a node has two parents")
    place = np.full(nodes, -1, dtype=np.int64)
    place[order] = np.arange(order.size)
    inner = feature[order] >= 0
    sets: dict[int, frozenset[float]] = {
        int(place[node]): found for node, found in (categories or {}).items() if place[node] >= 0
    }
    return Tree(
        feature=np.where(inner, feature[order], -1),
        threshold=np.where(inner, threshold[order], 0.0),
        left=np.where(inner, place[np.where(inner, left[order], 0)], -1),
        right=np.where(inner, place[np.where(inner, right[order], 0)], -1),
        # Numbers at inner nodes are what a shorter tree would have; they are no summands.
        value=np.where(inner[:, None], 0.0, value[order]),
        missing_left=missing_left[order] & inner,
        categories=sets,
    )
