"""Sizes that a stranger's artifact implies: whatever an attribute says, reading and running it takes bounded memory."""

from __future__ import annotations

import dataclasses
import functools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers.hostile_artifacts import TOY, run_artifact
from torch import nn

from heliograph.artifact.artifact import VERSION, Artifact
from heliograph.artifact.constants import ConstantWriter
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.validate import check_layout
from heliograph.compiler.driver import compile
from heliograph.dsl.parse import parse
from heliograph.errors import WireError
from heliograph.frontends.torch.export import trace
from heliograph.ir import Node
from heliograph.ir.maps.layout import Layout, matrix_axes
from heliograph.ir.node import freeze_attrs
from heliograph.tools.simulate import simulate

# A pack beside each kind of plain op that has sizes in its attributes.
TEXTS = {
    "matrix": """program p
input x: secret tensor[8, 8] in [-1, 1]
input w: plain tensor[8, 8] in [-1, 1]
output y = x * w
""",
    "windows": """program p
input x: secret tensor[1, 4, 4] in [0, 1]
input p: plain tensor[1, 6, 6] in [0, 1]
output y = x * avg_pool(p, kernel=3, stride=1) + max_pool(p, kernel=3, stride=1)
""",
}
SIZES = (0, -1, 1, 2, 3, 64, 512, 4096, 1 << 16, 1 << 20, 1 << 22, 1 << 31, 1 << 62)
# Some times what the sound artifacts take, far less than any of the sizes above would.
BYTES = 1 << 26


class Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


@functools.cache
def artifact(name: str, batch: int = 1) -> Artifact:
    return compile(parse(TEXTS[name]), dataclasses.replace(TOY, batch=batch))


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def with_attrs(good: Artifact, chosen: Node, attrs: dict[str, Any]) -> bytes:
    """The artifact with other attributes of one node."""
    p = good.program
    new: dict[Node, Node] = {}
    for node in p.nodes:
        inputs = tuple(new[operand] for operand in node.inputs)
        new[node] = dataclasses.replace(
            node, inputs=inputs, attrs=freeze_attrs({**node.attrs, **attrs}) if node is chosen else node.attrs
        )
    nodes, first, last = ([new[node] for node in part] for part in (p.nodes, p.inputs, p.outputs))
    program = dataclasses.replace(p, nodes=tuple(nodes), inputs=tuple(first), outputs=tuple(last))
    return dataclasses.replace(good, program=program).to_bytes()


def altered(node: Node) -> Iterator[dict[str, Any]]:
    """Attributes of which one number, or all numbers of a list, is another; and, of a `pack`, other places."""
    for key, value in node.attrs.items():
        if dataclasses.is_dataclass(value):
            for name in (field.name for field in dataclasses.fields(value)):
                if type(getattr(value, name)) is int:
                    yield from ({key: dataclasses.replace(value, **{name: size})} for size in SIZES)
        elif type(value) is int:
            yield from ({key: size} for size in SIZES)
        elif isinstance(value, tuple) and value and all(type(item) is int for item in value):
            for size in SIZES:
                yield {key: (size,) * len(value)}
                yield from ({key: (*value[:i], size, *value[i + 1 :])} for i in range(len(value)))
    if node.op == "pack":
        layout: Layout = node.attrs["layout"]
        size = layout.size
        column = dataclasses.replace(layout, shape=(size, 1), period=layout.slots)
        for far in SIZES:
            for digits in (((far, far), (size, 0)), ((far, 0), (far, 1)), ((1, 1), (size, far)), ((size, far),)):
                yield {"layout": dataclasses.replace(column, axes=(digits, (), ())), "chunk": None}
                yield {"layout": dataclasses.replace(column, axes=(digits, digits, digits)), "chunk": None}
                yield {"layout": dataclasses.replace(layout, axes=((), (), digits))}
                yield {"layout": dataclasses.replace(layout, period=1, samples=far, axes=((), (), digits))}
            for shape in ((far,), (far, far), (far, 1, size)):
                yield {"layout": dataclasses.replace(layout, shape=shape, axes=())}
            yield {"layout": dataclasses.replace(layout, shift=far, copies=far)}


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("name", "batch"), [("matrix", 1), ("matrix", 8), ("windows", 1)])
def test_whatever_an_attribute_of_a_plain_op_says_memory_is_bounded(name: str, batch: int) -> None:
    good = artifact(name, batch)
    refused = 0
    for node in good.program.nodes:
        if node.op == "input" or node.type.secret:
            continue
        for attrs in altered(node):
            attrs = {key: value for key, value in attrs.items() if value is not None}
            data = with_attrs(good, node, attrs)
            tracemalloc.reset_peak()
            refused += run_artifact(data) > 0
            assert tracemalloc.get_traced_memory()[1] < BYTES, (node.op, attrs)
    assert refused > 50


