"""`heliograph diff`: what changed in cost between two artifacts, and where."""

from __future__ import annotations

import dataclasses

import click

from heliograph.cli.output import emit, output_options


@click.command("diff")
@click.argument("before")
@click.argument("after")
@output_options
def diff_command(before: str, after: str, as_json: bool, quiet: bool) -> None:
    """Compare the costs of two artifacts, in total and by layer: what AFTER costs more or less than BEFORE."""
    from heliograph.artifact.artifact import Artifact
    from heliograph.report.diff import diff

    found = dataclasses.replace(diff(Artifact.load(before), Artifact.load(after)), before=before, after=after)
    emit(str(found), found.to_dict(), as_json=as_json, quiet=quiet)
