"""Queues of earlier versions: brought up to date by the server that has the folder, and refused by everybody else."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from helpers.sites import old_queue

import heliograph as hg
from heliograph.serving.queue import database as module
from heliograph.serving.queue.database import Database


def columns(path: Path) -> dict[str, set[str]]:
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            for table in tables
            if not table.startswith("sqlite_")
        }


def test_an_old_queue_is_brought_up_to_date(tmp_path: Path) -> None:
    old, fresh = tmp_path / "old.sqlite", tmp_path / "fresh.sqlite"
    old_queue(old)
    Database(fresh)
    before = old.read_bytes()
    with pytest.raises(hg.WireError, match="a queue of version 1; this program has version") as caught:
        Database(old)
    assert "start the server again" in caught.value.hint
    assert columns(old) != columns(fresh)
    made = Database(old, upgrade=True)
    assert columns(old) == columns(fresh)
    assert old.read_bytes() != before
    row = made.reading().execute("SELECT id, state, deaths FROM jobs").fetchone()
    assert tuple(row) == ("j" * 32, "running", 2)
    # Once: what is up to date is opened by anybody.
    Database(old)
    Database(old, upgrade=True)


def test_an_upgrade_that_fails_leaves_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "queue.sqlite"
    old_queue(path)
    before = columns(path)
    monkeypatch.setitem(module._STEPS, 1, module._STEPS[1] + "; ALTER TABLE nothing DROP COLUMN here")
    with pytest.raises(hg.WireError, match="cannot be used as a queue"):
        Database(path, upgrade=True)
    assert columns(path) == before


def test_a_later_queue_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    Database(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    for upgrade in (False, True):
        with pytest.raises(hg.WireError, match="version 99") as caught:
            Database(path, upgrade=upgrade)
        assert "the Heliograph that made this one" in caught.value.hint


def test_what_is_no_queue_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(hg.WireError, match="cannot be used as a queue"):
        Database(path, upgrade=True)
