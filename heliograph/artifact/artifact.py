"""A compiled program: one file, safe to load from anybody."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heliograph.artifact.constants import ConstantWriter, read_constants
from heliograph.artifact.container import Container, pack, read_file, unpack
from heliograph.artifact.earlier import as_present, readable
from heliograph.artifact.figures import STORED, complete, stored
from heliograph.artifact.plain_bounds import check_costs
from heliograph.artifact.public import PREDICTED, PublicArtifact, brief
from heliograph.artifact.report_fields import check_report, read_stored
from heliograph.artifact.validate import (
    check_program,
    check_ring,
    check_sizes,
    check_stage_text,
    check_texts,
    check_transforms,
    refuse,
)
from heliograph.artifact.wire import public_spec
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import HeliographError, ProgramError, WireError
from heliograph.execution.keys import conjugates, program_keys
from heliograph.files import Bytes, write_file
from heliograph.ir import CipherType, Program, Stage
from heliograph.ir.bootstraps.asked import raising_chains
from heliograph.ir.text import parse_program, print_program, without_places
from heliograph.ir.verify import verify
from heliograph.report.text import Report

VERSION = 12
MAX_ARTIFACT_BYTES = 4 * 1024**3
MAX_TEXT_BYTES = 64 * 1024**2
# Figures of the public part that are computed. Its fingerprint covers them, so a file says what they were.
_COMPUTED = tuple(key for key in PREDICTED if key not in STORED)


def _without(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


@dataclass(frozen=True)
class Artifact:
    """A compiled program with its report.

    `stages` holds the text of the program after each stage, for reading; `program` is the executable program. A file
    stores only the part of the report that cannot be computed from the program (figures.py). `compile_s` is known only
    to the compiling process and not saved: a saved artifact has the same bytes on every run.
    `predicted`: the figures of the public part that are computed (`_COMPUTED`), as they were at compilation; None where
    they are those of `report`, whose prices and kernels are the present ones.
    """

    program: Program
    report: Report
    stages: Mapping[str, str]
    compile_s: float | None = field(default=None, compare=False)
    predicted: Mapping[str, Any] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        nodes, report = len(self.program.nodes), repr(self.report)
        return f"<Artifact {self.name!r}, {nodes} nodes; {report.partition(': ')[2]}"

    def _repr_html_(self) -> str:
        """The view in a notebook: the first half of the page of `html_report`."""
        return self.report._repr_html_()

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def ring(self) -> Ring:
        return self.program.ring

    @property
    def evaluation_keys(self) -> tuple[EvaluationKey, ...]:
        """The keys that a server of this program needs."""
        return program_keys(self.program)

    @property
    def plain_inputs(self) -> tuple[str, ...]:
        """The names of the inputs that the server receives in the clear, at run time."""
        return tuple(
            node.attrs["name"] for node in self.program.inputs if not node.type.secret and "drawn" not in node.attrs
        )

    @property
    def drawn_inputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The inputs that the server draws at random for each run: name -> (distribution, shape)."""
        drawn = [node.attrs for node in self.program.inputs if "drawn" in node.attrs]
        return {a["name"]: (a["drawn"], tuple(a["shape"])) for a in drawn}

    @property
    def fingerprint(self) -> str:
        """Identifies the artifact: program, constants, report and the texts of its stages, but not source locations.

        The public part has the same fingerprint.
        """
        return self._public.fingerprint

    @functools.cached_property
    def _server_part(self) -> str:
        """SHA-256 of everything that is not in the public part."""
        report = stored(self.report.figures)
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
        """The part that a client needs, without weights."""
        return self._public

    @functools.cached_property
    def _public(self) -> PublicArtifact:
        interface, parameters = self.program.interface, self.program.planned
        inputs = []
        for spec in interface.inputs:
            nodes = [node for node in self.program.inputs if node.attrs["name"] == spec.name and node.type.secret]
            nodes.sort(key=lambda node: node.attrs["chunk"])
            levels, scales = (tuple(node.attrs[key] for node in nodes) for key in ("level", "log_scale"))
            inputs.append(public_spec(spec, levels, scales, spec.name in interface.carried_inputs))
        outputs, position, left = [], 0, {output for output, _ in interface.carried}
        for spec in interface.outputs:
            types = [node.type for node in self.program.outputs[position : position + spec.placed.ciphertexts]]
            position += len(types)
            if spec.name in left:
                continue
            outputs.append(
                public_spec(spec, (), tuple(kind.log_scale for kind in types if isinstance(kind, CipherType)))
            )
        values = self.report.values
        return PublicArtifact(
            self.program.name,
            self._server_part,
            parameters.chains,
            tuple(inputs),
            tuple(outputs),
            {key: values[key] for key in PREDICTED} | dict(self.predicted or {}),
            conjugates(self.program),
            raising_chains=raising_chains(self.program),
            certificate=self.report.figures.certificate,
        )

    def belonging_to(self, public: PublicArtifact) -> Artifact:
        """The artifact with the computed figures of its public part; a ProgramError if that is of another artifact.

        For a file of version 11, which left them to its reader: prices have changed since, and with them its fingerprint.
        """
        found = replace(self, predicted={key: public.predicted[key] for key in _COMPUTED})
        if found.fingerprint != public.fingerprint:
            raise ProgramError(
                f"the public part {public.fingerprint[:12]} of {public.name!r} is not one of {self.name!r}",
                hint="give the public part that was made from this artifact",
            )
        return found

    def to_bytes(self) -> bytes:
        text = print_program(self.program).encode()
        if len(text) > MAX_TEXT_BYTES:
            raise ProgramError(f"the program's text has {len(text)} bytes; at most {MAX_TEXT_BYTES} are read back")
        blobs: dict[str, Any] = {"text/program": text}
        constants = ConstantWriter(self.program.constants)
        blobs |= constants.blobs
        for key, stage in self.stages.items():
            blobs[f"text/stage/{key}"] = stage.encode()
        predicted = {key: self._public.predicted[key] for key in _COMPUTED}
        fields = {
            **constants.fields,
            "stages": sorted(self.stages),
            "report": stored(self.report.figures),
            "predicted": predicted,
        }
        return pack(Container("artifact", VERSION, fields, blobs))

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled (by MLflow, joblib, processes) as the bytes of its file, which are checked when read.
        return (Artifact.from_bytes, (self.to_bytes(),))

    @staticmethod
    def from_bytes(data: Bytes, what: str = "data") -> Artifact:
        """The artifact in `data`; raises WireError unless it is intact."""
        return Artifact._read(unpack(data, "artifact", readable("artifact", VERSION), MAX_ARTIFACT_BYTES, what), what)

    def save(self, path: str | Path) -> None:
        """Write the file completely or not at all."""
        write_file(path, self.to_bytes())

    @staticmethod
    def load(path: str | Path) -> Artifact:
        """The artifact in a file; raises WireError unless it is intact."""
        return Artifact._read(read_file(path, "artifact", readable("artifact", VERSION), MAX_ARTIFACT_BYTES), str(path))

    @staticmethod
    def _read(container: Container, what: str) -> Artifact:
        try:
            artifact = _artifact(as_present(container, VERSION))
            # The public part, which clients receive, must be valid too.
            PublicArtifact.from_bytes(artifact.public().to_bytes())
            str(artifact.report)
        except WireError as error:
            raise WireError(error.what, where=what, why=error.why, hint=error.hint) from None
        except HeliographError as error:
            raise WireError(f"{what} holds a program that is not in order", why=str(error)[:2000]) from None
        except Exception as error:
            # Untrusted bytes may fail in ways that the checks above do not foresee.
            raise WireError(f"{what} is not a usable artifact", why=f"bad field: {brief(error)}") from None
        return artifact


