"""Artifacts whose inputs are not checked, for what happens where values leave the ranges inside."""

from __future__ import annotations

from dataclasses import replace

from heliograph.artifact.artifact import Artifact


def unchecked(artifact: Artifact) -> Artifact:
    """The same program, whose inputs may be any numbers."""
    interface = artifact.program.interface
    inputs = tuple(replace(spec, low=None, high=None) for spec in interface.inputs)
    return replace(artifact, program=replace(artifact.program, interface=replace(interface, inputs=inputs)))
