"""The file format: what is written comes back, what was there survives an interrupted save."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.artifact.container import Container, file_kind, pack, read_file, unpack
from heliograph.errors import WireError
from heliograph.files import open_file, remove_parts, write_file

_MANY = 1 << 30


def test_round_trip() -> None:
    blobs = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.float32([1.5]),
        "c": np.int32([[1], [2]]),
        "raw": b"\x00\xffbytes",
        "empty": np.zeros((0, 4)),
    }
    fields = {"x": 1, "y": [1.5, "text", None, True]}
    data = pack(Container("kind", 3, fields, blobs))
    found = unpack(data, "kind", 3, _MANY)
    assert found.fields == fields
    for name, blob in blobs.items():
        if isinstance(blob, bytes):
            assert bytes(found.bytes(name)) == blob
        else:
            assert found.array(name).dtype == blob.dtype
            assert np.array_equal(found.array(name), blob)
            assert found.array(name).shape == blob.shape
    assert pack(found) == data, "the same contents give the same bytes"


@given(data=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused(data: bytes) -> None:
    for start in (b"", b"HELIOGR1", b"HELIOGR1" + struct.pack("<Q", len(data) + 16)):
        with pytest.raises(WireError):
            unpack(start + data, "kind", 1, _MANY)


def crafted(header: object, body: bytes = b"") -> bytes:
    """An intact file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    total = 20 + len(text) + len(body) + 32
    data = b"HELIOGR1" + struct.pack("<Q", total) + struct.pack("<I", len(text)) + text + body
    return data + hashlib.sha256(data).digest()


_BLOB = {"name": "a", "dtype": "f8", "shape": [2], "offset": 0, "length": 16}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"kind": "kind", "version": 1, "fields": {"x": NaN}, "blobs": []}',
        b'{"kind": "kind", "version": 1, "fields": {"x": ' + b"9" * 100_000 + b'}, "blobs": []}',
        b'{"kind": "kind", "version": ' + b"9" * 5000 + b', "fields": {}, "blobs": []}',
        {"kind": "kind", "version": 1e400, "fields": {}, "blobs": []},
        {"kind": "kind", "version": 1, "fields": [], "blobs": []},
        {"kind": "kind", "version": 1, "fields": {}, "blobs": {}},
        {"kind": "kind", "version": 1, "fields": {}, "blobs": [1]},
        {"kind": "kind", "version": 1, "fields": {}, "blobs": [{}]},
        {"kind": "kind", "version": 1, "fields": {}, "blobs": [_BLOB, _BLOB]},
        *(
            {"kind": "kind", "version": 1, "fields": {}, "blobs": [{**_BLOB, **change}]}
            for change in (
                {"offset": -8},
                {"offset": 8},
                {"length": 8},
                {"length": 1 << 60},
                {"shape": [-2]},
                {"shape": [1 << 62, 4]},
                {"shape": [2] + [1] * 20},
                {"shape": "2"},
                {"shape": [1e308]},
                {"shape": [float("1e400")]},
                {"dtype": "O"},
                {"dtype": "c16"},
                {"dtype": None},
            )
        ),
    ],
)
def test_malformed_headers(header: object) -> None:
    with pytest.raises(WireError):
        unpack(crafted(header, bytes(16)), "kind", 1, _MANY)


def test_versions_and_kinds_in_words(tmp_path: Path) -> None:
    data = pack(Container("kind", 1, {}))
    with pytest.raises(WireError, match="is of version 1; this program reads version 2"):
        unpack(data, "kind", 2, _MANY)
    with pytest.raises(WireError, match="data holds: kind; expected: other"):
        unpack(data, "other", 1, _MANY)
    write_file(tmp_path / "f", data)
    assert file_kind(tmp_path / "f") == "kind"
    with pytest.raises(WireError, match="at most 10 are read"):
        read_file(tmp_path / "f", "kind", 1, 10)
    for bad in (b"", b"HELIOGR1", b"PK\x03\x04" + bytes(100), b"HELIOGR1" + b"\xff" * 100):
        (tmp_path / "f").write_bytes(bad)
        with pytest.raises(WireError):
            file_kind(tmp_path / "f")
    with pytest.raises(WireError, match="cannot be read"):
        file_kind(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_file(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WireError, match=r"cannot be written(?s:.*)No space left"):
        write_file(path, b"new")
    monkeypatch.undo()

    def interrupted():  # type: ignore[no-untyped-def]
        yield b"ne"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, interrupted())
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"], "no partial file is left"


