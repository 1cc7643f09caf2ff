"""One file format for everything that is saved or sent: bounded, versioned, without pickle, checked before it is read.

    8 bytes   magic "HELIOGR1"
    8 bytes   length of the whole, little-endian
    4 bytes   length of the header
    header    JSON: kind, version, fields, and for each blob its name, dtype, shape, offset and length
    blobs     raw bytes, little-endian
    32 bytes  SHA-256 of everything before

A reader checks length and digest first and parses nothing that they do not cover. The digest finds accidents, not
forgers: what a forger can do is bounded by the sizes and types that each reader checks after it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heliograph.errors import WireError

# What is read from files and sockets; a view saves the copy where a blob is hundreds of megabytes.
Bytes = bytes | memoryview

_MAGIC = b"HELIOGR1"
_DTYPES = {"f8": np.float64, "f4": np.float32, "i4": np.int32, "i8": np.int64, "u1": np.uint8}
_MAX_HEADER = 16 * 1024 * 1024
_MAX_DIGITS = 40
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
        """The blob of that name as an array; a WireError where there is none."""
        value = self.blobs.get(name)
        if not isinstance(value, np.ndarray):
            raise WireError(f"the file has no array {name!r}")
        return value

    def bytes(self, name: str) -> Bytes:
        """The blob of that name as raw bytes (read from a file: a view of it); a WireError where there is none."""
        value = self.blobs.get(name)
        if value is None or isinstance(value, np.ndarray):
            raise WireError(f"the file has no data {name!r}")
        return value

    def text(self, name: str, max_bytes: int) -> str:
        """The blob of that name as UTF-8 text; a WireError where there is none or it is too long."""
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
    header = json.dumps(
        {"kind": container.kind, "version": container.version, "fields": container.fields, "blobs": index},
        sort_keys=True,
        allow_nan=False,
    ).encode()
    if len(header) > _MAX_HEADER:
        raise WireError(
            f"the header of a {container.kind} would have {len(header)} bytes, at most {_MAX_HEADER} are read"
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
    """The container in `data`; a WireError where it is not an intact one of that kind and version (or one of those)."""
    _check_frame(data, max_bytes, what)
    (header_length,) = struct.unpack_from("<I", data, len(_MAGIC) + 8)
    start = _FIXED + header_length
    if header_length > _MAX_HEADER or start > len(data) - _DIGEST:
        raise WireError(f"{what}: its header does not fit in it")
    try:
        header = json.loads(bytes(data[_FIXED:start]), parse_int=_whole, parse_constant=_no_number)
        found_kind, found_version = str(header["kind"]), int(header["version"])
        fields, index = header["fields"], header["blobs"]
        if not isinstance(fields, dict) or not isinstance(index, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError(f"{what}: its header is malformed") from None
    if found_kind != kind:
        raise _wrong_kind(what, found_kind, kind)
    readable = (version,) if isinstance(version, int) else tuple(sorted(version))
    if found_version not in readable:
        raise _wrong_version(what, found_version, readable)
    blobs: dict[str, npt.NDArray[Any] | Bytes] = {}
    for entry in index:
        name, blob = _read_blob(entry, data, start, what)
        if name in blobs:
            raise WireError(f"{what}: blob {name!r} stands twice")
        blobs[name] = blob
    return Container(kind, found_version, fields, blobs)


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
    return WireError(f"{what} holds: {found[:40]}; expected: {expected}", hint="give the file of the kind expected")


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number here")


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


def _read_blob(entry: Any, data: Bytes, start: int, what: str) -> tuple[str, npt.NDArray[Any] | Bytes]:
    try:
        name, dtype, shape = entry["name"], entry["dtype"], entry["shape"]
        offset, length = entry["offset"], entry["length"]
        if not (type(name) is str and type(dtype) is str and type(shape) is list):
            raise TypeError
        if not all(type(number) is int for number in (*shape, offset, length)):
            raise TypeError
    except (KeyError, TypeError):
        raise WireError(f"{what}: its list of contents is malformed") from None
    if offset < 0 or length < 0 or start + offset + length > len(data) - _DIGEST or min(shape, default=0) < 0:
        raise WireError(f"{what}: blob {name!r} lies outside the file")
    begin = start + offset
    if dtype == "raw":
        if shape != [length]:
            raise WireError(f"{what}: blob {name!r} does not have the size of its type")
        return name, memoryview(data)[begin : begin + length]
    if dtype not in _DTYPES or len(shape) > 8 or math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != length:
        raise WireError(f"{what}: blob {name!r} does not have the size of its type")
    array = np.frombuffer(data, dtype=np.dtype(_DTYPES[dtype]).newbyteorder("<"), count=math.prod(shape), offset=begin)
    return name, array.astype(_DTYPES[dtype], copy=True).reshape(shape)


def read_file(path: str | Path, kind: str, version: int | Sequence[int], max_bytes: int) -> Container:
    """The container in a file; its size is checked before it is read."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise WireError(f"{path} has {size} bytes; at most {max_bytes} are read here")
        found = file_kind(path)
        if found != kind:
            # Before its contents are read: a server does not even load a secret key that it is given by mistake.
            raise _wrong_kind(str(path), found, kind)
        data = path.read_bytes()
    except OSError as error:
        raise WireError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    return unpack(data, kind, version, max_bytes, what=str(path))


def file_kind(path: str | Path) -> str:
    """The kind that a file's header names, unchecked: for choosing the reader, which checks it."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(_FIXED)
            if start[: len(_MAGIC)] != _MAGIC or len(start) < _FIXED:
                raise WireError(f"{path} is not a Heliograph file")
            (length,) = struct.unpack_from("<I", start, len(_MAGIC) + 8)
            if length > _MAX_HEADER:
                raise WireError(f"{path}: its header does not fit in it")
            return str(json.loads(file.read(length), parse_int=_whole, parse_constant=_no_number)["kind"])[:100]
    except OSError as error:
        raise WireError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError(f"{path}: its header is malformed") from None


def write_file(
    path: str | Path, data: Bytes | Iterable[Bytes], *, private: bool = False, overwrite: bool = True
) -> None:
    """Write a file so that a reader finds the old one or the whole new one, never a part.

    `private` gives it mode 0600 from the start; `overwrite=False` refuses to replace a file.
    """
    path = Path(path)
    try:
        if not overwrite and path.exists():
            raise WireError(f"{path} exists already", hint="choose another name, or pass overwrite=True")
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise WireError(f"{path} cannot be written", why=error.strerror or str(error)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            for part in (data,) if isinstance(data, (bytes, memoryview)) else data:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o600 if private else 0o644)
        if overwrite:
            os.replace(temporary, path)
        else:
            _take_name(temporary, path)
        _sync_folder(path.parent)
    except FileExistsError:
        os.unlink(temporary)
        raise WireError(f"{path} exists already", hint="choose another name, or pass overwrite=True") from None
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise WireError(f"{path} cannot be written", why=error.strerror or str(error)) from None
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _take_name(temporary: str, path: Path) -> None:
    """Give the file its name unless the name is taken, also by someone who was faster: FileExistsError."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # File systems without hard links (exFAT, some network ones): the name is taken by an empty file, then filled. A kill
        # between the two leaves the empty one, which no reader takes for anything.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


def _sync_folder(folder: Path) -> None:
    """Make the new name last; not every file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
