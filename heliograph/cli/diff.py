"""`heliograph diff`: what changed in cost between two artifacts, and where."""

from __future__ import annotations

import dataclasses

import click

from heliograph.cli.output import emit, force_option, output_options, refuse_overwriting, remark


@click.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--html", default=None, metavar="FILE", help="Also write the comparison as one page, with drawings.")
@force_option
@output_options
def diff_command(before: str, after: str, html: str | None, force: bool, as_json: bool, quiet: bool) -> None:
    """Compare the costs of two artifacts, in total and by layer: what AFTER costs more or less than BEFORE."""
    from heliograph.artifact.artifact import Artifact
    from heliograph.report.diff import diff

    refuse_overwriting(html, force=force)
    one, other = Artifact.load(before), Artifact.load(after)
    if html is not None:
        from heliograph.report.diff_page import diff_page
        from heliograph.report.plots import write_text

        write_text(html, diff_page(one, other, (before, after)))
        remark(f"wrote {html}", quiet)
    found = dataclasses.replace(diff(one, other), before=before, after=after)
    emit(str(found), found.to_dict(), as_json=as_json, quiet=quiet)
