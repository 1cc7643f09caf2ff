"""The choice of the compiler's cost table: the table measured on this machine, or the built-in one."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.errors import ProgramError, WireError
from heliograph.files import open_file, write_file
from heliograph.records import printable, real, record

VERSION = 1
VARIABLE = "HELIOGRAPH_COSTS"
_MAX_BYTES = 1 << 16
# No machine that runs Heliograph is a million times faster or slower than ours.
_LARGEST = 1e6


def costs_path() -> Path:
    """The file of this user's measured table: `$XDG_CACHE_HOME/heliograph/costs.json` (`~/.cache` by default)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if cache else Path.home() / ".cache"
    return folder / "heliograph" / "costs.json"


def default_costs() -> CostTable:
    """The table that `Options` starts from.

    If the environment variable HELIOGRAPH_COSTS is set, it decides: `built-in`, or the path of a table. Otherwise it is
    this user's measured table if there is one, else the built-in table. Artifacts record the table: the same model
    compiles to the same bytes only with the same table.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        return named_costs(chosen)
    try:
        path = costs_path()
        return load_costs(path) if path.is_file() else BUILT_IN
    except RuntimeError:  # a user without a home
        return BUILT_IN


def has_own_costs() -> bool:
    """Whether this user's prices are chosen: by the environment variable, or by a measured table."""
    try:
        return bool(os.environ.get(VARIABLE)) or costs_path().is_file()
    except RuntimeError:  # a user without a home
        return False


def named_costs(name: str) -> CostTable:
    """The table of this name: `built-in`, or the path of a table."""
    return BUILT_IN if name == "built-in" else load_costs(name)


def save_costs(costs: CostTable, path: str | Path | None = None) -> Path:
    """Write the table whole or not at all; returns its path."""
    target = costs_path() if path is None else Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"heliograph_costs": VERSION, **dataclasses.asdict(costs)}, indent=1, sort_keys=True)
    write_file(target, f"{text}\n".encode())
    return target


def load_costs(path: str | Path) -> CostTable:
    """The table in a file; a WireError if the file holds none."""
    hint = "make it again with `heliograph doctor --calibrate`, or set HELIOGRAPH_COSTS=built-in"
    try:
        with open_file(path) as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ProgramError(f"the cost table {path} cannot be read", why=str(error), hint=hint) from None
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        return _checked(json.loads(data))
    except (ValueError, RecursionError, ProgramError) as error:
        raise WireError(f"{path} is not a cost table", why=str(error)[:300], hint=hint) from None


def _checked(fields: Any) -> CostTable:
    if not isinstance(fields, dict) or fields.pop("heliograph_costs", None) != VERSION:
        raise ValueError(f"it is not a table of version {VERSION}")
    costs = record(CostTable, fields, "it")
    printable(costs.machine, "machine")
    prices = {entry.name: getattr(costs, entry.name) for entry in dataclasses.fields(costs) if entry.name != "machine"}
    return CostTable(costs.machine, **{name: real(price, name, 0.0, _LARGEST) for name, price in prices.items()})
