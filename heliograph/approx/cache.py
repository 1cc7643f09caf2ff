"""Results of searches on disk, so that a compile does not search twice.

An entry has the choices of a search (degrees, counts), never its proofs: a reader computes the polynomials and their
proofs again, and searches if they do not hold. A wrong or hostile entry can therefore cost levels, never a guarantee.
An entry is one JSON file named by the hash of its question, in a folder that several processes may share: it is written
atomically, by renaming, and an invalid one counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heliograph.errors import WireError
from heliograph.files import open_file, write_file

# Part of every key: raise it whenever a search may choose something else.
VERSION = 1
_MOST_BYTES = 65_536


def folder() -> Path | None:
    """HELIOGRAPH_CACHE, or the platform's folder for caches; None if HELIOGRAPH_CACHE is empty (no cache)."""
    named = os.environ.get("HELIOGRAPH_CACHE")
    if named is not None:
        return Path(named) if named else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "heliograph" / "approx"


def _question(kind: str, key: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "version": VERSION, "key": dict(key)}


def _path(question: Mapping[str, Any]) -> Path | None:
    at = folder()
    if at is None:
        return None
    text = json.dumps(question, sort_keys=True, allow_nan=False)
    return at / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def load(kind: str, key: Mapping[str, Any]) -> Any:
    """The stored JSON value for a question; None if none can be read. The caller has to check its shape."""
    question = _question(kind, key)
    path = _path(question)
    if path is None:
        return None
    try:
        # Links and pipes are refused: somebody else may have made the folder.
        with open_file(path, follow=False) as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            return None
        entry = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or {k: v for k, v in entry.items() if k != "value"} != question:
        return None
    return entry.get("value")


def store(kind: str, key: Mapping[str, Any], value: Any) -> None:
    """Store a value; a folder that cannot be written is not an error."""
    question = _question(kind, key)
    path = _path(question)
    if path is None:
        return
    text = json.dumps({**question, "value": value}, sort_keys=True, allow_nan=False)
    with contextlib.suppress(OSError, WireError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(path, text.encode(), private=True)


def whole_numbers(value: Any, most: int, longest: int) -> tuple[int, ...] | None:
    """A value as a tuple of at most `longest` whole numbers in 0..most; None for any other value."""
    if not isinstance(value, list) or len(value) > longest:
        return None
    if not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= most for v in value):
        return None
    return tuple(value)
