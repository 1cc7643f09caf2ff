"""Batches that are planned in pairs, whatever their price."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from heliograph.compiler.options import Options
from heliograph.compiler.planning import planner
from heliograph.compiler.planning.plan import Plan
from heliograph.ir import Program


def _plan(program: Program, options: Options, outputs: Any, offered: Any = None, faster_than: float = 0.0) -> Plan:
    half = replace(options, batch=int(options.batch) // 2)
    return planner.make_plan(program, half, outputs, offered=offered, paired=True)


@contextmanager
def in_pairs() -> Iterator[None]:
    with mock.patch.object(planner, "batch_plan", _plan):
        yield
