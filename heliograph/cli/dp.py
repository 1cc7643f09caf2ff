"""`heliograph dp`: argument parsing and printing; the work is in heliograph.dp."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from heliograph.cli.output import emit, force_option, output_options, refuse_overwriting

if TYPE_CHECKING:
    from heliograph.dp.accounting import Tolerance
    from heliograph.dp.composition import Composition

Command = TypeVar("Command", bound=Callable[..., Any])


_VERIFY_BYTES = 4 * 10**9
"""Of memory that checking a file may take."""

_TRAINING = ("train", "audit")
"""Commands in a module of their own, imported when they are called."""


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_TRAINING]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _TRAINING:
            from heliograph.cli import dp_train

            command = getattr(dp_train, cmd_name)
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Group)
def dp() -> None:
    """Train with differential privacy; account for it, calibrate noise and audit runs.

    EXPR is a sum of mechanisms with counts, their parameters by name:

    \b
      sampled_gaussian(p=0.01, noise_multiplier=1.0) * 1000 + laplace(epsilon=0.1) * 5
    """


class _Number(click.ParamType[float]):
    """A number; what it may be is checked, with a reason, by the package."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            self.fail(f"{str(value)[:40]!r} is not a number", param, ctx)


class _Whole(click.ParamType[int]):
    """A whole number; 1e5 is one."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(value)
        except ValueError:
            pass
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not number.is_integer():
            self.fail(f"{str(value)[:40]!r} is not a whole number", param, ctx)
        return int(number)


_NUMBER = _Number()
_method = click.option(
    "--method",
    default="auto",
    show_default=True,
    help="Accountant: auto, pld, exact or rdp.",
)
_neighbors = click.option(
    "--neighbors",
    "neighboring",
    type=click.Choice(["add_remove", "replace", "zero_out"]),
    default="add_remove",
    show_default=True,
    help="How neighbouring data sets differ: by a record added or removed, by one replaced, or by one that adds nothing.",
)


def _tolerance_option(text: str) -> Callable[[Command], Command]:
    return click.option("--tolerance", type=_NUMBER, default=None, help=text)


@dp.command()
@click.argument("expr")
@click.option("--delta", type=_NUMBER, required=True, help="The delta at which to compute epsilon.")
@_method
@_tolerance_option("Width of the bracket (default: 1e-3, or 1e-4 of epsilon where that is larger).")
@_neighbors
@click.option(
    "--certificate",
    "certificate_",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Also write the bracket to a file that `heliograph dp verify`, or another program, can check.",
)
@force_option
@output_options
def epsilon(
    expr: str,
    delta: float,
    method: str,
    tolerance: float | None,
    neighboring: Any,
    certificate_: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compute epsilon of the composition EXPR at a delta.

    The result is a bracket: a proved lower and a proved upper bound.
    """
    from heliograph.dp import accounting

    refuse_overwriting(certificate_, force=force)
    composition = _parse(expr)
    bracket = accounting.epsilon_at(
        composition, delta, method=method, tolerance=_tolerance(tolerance), neighboring=neighboring
    )
    if certificate_ is not None:
        from heliograph.dp.accounting.certificate import certificate, write_certificate

        write_certificate(certificate_, certificate(composition, delta, neighboring=neighboring, bracket=bracket))
    emit(str(bracket), bracket.to_json(), as_json=as_json, quiet=quiet)


@dp.command()
@click.argument("expr")
@click.option("--epsilon", "epsilon_", type=_NUMBER, required=True, help="The epsilon at which to compute delta.")
@_method
@_tolerance_option("Width of the bracket as a share of delta (default 0.01).")
@_neighbors
@output_options
def delta(
    expr: str, epsilon_: float, method: str, tolerance: float | None, neighboring: Any, as_json: bool, quiet: bool
) -> None:
    """Compute delta of the composition EXPR at an epsilon.

    The result is a bracket: a proved lower and a proved upper bound.
    """
    from heliograph.dp import accounting
    from heliograph.dp.accounting import Tolerance

    width = Tolerance() if tolerance is None else Tolerance(delta_share=_checked_tolerance(tolerance))
    bracket = accounting.delta_at(_parse(expr), epsilon_, method=method, tolerance=width, neighboring=neighboring)
    emit(str(bracket), bracket.to_json(), as_json=as_json, quiet=quiet)


