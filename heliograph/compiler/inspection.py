"""All that `heliograph inspect --json` carries: the report, the depth of every node, the critical path."""

from __future__ import annotations

from typing import Any

from heliograph.compiler.artifact import Artifact
from heliograph.compiler.depth import artifact_depth
from heliograph.compiler.report import Report
from heliograph.errors import HeliographError, ProgramError
from heliograph.ir import Program
from heliograph.ir.text import parse_program


def stage_program(artifact: Artifact, stage: str) -> Program:
    """The program at a stage, from the artifact's own text (contents of large constants are not in it)."""
    if stage == "executable":
        return artifact.program
    if stage not in artifact.stages:
        raise ProgramError(
            f"{artifact.name} does not hold the {stage} stage",
            hint=f"it has {', '.join([*artifact.stages, 'executable'])}",
        )
    try:
        return parse_program(artifact.stages[stage])
    except HeliographError as error:
        raise ProgramError(f"the text of the {stage} stage does not parse", why=str(error)[:2000]) from None


def managed_program(artifact: Artifact) -> Program:
    """The managed stage, or the executable program where the artifact was stripped of its stages."""
    return stage_program(artifact, "managed" if "managed" in artifact.stages else "executable")


def inspection(artifact: Artifact, report: Report | None = None) -> dict[str, Any]:
    """Everything about an artifact as JSON values; `report` replaces its own (one with a measured column, say)."""
    depth = artifact_depth(artifact).to_dict()
    return {
        **(report or artifact.report).to_dict(),
        "fingerprint": artifact.fingerprint,
        "critical_path": depth["critical_path"],
        "spent": depth["spent"],
        "nodes": depth["nodes"],
    }
