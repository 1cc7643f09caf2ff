"""`heliograph certify`: an artifact whose answers are certified, and its answers, image by image."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heliograph.array_files import Array, read_arrays
from heliograph.cli.compile import load_module
from heliograph.cli.options import COMPILER_SECTIONS, chosen_options, compiler_options
from heliograph.cli.output import emit, force_option, full_option, output_options, refuse_overwriting, remark
from heliograph.cli.sections import SectionedCommand
from heliograph.errors import ProgramError
from heliograph.machine import without_core_file
from heliograph.tools.progress import progress_bar

if TYPE_CHECKING:
    import heliograph as hg

# Number of training inputs that set the ranges.
_CALIBRATION = 4000


@click.command(
    "certify",
    cls=SectionedCommand,
    sections={
        "The model": ("samples", "held_out", "input_range"),
        "The certificate": ("kind", "sigma", "eta", "theta", "lipschitz", "tau", "zeta", "n", "n0", "alpha"),
        "Answers": ("data", "labels", "most", "simulate", "plot"),
        "Print": ("full",),
        "Files": ("output", "force"),
        **COMPILER_SECTIONS,
    },
)
@click.argument("target", metavar="FILE.py:NAME|FILE.hg|FILE.helio")
@click.option("-o", "--output", default=None, metavar="FILE", help="Where to write the artifact (default: NAME.helio).")
@click.option(
    "--samples", default=None, metavar="FILE", help="Training inputs: .npy or .npz; the first axis counts samples."
)
@click.option(
    "--held-out",
    default=None,
    metavar="FILE",
    help="Inputs that were not used in training (default: every other one of --samples).",
)
@click.option("--input-range", type=(float, float), default=None, metavar="LOW HIGH", help="Range of the input.")
@click.option(
    "--kind",
    type=click.Choice(["l2", "l1", "fair"]),
    default="l2",
    show_default=True,
    help="What to certify: a radius in l2 or l1, or fairness.",
)
@click.option("--sigma", type=float, default=None, help="l2: standard deviation of the noise.")
@click.option("--eta", type=float, default=None, help="l1: the noise is uniform on [-eta, eta].")
@click.option("--theta", default=None, metavar="FILE", help="fair: .npy with one number per feature.")
@click.option(
    "--lipschitz", type=float, default=1.0, show_default=True, help="fair: the Lipschitz constant of the constraint."
)
@click.option("--tau", type=float, default=None, help="Share of the votes that a class needs to win, zeta included.")
@click.option("--zeta", type=float, default=0.01, show_default=True, help="Share of the copies that may go wrong.")
@click.option("--n", type=int, default=128, show_default=True, help="Number of copies that vote.")
@click.option("--n0", type=int, default=32, show_default=True, help="Number of copies that choose the class.")
@click.option("--alpha", type=float, default=0.001, show_default=True, help="Probability that sampling may mislead.")
@click.option(
    "--input",
    "data",
    default=None,
    metavar="FILE",
    help="Answer these inputs: .npy or .npz; the first axis counts them.",
)
@click.option("--labels", default=None, metavar="FILE", help="Their true classes (.npy), for certified accuracy.")
@click.option("--most", type=int, default=None, help="Answer at most this many of them.")
@click.option("--simulate", is_flag=True, help="Answer on the simulator, without keys.")
@click.option(
    "--plot", default=None, metavar="FILE", help="Where to write a plot of certified accuracy against radius."
)
@compiler_options
@full_option
@force_option
@output_options
def certify_command(
    target: str,
    output: str | None,
    samples: str | None,
    held_out: str | None,
    input_range: tuple[float, float] | None,
    kind: str,
    sigma: float | None,
    eta: float | None,
    theta: str | None,
    lipschitz: float,
    tau: float | None,
    zeta: float,
    n: int,
    n0: int,
    alpha: float,
    data: str | None,
    labels: str | None,
    most: int | None,
    simulate: bool,
    plot: str | None,
    full: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Compile a model whose answers are certified, or answer inputs with such an artifact.

    FILE.py:NAME is a PyTorch module in a Python file, FILE.hg a program, FILE.helio an artifact that this command made.
    With --input, answer inputs and print for each its class, whether the class is certified, the radius and the time.
    """
    import heliograph as hg
    from heliograph.report.figures import CERTIFIED_KINDS
    from heliograph.report.text import certificate_text

    refuse_overwriting(plot, force=force)
    values: dict[str, Any] = {}
    insecure = given["security_bits"] is not None
    with progress_bar(quiet) as progress:
        if target.endswith(".helio"):
            artifact = hg.Artifact.load(target)
        else:
            numbers = None if theta is None else [float(each) for each in _one(theta).ravel()]
            certificate = hg.Certificate(kind, sigma, eta, numbers, lipschitz, tau, zeta, n, n0, alpha)
            progress("loading", 0, 0)
            program = _program(target, samples, input_range)
            path = output or f"{program.name if target.endswith('.hg') else target.rpartition(':')[2]}.helio"
            refuse_overwriting(path, force=force)
            kept = None if held_out is None else _one(held_out)
            artifact = hg.certify(program, certificate, held_out=kept, options=chosen_options(given), progress=progress)
            artifact.save(path)
            remark(f"wrote {path}", quiet)
            values = {**artifact.report.to_dict(), "artifact": path}
        known = artifact.public().certificate
        if known is None:
            raise ProgramError(f"{target} certifies nothing", hint="give a network: FILE.py:NAME or FILE.hg")
        rows: list[dict[str, Any]] = []
        if data is not None:
            inputs = _one(data)[:most]
            truth = None if labels is None else _one(labels).astype(int)[: len(inputs)]
            if truth is not None and len(truth) != len(inputs):
                raise ProgramError(f"{len(truth)} labels for {len(inputs)} inputs", where=labels or "")
            answers = _simulated(artifact, inputs) if simulate else _encrypted(artifact, inputs, insecure, progress)
            for number, (answer, seconds) in enumerate(answers):
                rows.append(_row(number, answer, seconds, None if truth is None else int(truth[number])))
                progress("answers", number + 1, len(inputs))
    bill = artifact.report.full() if full else str(artifact.report)
    lines = [certificate_text(known)] if rows else [bill]
    lines += [_line(row) for row in rows]
    if rows:
        totals = _totals(rows)
        values |= {"answers": rows, **totals}
        lines.append("  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in totals.items()))
    if plot is not None:
        from heliograph.report.plots import save_certified_curve

        if not rows:
            raise ProgramError("--plot draws the radii of answers", hint="give --input")
        right = [row["right"] for row in rows] if labels is not None else None
        save_certified_curve(
            plot, [row["widest_radius"] for row in rows], right, CERTIFIED_KINDS[known.kind], known.radius
        )
        remark(f"wrote {plot}", quiet)
    emit("\n".join(lines), values, as_json=as_json, quiet=quiet)


def _one(path: str) -> Array:
    arrays = read_arrays(path)
    if len(arrays) != 1:
        raise ProgramError(f"{path} holds {len(arrays)} arrays, one is needed")
    return next(iter(arrays.values()))


def _program(target: str, samples: str | None, input_range: tuple[float, float] | None) -> hg.Program:
    """The network with its training inputs."""
    from dataclasses import replace

    import numpy as np
    import torch

    import heliograph as hg

    if samples is None:
        raise ProgramError("the ranges of a certificate are set from training inputs", hint="give --samples")
    array = np.asarray(_one(samples), dtype=np.float64)[:_CALIBRATION]
    if target.endswith(".hg"):
        return replace(hg.parse(Path(target)), calibration=(array,))
    example = torch.from_numpy(array[:1].astype(np.float32))
    limits = input_range or (float(array.min()), float(array.max()))
    return hg.trace(load_module(target), example, input_range=limits, calibration=array)


def _simulated(artifact: hg.Artifact, inputs: Array) -> Iterator[tuple[hg.Answer, float]]:
    import heliograph as hg

    for number, x in enumerate(inputs):
        begun = time.perf_counter()
        answer = hg.read_answer(artifact, hg.simulate(artifact, x, seed=number))
        yield answer, time.perf_counter() - begun


def _encrypted(
    artifact: hg.Artifact, inputs: Array, insecure: bool, progress: Callable[[str, int, int], None]
) -> Iterator[tuple[hg.Answer, float]]:
    import heliograph as hg
    from heliograph.runtime.server.server import require_server

    require_server(artifact)
    without_core_file()
    client = hg.Client(artifact.public(), allow_insecure=insecure)
    with hg.Server(artifact, client.evaluation_keys(progress), allow_insecure=insecure) as server:
        for x in inputs:
            encrypted = client.encrypt(x)
            begun = time.perf_counter()
            answered = server.run(encrypted, progress)
            seconds = time.perf_counter() - begun
            yield client.answer(answered, of=encrypted), seconds


def _row(number: int, answer: hg.Answer, seconds: float, truth: int | None) -> dict[str, Any]:
    row = {
        "input": number,
        "class": answer.label,
        "certified": answer.certified,
        "radius": answer.radius,
        "widest_radius": answer.widest_radius,
        "votes": answer.votes,
        "withdrawn": answer.withdrawn,
        "seconds": seconds,
    }
    return row if truth is None else {**row, "label": truth, "right": answer.label == truth}


def _line(row: dict[str, Any]) -> str:
    named = "class -" if row["class"] is None else f"class {row['class']}"
    state = f"certified  {row['radius']:.3g}" if row["certified"] else "abstained"
    if row["withdrawn"]:
        state = f"no answer: {row['withdrawn']}"
    wrong = "" if row.get("right", True) else f"  (it is {row['label']})"
    return f"{row['input']:>5}  {named:<9} {state:<18} {row['seconds']:8.2f} s{wrong}"


def _totals(rows: list[dict[str, Any]]) -> dict[str, float]:
    count = len(rows)
    certified = sum(row["certified"] for row in rows)
    made = {
        "certified": certified / count,
        "average_radius": sum(row["widest_radius"] for row in rows) / count,
        "seconds_each": sorted(row["seconds"] for row in rows)[count // 2],
    }
    if "right" in rows[0]:
        made["accuracy"] = sum(row["right"] for row in rows) / count
        made["certified_accuracy"] = sum(row["certified"] and row["right"] for row in rows) / count
    return made
