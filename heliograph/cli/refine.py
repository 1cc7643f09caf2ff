"""`heliograph refine`: from a module or a program and samples to a program with trained polynomials of low degree."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heliograph.array_files import Array, one_per_name, read_arrays
from heliograph.cli.compile import load_module, load_object
from heliograph.cli.options import COMPILER_SECTIONS, chosen_options, compiler_options
from heliograph.cli.output import emit, force_option, output_options, refuse_overwriting, remark
from heliograph.cli.sections import SectionedCommand
from heliograph.errors import ProgramError
from heliograph.files import open_file, write_file
from heliograph.tools.progress import progress_bar

if TYPE_CHECKING:
    from heliograph.ir import Program
    from heliograph.tools.refine import Refined

_CALIBRATION = 512


@click.command(
    "refine",
    cls=SectionedCommand,
    sections={
        "Data": ("samples", "calibration", "input_range", "augment"),
        "Training": ("epochs", "rounds", "rate", "batch_size", "seed", "price", "classes"),
        "Files": ("output", "force"),
        **COMPILER_SECTIONS,
    },
)
@click.argument("target", metavar="FILE.py:NAME|FILE.hg")
@click.option(
    "--samples",
    required=True,
    metavar="FILE",
    help="Unlabelled training samples: .npy, or .npz with one array per input.",
)
@click.option(
    "-o", "--output", default=None, metavar="FILE", help="Where to write the program (default: NAME-refined.hg)."
)
@click.option(
    "--calibration",
    default=None,
    metavar="FILE",
    help="Samples for the initial ranges (default: some of --samples).",
)
@click.option(
    "--input-range",
    type=(float, float),
    multiple=True,
    metavar="LOW HIGH",
    help="Range of the input; once, or once per input.",
)
@click.option("--epochs", type=int, default=10, show_default=True, help="Passes over the samples in each round.")
@click.option(
    "--rounds", type=int, default=4, show_default=True, help="At most this many rounds, each with a cheaper allocation."
)
@click.option("--rate", type=float, default=None, help="Learning rate (default: 0.0005).")
@click.option("--batch-size", type=int, default=None, help="Samples in a step (default: 128).")
@click.option(
    "--price",
    type=float,
    default=None,
    help="Weight of the levels that softmax, roots and quotients take (default: 0.1).",
)
@click.option(
    "--classes/--values",
    "classes",
    default=None,
    help="Outputs are class scores, or numbers whose errors count (default: one vector is class scores).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order of the samples.")
@click.option(
    "--augment",
    default=None,
    metavar="FILE.py:NAME",
    help="Data augmentation: a function that takes a batch and returns one.",
)
@compiler_options
@force_option
@output_options
def refine_command(
    target: str,
    samples: str,
    output: str | None,
    calibration: str | None,
    input_range: tuple[tuple[float, float], ...],
    epochs: int,
    rounds: int,
    rate: float | None,
    batch_size: int | None,
    price: float | None,
    classes: bool | None,
    seed: int,
    augment: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Retrain a network so that polynomials of low degree can replace its activations; write it as a program.

    FILE.py:NAME is a PyTorch module in a Python file, FILE.hg a program. --degree and --degree-of set the degrees. Without
    them, degrees are allocated, cheaper ones in each round, until more classes change than --accuracy-loss allows.
    `heliograph compile` takes the result.

    An interrupted run resumes from OUTPUT.checkpoint: run the same command again. Ctrl-C writes the best program so far.
    """
    from heliograph.frontends.torch.training.distill import Training
    from heliograph.tools.refine import refine

    options = chosen_options(given)
    known = {"rate": rate, "batch": batch_size, "price": price, "classes": classes, "seed": seed}
    training = Training(**{name: value for name, value in known.items() if value is not None})  # type: ignore[arg-type]
    function = None if augment is None else load_object(augment, called=lambda value: False)
    with progress_bar(quiet) as progress:
        progress("loading", 0, 0)
        program, arrays = _read(target, samples, calibration, input_range)
        stem = target.removesuffix(".hg") if target.endswith(".hg") else target.rpartition(":")[2]
        path = Path(output or f"{Path(stem).name}-refined.hg")
        if path.suffix != ".hg":
            raise ProgramError(f"{path} is not a name for a program", hint="call it NAME.hg")
        checkpoint = path.with_name(f"{path.name}.checkpoint")
        if not checkpoint.exists():
            refuse_overwriting(path, force=force)
        found = refine(
            program,
            tuple(arrays),
            options,
            rounds=rounds,
            epochs=epochs,
            augment=function,
            progress=progress,
            training=training,
            checkpoint=checkpoint,
        )
    weights = _write(replace(found.program, name=path.stem), path)
    remark(f"wrote {path} and {weights}" if weights else f"wrote {path}", quiet)
    if found.interrupted:
        remark("interrupted: this is the best so far", quiet)
    files = {"program": str(path), "weights": str(weights) if weights else None}
    emit(_table(found), {**files, **found.to_dict()}, as_json=as_json, quiet=quiet)


