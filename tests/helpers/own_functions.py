"""A function that a test registers is forgotten after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from heliograph import functions
from heliograph.ir.ops.table import OPS


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    tables = (functions._FAMILIES, OPS)
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, was in zip(tables, before, strict=True):
            for name in table.keys() - was.keys():
                del table[name]  # type: ignore[attr-defined]
