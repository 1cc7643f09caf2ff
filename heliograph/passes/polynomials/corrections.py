"""Linear maps behind polynomials, corrected so that their results are nearest to the exact network's.

Polynomials err in the same direction on most samples, and errors add up over the layers. After each map that reads their
results, every unit gets the factor a and the offset b that minimise the mean square of a p + b - f over calibration
samples: p is what the corrected program computes up to there, f the exact value. Map and bias absorb them, so that nothing
is added at run time. Bias correction of quantized networks (Nagel et al., arXiv 1906.04721, section 4.2) is the case a = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heliograph.interpret import walk
from heliograph.ir import Array, Node

if TYPE_CHECKING:
    from heliograph.passes.polynomials.approximation import Approximations

# Fitted on this many samples at most.
MOST_SAMPLES = 256
# Values that differ by less than this share of their size are the same up to rounding: nothing is corrected.
_SAME = 1e-9
# A factor outside of this interval is that of a unit that hardly varies: it gets an offset alone.
_FACTORS = (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Correction:
    """What replaces the result p of a linear map: `factor` * p + `offset`, (elements,) each, in the values' own units."""

    factor: Array
    offset: Array


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear map of secret values in a table of approximations.

    `exact`: its node in the fused program.
    `made`: its node in the polynomial program.
    `sizes`: the unit sizes by which the latter's value is divided, (elements,); None without units.
    """

    exact: Node
    made: Node
    sizes: Array | None


def corrections(table: Approximations, samples: Sequence[Array]) -> dict[Node, Correction]:
    """The corrections of a table that has none, by linear map of the fused program, fitted on these samples.

    Earlier corrections are in place when later ones are fitted. Maps whose result is exact have none.
    """
    written, fused = table.write(), table.fused
    # Written programs have the nodes of the frame in its order.
    frame = dict(zip(table.frame.nodes, written.nodes, strict=True))
    linear = {frame[each.made]: each for each in table.linear if each.made in frame}
    some = [np.asarray(array[:MOST_SAMPLES], dtype=np.float64) for array in samples]
    exact = walk(fused, dict(zip(fused.inputs, some, strict=True)))
    wanted, known = {each.exact for each in linear.values()}, dict[Node, Array]()
    found: dict[Node, Correction] = {}
    with np.errstate(all="ignore"):
        made = walk(written, dict(zip(written.inputs, some, strict=True)))
        node, value = next(made)
        while True:
            replaced = None
            if node in linear:
                each = linear[node]
                while each.exact not in known:
                    seen, its = next(exact)
                    if seen in wanted:
                        known[seen] = its
                replaced = _corrected(known.pop(each.exact), value, each, found)
            try:
                node, value = made.send(replaced)
            except StopIteration:
                return found


def _corrected(exact: Array, value: Array, each: Linear, found: dict[Node, Correction]) -> Array | None:
    """The corrected value of the polynomial program, whose correction is noted; None if there is nothing to correct."""
    exact = np.broadcast_to(exact, value.shape)
    shape = value.shape[1:]
    sizes = 1.0 if each.sizes is None else each.sizes.reshape(shape)
    own = value * sizes
    error = own - exact
    if not np.isfinite(error).all() or np.abs(error).max() <= _SAME * np.abs(exact).max():
        return None
    # A unit is an element of a vector, a channel of a map.
    axes = (0, *range(2, value.ndim))
    mean, target = own.mean(axes, keepdims=True), exact.mean(axes, keepdims=True)
    variance = np.square(own - mean).mean(axes, keepdims=True)
    factor = ((own - mean) * (exact - target)).mean(axes, keepdims=True) / variance
    factor = np.where((factor >= _FACTORS[0]) & (factor <= _FACTORS[1]), factor, 1.0)
    offset = target - factor * mean
    found[each.exact] = Correction(*(np.broadcast_to(part[0], shape).ravel() for part in (factor, offset)))
    return np.asarray((factor * own + offset) / sizes)