def _read(
    target: str, samples: str, calibration: str | None, input_range: tuple[tuple[float, float], ...]
) -> tuple[Program, list[Array]]:
    """The program, with calibration samples, and the samples by input."""
    import numpy as np
    import torch

    import heliograph as hg
    from heliograph.cli.compile import declared_ranges, input_names

    if target.endswith(".hg"):
        if input_range:
            raise ProgramError("--input-range is for PyTorch modules", where=target)
        program: Program = hg.parse(Path(target))
        names = [str(node.attrs["name"]) for node in program.inputs]
        arrays = one_per_name(read_arrays(samples), names, samples)
        first = _first(arrays) if calibration is None else one_per_name(read_arrays(calibration), names, calibration)
        return replace(program, calibration=tuple(np.asarray(each, dtype=np.float64) for each in first)), arrays
    module = load_module(target)
    names = input_names(module, 0)
    arrays = one_per_name(read_arrays(samples), names, samples)
    first = _first(arrays) if calibration is None else one_per_name(read_arrays(calibration), names, calibration)
    examples = [torch.from_numpy(np.require(each[:1], np.float32, "W")) for each in first]
    ranges = declared_ranges(input_range, len(arrays))
    if ranges is None:
        # All samples together say more about the inputs than the first one.
        ranges = tuple((float(each.min()), float(each.max())) for each in arrays)
        ranges = ranges[0] if len(ranges) == 1 else ranges
    traced: Program = hg.trace(
        module,
        examples[0] if len(examples) == 1 else tuple(examples),
        input_range=ranges,
        calibration=first[0] if len(first) == 1 else tuple(first),
    )
    return traced, arrays


def _first(arrays: list[Array]) -> list[Array]:
    for array in arrays:
        if array.ndim < 2 or not array.shape[0]:
            raise ProgramError(f"samples of shape {array.shape} have no sample axis with samples")
    return [array[:_CALIBRATION] for array in arrays]


def _write(program: Program, path: Path) -> Path | None:
    """Write the program, and what it keeps beside it; the path of the latter."""
    import heliograph as hg

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        text = hg.write_language(program, folder)
        weights = text.with_suffix(".npz")
        kept = path.with_name(weights.name) if weights.exists() else None
        # The weights first, because the program names them.
        for source, place in ((weights, kept), (text, path)):
            if place is not None:
                with open_file(source) as file:
                    write_file(place, file.read())
    return kept


def _table(found: Refined) -> str:
    """The rounds, one a line."""
    lines = [f"{'round':<7}{'degrees':<28}{'predicted':>11}{'before':>9}{'after':>9}{'epochs':>8}{'minutes':>9}"]
    ranged = any(each.range_levels[0] for each in found.rounds)
    if ranged:
        lines[0] += f"{'range levels':>14}"
    for number, each in enumerate(found.rounds, 1):
        degrees = sorted(each.degrees.values())
        counts = ", ".join(f"{degrees.count(degree)} x {degree}" for degree in dict.fromkeys(degrees))
        time = "" if each.predicted_ms is None else f"{each.predicted_ms / 1e3:.2f} s"
        line = f"{number:<7}{counts:<28}{time:>11}{each.before:>9.1%}{each.agreement:>9.1%}"
        line += f"{len(each.epochs):>8}{each.seconds / 60:>9.1f}"
        line += "{:>7} to {:>3}".format(*each.range_levels) if ranged else ""
        lines.append(f"{line}{'' if each.kept else '  undone'}")
    lines.append(f"agreement with the float network on {found.samples_apart} held-out samples: {found.agreement:.1%}")
    return "\n".join(lines)