_SLOW_WRITER = """
import sys, time
from heliograph.files import write_file

def parts():
    yield b"n" * 100000
    print("half", flush=True)
    time.sleep(60)
    yield b"ew"

write_file(sys.argv[1], parts())
"""


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_file(path, b"old")
    child = subprocess.Popen([sys.executable, "-c", _SLOW_WRITER, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    finally:
        with contextlib.suppress(OSError):
            child.kill()
        assert child.stdout is not None
        child.stdout.close()
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    write_file(tmp_path / "g", b"another file")
    assert len(list(tmp_path.iterdir())) == 3
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "g"], "what the killed one had begun is gone"


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "f"
    child = subprocess.Popen([sys.executable, "-c", _SLOW_WRITER, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        (part,) = tmp_path.iterdir()
        write_file(path, b"mine")
        remove_parts(tmp_path)
        assert part.exists()
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    finally:
        with contextlib.suppress(OSError):
            child.kill()
        assert child.stdout is not None
        child.stdout.close()
    remove_parts(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_only_parts_of_files_are_removed(tmp_path: Path) -> None:
    others = [
        ".f.part",
        ".f.0123abc.part",
        ".f.0123ABCD.part",
        "f.0123abcd.part",
        ".f.0123abcd.part.txt",
        ".g.0123abcd.part",
    ]
    for name in (*others, ".f.0123abcd.part"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".f.abcd0123.part").mkdir()
    (tmp_path / ".f.aaaa0123.part").symlink_to(tmp_path / ".f.part")
    os.mkfifo(tmp_path / ".f.bbbb0123.part")
    write_file(tmp_path / "f", b"mine")
    kept = {*others, "f", ".f.abcd0123.part", ".f.aaaa0123.part", ".f.bbbb0123.part"}
    assert {p.name for p in tmp_path.iterdir()} == kept


def test_a_part_that_was_taken_for_a_dead_ones_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes it between its making and its locking."""
    from heliograph import files

    locked, original = [], files.lock

    def late(handle: int, *, wait: bool) -> None:
        if not locked:
            (part,) = tmp_path.iterdir()
            part.unlink()
        locked.append(handle)
        original(handle, wait=wait)

    monkeypatch.setattr(files, "lock", late)
    write_file(tmp_path / "f", b"whole")
    assert len(locked) == 2
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("f", b"whole")]


def test_a_file_system_without_locks_and_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("heliograph.files.lock", none)
    monkeypatch.setattr(os, "link", none)
    (tmp_path / ".f.0123abcd.part").write_bytes(b"nobody can tell whose")
    write_file(tmp_path / "f", b"mine", private=True, overwrite=False)
    assert (tmp_path / "f").read_bytes() == b"mine"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600
    with pytest.raises(WireError, match="already exists"):
        write_file(tmp_path / "f", b"other", overwrite=False)

    def parts():  # type: ignore[no-untyped-def]
        yield b"mine"
        (tmp_path / "g").write_bytes(b"theirs")

    with pytest.raises(WireError, match="already exists"):
        write_file(tmp_path / "g", parts(), overwrite=False)
    assert (tmp_path / "g").read_bytes() == b"theirs"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".f.0123abcd.part", "f", "g"]


@pytest.mark.parametrize(
    ("umask", "mode"), [(0o000, 0o644), (0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o777, 0o000)]
)
def test_files_are_as_readable_as_the_umask_allows(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_file(tmp_path / "f", b"shared")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode


def test_nothing_but_files_is_read(tmp_path: Path) -> None:
    """Neither waited for, as a pipe without a writer, nor read without an end, as a device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(WireError, match="it is a pipe or a device, not a file"):
        read_file(tmp_path / "pipe", "kind", 1, _MANY)
    with pytest.raises(WireError, match="it is a pipe or a device, not a file"):
        file_kind(tmp_path / "link")
    with pytest.raises(WireError, match="it is a pipe or a device, not a file"):
        read_file("/dev/zero", "kind", 1, _MANY)
    with pytest.raises(WireError, match="Is a directory"):
        read_file(tmp_path, "kind", 1, _MANY)
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "other").symlink_to(tmp_path / "file")
    with open_file(tmp_path / "other") as file:
        assert file.read() == b"x"
    with pytest.raises(OSError, match="symbolic links"):
        open_file(tmp_path / "other", follow=False)


def test_a_private_file_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    fsync = os.fsync

    def watch(handle: int) -> None:
        modes.append(os.fstat(handle).st_mode)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watch)
    before = os.umask(0)
    try:
        write_file(tmp_path / "f", b"secret", private=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(modes[0]) == 0o600
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600


def test_no_overwrite_even_in_a_race(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def parts():  # type: ignore[no-untyped-def]
        yield b"mine"
        path.write_bytes(b"theirs")

    with pytest.raises(WireError, match="already exists"):
        write_file(path, parts(), overwrite=False)
    assert path.read_bytes() == b"theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_reading_is_bounded_in_time() -> None:
    """A header full of digits or brackets is refused at once."""
    begun = time.perf_counter()
    for header in (b"9" * 10**7, b"[" * 10**7, b'{"a":' * 10**6):
        with pytest.raises(WireError):
            unpack(crafted(header), "kind", 1, _MANY)
    assert time.perf_counter() - begun < 10


def _index(*entries: dict[str, object], **changes: object) -> bytes:
    return crafted({"kind": "kind", "version": 1, "fields": {}, "blobs": list(entries), **changes}, bytes(4096))


def _entry(name: str, offset: int, length: int, dtype: str = "u1") -> dict[str, object]:
    return {"name": name, "dtype": dtype, "shape": [length], "offset": offset, "length": length}


@pytest.mark.parametrize("dtype", ["u1", "raw"])
def test_blobs_that_overlap_or_leave_gaps_are_refused(dtype: str) -> None:
    """A thousand arrays over the same bytes would take a thousand times the file."""
    assert len(unpack(_index(_entry("a", 0, 4000, dtype), _entry("b", 4000, 96, dtype)), "kind", 1, _MANY).blobs) == 2
    for entries in (
        [_entry(str(i), 0, 4096, dtype) for i in range(1000)],
        [_entry("a", 0, 4000, dtype), _entry("b", 3999, 97, dtype)],
        [_entry("a", 0, 4000, dtype), _entry("b", 4001, 95, dtype)],
        [_entry("a", 4000, 96, dtype), _entry("b", 0, 4000, dtype)],
        [_entry("a", 0, 4000, dtype)],
        [],
    ):
        with pytest.raises(WireError, match=r"not behind the one before it|does not account for all of it"):
            unpack(_index(*entries), "kind", 1, _MANY)


@pytest.mark.parametrize(
    "shape",
    [[0, 2**70], [0, 2**62, 2**62], [2**70], [0, 2**63], [True, 0], [0, -1], [0, -1, -1], [0] * 9, [0.0], ["0"], [[]]],
    ids=str,
)
def test_shapes_that_numpy_cannot_hold(shape: list[object]) -> None:
    entry = {"name": "a", "dtype": "f8", "shape": shape, "offset": 0, "length": 0}
    with pytest.raises(WireError):
        unpack(crafted({"kind": "kind", "version": 1, "fields": {}, "blobs": [entry]}), "kind", 1, _MANY)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1.0", b"true", b'"1"', b"null", b"[1]"])
def test_versions_that_are_no_whole_numbers(number: bytes) -> None:
    with pytest.raises(WireError, match="malformed"):
        unpack(crafted(b'{"kind": "kind", "version": ' + number + b', "fields": {}, "blobs": []}'), "kind", 1, _MANY)
    with pytest.raises(WireError, match=r"malformed|is of version"):
        unpack(crafted(b'{"kind": "kind", "version": 1, "fields": {"x": 1e999}, "blobs": []}'), "kind", 1, _MANY)


def test_a_large_header_of_small_values_costs_little(tmp_path: Path) -> None:
    """Each `[],` of three bytes is an object that takes twenty times as much."""
    many = b"[]," * 5_000_000
    data = crafted(b'{"kind": "kind", "version": 1, "fields": {"a": [' + many + b'[]]}, "blobs": []}')
    (tmp_path / "f").write_bytes(data)
    begun = time.process_time()
    for read in (
        lambda: unpack(data, "kind", 1, _MANY),
        lambda: read_file(tmp_path / "f", "kind", 1, _MANY),
        lambda: file_kind(tmp_path / "f"),
    ):
        with pytest.raises(WireError, match="values"):
            read()
    assert time.process_time() - begun < 1.0


def test_a_header_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "f", pack(Container("kind", 1, {"x": 1}, {"a": np.arange(3.0)})))
    parsed = []
    original = json.loads

    def counted(*arguments: object, **named: object) -> object:
        parsed.append(arguments)
        return original(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(json, "loads", counted)
    assert read_file(tmp_path / "f", "kind", 1, _MANY).array("a").tolist() == [0.0, 1.0, 2.0]
    assert len(parsed) == 1


def test_no_control_character_of_a_file_reaches_the_message() -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\r\u202e\ud800"
    for data in (
        crafted({"kind": evil, "version": 1, "fields": {}, "blobs": []}),
        _index(_entry(evil, 1, 4096)),
        _index(_entry(evil, 0, 4096, evil)),
    ):
        with pytest.raises(WireError) as caught:
            unpack(data, "kind", 1, _MANY, what=f"file{evil}")
        assert all(line.isprintable() for line in str(caught.value).split("\n"))
        str(caught.value).encode()


_SOUND = pack(Container("kind", 1, {"x": [1, {"y": 2.5}]}, {"a": np.arange(6.0).reshape(2, 3), "b": b"raw", "c": b""}))


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_mutated_bytes_give_a_container_or_a_wire_error(data: st.DataObject) -> None:
    mutant = bytearray(_SOUND[:-32])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(16, len(mutant) - 1))
        change = data.draw(st.sampled_from(("put", "cut", "double")))
        if change == "put":
            mutant[place : place + 1] = data.draw(
                st.sampled_from((b"9", b"0", b"-", b"[", b"\xff", b"e", b"1e99", b"\x1b"))
            )
        elif change == "cut":
            del mutant[place : place + data.draw(st.integers(1, 8))]
        else:
            mutant[place:place] = mutant[place : place + 8]
    mutant[8:16] = struct.pack("<Q", len(mutant) + 32)
    whole = bytes(mutant) + hashlib.sha256(mutant).digest()
    with contextlib.suppress(WireError):
        found = unpack(whole, "kind", 1, _MANY)
        assert sum(getattr(blob, "nbytes", 0) for blob in found.blobs.values()) <= len(whole)
