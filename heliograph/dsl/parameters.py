"""Arrays from .npz, .npy and .safetensors files: only below a folder, without pickle, sizes bounded before reading."""

from __future__ import annotations

import json
import math
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

import numpy as np

from heliograph.arrays import read_npy, sound_shape
from heliograph.dsl.diagnostics import Fault, Span, did_you_mean, shown
from heliograph.files import open_file
from heliograph.ir.node import Array, Matrix

MAX_BYTES = 512 * 1024 * 1024
_MAX_HEADER = 16 * 1024 * 1024
_MAX_ENTRIES = 20_000

_SAFETENSORS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}


class Loader:
    """Reads the arrays that one text loads; all together stay under MAX_BYTES."""

    def __init__(self, folder: Path, given: Mapping[str, Any]) -> None:
        self.folder = folder
        self.given = given
        self.left = MAX_BYTES
        # A text may load many arrays from one file, or one array many times; each is read only once.
        self._arrays: dict[tuple[Path, str | None], Array] = {}
        self._archives: dict[Path, zipfile.ZipFile] = {}
        self._headers: dict[Path, tuple[int, dict[str, Any]]] = {}

    def close(self) -> None:
        """Close the archives that are open."""
        for archive in self._archives.values():
            archive.close()
        self._archives.clear()

    def from_given(self, key: str, span: Span) -> Array:
        """The caller's array of that name."""
        if key not in self.given:
            raise Fault(
                span,
                f"no value is given for the parameter {shown(key)!r}",
                expected="a value in the text, or one in parse(..., parameters={...})",
                hint=did_you_mean(key, map(str, self.given)),
            )
        value = self.given[key]
        if isinstance(value, Matrix):
            # As in `to_language`: the printed param is dense, and the op that reads it makes it sparse again.
            self._spend(value.shape[0] * value.shape[1] * 8, span)
            value = value.csr().toarray()
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):
            raise Fault(span, f"the parameter {shown(key)!r} is not an array") from None
        return self._checked(array, span)

    def from_file(self, name: str, key: str | None, span: Span) -> Array:
        """The array `key` of a file, or the only array of an .npy file."""
        path = self._path(name, span)
        if (path, key) not in self._arrays:
            self._arrays[path, key] = self._read(path, name, key, span)
        return self._arrays[path, key]

    def _read(self, path: Path, name: str, key: str | None, span: Span) -> Array:
        try:
            if path.suffix == ".npz":
                return self._npz(path, name, key, span)
            with open_file(path) as file:
                if path.suffix == ".npy":
                    return self._npy(file, path.stat().st_size, span)
                return self._safetensors(path, file, name, key, span)
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            reason = str(error) if not isinstance(error, OSError) else (error.strerror or "it cannot be read")
            raise Fault(span, f"{shown(name)!r} is not a sound parameter file", note=reason) from None
        except (RecursionError, MemoryError, RuntimeError):
            raise Fault(span, f"{shown(name)!r} is not a sound parameter file") from None

    def _path(self, name: str, span: Span) -> Path:
        inside = "a relative path below the folder of the program"
        pure = PurePosixPath(name)
        if not name or "\0" in name or "\\" in name or len(name) > 1000 or PureWindowsPath(name).drive:
            raise Fault(span, f"{shown(name)!r} is not a path for parameters", expected=inside)
        if pure.is_absolute() or ".." in pure.parts:
            raise Fault(span, f"{shown(name)!r} leaves the folder of the program", expected=inside)
        if pure.suffix not in (".npz", ".npy", ".safetensors"):
            raise Fault(
                span, f"{shown(name)!r} is not a parameter file", expected="a name in .npz, .npy or .safetensors"
            )
        path = self.folder / name
        try:
            real = path.resolve()
            if not real.is_relative_to(self.folder.resolve()):
                raise Fault(span, f"{shown(name)!r} is a link that leaves the folder of the program", expected=inside)
            mode = real.stat().st_mode
        except (OSError, ValueError, RuntimeError):
            others = [p.name for p in self.folder.glob("*") if p.suffix in (".npz", ".npy", ".safetensors")][:200]
            raise Fault(
                span, f"there is no file {shown(name)!r} in the program's folder", hint=did_you_mean(name, others)
            ) from None
        if not stat.S_ISREG(mode):
            raise Fault(span, f"{shown(name)!r} is not a file")
        return real

    def _checked(self, array: Array, span: Span) -> Array:
        if array.dtype.kind not in "fiub":
            raise Fault(span, f"the array has dtype {array.dtype}", expected="real numbers")
        self._spend(array.size * 8, span)
        # The program's constants are float64 or float32.
        array = np.ascontiguousarray(array, dtype=np.float32 if array.dtype == np.float32 else np.float64)
        if not np.isfinite(array).all():
            raise Fault(span, "the array holds NaN or infinity", expected="finite numbers")
        return array

    def _spend(self, size: int, span: Span) -> None:
        if size > self.left:
            raise Fault(span, f"the parameters of this program have more than {MAX_BYTES} bytes")
        self.left -= size

    def _need(self, known: list[str], name: str, key: str | None, span: Span) -> str:
        if key is None:
            raise Fault(
                span, f"{shown(name)!r} holds several arrays", expected=f'load({json.dumps(shown(name))}, "name")'
            )
        if key not in known:
            some = ", ".join(shown(k) for k in sorted(known)[:8])
            raise Fault(
                span,
                f"{shown(name)!r} has no array {shown(key)!r}",
                expected=f"one of {some}{', ...' if len(known) > 8 else ''}" if known else "",
                hint=did_you_mean(key, known),
            )
        return key

    def _npz(self, path: Path, name: str, key: str | None, span: Span) -> Array:
        if path not in self._archives:
            self._archives[path] = zipfile.ZipFile(path)
        archive = self._archives[path]
        entries = archive.NameToInfo
        if len(entries) > _MAX_ENTRIES:
            raise ValueError(f"it has {len(entries)} entries")
        if key is None or (key not in entries and f"{key}.npy" not in entries):
            key = self._need([entry.removesuffix(".npy") for entry in entries], name, key, span)
        info = entries[f"{key}.npy" if f"{key}.npy" in entries else key]
        if info.file_size > self.left:
            self._spend(info.file_size, span)
        with archive.open(info) as member:
            return self._npy(member, info.file_size, span)

    def _npy(self, file: IO[bytes], size: int, span: Span) -> Array:
        def spend(count: int, dtype: np.dtype[Any]) -> None:
            if count * max(8, dtype.itemsize) > self.left:
                self._spend(count * max(8, dtype.itemsize), span)

        return self._checked(read_npy(file, size, spend), span)

    def _safetensors_header(self, file: IO[bytes], file_size: int) -> tuple[int, dict[str, Any]]:
        """The length of the header and its entries."""
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER, file_size - 8):
            raise ValueError(f"its header claims {length} bytes")
        header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is not an object")
        header.pop("__metadata__", None)
        return length, header

    def _safetensors(self, path: Path, file: IO[bytes], name: str, key: str | None, span: Span) -> Array:
        file_size = path.stat().st_size
        if path not in self._headers:
            self._headers[path] = self._safetensors_header(file, file_size)
        length, header = self._headers[path]
        if key is None or key not in header:
            key = self._need(list(header), name, key, span)
        entry = header[key]
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise ValueError("an entry of its header is malformed")
        kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(kind, str) or kind not in _SAFETENSORS:
            raise Fault(span, f"the array has dtype {shown(str(kind))}", expected=", ".join(_SAFETENSORS))
        shape = sound_shape(shape)
        if not isinstance(offsets, list) or len(offsets) != 2 or any(type(n) is not int or n < 0 for n in offsets):
            raise ValueError("an entry of its header is malformed")
        dtype = np.dtype(_SAFETENSORS[kind])
        begin, end = offsets
        if end - begin != math.prod(shape) * dtype.itemsize or 8 + length + end > file_size:
            raise ValueError("the offsets of an array do not fit its shape or the file")
        if math.prod(shape) * 8 > self.left:
            self._spend(math.prod(shape) * 8, span)
        file.seek(8 + length + begin)
        array = np.frombuffer(file.read(end - begin), dtype=dtype).reshape(shape)
        if kind == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        elif kind == "F16":
            array = array.astype(np.float32)
        return self._checked(array, span)
