"""Results that are kept one by one: what was finished before a run was stopped is not done again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heliograph.files import write_file


class Results:
    """Entries by number in a JSON file. Each addition replaces the file as a whole: it is never there by halves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[int, dict[str, Any]] = {}
        if path.exists():
            self.entries = {int(number): entry for number, entry in json.loads(path.read_text()).items()}

    def missing(self, count: int) -> list[int]:
        """The numbers below `count` that have no entry."""
        return [number for number in range(count) if number not in self.entries]

    def first(self, count: int) -> list[dict[str, Any]]:
        """The entries of all numbers below `count`."""
        return [self.entries[number] for number in range(count)]

    def add(self, number: int, entry: dict[str, Any]) -> None:
        """Keep an entry, on disk when this returns."""
        self.entries[number] = entry
        write(self.path, self.entries)


def write(path: Path, value: Any) -> None:
    """Write the value as JSON: whole, or not at all."""
    write_file(path, json.dumps(value).encode())
