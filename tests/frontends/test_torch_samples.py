"""Calibration samples in the forms that users have: dicts in any order, data sets, data frames, arrays of any layout."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import heliograph as hg
from heliograph.errors import ProgramError, UnsupportedError
from heliograph.ir import shape_of

A = torch.linspace(-1, 1, 60).reshape(20, 3)
B = torch.linspace(-10, 30, 60).reshape(20, 3)
Y = torch.linspace(0, 200, 60).reshape(20, 3)
RANGES = {"a": (-1.0, 1.0), "b": (-10.0, 30.0), "y": (0.0, 200.0)}


class OneDict(nn.Module):
    def forward(self, x: Any) -> torch.Tensor:
        return torch.tanh(x["a"]) + x["b"]  # type: ignore[no-any-return]


class Nested(nn.Module):
    def forward(self, x: Any, y: torch.Tensor) -> torch.Tensor:
        return x["a"] + x["in"]["b"] * 2 + y  # type: ignore[no-any-return]


class ByName(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + 2 * b


class OfTuple(nn.Module):
    def forward(self, pair: Any) -> torch.Tensor:
        return pair[0] + 2 * pair[1]  # type: ignore[no-any-return]


@dataclass
class Record:
    b: Any
    a: Any


class OneRecord(nn.Module):
    def forward(self, x: Any) -> torch.Tensor:
        return x.a + x.b * 2  # type: ignore[no-any-return]


class Rows(Dataset[Any]):
    def __init__(self, row: Callable[[int], Any]) -> None:
        self.row = row

    def __len__(self) -> int:
        return len(A)

    def __getitem__(self, place: int) -> Any:
        return self.row(place)


def loaded(row: Callable[[int], Any]) -> DataLoader[Any]:
    return DataLoader(Rows(row), batch_size=8)


DICT, TWO = {"a": A[:2], "b": B[:2]}, ({"a": A[:2], "in": {"b": B[:2]}}, Y[:2])
SAMPLES = {
    "the example's order": (OneDict, {"a": A, "b": B}, DICT),
    "another order": (OneDict, {"b": B, "a": A}, DICT),
    "another order, no example": (OneDict, {"b": B, "a": A}, None),
    "a mapping": (OneDict, UserDict(b=B, a=A), DICT),
    "arrays": (OneDict, {"b": B.numpy(), "a": A.numpy()}, DICT),
    "lists": (OneDict, {"b": B.tolist(), "a": A.tolist()}, DICT),
    "in a tuple": (OneDict, ({"b": B, "a": A},), DICT),
    "nested": (Nested, ({"in": {"b": B}, "a": A}, Y), TWO),
    "nested, by names": (Nested, {"y": Y, "x": {"in": {"b": B}, "a": A}}, TWO),
    "nested, no example": (Nested, ({"in": {"b": B}, "a": A}, Y), None),
    "a record": (OneRecord, Record(a=A, b=B), Record(a=A[:2], b=B[:2])),
    "a record as a dict": (OneRecord, {"a": A, "b": B}, Record(a=A[:2], b=B[:2])),
    "names of arguments": (ByName, {"b": B, "a": A}, (A[:2], B[:2])),
    "names of arguments, no example": (ByName, {"b": B, "a": A}, None),
    "in the order of arguments": (ByName, (A, B), None),
    "a tuple that is one argument": (OfTuple, ((A, B),), ((A[:2], B[:2]),)),
    "its parts": (OfTuple, (A, B), ((A[:2], B[:2]),)),
    "loader of dicts": (OneDict, loaded(lambda i: {"b": B[i], "a": A[i]}), DICT),
    "loader of dicts with labels": (OneDict, loaded(lambda i: {"n": "x", "b": B[i], "a": A[i], "label": i}), DICT),
    "loader of dicts and labels": (OneDict, loaded(lambda i: ({"b": B[i], "a": A[i]}, i)), None),
    "loader by names": (ByName, loaded(lambda i: {"label": i, "b": B[i], "a": A[i]}), None),
    "loader of nested": (Nested, loaded(lambda i: ({"in": {"b": B[i]}, "a": A[i]}, Y[i], i)), TWO),
    "data set of tensors": (ByName, TensorDataset(A, B, Y), None),
    "data set of dicts": (OneDict, Rows(lambda i: {"b": B[i], "a": A[i]}), DICT),
}


@pytest.mark.parametrize("case", SAMPLES.values(), ids=SAMPLES)
def test_samples_are_found_by_name(case: tuple[type[nn.Module], Any, Any]) -> None:
    module, samples, example = case
    program = hg.trace(module(), example, calibration=samples)
    found = {node.attrs["name"].rsplit("_", 1)[-1]: node for node in program.inputs}
    if module is OfTuple:
        found = {"ab"[int(place)]: node for place, node in found.items()}
    assert set(found) == set(RANGES if module is Nested else "ab")
    for name, node in found.items():
        assert (node.attrs["low"], node.attrs["high"]) == pytest.approx(RANGES[name])


@pytest.mark.parametrize(
    ("module", "samples", "example", "words"),
    [
        (OneDict, {"b": B}, DICT, ["'b'", "'a', 'b'"]),
        (OneDict, {"b": B, "c": A}, DICT, ["'b', 'c'", "'a', 'b'"]),
        (OneDict, {"b": B, "a": A, "c": A}, DICT, ["'b', 'a', 'c'", "'a', 'b'"]),
        (Nested, ({"in": {"c": B}, "a": A}, Y), TWO, ["'c'", "'b'"]),
        (ByName, {"a": A, "c": B}, (A[:2], B[:2]), ["'a', 'c'", "'a', 'b'"]),
        (OneRecord, {"a": A}, Record(a=A[:2], b=B[:2]), ["'a'", "'b', 'a'"]),
        (OneDict, loaded(lambda i: {"a": A[i]}), DICT, ["'a'", "'a', 'b'"]),
    ],
)
def test_other_names_are_refused(module: type[nn.Module], samples: Any, example: Any, words: list[str]) -> None:
    with pytest.raises(ProgramError, match=r"calibration has .*, the example ") as caught:
        hg.trace(module(), example, calibration=samples)
    assert all(word in caught.value.what for word in words)
    assert caught.value.where.startswith("tests/frontends/test_torch_samples.py:")


def test_exported_program_takes_samples_by_name() -> None:
    exported = torch.export.export(ByName(), (A[:2], B[:2]))
    program = hg.trace(exported, calibration={"b": B, "a": A})
    assert [node.attrs["high"] for node in program.inputs] == [1.0, 30.0]


# ---------------------------------------------------------------------------------------------- arrays

IMAGES = np.linspace(0, 1, 96, dtype=np.float32).reshape(8, 3, 4)
BYTES = np.arange(96, dtype=np.uint8).reshape(8, 3, 4)


class Frame:
    """What a data frame is to us."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def to_numpy(self) -> Any:
        return self.values


