"""A compiled program: one file, safe to load from a stranger, and its public part without weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.chains import key_chains
from heliograph.compiler.plain_bounds import check_plain_part
from heliograph.compiler.report import Report
from heliograph.compiler.report_fields import check_report
from heliograph.compiler.validate import (
    check_interface,
    check_keys,
    check_program,
    check_ring,
    check_sizes,
    printable,
    real,
    refuse,
    whole,
)
from heliograph.container import Bytes, Container, pack, read_file, unpack, write_file
from heliograph.errors import HeliographError, ProgramError, WireError
from heliograph.evaluation_keys import EvaluationKey, evaluation_keys
from heliograph.ir import Program, SparseMatrix, Stage
from heliograph.ir.layout import Layout
from heliograph.ir.node import Constant
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify
from heliograph.target import Ring

VERSION = 4
MAX_ARTIFACT_BYTES = 4 * 1024**3
MAX_TEXT_BYTES = 64 * 1024**2
MAX_PUBLIC_BYTES = 64 * 1024**2
_PREDICTED = (
    "predicted_ms", "client_peak_bytes", "evaluation_key_bytes", "ciphertext_bytes", "output_bytes", "scheme_error",
    "output_magnitude",
)  # fmt: skip
_PUBLIC_FIELDS = {
    "name", "fingerprint", "ring", "inputs", "outputs", "rotation_keys", "relinearization_key", "chains",
    "bootstrap_slots", "predicted",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublicArtifact:
    """What a client needs: ring, layouts, ranges, what evaluation keys to make. No weights, no program.

    `fingerprint` names the artifact; keys and ciphertexts carry it. `chains` and `bootstrap_slots` are those of the
    program's metadata.
    """

    name: str
    fingerprint: str
    ring: Ring
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    rotation_keys: tuple[int, ...]
    relinearization_key: bool
    predicted: Mapping[str, Any]
    chains: tuple[Mapping[str, Any], ...] = ()
    bootstrap_slots: tuple[int, ...] = ()

    def public(self) -> PublicArtifact:
        return self

    @property
    def evaluation_keys(self) -> tuple[EvaluationKey, ...]:
        """The keys that the client makes for the server."""
        return _evaluation_keys(self._key_fields())

    def _key_fields(self) -> dict[str, Any]:
        return {
            "ring": self.ring.to_json(),
            "rotation_keys": list(self.rotation_keys),
            "relinearization_key": self.relinearization_key,
            "chains": [dict(chain) for chain in self.chains],
            "bootstrap_slots": list(self.bootstrap_slots),
        }

    def to_bytes(self) -> bytes:
        fields = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "predicted": dict(self.predicted),
            **self._key_fields(),
        }
        return pack(Container("public artifact", VERSION, fields))

    @staticmethod
    def from_bytes(data: Bytes, what: str = "data") -> PublicArtifact:
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
            if set(f) != _PUBLIC_FIELDS:
                raise refuse("its fields are not those of a public artifact")
            ring = check_ring(f["ring"])
            check_interface(f["inputs"], ring, "input")
            check_interface(f["outputs"], ring, "output")
            if any("levels" not in spec or "log_scales" not in spec for spec in f["inputs"]):
                raise refuse("an input lacks its levels or scales")
            if any("log_scales" not in spec for spec in f["outputs"]):
                raise refuse("an output lacks its scales")
            if not _is_fingerprint(f["fingerprint"]):
                raise refuse("its fingerprint is malformed")
            check_keys(f, ring)
            for key in _PREDICTED:
                real(f["predicted"][key], key, 0.0, 1e18)
            return PublicArtifact(
                printable(f["name"], "its name"),
                f["fingerprint"],
                ring,
                tuple(f["inputs"]),
                tuple(f["outputs"]),
                tuple(f["rotation_keys"]),
                f["relinearization_key"],
                {key: f["predicted"][key] for key in _PREDICTED},
                tuple(f["chains"]),
                tuple(f["bootstrap_slots"]),
            )
        except WireError as error:
            raise WireError(error.what, where=what, why=error.why, hint=error.hint) from None
        except Exception as error:
            # Whatever a stranger's bytes make of the checks above, they are not a usable artifact.
            raise WireError(f"{what} is not a usable public artifact", why=f"bad field: {_brief(error)}") from None


def _evaluation_keys(fields: Mapping[str, Any]) -> tuple[EvaluationKey, ...]:
    return evaluation_keys(key_chains(fields), fields.get("bootstrap_slots", ()))


def _is_fingerprint(value: object) -> bool:
    return isinstance(value, str) and len(value) == 32 and set(value) <= set("0123456789abcdef")


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


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
        return Ring.from_json(self.program.metadata["ring"])

    @property
    def evaluation_keys(self) -> tuple[EvaluationKey, ...]:
        """The keys that a server of this program takes."""
        return _evaluation_keys(self.program.metadata)

    @property
    def plain_inputs(self) -> tuple[str, ...]:
        """The names of the inputs that the server gives in the clear, at run time."""
        return tuple(node.attrs["name"] for node in self.program.inputs if not node.type.secret)

    @property
    def fingerprint(self) -> str:
        """Names the artifact: the first half of SHA-256 over the executable program, constants included."""
        return hashlib.sha256(print_program(self.program).encode()).hexdigest()[:32]

    def public(self) -> PublicArtifact:
        """The part that a client needs; no weights."""
        metadata = self.program.metadata
        inputs = []
        for spec in metadata["inputs"]:
            nodes = [node for node in self.program.inputs if node.attrs["name"] == spec["name"] and node.type.secret]
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
            possible = metadata.get("output_ranges", {}).get(spec["name"], {})
            log_scales = [node.type.log_scale for node in nodes]  # type: ignore[union-attr]
            outputs.append({**spec, **possible, "log_scales": log_scales})
        values = self.report.values
        return PublicArtifact(
            self.program.name,
            self.fingerprint,
            self.ring,
            tuple(inputs),
            tuple(outputs),
            tuple(metadata["rotation_keys"]),
            metadata["relinearization_key"],
            {key: values[key] for key in _PREDICTED},
            tuple(metadata.get("chains", ())),
            tuple(metadata.get("bootstrap_slots", ())),
        )

    def to_bytes(self) -> bytes:
        text = print_program(self.program).encode()
        if len(text) > MAX_TEXT_BYTES:
            raise ProgramError(f"the program's text has {len(text)} bytes; at most {MAX_TEXT_BYTES} are read back")
        blobs: dict[str, Any] = {"text/program": text}
        kinds: dict[str, Any] = {}
        for key, stage in self.stages.items():
            blobs[f"text/stage/{key}"] = stage.encode()
        for key, constant in self.program.constants.items():
            if isinstance(constant, SparseMatrix):
                kinds[key] = list(constant.shape)
                for part in ("data", "indices", "indptr"):
                    blobs[f"constant/{key}/{part}"] = getattr(constant, part)
            else:
                assert isinstance(constant, np.ndarray)
                kinds[key] = None
                blobs[f"constant/{key}"] = constant
        fields = {"constants": kinds, "stages": sorted(self.stages), "report": dict(self.report.values)}
        return pack(Container("artifact", VERSION, fields, blobs))

    @staticmethod
    def from_bytes(data: Bytes, what: str = "data") -> Artifact:
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
        try:
            artifact = _artifact(container)
            # What a client will be given must be in order too.
            PublicArtifact.from_bytes(artifact.public().to_bytes())
            str(artifact.report)
        except WireError as error:
            raise WireError(error.what, where=what, why=error.why, hint=error.hint) from None
        except HeliographError as error:
            raise WireError(f"{what} holds a program that is not in order", why=str(error)[:2000]) from None
        except Exception as error:
            # Whatever a stranger's bytes make of the checks above, they are not a usable artifact.
            raise WireError(f"{what} is not a usable artifact", why=f"bad field: {_brief(error)}") from None
        return artifact


def _artifact(container: Container) -> Artifact:
    """The artifact of a container; any exception where there is none."""
    f = container.fields
    if set(f) != {"constants", "stages", "report"} or not isinstance(f["report"], dict):
        raise refuse("its fields are not those of an artifact")
    constants: dict[str, Constant] = {}
    for key, shape in f["constants"].items():
        if shape is not None:
            constants[key] = _sparse(container, key, shape)
            continue
        array = container.array(f"constant/{key}")
        if array.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
            raise refuse(f"constant {key[:60]!r} is not of floating-point numbers")
        constants[key] = array
    program = parse_program(container.text("text/program", MAX_TEXT_BYTES), constants)
    if program.stage is not Stage.EXECUTABLE:
        raise refuse(f"its program is at stage {program.stage.value}, not executable")
    if set(program.constants) != set(constants):
        raise refuse("its constants are not those of its program")
    check_sizes(program, check_ring(program.metadata.get("ring")))
    verify(program, after="loading")
    check_plain_part(program, check_program(program))
    if not set(f["stages"]) <= {stage.value for stage in Stage}:
        raise refuse("its list of stages is malformed")
    # In the order of the pipeline, not of the file.
    found = [stage.value for stage in Stage if stage.value in f["stages"]]
    stages = {key: container.text(f"text/stage/{key}", MAX_TEXT_BYTES) for key in found}
    check_report(f["report"])
    report = Report(f["report"])
    # A report that cannot be printed is refused here, not where someone looks at it.
    str(report)
    return Artifact(program, report, stages)


def _sparse(container: Container, key: str, shape: Any) -> SparseMatrix:
    rows, cols = shape
    whole(rows, "the rows of a sparse constant", 1, 1 << 16)
    whole(cols, "the columns of a sparse constant", 1, 1 << 16)
    data, indices, indptr = (container.array(f"constant/{key}/{part}") for part in ("data", "indices", "indptr"))
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
        raise refuse(f"the sparse constant {key[:60]!r} is malformed")
    return SparseMatrix((rows, cols), data, indices, indptr)
