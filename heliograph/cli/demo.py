"""`heliograph demo`: the main job on real images."""

from __future__ import annotations

import click

from heliograph.cli.output import emit, output_options
from heliograph.tools.progress import progress_bar


@click.command()
@click.option("--images", default=40, show_default=True, help="Number of test images to classify encrypted.")
@output_options
def demo(images: int, as_json: bool, quiet: bool) -> None:
    """Train a network on handwritten digits, compile it at 128 bits, and classify encrypted images."""
    from rich.console import Console
    from rich.table import Table

    from heliograph.tools.demo import run_demo

    with progress_bar(quiet) as progress:
        result = run_demo(images, progress)
    summary = result.to_dict()
    if as_json or quiet:
        emit("", summary, as_json=as_json, quiet=quiet)
        return
    console = Console()
    table = Table(title=f"{images} handwritten digits, classified encrypted")
    for column in ("image", "label", "clear", "encrypted", "largest error of the 10 outputs"):
        table.add_column(column, justify="right")
    for i, label in enumerate(result.labels):
        error = abs(result.clear[i] - result.encrypted[i]).max()
        table.add_row(
            str(i), str(label), str(result.clear[i].argmax()), str(result.encrypted[i].argmax()), f"{error:.4f}"
        )
    console.print(table)
    report = result.artifact.report.with_measured(result.measurement)
    console.print(str(report), highlight=False, soft_wrap=True)
    measured, floor = summary["measured_ms"], summary["floor_ms"]
    console.print(
        f"one image took {measured:.0f} ms, its homomorphic calls alone {floor:.0f} ms (measured over floor "
        f"{measured / floor:.2f}); predicted were {summary['predicted_ms']:.0f} ms\n"
        f"accuracy {summary['accuracy_clear']:.3f} clear, {summary['accuracy_encrypted']:.3f} encrypted; "
        f"the class agrees on {summary['agreement']:.1%} of the images",
        soft_wrap=True,
    )
