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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heliograph.errors import WireError

_MAGIC = b"HELIOGR1"
_DTYPES = {"f8": np.float64, "f4": np.float32, "i4": np.int32, "i8": np.int64, "u1": np.uint8}
_MAX_HEADER = 512 * 1024 * 1024
_FIXED = len(_MAGIC) + 8 + 4
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Container:
    """The contents of one file: JSON fields, and arrays or raw bytes by name."""

    kind: str
    version: int
    fields: Mapping[str, Any]
    blobs: Mapping[str, npt.NDArray[Any] | bytes] = field(default_factory=dict)

    def array(self, name: str) -> npt.NDArray[Any]:
        """The blob of that name as an array; a WireError where there is none."""
        value = self.blobs.get(name)
        if not isinstance(value, np.ndarray):
            raise WireError(f"the file has no array {name!r}")
        return value

    def bytes(self, name: str) -> bytes:
        """The blob of that name as raw bytes; a WireError where there is none."""
        value = self.blobs.get(name)
        if not isinstance(value, bytes):
            raise WireError(f"the file has no data {name!r}")
        return value


def pack(container: Container) -> bytes:
    """The bytes of a container; the same contents give the same bytes."""
    index, parts, offset = [], [], 0
    for name in sorted(container.blobs):
        blob = container.blobs[name]
        if isinstance(blob, bytes):
            dtype, shape, data = "raw", [len(blob)], blob
        else:
            dtype = blob.dtype.str.lstrip("<|=")
            if dtype not in _DTYPES:
                raise WireError(f"array {name!r} has dtype {blob.dtype}, which is not written")
            shape, data = list(blob.shape), np.ascontiguousarray(blob).tobytes()
        index.append({"name": name, "dtype": dtype, "shape": shape, "offset": offset, "length": len(data)})
        parts.append(data)
        offset += len(data)
    header = json.dumps(
        {"kind": container.kind, "version": container.version, "fields": container.fields, "blobs": index},
        sort_keys=True,
        allow_nan=False,
    ).encode()
    total = _FIXED + len(header) + offset + _DIGEST
    body = b"".join([_MAGIC, struct.pack("<Q", total), struct.pack("<I", len(header)), header, *parts])
    return body + hashlib.sha256(body).digest()


def unpack(data: bytes, kind: str, version: int, max_bytes: int, what: str = "data") -> Container:
    """The container in `data`; a WireError where it is not an intact one of that kind and version."""
    _check_frame(data, max_bytes, what)
    (header_length,) = struct.unpack_from("<I", data, len(_MAGIC) + 8)
    start = _FIXED + header_length
    if header_length > _MAX_HEADER or start > len(data) - _DIGEST:
        raise WireError(f"{what}: its header does not fit in it")
    try:
        header = json.loads(data[_FIXED:start])
        found_kind, found_version = str(header["kind"]), int(header["version"])
        fields, index = header["fields"], header["blobs"]
        if not isinstance(fields, dict) or not isinstance(index, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError(f"{what}: its header is malformed") from None
    if found_kind != kind:
        raise WireError(f"{what} is a {found_kind[:40]!r} file, not a {kind!r} file")
    if found_version != version:
        raise WireError(
            f"{what} is of version {found_version}; this program reads version {version}",
            hint="make it again with this version of Heliograph",
        )
    blobs: dict[str, npt.NDArray[Any] | bytes] = {}
    for entry in index:
        name, blob = _read_blob(entry, data, start, what)
        if name in blobs:
            raise WireError(f"{what}: blob {name!r} stands twice")
        blobs[name] = blob
    return Container(kind, version, fields, blobs)


def _check_frame(data: bytes, max_bytes: int, what: str) -> None:
    if len(data) > max_bytes:
        raise WireError(f"{what} has {len(data)} bytes; at most {max_bytes} are read here")
    if data[: len(_MAGIC)] != _MAGIC:
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


def _read_blob(entry: Any, data: bytes, start: int, what: str) -> tuple[str, npt.NDArray[Any] | bytes]:
    try:
        name, dtype = str(entry["name"]), str(entry["dtype"])
        shape = tuple(int(n) for n in entry["shape"])
        offset, length = int(entry["offset"]), int(entry["length"])
    except (KeyError, TypeError, ValueError):
        raise WireError(f"{what}: its list of contents is malformed") from None
    if offset < 0 or length < 0 or start + offset + length > len(data) - _DIGEST or min(shape, default=0) < 0:
        raise WireError(f"{what}: blob {name!r} lies outside the file")
    begin = start + offset
    if dtype == "raw":
        return name, bytes(memoryview(data)[begin : begin + length])
    if dtype not in _DTYPES or len(shape) > 8 or math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != length:
        raise WireError(f"{what}: blob {name!r} does not have the size of its type")
    array = np.frombuffer(data, dtype=np.dtype(_DTYPES[dtype]).newbyteorder("<"), count=math.prod(shape), offset=begin)
    return name, array.astype(_DTYPES[dtype], copy=True).reshape(shape)


def read_file(path: str | Path, kind: str, version: int, max_bytes: int) -> Container:
    """The container in a file; its size is checked before it is read."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise WireError(f"{path} has {size} bytes; at most {max_bytes} are read here")
        data = path.read_bytes()
    except OSError as error:
        raise WireError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    return unpack(data, kind, version, max_bytes, what=str(path))


def write_file(path: str | Path, data: bytes, *, private: bool = False, overwrite: bool = True) -> None:
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
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o600 if private else 0o644)
        if overwrite:
            os.replace(temporary, path)
        else:
            # A link fails where the name was taken in the meantime.
            os.link(temporary, path)
            os.unlink(temporary)
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
