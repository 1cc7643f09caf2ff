"""`heliograph tune`: what accuracy costs, over degrees, precisions, batches and allocations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from heliograph.cli.compile import model_program, read_shapes
from heliograph.cli.options import COMPILER_SECTIONS, chosen_options, compiler_options
from heliograph.cli.output import emit, force_option, output_options, refuse_overwriting, remark
from heliograph.cli.sections import SectionedCommand
from heliograph.errors import ProgramError
from heliograph.tools.progress import progress_bar


def _listed(read: Callable[[str], Any]) -> Callable[[Any, Any, str | None], tuple[Any, ...] | None]:
    """The callback of an option with values that commas separate."""

    def values(context: Any, parameter: Any, text: str | None) -> tuple[Any, ...] | None:
        if text is None:
            return None
        try:
            return tuple(read(part.strip()) for part in text.split(",") if part.strip())
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a list of numbers with commas between") from None

    return values


@click.command(
    "tune",
    cls=SectionedCommand,
    sections={
        "The model": ("calibration", "input_range", "example_shape", "plain"),
        "What is tried": ("tried_degrees", "tried_precisions", "tried_batches", "tried_losses"),
        "Files": ("html", "force"),
        **COMPILER_SECTIONS,
    },
)
@click.argument("target", metavar="FILE.py:NAME|FILE.hg|FILE.json|FILE.ubj|FILE.txt")
@click.option("--calibration", default=None, metavar="FILE", help="Calibration samples, the measure of accuracy.")
@click.option("--input-range", type=(float, float), multiple=True, metavar="LOW HIGH", help="Range of the input.")
@click.option("--example-shape", multiple=True, metavar="SHAPE", help="Shape of one sample, for example 1,28,28.")
@click.option("--plain", multiple=True, metavar="INPUT", help="This input stays unencrypted. Repeatable.")
@click.option(
    "--try-degrees",
    "tried_degrees",
    default=None,
    callback=_listed(int),
    metavar="LIST",
    help="Degrees (default: 3,7,15,31).",
)
@click.option(
    "--try-precisions",
    "tried_precisions",
    default=None,
    callback=_listed(float),
    metavar="LIST",
    help="Bits of precision (default: 8,10,14).",
)
@click.option(
    "--try-batches",
    "tried_batches",
    default=None,
    metavar="LIST",
    callback=_listed(lambda part: part if part == "max" else int(part)),
    help="Samples in a run (default: 1,max).",
)
@click.option(
    "--try-losses",
    "tried_losses",
    default=None,
    callback=_listed(float),
    metavar="LIST",
    help="Shares of classes that may change where degrees are allocated (default: 0.005,0.02).",
)
@click.option("--html", default=None, metavar="FILE", help="Also write the points as one page, to choose from.")
@compiler_options
@force_option
@output_options
def tune_command(
    target: str,
    calibration: str | None,
    input_range: tuple[tuple[float, float], ...],
    example_shape: tuple[str, ...],
    plain: tuple[str, ...],
    tried_degrees: tuple[int, ...] | None,
    tried_precisions: tuple[float, ...] | None,
    tried_batches: tuple[int | str, ...] | None,
    tried_losses: tuple[float, ...] | None,
    html: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Compile a model with many options, and show those of which none is as good as another in everything.

    Accuracy is measured on held-out calibration samples; time, keys and memory are predicted; nothing is encrypted. The
    arguments are those of `heliograph compile`, except the ones that are tried. What is chosen is compiled by
    `heliograph compile` with the flags of that point.
    """
    from heliograph.tools.tune import tune
    from heliograph.tools.tune_page import tuning_page

    refuse_overwriting(html, force=force)
    options = chosen_options(given)
    if calibration is None and not target.endswith(".hg"):
        raise ProgramError("tune needs calibration samples", hint="--calibration samples.npy")
    tried = {
        "degrees": tried_degrees,
        "precisions": tried_precisions,
        "batches": tried_batches,
        "allocated": tried_losses,
    }
    with progress_bar(quiet) as progress:
        program = model_program(target, calibration, input_range, read_shapes(example_shape), plain, progress)
        chosen: dict[str, Any] = {name: values for name, values in tried.items() if values is not None}
        found = tune(program, options, progress=progress, **chosen)
    if html is not None:
        Path(html).write_text(tuning_page(found), encoding="utf-8")
        remark(f"wrote {html}", quiet)
    emit(str(found), found.to_dict(), as_json=as_json, quiet=quiet)
