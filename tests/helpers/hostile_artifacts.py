"""Artifacts as an attacker might write them: mutated bytes, fields and texts, and plain ops with hurtful attributes."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import random
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from heliograph.artifact.artifact import VERSION, Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.dsl.parse import parse
from heliograph.errors import HeliographError
from heliograph.execution.interface import input_shape
from heliograph.ir import Node, Program
from heliograph.ir.node import ConstantName, freeze_attrs
from heliograph.ir.ops.table import OPS, TENSOR, Context, check_call, check_type
from heliograph.ir.types import TensorType
from heliograph.tools.simulate import simulate

TOY = Options(security_bits=None, precision_bits=16, degree=5)
TEXTS = (
    """program scorer
input x: secret tensor[4] in [-1, 1]
input w: plain tensor[3, 4] in [-1, 1]
input b: plain tensor[3] in [-2, 2]
h = w @ x + relu(b)
output y = sigmoid(h) * (b * b) - 2 * b
""",
    """program filter
input x: secret slots[8] in [-1, 1]
input w: plain slots[8] in [0, 1]
s = 0.5 * x + 0.25 * rotate(x, 1) + 0.25 * rotate(x, -1)
d = rescale(s * w) - w * w
output s, y = poly(d, [1, 0.5, 0.25, 0.125], low=-2, high=1)
""",
    """program image
input x: secret tensor[1, 4, 4] in [0, 1]
input p: plain tensor[1, 6, 6] in [0, 1]
k = avg_pool(p, kernel=3, stride=1)
output y = relu(x * k) + max_pool(p, kernel=3, stride=1)
""",
)
NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 100, 4096, 65536, 1 << 20, 1 << 22, (1 << 22) + 1, 1 << 31, 1 << 62, 10**39, -1, -7)
REALS = (0.0, 1.0, -1.0, 1e-300, 1e300, -1e30, 1e18, float("inf"), float("nan"), 0.5)
# Ops that may need far more than their operands and result.
_COSTLY = ("avg_pool", "max_pool", "adaptive_avg_pool", "conv", "matmul", "poly", "concat", "pad", "broadcast")
_WORD = re.compile(r"-?[0-9][0-9.e+-]*|[A-Za-z_]+|\s+|.", re.DOTALL)


@functools.cache
def artifacts() -> tuple[Artifact, ...]:
    """The sound ones that are mutated: plain tensors, a slot program, plain windows of an image."""
    return tuple(compile(parse(text), TOY) for text in TEXTS)


@functools.cache
def containers() -> tuple[Container, ...]:
    return tuple(unpack(artifact.to_bytes(), "artifact", VERSION, 1 << 30) for artifact in artifacts())


# ------------------------------------------------------------------------------------------- mutations


def mutated_bytes(rng: random.Random) -> bytes:
    """A few bytes of the file altered, cut or doubled; length and digest fit again."""
    data = bytearray(rng.choice(artifacts()).to_bytes()[:-32])
    for _ in range(rng.randint(1, 4)):
        place, choice = rng.randrange(20, len(data)), rng.random()
        if choice < 0.7:
            data[place] = rng.randrange(256)
        elif choice < 0.85:
            del data[place : place + rng.randint(1, 8)]
        else:
            data[place:place] = data[place : place + rng.randint(1, 8)]
    data[8:16] = struct.pack("<Q", len(data) + 32)
    return bytes(data) + hashlib.sha256(data).digest()


def _repacked(good: Container, fields: Any = None, **blobs: bytes) -> bytes:
    whole = {name: blob if isinstance(blob, np.ndarray) else bytes(blob) for name, blob in good.blobs.items()}
    return pack(Container(good.kind, good.version, good.fields if fields is None else fields, {**whole, **blobs}))


def mutated_text(rng: random.Random) -> bytes:
    """A few words of the program's text altered: numbers, names, operands, records."""
    good = rng.choice(containers())
    words = _WORD.findall(bytes(good.bytes("text/program")).decode())
    for _ in range(rng.randint(1, 2)):
        place = rng.randrange(len(words))
        while words[place].isspace():
            place = rng.randrange(len(words))
        if re.fullmatch(r"-?[0-9].*", words[place]) and rng.random() < 0.8:
            words[place] = repr(rng.choice((*NUMBERS, *REALS, float(rng.randint(-9, 9)), rng.randint(0, 60))))
        elif rng.random() < 0.8:
            # Another word of the same kind is refused later than any other.
            alike = [word for word in words if word[0].isalpha() == words[place][0].isalpha() and not word.isspace()]
            words[place] = rng.choice(alike)
        else:
            del words[place]
    return _repacked(good, **{"text/program": "".join(words).encode()})


def mutated_fields(rng: random.Random) -> bytes:
    """A few leaves of the header's fields (constants, stages, report) replaced or dropped."""
    good = rng.choice(containers())
    return _repacked(good, altered(good.fields, rng))


