"""Checks of an untrusted report against the fields of its records, on which its printing and drawing rely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.artifact.figures import STORED
from heliograph.artifact.validate import check_range, record, refuse
from heliograph.ir.ranges import RangeEntry
from heliograph.records import to_json
from heliograph.report.figures import Certified, Figures, Stored


def read_stored(values: Mapping[str, Any]) -> Stored:
    """The stored part of a report; a WireError if a figure is missing, unknown or of the wrong type."""
    more = sorted(str(key) for key in set(values) - STORED)
    if more:
        raise refuse(f"its report says {more[0][:60]!r}, which follows from its program: it is not for the file to say")
    known = record(Stored, values, "its report")
    if known.certificate is not None:
        check_certificate(known.certificate)
    return known


def check_certificate(found: Certified) -> None:
    """Raise a WireError if a certificate is inconsistent: readers of answers rely on it."""
    if not found.target <= found.n or not found.zeta < found.tau:
        raise refuse("its certificate asks for more votes than there are")


def check_report(figures: Figures) -> None:
    """Raise a WireError if a figure does not have its field's type."""
    record(Figures, to_json(figures), "its report")
    if figures.bootstraps and figures.bootstrapping is None:
        raise refuse("its report counts bootstraps and does not describe them")
    for row in figures.ranges:
        check_range(record(RangeEntry, row, "a range of its report"), "a range of its report")
