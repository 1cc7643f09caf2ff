"""A watch for polynomial inputs that leave their intervals during a run: where, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.errors import RangeError, said
from heliograph.ir import Array, Node, Program
from heliograph.ir.bootstraps.asked import bootstrapped, bootstraps
from heliograph.ir.maps.layout import Layout

# Encryption error may push values slightly out of [-1, 1]; a polynomial hardly notices this much.
SLACK = 1e-3


# The number of an entry in `Program.ranges`, and the number of the ciphertext among those of the bounded value.
Bounded = tuple[int, int]


def polynomial_inputs(program: Program) -> dict[Node, Bounded]:
    """The operands of polynomials, at stages packed to executable."""
    return {
        node.inputs[0]: (node.attrs["range"], node.attrs.get("chunk", 0))
        for node in program.nodes
        if "range" in node.attrs
    }


def bootstrap_inputs(program: Program) -> dict[Node, Bounded]:
    """The bootstrapped values that are bounded by the interval of a polynomial after them."""
    found: dict[Node, Bounded] = {}
    for node in bootstraps(program):
        entries = node.attrs.get("ranges", ())
        found.update(zip(bootstrapped(node), zip(entries, node.attrs.get("chunks", ()), strict=True), strict=False))
    return {operand: bounded for operand, bounded in found.items() if bounded[0] >= 0}


def range_layout(program: Program, entry: int) -> Layout:
    """The layout of a polynomial's input."""
    layout = program.ranges[entry].layout
    assert layout is not None
    return layout


@dataclass(frozen=True, slots=True)
class Excess:
    """A polynomial's input outside its interval.

    `layer`, `location`: the polynomial's.
    `source`, `low`, `high`, `by_unit`: of its range.
    `value`: the worst element, in units in which the interval is [-1, 1].
    `index`: the index of that element.
    `count`, `size`: the number of elements outside, and of all elements.
    """

    layer: str
    location: str
    source: str
    low: float
    high: float
    by_unit: bool
    value: float
    index: tuple[int, ...]
    count: int
    size: int

    @property
    def where(self) -> str:
        return f"{self.location} ({self.layer})" if self.layer else self.location

    def __str__(self) -> str:
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        place = f"element {list(self.index)}" if self.index else "the element"
        if self.by_unit:
            text = f"{place} is {self.value:.4g} times the range of its unit"
        else:
            text = f"{place} is {middle + half * self.value:.6g}, outside [{self.low:.6g}, {self.high:.6g}]"
            if abs(self.value) > 1.0:
                text += f" by {half * (abs(self.value) - 1.0):.3g}"
        return f"{text}; {self.count} of {self.size} elements are out, the range is {self.source}"


class RangeWatch:
    """A watch on the inputs of polynomials while a program runs: pass `observe` to `execute`.

    `read` turns a backend's ciphertext into its slots. Slots without an element are ignored, and so are imaginary parts,
    but for those of values that a bootstrap takes as complex.
    """

    def __init__(self, program: Program, read: Callable[[Node, Any], Array], slack: float = SLACK) -> None:
        self.program, self.slack = program, slack
        self.excesses: list[Excess] = []
        self.largest: dict[int, float] = {}
        self._read = read
        self._watched = bootstrap_inputs(program) | polynomial_inputs(program)
        self._complex = {x for node in bootstraps(program) if node.attrs.get("complex") for x in bootstrapped(node)}

    def observe(self, node: Node, value: Any) -> None:
        if node not in self._watched:
            return
        entry, chunk = self._watched[node]
        layout, known = range_layout(self.program, entry), self.program.ranges[entry]
        slots = self._read(node, value)
        parts = (np.real(slots), np.imag(slots)) if node in self._complex else (np.real(slots),)
        copies = known.placed(np.concatenate([layout.in_all_copies(part, chunk) for part in parts]))
        # Copies of one element differ only by the error of encryption; the worst one counts.
        worst = copies[np.abs(copies).argmax(axis=0), np.arange(copies.shape[1])]
        size = np.abs(worst)
        self.largest[entry] = max(self.largest.get(entry, 0.0), float(size.max(initial=0.0)))
        out = ~(size <= 1.0 + self.slack)
        if not out.any():
            return
        most = int(size.argmax())
        flat = int(layout.elements(chunk)[0][most])
        index = tuple(int(i) for i in np.unravel_index(flat, layout.shape)) if layout.shape else ()
        self.excesses.append(
            Excess(
                known.layer or known.function,
                known.location,
                known.source,
                known.low,
                known.high,
                known.units is not None,
                float(worst[most]),
                index,
                int(out.sum()),
                worst.size,
            )
        )

    def check(self) -> None:
        """Raise a RangeError with the first layer whose input left its interval, and the others."""
        if self.excesses:
            raise left_error(self.excesses)


def left_error(excesses: Sequence[Excess]) -> RangeError:
    """The error for inputs that left their intervals, the first one in program order."""
    first, *more = excesses
    why = str(first)
    if more:
        named = "; ".join(f"{excess.where}: {excess}" for excess in more[:4])
        why += f"\n       after it, perhaps because of it: {named}" + ("; ..." if len(more) > 4 else "")
    return RangeError(
        f"the input of the polynomial of {first.layer} leaves its interval",
        where=first.location,
        why=why,
        hint=said(
            "a polynomial says nothing outside its interval: trace again with calibration samples like this one, a "
            "larger {Options.margin}, or an {input_range} that holds it"
        ),
    )
