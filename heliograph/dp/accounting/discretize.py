"""Second-order discretizations of a pair's privacy loss onto a mesh, one above it and one below.

Upper (`pessimistic`): the mass of each cell between two nodes goes to its two ends so that the mass under A and the
mass under B are both kept. The curve delta as a function of e^epsilon becomes its chords between nodes, which lie above
it (Doroshenko et al. 2022, "connect the dots").

Lower (`optimistic`): outcomes are merged into cells, each holding one node, with ends chosen so that log(A/B) of the
merged cell is that node. Merging is post-processing, so the curve lies below: it is made of tangents that cross at the
nodes.

Both are proved with round-off (P1, P2, test_delta_and_epsilon_are_inverse): every mass is rounded the safe way by its
own error bound, and the remaining errors (of a node's x, and of a merged cell that misses its node by a rounding) are a
`shift` of the loss per step, which composition adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from heliograph.dp.pairs import UNIT, Array, Cells, Pair, Part

MAX_CELLS = 1 << 22
"""No discretization has more nodes than this: the mesh is too fine for the range."""

_BELOW, _ABOVE = np.array([-np.inf]), np.array([np.inf])


@dataclass(frozen=True, eq=False)
class Lattice:
    """A discretized loss: `mass[i]` at `offset + step * index[i]`, `infinite` at infinity, all moved by `shift`.

    As a bound on a pair from above it may hold a little more than its mass, from below a little less. The index rises
    but may skip: nodes are left out where a wider gap costs nothing.
    """

    index: npt.NDArray[np.int64]
    mass: Array
    step: float
    offset: float
    infinite: float
    shift: float

    def losses(self) -> Array:
        """The loss at each node, without the shift."""
        return np.asarray(self.offset + self.step * self.index, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Mesh:
    """The places of nodes: multiples of `step`, at the distances `spacing` for the losses `at` (nowhere below step)."""

    step: float
    at: Array | None = None
    spacing: Array | None = None

    def index(self, low: float, high: float, offset: float) -> npt.NDArray[np.int64]:
        """The indices of the nodes from just below `low` to just above `high`."""
        first = int(np.floor((low - offset) / self.step)) - 1
        last = int(np.ceil((high - offset) / self.step)) + 1
        if self.at is None or self.spacing is None:
            if last - first >= MAX_CELLS:
                raise TooFineError
            return np.arange(first, last + 1, dtype=np.int64)
        inside = (self.at > low) & (self.at < high)
        at = np.concatenate(([low - 2 * self.step], self.at[inside], [high + 2 * self.step]))
        spacing = np.interp(at, self.at, self.spacing)
        # The density of nodes is 1 / spacing; its integral numbers the nodes.
        number = np.concatenate(([0.0], np.cumsum(np.diff(at) / np.minimum(spacing[:-1], spacing[1:]))))
        if number[-1] >= MAX_CELLS:
            raise TooFineError
        places = np.interp(np.arange(0.0, number[-1]), number, at)
        chosen = np.round((places - offset) / self.step).astype(np.int64)
        chosen = np.unique(np.clip(chosen, first, last))
        return np.asarray(np.unique(np.concatenate(([first], chosen, [last]))), dtype=np.int64)


class TooFineError(Exception):
    """The mesh would need more nodes than `MAX_CELLS`, or finer ones than round-off tells apart."""


def least_step(largest: float) -> float:
    """The finest step on which losses up to `largest` (absolute) can be placed: a multiple of their round-off."""
    return 512 * UNIT * (1 + largest)


def _nodes(pair: Pair, mesh: Mesh, offset: float, log_tail: float) -> npt.NDArray[np.int64]:
    low, high = _span(pair, log_tail)
    if mesh.step < least_step(max(abs(low), abs(high))):
        raise TooFineError
    index = mesh.index(low, high, offset)
    if pair.atoms.loss.size:
        below = np.floor((pair.atoms.loss - offset) / mesh.step).astype(np.int64)
        # Each atom gets the two nodes around it, and a spare one on each side in case of rounding.
        index = np.unique(np.concatenate((index, below - 1, below, below + 1, below + 2)))
    if index.size > MAX_CELLS:
        raise TooFineError
    return index


def pessimistic(pair: Pair, mesh: Mesh, offset: float, log_tail: float) -> Lattice:
    """A lattice law with a delta of at least the pair's, at every epsilon and in every composition.

    About e^log_tail of A's mass at the top is given infinite loss.
    """
    step = mesh.step
    index = _nodes(pair, mesh, offset, log_tail)
    nodes = np.asarray(offset + step * index, dtype=np.float64)
    mass = np.zeros(index.size)
    infinite = pair.infinite_above
    shift = 0.0
    if pair.atoms.loss.size:
        loss, a = pair.atoms.loss, pair.atoms.a * (1 + pair.atoms.relative_error)
        # A gap the size of round-off is no gap: an atom that belongs on a node stays on it.
        noise = 64 * UNIT * (1 + np.abs(loss))
        below = np.searchsorted(index, np.floor((loss - offset + noise) / step).astype(np.int64))
        gap = loss - nodes[below]
        up = np.expm1(-np.clip(gap, 0.0, step)) / np.expm1(-step)
        up = np.where(gap <= noise, 0.0, np.minimum(up * (1 + 16 * UNIT), 1.0))
        mass += np.bincount(below + 1, weights=a * up, minlength=index.size)
        mass += np.bincount(below, weights=a * (1 - up), minlength=index.size)
        shift = 2 * float(noise.max())
    if pair.part is not None:
        cells = pair.part.cells(np.concatenate((_BELOW, pair.part.edge(nodes), _ABOVE)))
        error = pair.part.edge_error(float(np.abs(nodes).max()))
        total = cells.a + cells.a_error
        # Mass below the first node is rounded up to it; mass above the last counts as infinite loss.
        mass[0] += total[0]
        infinite += float(total[-1])
        a, b = cells.a[1:-1], cells.b[1:-1]
        with np.errstate(over="ignore", invalid="ignore"):
            scale = np.exp(nodes[:-1])
            excess = a - scale * b
            slack = cells.a_error[1:-1] + scale * cells.b_error[1:-1] + (4 * error + 8 * UNIT) * (a + scale * b)
            up_mass = (excess + slack) / -np.expm1(-np.diff(nodes)) * (1 + 16 * UNIT)
        # Where B has underflowed, the whole cell goes to its upper end: only first-order accurate, but still an upper bound.
        up_mass = np.where(np.isfinite(up_mass), np.clip(up_mass, 0.0, total[1:-1]), total[1:-1])
        mass[1:] += up_mass
        mass[:-1] += total[1:-1] - up_mass
        shift += error
    return Lattice(index, mass, step, offset, min(infinite, 1.0), shift)


def optimistic(pair: Pair, mesh: Mesh, offset: float, log_tail: float, spare: float = 0.0) -> Lattice:
    """A lattice law with a delta of at most the pair's, at every epsilon and in every composition.

    Its total mass is at most one; the missing mass has loss minus infinity. A shift of up to `spare` counts as nothing.
    """
    step = mesh.step
    index = _nodes(pair, mesh, offset, log_tail)
    mass: Array = np.zeros(index.size)
    shift = 0.0
    if pair.part is not None:
        mass, shift = _merged(pair.part, np.asarray(offset + step * index, dtype=np.float64), step, spare)
    if pair.atoms.loss.size:
        loss, a = pair.atoms.loss, pair.atoms.a * (1 - pair.atoms.relative_error)
        noise = 64 * UNIT * (1 + np.abs(loss))
        below = np.searchsorted(index, np.floor((loss - offset + noise) / step).astype(np.int64))
        mass += np.bincount(below, weights=a, minlength=index.size)
        shift += 2 * float(noise.max())
    return Lattice(index, mass, step, offset, pair.infinite_below, -shift)


def offset_for(pair: Pair, step: float) -> float:
    """The offset of the nodes that suits a pair: one that puts its atoms on nodes, or else the bulk of its loss."""
    if pair.atoms.loss.size:
        return float(np.remainder(pair.atoms.loss[0], step))
    if pair.part is None:
        return 0.0
    return float(np.remainder(pair.part.loss(np.zeros(1))[0], step))


def merging_offset(pair: Pair, step: float) -> float:
    """The offset at which `optimistic` rounds least away.

    Where the loss ends sharply within a few steps (Poisson sampling with small p) the fluxes of neighbouring nodes can
    only balance if the nodes lie right; otherwise any offset will do.
    """
    plain = offset_for(pair, step)
    if pair.atoms.loss.size or pair.part is None:
        return plain
    part = pair.part
    centre = int(np.floor(float(part.loss(np.zeros(1))[0]) / step))

    def price(offset: float) -> float:
        return _price(part, centre - 48, 97, step, offset)

    phases = plain + step * np.arange(12) / 12
    prices = [price(offset) for offset in phases]
    best = int(np.argmin(prices))
    if prices[best] > max(prices) - 0.05 * step * step:
        return plain
    found = minimize_scalar(
        price,
        bounds=(phases[best] - step / 12, phases[best] + step / 12),
        method="bounded",
        options={"xatol": step * 1e-6},
    )
    offset = float(found.x) if found.fun < prices[best] else float(phases[best])
    return float(np.remainder(offset, step))


def _span(pair: Pair, log_tail: float) -> tuple[float, float]:
    lows, highs = [], []
    if pair.atoms.loss.size:
        lows.append(float(pair.atoms.loss[0]))
        highs.append(float(pair.atoms.loss[-1]))
    if pair.part is not None:
        # Rounding the lower tail up to its end costs at most its mass, once per step.
        low, high = pair.part.loss_range(max(log_tail, -60.0), log_tail)
        lows.append(low)
        highs.append(high)
    if not lows:
        return 0.0, 0.0
    return min(lows), max(highs)


def _merged(part: Part, nodes: Array, step: float, spare: float) -> tuple[Array, float]:
    """Masses per node of the merged outcomes, and the shift down that makes them a lower bound.

    Outcomes in the gap between nodes i and i + 1 raise the ratio A/B of node i by an excess u, or lower the ratio of
    node i + 1 by a deficit v, depending on the node to which they are sent. A gap's left half goes to node i with
    probability alpha, its right half with probability beta; these two numbers are chosen so that u and v are exactly
    the flux `phi` of each node, which makes the excess from its right cancel the deficit from its left. With phi the
    larger of the values that the plain rule (halves to their nearer nodes) would give on either side, each gap is
    solved by itself, a 2 x 2 system, and the price against the best ends is of third order in the step.
    """
    count = nodes.size
    halves = _halves(part, nodes)
    cells, shares = halves.cells, (halves.alpha, halves.beta)
    a, b, a_error, b_error = sums = [np.zeros(count) for _ in range(4)]
    # The rule that sends an outcome down is exact for the pair (p, 1 - p) as computed; the only error is round-off.
    for total, given in zip(sums, (cells.a, cells.b, cells.a_error, cells.b_error), strict=True):
        for half, share in zip((given[:-1:2], given[1:-1:2]), shares, strict=True):
            total[:-1] += share * half
            total[1:] += (1 - share) * half
        total[-1] += given[-1]
    a_sure = np.maximum(a * (1 - 8 * UNIT) - a_error, 0.0)
    error = part.edge_error(float(np.abs(nodes).max()))
    with np.errstate(divide="ignore"):
        merged = np.log(a_sure) - np.log(b * (1 + 8 * UNIT) + b_error + 1e-300)
    # No outcome sent to a node has a loss below the loss of the node before it.
    merged[1:] = np.maximum(merged[1:], nodes[:-1] - error)
    merged[0] = max(merged[0], nodes[0] - error)
    miss = nodes - merged + 16 * UNIT * (1 + np.abs(nodes))
    # If a merged loss misses its node, either the whole lattice moves down by the miss or the mass falls one node.
    gaps = np.diff(nodes, prepend=nodes[0] - step)
    shift = _cheapest_shift(miss, a_sure * gaps, spare)
    fallen = np.where(miss > shift, a_sure, 0.0)
    mass = a_sure - fallen
    mass[:-1] += fallen[1:]
    return mass, shift + error


def _cheapest_shift(miss: Array, fall: Array, spare: float) -> float:
    """The shift s that minimises s plus the `fall` of all nodes that miss by more; it covers `spare`.

    The fall of a tail is small in mass but may be all of the mass on which delta depends, hence the spare.
    """
    least = float(miss.max(where=miss <= spare, initial=0.0))
    late = miss > least
    order = np.argsort(miss[late])
    rising, falls = miss[late][order], fall[late][order]
    price = np.concatenate(([least], rising)) + np.concatenate((np.cumsum(falls[::-1])[::-1], [0.0]))
    best = int(np.argmin(price))
    return least if best == 0 else float(rising[best - 1])


@dataclass(frozen=True, eq=False)
class _Halves:
    """The halves of the gaps between nodes, their excesses and deficits, and the node of each half."""

    cells: Cells
    alpha: Array
    beta: Array
    excess: Array
    deficit: Array


def _halves(part: Part, nodes: Array) -> _Halves:
    count = nodes.size
    fine = np.empty(2 * count - 1)
    fine[0::2] = nodes
    fine[1::2] = (nodes[:-1] + nodes[1:]) / 2
    cells = part.cells(np.concatenate((part.edge(fine), [np.inf])))
    a1, a2 = cells.a[:-1:2], cells.a[1:-1:2]
    b1, b2 = cells.b[:-1:2], cells.b[1:-1:2]
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.exp(nodes[:-1]), np.exp(nodes[1:])
        u1, u2 = np.maximum(a1 - low * b1, 0.0), np.maximum(a2 - low * b2, 0.0)
        v1, v2 = np.maximum(high * b1 - a1, 0.0), np.maximum(high * b2 - a2, 0.0)
        above = float(np.maximum(cells.a[-1] - high[-1] * cells.b[-1], 0.0))
    lost = ~np.isfinite(u1 + u2 + v1 + v2)
    for array in (u1, u2, v1, v2):
        array[lost] = 0.0
    phi = _fluxes(u1, u2, v1, v2, above if np.isfinite(above) else 0.0)
    alpha, beta = _split(u1, u2, v1, v2, phi[:-1], phi[1:])
    excess = alpha * u1 + beta * u2
    deficit = (1 - alpha) * v1 + (1 - beta) * v2
    return _Halves(cells, alpha, beta, excess, deficit)


def _price(part: Part, first: int, count: int, step: float, offset: float) -> float:
    """The cost of rounding down in mean loss between the first node and the last."""
    halves = _halves(part, np.asarray(offset + step * (first + np.arange(count)), dtype=np.float64))
    balance = halves.excess[1:] - halves.deficit[:-1]
    # Where the deficit exceeds the excess, all of the node's mass falls to the node below.
    mass = halves.cells.a[:-1:2] + halves.cells.a[1:-1:2]
    fallen = balance < -1e-7 * step * mass[1:]
    return float(np.abs(balance).sum() + step * mass[1:][fallen].sum())


def _fluxes(u1: Array, u2: Array, v1: Array, v2: Array, above: float) -> Array:
    """The flux of each node: the target for both its excess from the right and its deficit from the left.

    The plain rule would give u1 on the right and v2 on the left; the larger suits both. Where they differ much (gaps
    widen, the density is steep) the flux stays near the smaller, and the far end of the poorer served gap takes the
    rest.
    """
    phi = np.zeros(u1.size + 1)
    left, right = v2[:-1], u1[1:]
    phi[1:-1] = np.minimum(np.maximum(left, right), 2 * np.minimum(left, right))
    phi[-1] = min(float(v2[-1]), above)
    short_left = np.maximum(u1[1:] - phi[1:-1], 0.0)  # for the gap to the right of each inner node
    short_right = np.maximum(v2[:-1] - phi[1:-1], 0.0)
    more = np.zeros_like(phi)
    more[2:] = np.where(short_left > 0, v2[1:] + short_left * _ratio(v1[1:], u1[1:]), 0.0)
    more[:-2] = np.maximum(more[:-2], np.where(short_right > 0, u1[:-1] + short_right * _ratio(u2[:-1], v2[:-1]), 0.0))
    phi[1:-1] = np.maximum(phi[1:-1], more[1:-1])
    phi[1:-1] = np.minimum(phi[1:-1], np.minimum(u1[1:] + u2[1:], v1[:-1] + v2[:-1]))
    return phi


def _split(u1: Array, u2: Array, v1: Array, v2: Array, want_u: Array, want_v: Array) -> tuple[Array, Array]:
    """Probabilities with which each half of each gap goes to the lower node: excess >= want_u, deficit <= want_v.

    Both hold with equality if that is possible; else the result is the nearest point on the border of the possible
    ones.
    """
    rest = v1 + v2 - want_v
    # The wanted excess is too small: take the wanted deficit, and the least excess possible with it.
    large = want_v >= v2
    alpha_low = np.where(large, 1 - _ratio(want_v - v2, v1), 1.0)
    beta_low = np.where(large, 0.0, 1 - _ratio(want_v, v2))
    too_little = want_u < alpha_low * u1 + beta_low * u2
    # The wanted deficit is too large: take the wanted excess, and the largest deficit possible with it.
    small = want_u <= u2
    alpha_high = np.where(small, 0.0, _ratio(want_u - u2, u1))
    beta_high = np.where(small, _ratio(want_u, u2), 1.0)
    too_much = want_v > (1 - alpha_high) * v1 + (1 - beta_high) * v2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        determinant = u1 * v2 - u2 * v1
        alpha = (want_u * v2 - rest * u2) / determinant
        beta = (u1 * rest - v1 * want_u) / determinant
    sound = np.isfinite(alpha) & np.isfinite(beta) & ~too_little & ~too_much
    alpha = np.where(sound, alpha, np.where(too_much, alpha_high, alpha_low))
    beta = np.where(sound, beta, np.where(too_much, beta_high, beta_low))
    return np.clip(alpha, 0.0, 1.0), np.clip(beta, 0.0, 1.0)


def _ratio(over: Array, under: Array) -> Array:
    """over / under, 0 where under is 0: an empty half takes no part. Infinite where under is next to nothing."""
    with np.errstate(over="ignore"):
        return np.divide(over, under, out=np.zeros_like(under), where=under > 0)
