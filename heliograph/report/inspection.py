"""The contents of `heliograph inspect --json`: the report, the depth of every node, the critical path."""

from __future__ import annotations

from typing import Any

from heliograph.report.compiled import Compiled
from heliograph.report.depth import artifact_depth
from heliograph.report.text import Report


def inspection(artifact: Compiled, report: Report | None = None) -> dict[str, Any]:
    """Everything about an artifact as JSON values; `report` replaces its own (e.g. one with a measured column)."""
    depth = artifact_depth(artifact).to_dict()
    return {
        **(report or artifact.report).to_dict(),
        "fingerprint": artifact.fingerprint,
        "critical_path": depth["critical_path"],
        "spent": depth["spent"],
        "nodes": depth["nodes"],
    }
