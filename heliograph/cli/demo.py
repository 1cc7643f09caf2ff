"""`heliograph demo`: the main job on real images."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--images", default=40, show_default=True, help="Test images to run encrypted, one by one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def demo(images: int, as_json: bool, quiet: bool) -> None:
    """Train a network on handwritten digits, compile it at 128 bits, and classify encrypted images."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table

    from heliograph.demo import run_demo

    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=errors, disable=quiet or not errors.is_terminal) as bar:
        tasks: dict[str, int] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)  # type: ignore[arg-type]

        result = run_demo(images, progress)
    summary = result.to_dict()
    if as_json:
        click.echo(json.dumps(summary))
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
    console.print(str(result.artifact.report), highlight=False, soft_wrap=True)
    bill = Table(title="predicted and measured")
    for column in ("", "predicted", "measured"):
        bill.add_column(column, justify="right" if column else "left")
    measured = result.measurement
    megabytes = "{:.0f} MB".format
    report = result.artifact.report.values
    bill.add_row("one image", f"{summary['predicted_ms']:.0f} ms", f"{summary['measured_ms']:.0f} ms")
    bill.add_row("  its homomorphic calls alone", "", f"{summary['floor_ms']:.0f} ms")
    bill.add_row("largest error", f"{summary['predicted_max_abs_error']:.3g}", f"{summary['max_abs_error']:.3g}")
    peak = megabytes(summary["peak_rss_bytes"] / 1e6)
    bill.add_row("peak memory (server; this process)", megabytes(report["server_peak_bytes"] / 1e6), peak)
    bill.add_row("key generation", "", f"{measured.keygen_s:.2f} s")
    bill.add_row("encrypt, decrypt", "", f"{measured.encrypt_ms:.1f} ms, {measured.decrypt_ms:.1f} ms")
    console.print(bill)
    console.print(
        f"accuracy {summary['accuracy_clear']:.3f} clear, {summary['accuracy_encrypted']:.3f} encrypted; "
        f"the class agrees on {summary['agreement']:.1%} of the images; measured over floor "
        f"{summary['measured_ms'] / summary['floor_ms']:.2f}"
    )
