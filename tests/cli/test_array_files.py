"""The readers of .npy and .npz files, of programs' parameters and of commands' inputs: what lies is refused in words."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.fuzzing import mutated_array_file

from heliograph.array_files import read_arrays
from heliograph.arrays import MAX_DIMENSIONS, sound_shape
from heliograph.dsl.parse import parse
from heliograph.errors import HeliographError, ProgramError

PROGRAM = 'program p\ninput x: secret tensor[4] in [-1, 1]\nparam w = load("{}")\noutput y = w * x\n'


def npy(shape: str, dtype: str = "<f8", version: int = 1, body: bytes = bytes(64)) -> bytes:
    """A file of numpy's format with any header."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + body


def from_program(path: Path) -> None:
    program = path.parent / "p.hg"
    program.write_text(
        PROGRAM.format(path.name) if path.suffix == ".npy" else PROGRAM.replace('"{}"', f'"{path.name}", "w"')
    )
    parse(program)


def from_command(path: Path) -> None:
    read_arrays(path)


READERS = pytest.mark.parametrize("read", [from_program, from_command])
LIES = {
    "true": npy("(True,)"),
    "true among numbers": npy("(2, True, 2)"),
    "negative": npy("(-1,)", "|i1"),
    "two negative": npy("(-2, -2)"),
    "64 dimensions": npy("(" + "1," * 64 + ")"),
    "2^70": npy(f"({2**70},)"),
    "no elements of 2^70": npy(f"(0, {2**70})"),
    "no elements of 2^63": npy(f"(0, {2**63 - 1}, {2**63 - 1})"),
    "a product of 2^64": npy(f"({2**32}, {2**32})"),
    "more than the file": npy("(1000000000,)"),
    "fraction": npy("(1.5,)"),
    "nested": npy("((1,),)"),
    "a list of signs": npy("(" + "-" * 5000 + "1,)"),
    "a number": npy("4"),
    "a text": npy("'4'"),
    "an expression": npy("(10**1000,)"),
    "parentheses": npy("(" * 4000 + ")" * 4000),
    "objects": npy("(4,)", "|O"),
    "complex": npy("(4,)", "<c16"),
    "times": npy("(4,)", "<M8[s]"),
    "bytes": npy("(4,)", "V8"),
    "no type": npy("(4,)", "\x1b[2J"),
    "version 9": npy("(4,)", version=9),
    "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100),
    "no header": b"\x93NUMPY",
    "nothing": b"",
}


@READERS
@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_is_refused(name: str, read: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(LIES[name])
    with pytest.raises(ProgramError) as caught:
        read(tmp_path / "a.npy")
    assert all(line.isprintable() for line in str(caught.value).split("\n"))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("w.npy", LIES[name])
    with pytest.raises(ProgramError):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2", "|b1", "|i1", "<i8", ">u2"])
def test_what_numpy_writes_is_read(dtype: str, tmp_path: Path) -> None:
    for array in (
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.ones(()),
        np.ones((0, 3)),
    ):
        values = array.astype(dtype)
        np.save(tmp_path / "a.npy", values)
        np.savez_compressed(tmp_path / "a.npz", w=values)
        for found in (read_arrays(tmp_path / "a.npy")[""], read_arrays(tmp_path / "a.npz")["w"]):
            assert found.shape == values.shape
            np.testing.assert_array_equal(found, values)
    np.save(tmp_path / "a.npy", np.arange(4).astype(dtype) * 0.5)
    from_program(tmp_path / "a.npy")


def test_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    """Two gigabytes on paper, a few kilobytes on the disk: nothing of it is read where the shape does not fit."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for header in (npy("(-1,)", "|i1"), npy("(4,)", "|i1")[:-64]):
        with (tmp_path / "a.npy").open("wb") as file:
            file.write(header)
            file.truncate(2_000_000_000)
        with contextlib.suppress(ProgramError):
            from_program(tmp_path / "a.npy")
        with contextlib.suppress(ProgramError):
            from_command(tmp_path / "a.npy")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_sound_shapes() -> None:
    assert sound_shape([2, 0, 3]) == (2, 0, 3)
    assert sound_shape((1,) * MAX_DIMENSIONS) == (1,) * MAX_DIMENSIONS
    for shape in ([True], [-1], [1.0], "12", 4, None, [1] * (MAX_DIMENSIONS + 1), [0, 2**45], [2**30, 2**30]):
        with pytest.raises(ValueError, match="its shape"):
            sound_shape(shape)


def safetensors(shape: list[object], length: int) -> bytes:
    header = json.dumps({"w": {"dtype": "F64", "shape": shape, "data_offsets": [0, length]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(length)


@pytest.mark.parametrize("shape", [[True], [0, 2**70], [0, 2**62, 2**62], [-4], [4.0], [1] * 40, ["4"], 4], ids=str)
def test_a_header_of_safetensors_that_lies_is_refused(shape: list[object], tmp_path: Path) -> None:
    program = tmp_path / "p.hg"
    program.write_text(PROGRAM.replace('"{}"', '"a.safetensors", "w"'))
    (tmp_path / "a.safetensors").write_bytes(safetensors([4], 32))
    parse(program)
    (tmp_path / "a.safetensors").write_bytes(
        safetensors(shape, 32 if shape not in ([0, 2**70], [0, 2**62, 2**62]) else 0)
    )
    with pytest.raises(ProgramError):
        parse(program)


@READERS
def test_mutated_files_are_read_or_refused(read: Callable[[Path], None], tmp_path: Path) -> None:
    plain, packed = io.BytesIO(), io.BytesIO()
    np.save(plain, np.arange(4.0))
    np.savez_compressed(packed, w=np.arange(4.0), v=np.arange(3))
    rng = random.Random(int(hashlib.sha256(read.__name__.encode()).hexdigest()[:8], 16))
    refused = 0
    for number in range(300):
        path = tmp_path / ("a.npy" if number % 2 else "a.npz")
        path.write_bytes(mutated_array_file(rng, plain.getvalue() if number % 2 else packed.getvalue()))
        try:
            read(path)
        except HeliographError:
            refused += 1
    assert refused > 50


def test_a_file_of_torch_is_called_one(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "samples.pt"
    torch.save(torch.zeros(2, 3), path)
    with pytest.raises(ProgramError, match=r"a file of torch\.save") as caught:
        read_arrays(path)
    assert "numpy.save" in caught.value.hint
