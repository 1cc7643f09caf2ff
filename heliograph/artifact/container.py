"""The file format of everything that is saved or sent: bounded, versioned, without pickle, checked before parsing.

    8 bytes   magic "HELIOGR1"
    8 bytes   total length, little-endian
    4 bytes   length of the header
    header    JSON: kind, version, fields, and for each blob its name, dtype, shape, offset and length
    blobs     raw bytes, little-endian
    32 bytes  SHA-256 of everything before

A reader checks length and digest first and parses nothing that they do not cover. For a file, the kind in the header is
checked even before that: a file of another kind is not read at all. The digest detects accidents, not forgeries: a
forger is bounded by the sizes and types that each reader checks afterwards. Blobs follow each other without gaps or
overlaps and fill the rest of the file, so a reader never needs more memory than a few times the file's size.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from heliograph.arrays import sound_shape
from heliograph.errors import WireError
from heliograph.files import Bytes, open_file
from heliograph.strict_json import counted, strict_json
from heliograph.texts import shown

_MAGIC = b"HELIOGR1"
_DTYPES = {"f8": np.float64, "f4": np.float32, "i4": np.int32, "i8": np.int64, "u1": np.uint8}
_MAX_HEADER = 16 * 1024 * 1024
# The most values in a header. Each is an object in memory and takes some 50 ns to parse, however few bytes it has in the
# file.
_MAX_VALUES = 1 << 20
_MAX_BLOBS = 1 << 16
_MAX_DIMENSIONS = 8
_FIXED = len(_MAGIC) + 8 + 4
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Container:
    """The contents of one file: JSON fields, and arrays or raw bytes by name."""

    kind: str
    version: int
    fields: Mapping[str, Any]
    blobs: Mapping[str, npt.NDArray[Any] | Bytes] = field(default_factory=dict)

    def array(self, name: str) -> npt.NDArray[Any]:
        """The blob of that name as an array; a WireError if there is none."""
        value = self.blobs.get(name)
        if not isinstance(value, np.ndarray):
            raise WireError(f"the file has no array {name!r}")
        return value

    def bytes(self, name: str) -> Bytes:
        """The blob of that name as raw bytes (a view, if read from a file); a WireError if there is none."""
        value = self.blobs.get(name)
        if value is None or isinstance(value, np.ndarray):
            raise WireError(f"the file has no data {name!r}")
        return value

    def text(self, name: str, max_bytes: int) -> str:
        """The blob of that name as UTF-8 text; a WireError if there is none or it is too long."""
        value = self.bytes(name)
        if len(value) > max_bytes:
            raise WireError(f"the text {name!r} has {len(value)} bytes; at most {max_bytes} are read here")
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise WireError(f"the text {name!r} is not UTF-8") from None


def parts(container: Container) -> Iterator[Bytes]:
    """The bytes of a container piece by piece; the same contents give the same bytes."""
    index, blobs, offset = [], [], 0
    for name in sorted(container.blobs):
        blob = container.blobs[name]
        if isinstance(blob, np.ndarray):
            dtype = blob.dtype.str.lstrip("<|=")
            if dtype not in _DTYPES:
                raise WireError(f"array {name!r} has dtype {blob.dtype}, which is not written")
            shape = list(blob.shape)
            data: Bytes = np.ascontiguousarray(blob).tobytes()
        else:
            dtype, shape, data = "raw", [len(blob)], blob
        index.append({"name": name, "dtype": dtype, "shape": shape, "offset": offset, "length": len(data)})
        blobs.append(data)
        offset += len(data)
    if len(blobs) > _MAX_BLOBS:
        raise WireError(f"a {container.kind} would have {len(blobs)} blobs, at most {_MAX_BLOBS} are read")
    header = json.dumps(
        {"kind": container.kind, "version": container.version, "fields": container.fields, "blobs": index},
        sort_keys=True,
        allow_nan=False,
    ).encode()
    if len(header) > _MAX_HEADER or counted(header) > _MAX_VALUES:
        raise WireError(
            f"the header of a {container.kind} would have {len(header)} bytes and {counted(header)} values; at most "
            f"{_MAX_HEADER} bytes and {_MAX_VALUES} values are read"
        )
    total = _FIXED + len(header) + offset + _DIGEST
    digest = hashlib.sha256()
    for part in (_MAGIC, struct.pack("<Q", total), struct.pack("<I", len(header)), header, *blobs):
        digest.update(part)
        yield part
    yield digest.digest()


def pack(container: Container) -> bytes:
    """The bytes of a container; the same contents give the same bytes."""
    return b"".join(parts(container))


def unpack(data: Bytes, kind: str, version: int | Sequence[int], max_bytes: int, what: str = "data") -> Container:
    """The container in `data`; a WireError unless it is intact, of this kind and of this version (or one of these)."""
    _check_frame(data, max_bytes, what)
    start = _FIXED + _header_length(bytes(data[:_FIXED]), len(data), what)
    return _contents(data, start, _parsed(bytes(data[_FIXED:start]), what), kind, version, what)


def _header_length(fixed: bytes, size: int, what: str) -> int:
    """The length of the header, from the fixed bytes before it."""
    (length,) = struct.unpack_from("<I", fixed, len(_MAGIC) + 8)
    if length > _MAX_HEADER or _FIXED + length > size - _DIGEST:
        raise WireError(f"{what}: its header does not fit in it")
    return int(length)


def _parsed(header: bytes, what: str) -> Mapping[str, Any]:
    """The header as JSON: strict, bounded before it is parsed."""
    if counted(header) > _MAX_VALUES:
        raise WireError(f"{what}: its header has more than {_MAX_VALUES} values")
    try:
        parsed = strict_json(header, _MAX_VALUES)
        if not isinstance(parsed, dict) or not isinstance(parsed["kind"], str):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise WireError(f"{what}: its header is malformed") from None
    return parsed


def _contents(
    data: Bytes, start: int, header: Mapping[str, Any], kind: str, version: int | Sequence[int], what: str
) -> Container:
    """The container whose header was parsed and whose blobs begin at `start`."""
    if header["kind"] != kind:
        raise _wrong_kind(what, header["kind"], kind)
    found, fields, index = header.get("version"), header.get("fields"), header.get("blobs")
    if type(found) is not int or not isinstance(fields, dict) or not isinstance(index, list):
        raise WireError(f"{what}: its header is malformed")
    readable = (version,) if isinstance(version, int) else tuple(sorted(version))
    if found not in readable:
        raise _wrong_version(what, found, readable)
    if len(index) > _MAX_BLOBS:
        raise WireError(f"{what}: it has more than {_MAX_BLOBS} blobs")
    blobs: dict[str, npt.NDArray[Any] | Bytes] = {}
    place = start
    for entry in index:
        name, blob, length = _read_blob(entry, data, place, place - start, what)
        if name in blobs:
            raise WireError(f"{what}: blob {shown(name, 60)!r} appears twice")
        blobs[name] = blob
        place += length
    if place != len(data) - _DIGEST:
        raise WireError(f"{what}: its list of contents does not account for all of it")
    return Container(kind, found, fields, blobs)


def _wrong_version(what: str, found: int, readable: Sequence[int]) -> WireError:
    numbers = ", ".join(map(str, readable))
    return WireError(
        f"{what} is of version {found}; this program reads version{'s' if len(readable) > 1 else ''} {numbers}",
        why="it was written by a later Heliograph"
        if found > readable[-1]
        else "it was written by an earlier Heliograph",
        hint="install a later version of Heliograph"
        if found > readable[-1]
        else "make it again with this version of Heliograph (docs/compatibility.md says what stays readable)",
    )


def _wrong_kind(what: str, found: str, expected: str) -> WireError:
    return WireError(
        f"{what} holds: {shown(found, 40)}; expected: {expected}", hint="give the file of the kind expected"
    )


def _check_frame(data: Bytes, max_bytes: int, what: str) -> None:
    if len(data) > max_bytes:
        raise WireError(f"{what} has {len(data)} bytes; at most {max_bytes} are read here")
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise WireError(f"{what} is not a Heliograph file")
    if len(data) < _FIXED + _DIGEST:
        raise WireError(f"{what} is truncated: it has {len(data)} bytes")
    (total,) = struct.unpack_from("<Q", data, len(_MAGIC))
    if total != len(data):
        state = "truncated" if len(data) < total else "followed by other data"
        raise WireError(f"{what} is {state}: it should have {total} bytes and has {len(data)}")
    view = memoryview(data)
    if hashlib.sha256(view[:-_DIGEST]).digest() != bytes(view[-_DIGEST:]):
        raise WireError(f"{what} is damaged: its contents do not match its checksum", hint="copy or make it again")


def _read_blob(
    entry: Any, data: Bytes, begin: int, offset: int, what: str
) -> tuple[str, npt.NDArray[Any] | Bytes, int]:
    """Name, contents and length of the blob at `begin`, which is `offset` bytes after the first blob."""
    try:
        name, dtype, shape = entry["name"], entry["dtype"], entry["shape"]
        length = entry["length"]
        if not (type(name) is str and type(dtype) is str and type(shape) is list and type(length) is int):
            raise TypeError
        if type(entry["offset"]) is not int:
            raise TypeError
    except (KeyError, TypeError):
        raise WireError(f"{what}: its list of contents is malformed") from None
    if entry["offset"] != offset or length < 0 or begin + length > len(data) - _DIGEST:
        raise WireError(f"{what}: blob {shown(name, 60)!r} lies outside the file, or not behind the one before it")
    wrong = WireError(f"{what}: blob {shown(name, 60)!r} does not have the size of its type")
    if dtype == "raw":
        if shape != [length]:
            raise wrong
        return name, memoryview(data)[begin : begin + length], length
    try:
        dimensions = sound_shape(shape, _MAX_DIMENSIONS)
    except ValueError:
        raise wrong from None
    count = math.prod(dimensions)
    if dtype not in _DTYPES or count * np.dtype(_DTYPES[dtype]).itemsize != length:
        raise wrong
    array = np.frombuffer(data, dtype=np.dtype(_DTYPES[dtype]).newbyteorder("<"), count=count, offset=begin)
    return name, array.astype(_DTYPES[dtype], copy=True).reshape(dimensions), length


def read_file(path: str | Path, kind: str, version: int | Sequence[int], max_bytes: int) -> Container:
    """The container in a file; size and kind are checked before more than its header is read."""
    path = Path(path)
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise WireError(f"{path} has {size} bytes; at most {max_bytes} are read here")
            fixed, text, header = _read_header(file, path)
            if header["kind"] != kind:
                # Refused before its contents are read: a server must not even load a secret key that it receives by
                # mistake.
                raise _wrong_kind(str(path), header["kind"], kind)
            # The header is parsed only once, so the bytes read here must equal the parsed ones.
            data = bytearray(size)
            start = len(fixed) + len(text)
            data[:start] = fixed + text
            view = memoryview(data)
            while start < size and (count := file.readinto(view[start:])):
                start += count
    except OSError as error:
        raise WireError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    found = view.toreadonly()[:start]
    _check_frame(found, max_bytes, str(path))
    return _contents(found, len(fixed) + len(text), header, kind, version, str(path))


def _read_header(file: IO[bytes], path: Path) -> tuple[bytes, bytes, Mapping[str, Any]]:
    """The fixed bytes before a file's header, the header's bytes, and the parsed header, unverified."""
    fixed = file.read(_FIXED)
    if fixed[: len(_MAGIC)] != _MAGIC or len(fixed) < _FIXED:
        raise WireError(f"{path} is not a Heliograph file")
    text = file.read(_header_length(fixed, os.fstat(file.fileno()).st_size, str(path)))
    return fixed, text, _parsed(text, str(path))


def digest_of(data: Bytes) -> str:
    """The digest at the end of a container's bytes, unchecked, as 64 hexadecimal digits."""
    return bytes(data[-_DIGEST:]).hex()


def file_digest(path: str | Path) -> str:
    """The digest at the end of a file, unchecked; an OSError if the file cannot be read."""
    with open_file(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _DIGEST))
        return digest_of(file.read())


def file_kind(path: str | Path) -> str:
    """The kind in a file's header, unchecked: for choosing the reader, which checks it."""
    path = Path(path)
    try:
        with open_file(path) as file:
            return shown(_read_header(file, path)[2]["kind"], 100)
    except OSError as error:
        raise WireError(f"{path} cannot be read", why=error.strerror or str(error)) from None