@dp.command()
@click.argument("report", type=click.Path(path_type=Path))
@click.option("--delta", type=_NUMBER, default=None, help="The delta, if the file names none.")
@click.option(
    "--seconds",
    type=_NUMBER,
    default=120.0,
    show_default=True,
    help="Processor time to spend on REPORT at most; it may list more than is worth checking.",
)
@output_options
def verify(report: Path, delta: float | None, seconds: float, as_json: bool, quiet: bool) -> None:
    """Recompute epsilon from the releases in REPORT.

    REPORT is a Heliograph report, an Opacus history or a dp-accounting event.

    A certificate (`heliograph dp epsilon --certificate`) is checked claim by claim: delta is computed at each end of its
    brackets. Exit code 0 if all claims are proved; 1 if one is refuted or undecided, or if nothing is claimed; 2 if REPORT
    asks for more than --seconds or 4 GB of memory.
    """
    from heliograph.dp.accounting.ledger import verify as verify_file
    from heliograph.dp.accounting.limits import limited

    with limited(seconds, _VERIFY_BYTES, report):
        found = verify_file(report, delta)
    emit(str(found), found.to_json(), as_json=as_json, quiet=quiet)
    if not found.holds:
        sys.exit(1)


@dp.command()
@click.option("--p", type=_NUMBER, default=1.0, show_default=True, help="Poisson sampling probability.")
@click.option("--steps", type=_Whole(), required=True, help="Number of steps.")
@click.option("--epsilon", "epsilon_", type=_NUMBER, required=True, help="Target epsilon.")
@click.option("--delta", type=_NUMBER, required=True, help="Target delta.")
@click.option("--with", "besides", default=None, help="Other mechanisms of the same run, as an expression.")
@_neighbors
@output_options
def noise(
    p: float,
    steps: int,
    epsilon_: float,
    delta: float,
    besides: str | None,
    neighboring: Any,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find the smallest noise multiplier for a target.

    The target is an epsilon and a delta, for (Poisson-sampled) Gaussian steps.
    """
    from heliograph.dp.calibrate import noise_multiplier

    rest = _parse(besides) if besides is not None else None
    found = noise_multiplier(epsilon_, delta, p=p, steps=steps, besides=rest, neighboring=neighboring)
    proved = (
        "0.1 % less noise is proved not to be enough" if found.tight else "not shown to be within 0.1 % of the best"
    )
    text = f"noise multiplier {found.value:.6g}\n{found.bracket}\n{proved}"
    emit(text, found.to_json(), as_json=as_json, quiet=quiet)


@dp.command()
@click.option("--batches", type=_Whole(), required=True, help="Number of batches in the epoch.")
@click.option("--noise", "noise_", type=_NUMBER, required=True, help="Noise multiplier.")
@click.option("--delta", type=_NUMBER, required=True, help="The delta at which to compute epsilon.")
@output_options
def shuffle(batches: int, noise_: float, delta: float, as_json: bool, quiet: bool) -> None:
    """Bound epsilon of shuffled batches from below.

    One epoch; Poisson accounting is printed beside it.
    """
    from heliograph.dp.accounting.result import shown_number
    from heliograph.dp.shuffling import ShuffledEpoch

    epoch = ShuffledEpoch(batches, noise_)
    lower, poisson = epoch.epsilon_lower(delta), epoch.poisson(delta)
    lines = [
        f"shuffled: epsilon is at least {shown_number(lower)} at delta {delta:.3g}, for a record that is there or null",
        f"accounted as Poisson samples: [{shown_number(poisson.lower)}, {shown_number(poisson.upper)}]",
    ]
    if poisson.upper is not None and lower > poisson.upper:
        lines.append("that figure is not a bound for shuffled batches")
    values = {"delta": delta, "epsilon_lower": lower, "poisson": poisson.to_json()}
    emit("\n".join(lines), values, as_json=as_json, quiet=quiet)


@dp.command()
@click.argument("expr")
@click.option("--delta", type=_NUMBER, required=True, help="The delta at which to compute epsilon.")
@_tolerance_option("Width of the bracket, for the methods that take one.")
@output_options
def compare(expr: str, delta: float, tolerance: float | None, as_json: bool, quiet: bool) -> None:
    """Run every accountant on one composition.

    Prints their results and times.
    """
    from heliograph.dp import accounting
    from heliograph.dp.accounting.accountant import check_delta
    from heliograph.errors import HeliographError

    composition = _parse(expr)
    check_delta(delta)
    width = _tolerance(tolerance)
    rows: list[dict[str, Any]] = []
    for method in accounting.methods():
        try:
            bracket = accounting.epsilon_at(composition, delta, method=method, tolerance=width)
        except HeliographError as error:
            rows.append({"method": method, "error": error.what + (f" ({error.why})" if error.why else "")})
            continue
        rows.append(bracket.to_json() | {"method": method})
    values = {"delta": delta, "expression": composition.text(), "accountants": rows}
    emit(_comparison(rows), values, as_json=as_json, quiet=quiet)


_COLUMNS = "{:<10} {:>12} {:>12} {:>12} {:>10} {:>9}"


def _comparison(rows: list[dict[str, Any]]) -> str:
    """A line of figures for each accountant, and below them what is to be said of some, at full width."""
    from heliograph.dp.accounting.result import shown_number

    lines = [_COLUMNS.format("method", "lower", "estimate", "upper", "width", "ms")]
    for row in rows:
        if "error" in row:
            lines.append(_COLUMNS.format(row["method"], "-", "-", "-", "-", "-"))
            continue
        low, high = row["lower"], row["upper"]
        finite = all(isinstance(value, float | int) for value in (low, high))
        width = f"{high - low:.2e}" if finite else "-"
        figures = (shown_number(value) for value in (low, row["estimate"], high))
        lines.append(_COLUMNS.format(row["method"], *figures, width, f"{1000 * row['seconds']:.1f}"))
    remarks = [(row["method"], row.get("error") or row["reason"]) for row in rows]
    lines += [f"{method}: {remark}" for method, remark in remarks if remark]
    return "\n".join(lines)


@dp.command()
@click.argument("expr")
@click.option("--png", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Where to write the plot.")
@click.option("--from", "smallest", type=_NUMBER, default=1e-12, show_default=True, help="The smallest delta.")
@click.option("--to", "largest", type=_NUMBER, default=1e-2, show_default=True, help="The largest delta.")
@click.option(
    "--points",
    type=click.IntRange(2, 200),
    default=25,
    show_default=True,
    help="At how many deltas to compute epsilon.",
)
@force_option
@output_options
def curve(
    expr: str, png: Path, smallest: float, largest: float, points: int, force: bool, as_json: bool, quiet: bool
) -> None:
    """Plot epsilon against delta.

    The plot shows the proved bracket, and the bound of Renyi accounting beside it.
    """
    from heliograph.dp.accounting.accountant import check_delta
    from heliograph.dp.accounting.curves import epsilon_curve, renyi_bounds
    from heliograph.dp.accounting.draw import draw_epsilon_curve
    from heliograph.dp.accounting.result import json_number, shown_number
    from heliograph.errors import ProgramError

    refuse_overwriting(png, force=force)
    composition = _parse(expr)
    check_delta(smallest)
    check_delta(largest)
    if not smallest < largest:
        raise ProgramError("the range of delta is empty", where="--from, --to")
    ratio = (largest / smallest) ** (1 / (points - 1))
    deltas = [smallest * ratio**i for i in range(points - 1)] + [largest]
    brackets = epsilon_curve(composition, deltas)
    renyi = renyi_bounds(composition, deltas)
    draw_epsilon_curve(brackets, png, composition.text(), renyi)
    rows = [
        {
            "delta": d,
            "lower": json_number(b.lower),
            "estimate": json_number(b.estimate),
            "upper": json_number(b.upper),
            "renyi": bound,
        }
        for d, b, bound in zip(deltas, brackets, renyi, strict=True)
    ]
    lines = [
        f"delta {row['delta']:.3g}: epsilon in [{shown_number(row['lower'])}, {shown_number(row['upper'])}]"
        for row in rows[:: max(len(rows) // 8, 1)]
    ]
    text = "\n".join([*lines, f"drawn to {png}"])
    emit(text, {"png": str(png), "curve": rows}, as_json=as_json, quiet=quiet)


@dp.command()
@click.argument("expr")
@click.option(
    "--png", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Where to write a plot of the curve."
)
@click.option(
    "--lowest", type=_NUMBER, default=0.01, show_default=True, help="The smallest rate that the Gaussian fit covers."
)
@click.option(
    "--points",
    type=click.IntRange(3, 400),
    default=48,
    show_default=True,
    help="At how many epsilons to compute delta.",
)
@_neighbors
@force_option
@output_options
def tradeoff(
    expr: str,
    png: Path | None,
    lowest: float,
    points: int,
    neighboring: Any,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compute the trade-off curve of an attacker's errors.

    Between proved bounds, with the mu-GDP curves around it.
    """
    from heliograph.dp.accounting.curves import gaussian_fit, gaussian_rates, trade_off
    from heliograph.dp.accounting.draw import draw_trade_off

    refuse_overwriting(png, force=force)
    composition = _parse(expr)
    curve = trade_off(composition, gaussian_rates(lowest).tolist(), points, neighboring=neighboring)
    fit = gaussian_fit(curve)
    if png is not None:
        draw_trade_off(curve, (fit.private[1], fit.leaky[0]), png, composition.text())
    rows = [
        {"false_positive_rate": rate, "lower": low, "upper": high}
        for rate, low, high in zip(curve.false_positive_rate, curve.lower, curve.upper, strict=True)
    ]
    lines = []
    for row in rows[:: max(len(rows) // 10, 1)]:
        rate, low, high = row.values()
        lines.append(f"false positives {rate:.4g}: false negatives at least {low:.6g}, and some attack has {high:.6g}")
    lines += [
        f"mu-GDP for rates in [{lowest:g}, {1 - lowest:g}] with mu in [{fit.private[0]:.4f}, {fit.private[1]:.4f}]",
        f"nowhere more private than mu in [{fit.leaky[0]:.4f}, {fit.leaky[1]:.4f}]",
    ]
    if png is not None:
        lines.append(f"drawn to {png}")
    fits = {"rates": [lowest, 1 - lowest], "private_mu": list(fit.private), "leaky_mu": list(fit.leaky)}
    values = {"curve": rows, **fits, "png": None if png is None else str(png)}
    emit("\n".join(lines), values, as_json=as_json, quiet=quiet)


def _parse(expr: str) -> Composition:
    from heliograph.dp.language import parse

    return parse(expr)


def _checked_tolerance(value: float) -> float:
    from heliograph.errors import ProgramError

    if not value > 0 or not math.isfinite(value):
        raise ProgramError(f"tolerance = {value!r} is not a positive number", where="--tolerance")
    return value


def _tolerance(value: float | None) -> Tolerance:
    from heliograph.dp.accounting import Tolerance

    return Tolerance() if value is None else Tolerance(absolute=_checked_tolerance(value), relative=0.0)
