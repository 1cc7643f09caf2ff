"""Reading and writing arrays in the user's .npy and .npz files."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from heliograph.arrays import read_npy
from heliograph.errors import ProgramError
from heliograph.files import open_file, write_file

MAX_FILE_BYTES = 8 * 1024**3
_MAX_ENTRIES = 20_000
# The bytes to which any file may unpack, and the multiple of its size to which a larger file may: images and weights do
# not compress that well, and zeros that do cost memory.
_SMALL_BYTES = 1 << 26
_MOST_TIMES = 100
Array = npt.NDArray[Any]


def read_arrays(path: str | Path, only: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of a .npz file by name, or the array of a .npy file under the name ""; a ProgramError for other files.

    Object arrays are refused, because they are pickles. With `only`, a .npz file's other arrays, which may hold
    anything, are not read.
    """
    path = Path(path)
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                raise ProgramError(f"{path} has more than {MAX_FILE_BYTES} bytes")
            if file.read(2) == b"PK":
                arrays = _read_npz(file, path, size, only)
            else:
                file.seek(0)
                arrays = {"": read_npy(file, size, lambda count, dtype: None)}
    except OSError as error:
        raise ProgramError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    except ProgramError:
        raise
    except Exception as error:
        # zipfile and its decompressors raise many errors on untrusted bytes: BadZipFile, zlib.error, RuntimeError and
        # others.
        raise ProgramError(f"{path} is not a .npy or .npz file of numbers", why=str(error)[:200]) from None
    if not arrays:
        wanted = "" if only is None else f" of those that are needed: {', '.join(only)}"
        raise ProgramError(f"{path} holds no array{wanted}")
    return arrays


def _read_npz(file: IO[bytes], path: Path, size: int, only: Collection[str] | None) -> dict[str, Array]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if len(entries) > _MAX_ENTRIES or unpacked > MAX_FILE_BYTES:
            raise ProgramError(
                f"{path} has more than {_MAX_ENTRIES} arrays or unpacks to more than {MAX_FILE_BYTES} bytes"
            )
        if unpacked > max(_SMALL_BYTES, _MOST_TIMES * size):
            raise ProgramError(
                f"{path} has {size} bytes and unpacks to {unpacked}",
                why=f"no more than {_MOST_TIMES} times its size is unpacked beyond {_SMALL_BYTES} bytes",
                hint="write it without compression: numpy.savez",
            )
        if any(entry.filename.endswith("/data.pkl") for entry in entries):
            raise ProgramError(
                f"{path} is a file of torch.save, not a .npy or .npz file",
                hint="save its numbers as an array: numpy.save('samples.npy', tensor.numpy())",
            )
        arrays = {}
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if only is not None and name not in only:
                continue
            with archive.open(entry) as member:
                try:
                    arrays[name] = read_npy(member, entry.file_size, lambda count, dtype: None)
                except ValueError as error:
                    raise ValueError(f"array {name[:60]!r}: {error}") from None
        return arrays


def one_per_name(arrays: Mapping[str, Array], names: Sequence[str], path: str | Path) -> list[Array]:
    """The arrays in the order of the names: by name if all exist, or a single array for a single name."""
    if all(name in arrays for name in names):
        return [arrays[name] for name in names]
    if len(names) == len(arrays) == 1:
        return list(arrays.values())
    raise ProgramError(
        f"{path} has {', '.join(repr(name) for name in arrays) or 'no arrays'}; needed are {', '.join(map(repr, names))}",
        hint="write a .npz with one array per input, by name: numpy.savez(path, x=..., y=...)",
    )


def read_by_name(path: str | Path, names: Sequence[str]) -> dict[str, Array]:
    """The arrays of a file by these names; a single array may have any name if there is a single name."""
    return dict(zip(names, one_per_name(read_arrays(path), names, path), strict=True))


def read_samples(path: str | Path, names: Sequence[str], sample: int | None) -> list[Array]:
    """One sample per input from a file; `sample` selects it if the arrays have a leading sample axis."""
    arrays = one_per_name(read_arrays(path), names, path)
    if sample is None:
        return arrays
    for array in arrays:
        if array.ndim == 0 or not -array.shape[0] <= sample < array.shape[0]:
            raise ProgramError(f"{path} has no sample {sample}: its shape is {array.shape}")
    return [array[sample] for array in arrays]


def write_array(path: str | Path, value: Any, names: Sequence[str]) -> None:
    """Write a result whole or not at all: .npy for one array, .npz by name for several or if the path ends so.

    Only its owner can read it, as with the key that decrypted it.
    """
    import io

    values = value if isinstance(value, tuple) else (value,)
    buffer = io.BytesIO()
    if len(values) > 1 or Path(path).suffix == ".npz":
        np.savez(buffer, **dict(zip(names, values, strict=True)))
    else:
        np.save(buffer, values[0])
    write_file(path, buffer.getvalue(), private=True)