def flat() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2))


ARRAYS: dict[str, Any] = {
    "negative strides": IMAGES[:, ::-1],
    "mirrored": IMAGES[..., ::-1],
    "another order of bytes": IMAGES.astype(">f4"),
    "long doubles": IMAGES.astype(np.longdouble),
    "objects": IMAGES.astype(object),
    "halves": IMAGES.astype(np.float16),
    "doubles": IMAGES.astype(np.float64),
    "bytes": BYTES,
    "signed": BYTES.astype(np.int16),
    "unsigned in another order": BYTES.astype(">u2"),
    "whole": BYTES.astype(np.int64),
    "truth values": IMAGES > 0.5,
    "columns first": np.asfortranarray(IMAGES),
    "broadcast": np.broadcast_to(IMAGES[:1], IMAGES.shape),
    "list of arrays": list(IMAGES),
    "list of mirrored arrays": list(IMAGES[..., ::-1]),
    "list of tensors": [torch.tensor(image, requires_grad=True) for image in IMAGES],
    "lists": IMAGES.tolist(),
    "tensor of bfloat16": torch.tensor(IMAGES).bfloat16(),
    "tensor with gradients": torch.tensor(IMAGES, requires_grad=True),
    "tensor of bytes": torch.tensor(BYTES),
    "data frame": Frame(IMAGES.reshape(8, 12)),
    "data frame of objects": Frame(IMAGES.reshape(8, 12).astype(object)),
    "data set": TensorDataset(torch.tensor(IMAGES), torch.zeros(8)),
}


