"""The record of a report's figures: its JSON, what files hold and how they are checked follow from its fields."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from runtime.support import toy_artifact

from heliograph.artifact.figures import OPTIONAL, STORED, stored
from heliograph.artifact.report_fields import check_report, read_stored
from heliograph.compiler.reporting.held_out import Unseen
from heliograph.errors import WireError
from heliograph.records import key_of, to_json
from heliograph.report.diff import _COMPARED, _find
from heliograph.report.figures import Bootstrapping, Figures, KeyLoading, Predicted, Stored, figure_of


def on_file() -> dict[str, Any]:
    """What a file holds, with all that may be null there."""
    report = json.loads(json.dumps(stored(toy_artifact().report.figures)))
    left = dataclasses.replace(toy_artifact().program.ranges[0], layer="act", location="model.py:5")
    apart = Unseen(8, 8, 1, (left,), (1.5,), (1,))
    return {**report, "unseen": to_json(apart.figures()), "unbounded_ms": 3.0}


def test_what_is_stored_is_read_again() -> None:
    read = read_stored(on_file())
    assert to_json(read) == on_file()
    assert {entry.name for entry in dataclasses.fields(Stored)} == STORED
    assert set(to_json(read)) == STORED - OPTIONAL | {"output_points"}
    assert list(to_json(toy_artifact().report.figures))[: len(to_json(read))] == list(to_json(read))
    # Numbers stay as they were written: the fingerprint is theirs.
    assert read_stored({**on_file(), "scheme_error": 0}).scheme_error.__class__ is int


def test_the_json_of_a_record_has_its_names() -> None:
    loops = Bootstrapping((8,), (), 4, 10, 100, 0.5, 0)
    assert {"from": 4, "to": 10, "slots": [8], "paired_slots": []}.items() <= to_json(loops).items()
    predicted = toy_artifact().report.figures.predicted
    assert not {"evaluate_sample_ms", "process_peak_bytes"} & set(to_json(predicted))
    assert to_json(dataclasses.replace(predicted, evaluate_sample_ms=2.0))["evaluate_sample_ms"] == 2.0


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all numbers, texts, lists and tables, without what the options hold."""
    found = [path] if path else []
    if path == ("options",):
        return found
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        found += places(entry, (*path, key))
    return found


def changed(values: dict[str, Any], path: tuple[Any, ...], change: Callable[[Any], Any]) -> dict[str, Any]:
    made = copy.deepcopy(values)
    inner: Any = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = change(inner[path[-1]])
    return made


@pytest.mark.parametrize("path", places(on_file()), ids=str)
def test_no_stored_value_may_be_of_another_kind(path: tuple[Any, ...]) -> None:
    good = on_file()
    for wrong in (1e31, float("nan"), float("inf"), b"x", "x" * 5000, {"more": 1}, [None], [{}]):
        if path == ("options",) and isinstance(wrong, dict):
            continue
        with pytest.raises(WireError, match="its report"):
            read_stored(changed(good, path, lambda _, wrong=wrong: wrong))  # type: ignore[misc]


@pytest.mark.parametrize("path", [(), ("unseen",), ("unseen", "worst"), ("depth_by_line", 0), ("savings", 0)], ids=str)
def test_no_stored_record_may_have_more_or_less(path: tuple[Any, ...]) -> None:
    good = {"all": on_file()}
    path = ("all", *path)
    with pytest.raises(WireError, match="its report"):
        read_stored(changed(good, path, lambda found: {**found, "more": 1})["all"])
    names: list[str] = []
    changed(good, path, names.extend)
    for name in set(names) - OPTIONAL:
        made = changed(good, path, lambda found, name=name: {k: v for k, v in found.items() if k != name})  # type: ignore[misc]
        with pytest.raises(WireError, match="its report"):
            read_stored(made["all"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"ring_dim": 1.5},
        {"levels": -1},
        {"predicted_ms": float("inf")},
        {"name": None},
        {"name": "x" * 5000},
        {"insecure": 0},
        {"operations": {"rotate@1": "3"}},
        {"assumed": (3,)},
        {"bootstraps": 2},
        {"bootstrapping": Bootstrapping((8,), (), 4, 10, 100, 1.0, 0)},
        {"bootstrapping": Bootstrapping((1 << 18,), (), 4, 10, 100, 0.5, 0)},
        {"key_loading": KeyLoading(1, 1, 1, float("nan"))},
        {"ranges": ({},)},
    ],
    ids=str,
)
def test_what_follows_is_checked_too(wrong: dict[str, Any]) -> None:
    figures = toy_artifact().report.figures
    check_report(figures)
    with pytest.raises(WireError, match="its report"):
        check_report(dataclasses.replace(figures, **wrong))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("layer", None), ("low", "0"), ("max_error", float("nan")), ("observed", [1.0]), ("proved", [0.0, "1"]),
        ("proved_error", "x"), ("gap", 0.1), ("degrees", [1.5]), ("units", True),
    ],
)  # fmt: skip
def test_ranges_are_checked(name: str, wrong: object) -> None:
    figures = toy_artifact().report.figures
    (row,) = figures.ranges
    with pytest.raises(WireError, match="its report"):
        check_report(dataclasses.replace(figures, ranges=({**row, name: wrong},)))


def test_what_tables_show_has_a_label() -> None:
    figures = toy_artifact().report.figures
    assert all(_find(figures, path)[1].label for path in _COMPARED)
    labels = {figure_of(entry).label for entry in dataclasses.fields(Predicted)}
    assert {label for label, *_ in toy_artifact().report.figure_rows()} <= labels
    assert {key_of(entry) for entry in dataclasses.fields(Figures)} - OPTIONAL == set(toy_artifact().report.values) - {
        "output_points"
    }
