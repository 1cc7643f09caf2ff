"""The fields that a report has, checked where it comes from a stranger: who prints or draws it relies on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.artifact.figures import STORED, prices
from heliograph.artifact.validate import real, refuse, whole
from heliograph.ckks.costs import BUILT_IN

_LARGEST = 1e30
_TEXT_LENGTH = 4096
# Nanoseconds or microseconds, as artifact/costs.py bounds them.
_LARGEST_PRICE = 1e6

_NUMBERS = (
    "approximation_error", "ciphertext_bytes", "ciphertext_products", "client_peak_bytes", "depth", "digits",
    "evaluation_key_bytes", "first_mod_bits", "key_switches", "levels", "log_pq", "output_bytes", "output_magnitude",
    "plaintext_products", "predicted_max_abs_error", "predicted_ms", "proved_share", "ring_dim", "rotation_key_bytes",
    "rotation_keys", "rotations", "scale_bits", "scheme_error", "server_peak_bytes", "slots", "special_primes",
)  # fmt: skip
_TEXTS = ("costs", "name", "secret_distribution")
_TABLES = ("operations", "operations_by_kind", "predicted")
# Fields of the rows of each list: texts, numbers, and pairs of numbers that may be null.
_ROWS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "depth_by_line": (("layer", "location", "what"), ("levels",), ()),
    "work_by_layer": (("layer",), ("bootstraps", "key_switches", "plaintext_products", "rotations"), ()),
    "predicted_ms_by_layer": (("layer",), ("ms",), ()),
    "keys_by_kind": (("kind",), ("keys", "key_bytes"), ()),
    "savings": (("change",), ("approximation_error", "depth"), ()),
    "ranges": (
        ("function", "layer", "location", "method", "source"),
        ("degree", "high", "low", "margin", "max_error", "samples"),
        ("observed", "proved"),
    ),
}


def check_stored(values: Mapping[str, Any]) -> None:
    """Raise a WireError where what a file holds of a report is more or less than that, or does not serve to complete it."""
    more = sorted(str(key) for key in set(values) - STORED)
    if more:
        raise refuse(f"its report says {more[0][:60]!r}, which follows from its program: it is not for the file to say")
    if set(values) != STORED:
        raise refuse(f"its report lacks {min(STORED - set(values))!r}")
    for key in ("approximation_error", "scheme_error", "output_magnitude"):
        real(values[key], f"{key} of its report", 0.0, _LARGEST)
    whole(values["error_samples"], "error_samples of its report", 0, 1 << 40)
    if type(values["calibrated"]) is not bool or not isinstance(values["options"], Mapping):
        raise refuse("its report does not say how it was compiled")
    _text(values, "costs", "report")
    table = values["cost_table"]
    if not isinstance(table, Mapping) or set(table) != set(prices(BUILT_IN)):
        raise refuse("the cost table of its report is malformed")
    for key, value in table.items():
        real(value, f"{key} of the cost table in its report", 0.0, _LARGEST_PRICE)


def check_report(values: Mapping[str, Any]) -> None:
    """Raise a WireError where a report lacks a field that is printed or drawn, or one is of another kind."""
    for key in _NUMBERS:
        _number(values, key, "report")
    for key in ("security_bits", "max_log_pq", "flood", "batch", "bootstraps", "unbounded_ms"):
        if values.get(key) is not None:
            _number(values, key, "report")
    agreement = values.get("class_agreement")
    if agreement is not None:
        if not isinstance(agreement, Mapping):
            raise refuse("class_agreement of its report is malformed")
        for key in ("samples", "agree"):
            _number(agreement, key, "class_agreement")
    for key in _TEXTS:
        _text(values, key, "report")
    for key in _TABLES:
        table = values.get(key)
        if not isinstance(table, Mapping):
            raise refuse(f"{key} of its report is malformed")
        for name in table:
            # Where all outputs are zero an error has no share of them.
            if table[name] is not None or not name.startswith("relative_"):
                _number(table, name, key)
    _check_bootstrapping(values)
    _check_unseen(values.get("unseen"))
    if not all(isinstance(line, str) and len(line) <= _TEXT_LENGTH for line in _list(values, "assumed")):
        raise refuse("what its report assumes is malformed")
    for key, (texts, numbers, pairs) in _ROWS.items():
        for row in _list(values, key):
            if not isinstance(row, Mapping):
                raise refuse(f"{key} of its report are malformed")
            for name in texts:
                _text(row, name, key)
            for name in numbers:
                _number(row, name, key)
            for name in pairs:
                if row.get(name) is not None:
                    _pair(row[name], name, key)
            if key == "ranges":
                _check_composition(row)
                if row.get("proved_error") is not None:
                    _number(row, "proved_error", key)
            if key == "savings" and not all(isinstance(place, str) for place in _list(row, "locations")):
                raise refuse("the places of the savings in its report are malformed")


def _check_bootstrapping(values: Mapping[str, Any]) -> None:
    entry = values.get("bootstrapping")
    if entry is not None:
        if not isinstance(entry, Mapping):
            raise refuse("what its report says of bootstraps is malformed")
        for key in ("from", "to", "table_bytes", "deviation"):
            _number(entry, key, "bootstrapping")
        real(entry.get("observed", 0), "the observed bootstraps of its report", 0, 1 << 20)
        real(entry.get("iterations", 1), "the iterations of a bootstrap of its report", 1, 2)
        if not 0 < entry["deviation"] < 1:
            raise refuse("the deviation of bootstraps in its report is no share of one")
        for slots in _list(entry, "slots"):
            real(slots, "the slots of a bootstrap of its report", 1, 1 << 17)
        for slots in _list(entry, "paired_slots") if "paired_slots" in entry else []:
            real(slots, "the slots of a bootstrap of its report", 1, 1 << 17)
    elif values.get("bootstraps"):
        raise refuse("its report counts bootstraps and does not describe them")
    loading = values.get("key_loading")
    if loading is not None:
        if not isinstance(loading, Mapping):
            raise refuse("what its report says of loading keys is malformed")
        for key in ("resident_bytes", "loads", "loaded_bytes", "ms"):
            _number(loading, key, "key_loading")
    for row in _list(values, "lower_chains") if "lower_chains" in values else []:
        if not isinstance(row, Mapping):
            raise refuse("lower_chains of its report are malformed")
        for key in ("level", "keys", "key_bytes"):
            _number(row, key, "lower_chains")


def _check_unseen(entry: Any) -> None:
    if entry is None:
        return
    if not isinstance(entry, Mapping):
        raise refuse("what its report says of unseen inputs is malformed")
    for key in ("setting", "apart", "left"):
        real(entry.get(key), f"{key} of the unseen inputs in its report", 0, 1 << 40)
    for key in ("rate_bound", "confidence"):
        real(entry.get(key), f"{key} of the unseen inputs in its report", 0, 1)
    worst = entry.get("worst")
    if worst is not None:
        if not isinstance(worst, Mapping):
            raise refuse("the layer that unseen inputs left most is malformed in its report")
        for key in ("layer", "location"):
            _text(worst, key, "unseen")
        for key in ("left", "largest", "rate_bound"):
            _number(worst, key, "unseen")


def _check_composition(row: Mapping[str, Any]) -> None:
    if "degrees" in row:
        for degree in _list(row, "degrees"):
            real(degree, "a degree of its report", 0, 1 << 20)
    if row.get("gap") is not None:
        _number(row, "gap", "ranges")
        _text(row, "gap_source", "ranges")
    if "units" in row:
        _number(row, "smallest_unit", "ranges")


def _list(values: Mapping[str, Any], key: str) -> list[Any]:
    found = values.get(key)
    if not isinstance(found, list) or len(found) > 1 << 16:
        raise refuse(f"{key} of its report is no list")
    return found


def _number(values: Mapping[str, Any], key: str, table: str) -> None:
    real(values.get(key), f"{key[:60]} of the {table} in its report", -_LARGEST, _LARGEST)


def _text(values: Mapping[str, Any], key: str, table: str) -> None:
    if not isinstance(values.get(key), str) or len(values[key]) > _TEXT_LENGTH:
        raise refuse(f"{key} of the {table} in its report is no text")


def _pair(value: Any, name: str, table: str) -> None:
    if not isinstance(value, list) or len(value) != 2:
        raise refuse(f"{name} of the {table} in its report is no pair")
    for number in value:
        real(number, f"{name} of the {table} in its report", -_LARGEST, _LARGEST)
