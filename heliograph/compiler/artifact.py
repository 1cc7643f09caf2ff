"""A compiled program: one file, safe to load from a stranger, and its public part without weights."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.chains import key_chains
from heliograph.compiler.figures import complete, stored
from heliograph.compiler.plain_bounds import check_plain_part
from heliograph.compiler.report import Report
from heliograph.compiler.report_fields import check_report, check_stored
from heliograph.compiler.validate import (
    check_interface,
    check_keys,
    check_program,
    check_ring,
    check_sizes,
    check_stage_text,
    check_texts,
    check_transforms,
    printable,
    real,
    refuse,
    whole,
)
from heliograph.container import Bytes, Container, pack, read_file, unpack, write_file
from heliograph.errors import HeliographError, ProgramError, WireError
from heliograph.evaluation_keys import EvaluationKey, conjugates, evaluation_keys, program_keys
from heliograph.ir import Program, SparseMatrix, Stage
from heliograph.ir.layout import Layout
from heliograph.ir.node import Constant
from heliograph.ir.text import parse_program, print_program, without_places
from heliograph.ir.verify import verify
from heliograph.target import Ring

VERSION = 4
MAX_ARTIFACT_BYTES = 4 * 1024**3
MAX_TEXT_BYTES = 64 * 1024**2
MAX_PUBLIC_BYTES = 64 * 1024**2
# Figures of the report that a client has no other source for; those of bytes follow from ring and keys.
_PREDICTED = ("predicted_ms", "client_peak_bytes", "scheme_error", "output_magnitude")
_PUBLIC_FIELDS = {
    "name", "ring", "inputs", "outputs", "rotation_keys", "relinearization_key", "chains", "bootstrap_slots",
    "conjugation_key", "predicted", "server_part",
}  # fmt: skip


@dataclass(frozen=True)
class PublicArtifact:
    """What a client needs: ring, layouts, ranges, what evaluation keys to make. No weights, no program.

    `server_part` is the SHA-256 of what the server has besides; `fingerprint` names both, and keys and ciphertexts carry it.
    `chains` and `bootstrap_slots` are those of the program's metadata, `conjugation_key` says whether the program
    conjugates, `predicted` has some figures of the report. `named` is the fingerprint where it was read from a client's key
    file, which outlives the formats that fingerprints are computed from; such a part is not written again.
    """

    name: str
    server_part: str
    ring: Ring
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    rotation_keys: tuple[int, ...]
    relinearization_key: bool
    predicted: Mapping[str, Any]
    chains: tuple[Mapping[str, Any], ...] = ()
    bootstrap_slots: tuple[int, ...] = ()
    conjugation_key: bool = False
    named: str | None = None

    def __repr__(self) -> str:
        security = "INSECURE" if self.ring.security_bits is None else f"{self.ring.security_bits} bits"
        size = f"N = {self.ring.ring_dim}, {self.ring.levels} levels, {len(self.evaluation_keys)} evaluation keys"
        return f"<PublicArtifact {self.name!r}, {self.fingerprint[:12]}: {security}, {size}>"

    def public(self) -> PublicArtifact:
        return self

    @functools.cached_property
    def fingerprint(self) -> str:
        """Names the artifact: the first half of SHA-256 over all fields here, that of the server's part among them.

        Whoever was told the fingerprint by somebody he trusts knows that the security, the ranges and the predicted error
        here are those that were compiled.
        """
        if self.named is not None:
            return self.named
        text = json.dumps(self._fields(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def predicted_bytes(self) -> dict[str, int]:
        """The bytes of all evaluation keys, inputs and outputs, by the names of the report's figures."""
        levels = [level for spec in self.inputs for level in spec["levels"]]
        outputs = sum(len(spec["log_scales"]) for spec in self.outputs)
        return {
            "evaluation_key_bytes": sum(key.bytes for key in self.evaluation_keys),
            "ciphertext_bytes": sum(map(self.ring.ciphertext_bytes, levels)),
            "output_bytes": outputs * self.ring.ciphertext_bytes(0),
        }

    @property
    def evaluation_keys(self) -> tuple[EvaluationKey, ...]:
        """The keys that the client makes for the server."""
        fields = self._key_fields()
        return evaluation_keys(key_chains(fields), self.bootstrap_slots, self.conjugation_key)

    def _key_fields(self) -> dict[str, Any]:
        return {
            "ring": self.ring.to_json(),
            "rotation_keys": list(self.rotation_keys),
            "relinearization_key": self.relinearization_key,
            "chains": [dict(chain) for chain in self.chains],
            "bootstrap_slots": list(self.bootstrap_slots),
            "conjugation_key": self.conjugation_key,
        }

    def _fields(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "server_part": self.server_part,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "predicted": dict(self.predicted),
            **self._key_fields(),
        }

    def to_bytes(self) -> bytes:
        if self.named is not None:
            raise ProgramError(
                "a public artifact that comes from a key file is not written as a file of its own",
                hint="take the one that the key was made for",
            )
        return pack(Container("public artifact", VERSION, self._fields()))

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
            if not _is_digest(f["server_part"]):
                raise refuse("the digest of the server's part is malformed")
            check_keys(f, ring)
            if type(f["conjugation_key"]) is not bool:
                raise refuse("conjugation_key is malformed")
            check_texts((f["inputs"], f["outputs"]), "its lists of inputs and outputs")
            if set(f["predicted"]) != set(_PREDICTED):
                raise refuse("its predicted figures are not those of a public artifact")
            for key in _PREDICTED:
                real(f["predicted"][key], key, 0.0, 1e18)
            return PublicArtifact(
                printable(f["name"], "its name"),
                f["server_part"],
                ring,
                tuple(f["inputs"]),
                tuple(f["outputs"]),
                tuple(f["rotation_keys"]),
                f["relinearization_key"],
                {key: f["predicted"][key] for key in _PREDICTED},
                tuple(f["chains"]),
                tuple(f["bootstrap_slots"]),
                f["conjugation_key"],
            )
        except WireError as error:
            raise WireError(error.what, where=what, why=error.why, hint=error.hint) from None
        except Exception as error:
            # Whatever a stranger's bytes make of the checks above, they are not a usable artifact.
            raise WireError(f"{what} is not a usable public artifact", why=f"bad field: {_brief(error)}") from None


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _without(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


@dataclass(frozen=True)
class Artifact:
    """A compiled program with its report.

    `stages` holds the text of the program after the passes of each stage, for reading; `program` is what runs. Of the report
    a file holds what does not follow from the program (compiler/figures.py).
    `compile_s` is known only where it was compiled: a saved artifact is the same bytes on every run.
    """

    program: Program
    report: Report
    stages: Mapping[str, str]
    compile_s: float | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        nodes, report = len(self.program.nodes), repr(self.report)
        return f"<Artifact {self.name!r}, {nodes} nodes; {report.partition(': ')[2]}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the first half of the page that `html_report` makes."""
        return self.report._repr_html_()

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def ring(self) -> Ring:
        return Ring.from_json(self.program.metadata["ring"])

    @property
    def evaluation_keys(self) -> tuple[EvaluationKey, ...]:
        """The keys that a server of this program takes."""
        return program_keys(self.program)

    @property
    def plain_inputs(self) -> tuple[str, ...]:
        """The names of the inputs that the server gives in the clear, at run time."""
        return tuple(node.attrs["name"] for node in self.program.inputs if not node.type.secret)

    @property
    def fingerprint(self) -> str:
        """Names the artifact: program, constants, report and the texts of its stages, but not the places in the sources.

        It is that of the public part.
        """
        return self._public.fingerprint

    @functools.cached_property
    def _server_part(self) -> str:
        """SHA-256 of what the public part does not hold."""
        report = stored(self.report.values)
        report["depth_by_line"] = [_without(row, "location") for row in report["depth_by_line"]]
        report["savings"] = [_without(row, "locations") for row in report["savings"]]
        if report["unseen"] is not None and report["unseen"]["worst"] is not None:
            report["unseen"] = {**report["unseen"], "worst": _without(report["unseen"]["worst"], "location")}
        digest = hashlib.sha256(json.dumps(report, sort_keys=True, allow_nan=False).encode())
        for name, text in (("program", print_program(self.program)), *sorted(self.stages.items())):
            part = without_places(text).encode()
            digest.update(f"\n{name} {len(part)}\n".encode())
            digest.update(part)
        return digest.hexdigest()

    def public(self) -> PublicArtifact:
        """The part that a client needs; no weights."""
        return self._public

    @functools.cached_property
    def _public(self) -> PublicArtifact:
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
            self._server_part,
            self.ring,
            tuple(inputs),
            tuple(outputs),
            tuple(metadata["rotation_keys"]),
            metadata["relinearization_key"],
            {key: values[key] for key in _PREDICTED},
            tuple(metadata.get("chains", ())),
            tuple(metadata.get("bootstrap_slots", ())),
            conjugates(self.program),
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
        fields = {"constants": kinds, "stages": sorted(self.stages), "report": stored(self.report.values)}
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
    ring = check_program(program)
    check_plain_part(program, ring)
    check_transforms(program, ring)
    if not set(f["stages"]) <= {stage.value for stage in Stage}:
        raise refuse("its list of stages is malformed")
    # In the order of the pipeline, not of the file.
    found = [stage.value for stage in Stage if stage.value in f["stages"]]
    stages = {key: container.text(f"text/stage/{key}", MAX_TEXT_BYTES) for key in found}
    for name, text in stages.items():
        check_stage_text(text, name)
    check_stored(f["report"])
    check_texts((program.metadata, f["report"]), "its report")
    report = Report(complete(program, f["report"]))
    check_report(report.values)
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
