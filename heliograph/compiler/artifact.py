"""A compiled program: one file, safe to load from a stranger, and its public part without weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.compiler.report import Report
from heliograph.container import Container, pack, read_file, unpack, write_file
from heliograph.errors import HeliographError, WireError
from heliograph.ir import Program, SparseMatrix, Stage
from heliograph.ir.layout import Layout
from heliograph.ir.node import Constant
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify
from heliograph.target import Ring

VERSION = 1
MAX_ARTIFACT_BYTES = 4 * 1024**3
MAX_PUBLIC_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class PublicArtifact:
    """What a client needs: ring, layouts, ranges, rotation amounts. No weights, no program.

    `fingerprint` names the artifact; keys and ciphertexts carry it.
    """

    name: str
    fingerprint: str
    ring: Ring
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    rotation_keys: tuple[int, ...]
    relinearization_key: bool
    predicted: Mapping[str, Any]

    def public(self) -> PublicArtifact:
        return self

    def to_bytes(self) -> bytes:
        fields = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "ring": self.ring.to_json(),
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "rotation_keys": list(self.rotation_keys),
            "relinearization_key": self.relinearization_key,
            "predicted": dict(self.predicted),
        }
        return pack(Container("public artifact", VERSION, fields))

    @staticmethod
    def from_bytes(data: bytes, what: str = "data") -> PublicArtifact:
        return PublicArtifact._read(unpack(data, "public artifact", VERSION, MAX_PUBLIC_BYTES, what), what)

    def save(self, path: str | Path) -> None:
        write_file(path, self.to_bytes())

    @staticmethod
    def load(path: str | Path) -> PublicArtifact:
        return PublicArtifact._read(read_file(path, "public artifact", VERSION, MAX_PUBLIC_BYTES), str(path))

    @staticmethod
    def _read(container: Container, what: str) -> PublicArtifact:
        f = container.fields
        try:
            public = PublicArtifact(
                str(f["name"]),
                str(f["fingerprint"]),
                checked_ring(f["ring"]),
                tuple(f["inputs"]),
                tuple(f["outputs"]),
                tuple(int(k) for k in f["rotation_keys"]),
                bool(f["relinearization_key"]),
                dict(f["predicted"]),
            )
            slots = public.ring.slots
            for spec in (*public.inputs, *public.outputs):
                _check_spec(spec, slots)
            for spec in public.inputs:
                if not all(0 <= int(level) <= public.ring.levels for level in spec["levels"]):
                    raise ValueError("level")
            if any(not 0 < key < slots for key in public.rotation_keys):
                raise ValueError("rotation keys")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"{what} is not a usable public artifact", why=f"bad field: {error}") from None
        return public


def checked_ring(value: Mapping[str, Any]) -> Ring:
    """A ring from JSON; a WireError where it is none that we would make."""
    try:
        numbers = {k: int(value[k]) for k in ("log_ring", "first_mod_bits", "scale_bits", "levels", "digits")}
        security = value["security_bits"]
        ring = Ring(**numbers, security_bits=None if security is None else int(security))
        good = 10 <= ring.log_ring <= 17 and 0 < ring.levels <= 100 and ring.digits > 0 and ring.legal
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("the ring parameters are malformed", why=str(error)) from None
    if not good or security not in (None, 128):
        raise WireError(f"the ring parameters are not usable: {dict(value)}")
    if not ring.secure:
        raise WireError(
            "the ring parameters do not have the security that they claim",
            why=f"log2(PQ) is {ring.log_pq:.1f} at ring dimension {ring.ring_dim}",
        )
    return ring


def _check_spec(spec: Mapping[str, Any], slots: int) -> None:
    layout = Layout.from_json(dict(spec["layout"]))
    shape = tuple(int(n) for n in spec["shape"])
    numbers = (*layout.shape, layout.slots, layout.period, layout.gap)
    if any(not isinstance(n, int) or not 0 < n <= 2**24 for n in numbers):
        raise ValueError("layout")
    if layout.slots != slots or slots % layout.period or not 0 <= layout.shift < slots:
        raise ValueError("layout")
    if layout.size > 2**26 or int(np.prod(shape, dtype=np.int64)) != layout.size:
        raise ValueError("shape")
    if min(layout.width, layout.block) < 0 or max(layout.width, layout.block) > 2**24 or layout.ciphertexts > 4096:
        raise ValueError("layout")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled program with its report.

    `stages` holds the text of the program after the passes of each stage, for reading; `program` is what runs.
    `compile_s` is known only where it was compiled: a saved artifact is the same bytes on every run.
    """

    program: Program
    report: Report
    stages: Mapping[str, str]
    compile_s: float | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def ring(self) -> Ring:
        return Ring(**self.program.metadata["ring"])

    @property
    def fingerprint(self) -> str:
        """Names the artifact: the first half of SHA-256 over the executable program, constants included."""
        return hashlib.sha256(print_program(self.program).encode()).hexdigest()[:32]

    def public(self) -> PublicArtifact:
        """The part that a client needs; no weights."""
        metadata = self.program.metadata
        inputs = []
        for spec in metadata["inputs"]:
            nodes = [node for node in self.program.inputs if node.attrs["name"] == spec["name"]]
            nodes.sort(key=lambda node: node.attrs["chunk"])
            inputs.append(
                {
                    **spec,
                    "levels": [node.attrs["level"] for node in nodes],
                    "log_scales": [node.attrs["log_scale"] for node in nodes],
                }
            )
        outputs, position = [], 0
        for spec in metadata["outputs"]:
            count = Layout.from_json(spec["layout"]).ciphertexts
            nodes = list(self.program.outputs[position : position + count])
            position += count
            outputs.append({**spec, "log_scales": [node.type.log_scale for node in nodes]})  # type: ignore[union-attr]
        values = self.report.values
        kept = ("predicted_ms", "client_peak_bytes", "evaluation_key_bytes", "ciphertext_bytes", "output_bytes")
        return PublicArtifact(
            self.program.name,
            self.fingerprint,
            self.ring,
            tuple(inputs),
            tuple(outputs),
            tuple(metadata["rotation_keys"]),
            metadata["relinearization_key"],
            {name: values[name] for name in kept},
        )

    def to_bytes(self) -> bytes:
        blobs: dict[str, Any] = {}
        kinds: dict[str, Any] = {}
        for name, constant in self.program.constants.items():
            if isinstance(constant, SparseMatrix):
                kinds[name] = list(constant.shape)
                blobs[f"{name}/data"] = constant.data
                blobs[f"{name}/indices"] = constant.indices
                blobs[f"{name}/indptr"] = constant.indptr
            else:
                assert isinstance(constant, np.ndarray)
                kinds[name] = None
                blobs[name] = constant
        fields = {
            "program": print_program(self.program),
            "constants": kinds,
            "stages": dict(self.stages),
            "report": dict(self.report.values),
        }
        return pack(Container("artifact", VERSION, fields, blobs))

    @staticmethod
    def from_bytes(data: bytes, what: str = "data") -> Artifact:
        """The artifact in `data`; a WireError where it is not an intact one."""
        return Artifact._read(unpack(data, "artifact", VERSION, MAX_ARTIFACT_BYTES, what), what)

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all."""
        write_file(path, self.to_bytes())

    @staticmethod
    def load(path: str | Path) -> Artifact:
        """The artifact in a file; a WireError where it is not an intact one."""
        return Artifact._read(read_file(path, "artifact", VERSION, MAX_ARTIFACT_BYTES), str(path))

    @staticmethod
    def _read(container: Container, what: str) -> Artifact:
        f = container.fields
        constants: dict[str, Constant] = {}
        try:
            for name, shape in f["constants"].items():
                if shape is None:
                    constants[name] = container.array(name)
                    continue
                constants[name] = _sparse(container, name, shape)
            program = parse_program(f["program"], constants)
            checked_ring(program.metadata["ring"])
            if program.stage is not Stage.EXECUTABLE:
                raise WireError(f"{what} holds a program at stage {program.stage.value}, not an executable one")
            verify(program, after="loading")
            stages = {str(k): str(v) for k, v in f["stages"].items()}
            artifact = Artifact(program, Report(dict(f["report"])), stages)
            PublicArtifact._read(Container("public artifact", VERSION, json.loads(_public_json(artifact))), what)
        except WireError:
            raise
        except HeliographError as error:
            raise WireError(f"{what} holds a program that is not in order", why=str(error)[:2000]) from None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, AssertionError) as error:
            raise WireError(f"{what} is not a usable artifact", why=f"bad field: {error}") from None
        return artifact


def _public_json(artifact: Artifact) -> str:
    return json.dumps(unpack(artifact.public().to_bytes(), "public artifact", VERSION, MAX_PUBLIC_BYTES).fields)


def _sparse(container: Container, name: str, shape: Any) -> SparseMatrix:
    rows, cols = (int(n) for n in shape)
    data, indices, indptr = (container.array(f"{name}/{part}") for part in ("data", "indices", "indptr"))
    good = (
        data.dtype == np.float64
        and indices.dtype == indptr.dtype == np.int32
        and data.ndim == indices.ndim == indptr.ndim == 1
        and indptr.size == rows + 1
        and data.size == indices.size
        and (indptr[0] == 0 and indptr[-1] == data.size and (np.diff(indptr) >= 0).all())
        and (not indices.size or (indices.min() >= 0 and indices.max() < cols))
    )
    if not good:
        raise WireError(f"the sparse constant {name!r} is malformed")
    return SparseMatrix((rows, cols), data, indices, indptr)