def _numbers(given: Any) -> Any:
    """What the samples are, as doubles."""
    given = (
        given.to_numpy()
        if isinstance(given, Frame)
        else given.tensors[0]
        if isinstance(given, TensorDataset)
        else given
    )
    if isinstance(given, list):
        given = [part.detach().numpy() if isinstance(part, torch.Tensor) else part for part in given]
    return given.detach().double().numpy() if isinstance(given, torch.Tensor) else np.array(given, dtype=np.float64)


@pytest.mark.parametrize("with_example", [False, True])
@pytest.mark.parametrize("given", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.filterwarnings("error")
def test_arrays_of_any_kind(given: Any, with_example: bool) -> None:
    expected = _numbers(given)
    example = torch.zeros(1, *expected.shape[1:]) if with_example else None
    program = hg.trace(flat(), example, calibration=given)
    np.testing.assert_array_equal(program.calibration[0], expected)
    assert (program.inputs[0].attrs["low"], program.inputs[0].attrs["high"]) == (expected.min(), expected.max())


@pytest.mark.parametrize("name", ["negative strides", "another order of bytes", "long doubles", "objects"])
def test_examples_of_any_kind(name: str) -> None:
    program = hg.trace(flat(), ARRAYS[name][:2], calibration=IMAGES)
    assert shape_of(program.inputs[0]) == (3, 4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (IMAGES.astype(str), ["calibration of input 0 is not an array of real numbers", "encoded on the client"]),
        (Frame(np.array([["a", 1.0]], dtype=object)), ["calibration of input 0 is not an array", "'a' is the first"]),
        ([IMAGES[0], IMAGES[1][:2]], ["the calibration samples in the list", "of one shape"]),
        (np.ma.masked_greater(IMAGES, 0.9), ["holds nan in sample 7", "on the client, before encryption"]),
        (np.zeros((8, 13)), ["cannot be run on the first calibration samples", "they have shape (2, 13)"]),
        (iter(IMAGES), ["calibration of input 0 is"]),
    ],
)
def test_what_is_no_array_of_samples_is_called_calibration(given: Any, words: list[str]) -> None:
    with pytest.raises(ProgramError) as caught:
        hg.trace(flat(), calibration=given)
    assert all(word in str(caught.value) for word in words)
    assert "example_input" not in caught.value.what + caught.value.why


def test_complex_samples_are_refused() -> None:
    for given in (IMAGES + 1j, torch.tensor(IMAGES + 1j), [image + 1j for image in IMAGES]):
        with pytest.raises(ProgramError, match="not an array of real numbers"):
            hg.trace(flat(), torch.zeros(1, 3, 4), calibration=given)


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.table(ids).sum(1) + x  # type: ignore[no-any-return]


def test_whole_numbers_that_choose_stay_whole() -> None:
    ids = torch.arange(40).reshape(20, 2) % 5
    program = hg.trace(Looked(), calibration=(ids, (A * 100).to(torch.int16)))
    assert [node.attrs.get("classes") for node in program.inputs] == [5, None]
    assert [node.attrs["high"] for node in program.inputs] == [1.0, 100.0]


def test_example_of_whole_numbers_is_still_refused() -> None:
    with pytest.raises(UnsupportedError, match="holds uint8 values"):
        hg.trace(flat(), torch.tensor(BYTES[:2]), calibration=BYTES)


def test_answers_that_rounding_decides_are_told() -> None:
    """9 * 0.1 is above 0.9 for float32, and equal to it otherwise."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 0.1 > 0.9).float()

    samples = torch.arange(11.0).repeat(4).reshape(-1, 1)
    with pytest.warns(UserWarning, match="rounding decides the answer for 1 of the 11 samples"):
        program = hg.trace(Model(), calibration=samples)
    assert program.comparison is not None
    assert (program.comparison.ties, program.comparison.difference) == (1, 1e-16)