def _artifact(container: Container) -> Artifact:
    """The artifact in a container; may raise any exception for an invalid one."""
    f = container.fields
    if set(f) != {"constants", "maps", "stages", "report", "predicted"} or not isinstance(f["report"], dict):
        raise refuse("its fields are not those of an artifact")
    predicted = f["predicted"]
    if predicted is not None and (not isinstance(predicted, dict) or set(predicted) != set(_COMPUTED)):
        raise refuse("its predicted figures are not those that its public part has")
    constants = read_constants(container)
    program = parse_program(container.text("text/program", MAX_TEXT_BYTES), constants)
    if program.stage is not Stage.EXECUTABLE:
        raise refuse(f"its program is at stage {program.stage.value}, not executable")
    if set(program.constants) != set(constants):
        raise refuse("its constants are not those of its program")
    if program.parameters is None:
        raise refuse("it has no parameters")
    check_sizes(program, check_ring(program.ring))
    verify(program, after="loading")
    ring = check_program(program)
    check_costs(program, ring)
    check_transforms(program, ring)
    if not set(f["stages"]) <= {stage.value for stage in Stage}:
        raise refuse("its list of stages is malformed")
    # In the order of the pipeline, not of the file.
    found = [stage.value for stage in Stage if stage.value in f["stages"]]
    stages = {key: container.text(f"text/stage/{key}", MAX_TEXT_BYTES) for key in found}
    for name, text in stages.items():
        check_stage_text(text, name)
    known = read_stored(f["report"])
    check_texts(f["report"], "its report")
    report = Report(complete(program, known))
    check_report(report.figures)
    # A report that cannot be printed is refused here, not when someone looks at it.
    str(report)
    return Artifact(program, report, stages, predicted=predicted)