def altered(given: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """The fields of a header with a few leaves replaced or dropped."""
    fields = copy.deepcopy(dict(given))
    for _ in range(rng.randint(1, 3)):
        inside: Any = fields
        while True:
            keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            key = rng.choice(keys)
            if not isinstance(inside[key], dict | list) or not inside[key] or rng.random() < 0.1:
                break
            inside = inside[key]
        finite = [number for number in REALS if number - number == 0]
        new = rng.choice((None, True, "x", "", [], {}, [1], {"a": 1}, *finite, *NUMBERS, "a" * 5000))
        if rng.random() < 0.15:
            del inside[key]
        else:
            inside[key] = new
        if not fields:
            break
    return fields


def _attribute(rng: random.Random, kind: str, rank: int, constants: list[str], small: bool) -> Any:
    kind = kind.removesuffix("?")
    if kind.endswith("s") and kind != "str":
        kind, length = kind[:-1], rng.choice((rank, rank, max(0, rank - 1), rng.randint(0, 4)))
        return tuple(_attribute(rng, kind, rank, constants, small) for _ in range(length))
    if kind == "int":
        return rng.choice((0, 1, 1, 2, 3)) if small else rng.choice(NUMBERS)
    if kind == "float":
        return rng.choice(REALS)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "constant":
        return ConstantName(rng.choice(constants))
    return rng.choice(("x", "tanh", "best"))


def _grown(program: Program, rng: random.Random) -> Program:
    """The program with plain ops of random attributes put in, types as the table infers them."""
    context = Context(program.constants, program.log_primes)
    nodes, new = list(program.nodes), {}
    specs = [spec for spec in OPS.values() if spec.stages >= TENSOR and spec.name != "input"]
    costly = [OPS[name] for name in _COSTLY]
    added = 0
    for _ in range(200):
        if added >= 4:
            break
        spec = rng.choice(costly if rng.random() < 0.3 else specs)
        known = [n for n in nodes if not n.type.secret and isinstance(n.type, TensorType)]
        if rng.random() < 0.1:
            # A large one, for the ops that follow.
            flat = [n for n in known if n.type.shape == (3,)]
            if flat:
                shape = (*(2 ** rng.randint(0, 10) for _ in range(rng.randint(1, 2))), 3)
                large = Node("broadcast", (flat[0],), freeze_attrs({"shape": shape}), TensorType(shape, secret=False))
                nodes.insert(nodes.index(flat[0]) + 1, large)
                known.append(large)
        low, high = spec.arity
        operands = tuple(rng.choice(known) for _ in range(rng.randint(low, max(low, high or low + 2))))
        rank = len(operands[0].type.shape) if operands else 1  # type: ignore[union-attr]
        rank = rng.choice((rank, max(0, rank - 1)))
        attrs = {
            name: _attribute(rng, kind, rank, list(program.constants), rng.random() < 0.6)
            for name, kind in spec.attrs.items()
            if not kind.endswith("?") or rng.random() < 0.3
        }
        try:
            check_call(spec, len(operands), attrs, program.constants)
            kind = spec.infer_type([operand.type for operand in operands], freeze_attrs(attrs), context)
            check_type(spec.name, kind)
        except (HeliographError, ArithmeticError, AttributeError, TypeError, ValueError, LookupError):
            continue
        made = Node(spec.name, operands, freeze_attrs(attrs), kind)
        place = max((nodes.index(operand) for operand in operands), default=0)
        nodes.insert(place + 1, made)
        added += 1
        # Sometimes a ciphertext meets it.
        packs = [n for n in nodes[place + 2 :] if n.op == "pack" and n.inputs[0].type.size == getattr(kind, "size", 0)]
        if packs and rng.random() < 0.7:
            new[rng.choice(packs)] = made
    renamed: dict[Node, Node] = {}
    for node in nodes:
        inputs = (new[node],) if node in new else node.inputs
        renamed[node] = dataclasses.replace(node, inputs=tuple(renamed[operand] for operand in inputs))
    order = tuple(renamed.values())
    outputs = tuple(renamed[node] for node in program.outputs)
    return dataclasses.replace(
        program,
        nodes=order,
        inputs=tuple(n for n in order if n.op == "input"),
        outputs=outputs,
    )


def grown_plain(rng: random.Random) -> bytes:
    """Plain ops put into a sound program."""
    good = rng.choice(artifacts())
    return dataclasses.replace(good, program=_grown(good.program, rng)).to_bytes()


MUTATIONS: dict[str, Callable[[random.Random], bytes]] = {
    "bytes": mutated_bytes,
    "fields": mutated_fields,
    "text": mutated_text,
    "plain ops": grown_plain,
}


# ------------------------------------------------------------------------------------------- what must hold


def run_artifact(data: bytes, server: bool = False) -> int:
    """Read and run an artifact, on the simulator and with `server` on OpenFHE: the length of the refusal, 0 for none.

    Raises what is no HeliographError.
    """
    try:
        artifact = Artifact.from_bytes(data)
        seen: dict[str, Any] = {}
        for node in artifact.program.inputs:
            shape = node.attrs["shape"] if not node.type.secret else input_shape(artifact.program, node)
            seen.setdefault(node.attrs["name"], np.full(shape, _inside(node)))
        simulate(artifact, *seen.values())
        if server:
            _serve(artifact, seen)
    except HeliographError as error:
        return len(str(error))
    return 0


def _inside(node: Node) -> float:
    low, high = float(node.attrs.get("low", 0.0)), float(node.attrs.get("high", 0.0))
    return low / 2 + high / 2


def _serve(artifact: Artifact, given: dict[str, Any]) -> None:
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.server.server import Server

    client = Client(artifact.public(), allow_insecure=True)
    secret = [given[spec.name] for spec in artifact.public().inputs]
    plain = {name: given[name] for name in artifact.plain_inputs}
    with Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        client.decrypt(server.run(client.encrypt(*secret), plain=plain))