@pytest.mark.usefixtures("traced")
def test_whatever_an_attribute_of_an_op_on_ciphertexts_says_memory_is_bounded() -> None:
    """Maps in a small form, with diagonals, copies and periods of their own."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), Square(), nn.Flatten(), nn.Linear(256, 10))
    good = compile(trace(net.eval(), torch.zeros(2, 2, 8, 8)), dataclasses.replace(TOY, log_ring=11))
    kinds = {(node.op, *sorted(node.attrs)): node for node in good.program.nodes if node.op != "input"}
    assert any(node.op == "linear_transform" for node in kinds.values())
    refused = 0
    for node in kinds.values():
        for attrs in altered(node):
            data = with_attrs(good, node, attrs)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            refused += run_artifact(data) > 0
            assert tracemalloc.get_traced_memory()[1] - before < BYTES, (node.op, attrs)
    assert refused > 50


def test_places_far_apart_are_refused() -> None:
    """A file of 5 kB whose first run would take 137 GB."""
    text = TEXTS["matrix"].replace("8, 8", "64, 64")
    good = compile(parse(text), dataclasses.replace(TOY, log_ring=13))
    (node,) = (node for node in good.program.nodes if node.op == "pack")
    far = 1 << 22
    slots = node.attrs["layout"].slots
    layout = Layout((4096, 1), slots, slots, (((4096, far),), (), ()))
    with pytest.raises(WireError, match="would take more than 8192 ciphertexts"):
        Artifact.from_bytes(with_attrs(good, node, {"layout": layout}))


@pytest.mark.parametrize("batch", [1, 4, "max"])
def test_a_plain_value_is_packed_a_ciphertext_at_a_time(batch: int | str) -> None:
    """Of values in many ciphertexts, where all samples of a batch take the same value."""
    good = compile(parse(TEXTS["matrix"]), dataclasses.replace(TOY, batch=batch))
    good = Artifact.from_bytes(good.to_bytes())
    packed = [node for node in good.program.nodes if node.op == "pack"]
    assert len(packed) == (64 if batch == "max" else 1)
    rng = np.random.default_rng(0)
    w = rng.uniform(-1, 1, (8, 8))
    x = rng.uniform(-1, 1, (8, 8) if batch == 1 else (3, 8, 8))
    np.testing.assert_allclose(simulate(good, x, w), x * w, rtol=0, atol=1e-4)


def test_one_ciphertext_of_a_layout_is_that_of_all() -> None:
    layout = Layout((6, 4), 32, 8, matrix_axes((6, 4), (2, 1, 2), (2, 8, 16)), samples=4)
    samples = np.arange(72.0).reshape(3, 6, 4)
    whole = layout.pack(samples)
    assert len(whole) == 4
    for number, vector in enumerate(whole):
        np.testing.assert_array_equal(layout.pack(samples, number)[0], vector)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (Layout((2,), 1 << 15, 1 << 15, ((), (), ((2, 1 << 20),))), "more ciphertexts than it has elements"),
        (Layout((6,), 1 << 15, 8, ((), (), ((2, 1), (2, 2)))), "the axes of it are not those of its shape"),
        (Layout((6,), 1 << 15, 8, (((6, 1),),)), "the axes of it are not those of its shape"),
        (Layout((6,), 1 << 15, 8, ((), (), ((0, 1), (6, 1)))), "the axes of it are not those of its shape"),
        (Layout((6,), 1 << 15, 8, shift=2, copies=1 << 13), "the copies of it do not fit the slots"),
        (Layout((6,), 1 << 15, 8, copies=2), "the copies of it do not fit the slots"),
        (Layout((1 << 40,), 1 << 15, 1 << 15), "a dimension"),
        (Layout((1 << 12, 1 << 12), 1 << 15, 1 << 15), "more than 4194304 elements"),
    ],
)
def test_layouts_that_cost_more_than_their_elements_are_refused(layout: Layout, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        check_layout(layout, layout.slots, "it")


def test_constants_in_short_form_are_bounded_together() -> None:
    """Each of a hundred constants is the same number a million times."""
    good = unpack(artifact("matrix").to_bytes(), "artifact", VERSION, 1 << 30)
    short = {f"c{i}": {"array": 0, "times": 1 << 20} for i in range(100)}
    blobs = {name: blob if isinstance(blob, np.ndarray) else bytes(blob) for name, blob in good.blobs.items()}
    fields = {**good.fields, "constants": {**good.fields["constants"], **short}}
    data = pack(Container(good.kind, good.version, fields, {**blobs, "constant/0": np.ones(1)}))
    with pytest.raises(WireError, match="short form have more than 67108864 numbers"):
        Artifact.from_bytes(data)


def test_constants_past_the_bound_are_written_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.artifact.constants._MOST_IN_ALL", 12)
    fields = ConstantWriter({name: np.full(8, value) for name, value in (("a", 1.0), ("b", 2.0))}).fields
    assert fields["constants"] == {"a": {"array": 0, "times": 8}, "b": {"array": 1}}
