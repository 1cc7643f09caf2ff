"""`heliograph dp`: argument parsing and printing; the work is in heliograph.dp."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from heliograph.dp.accounting import Bracket, Tolerance
    from heliograph.dp.composition import Composition

Command = TypeVar("Command", bound=Callable[..., Any])


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
    """Train privately; account for, calibrate and audit differential privacy.

    EXPR is a sum of mechanisms with counts, for example
    "sampled_gaussian(p=0.01, noise_multiplier=1.0) * 1000 + laplace(epsilon=0.1) * 5".
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
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_method = click.option(
    "--method", default="auto", show_default=True, help="auto, pld, exact, inversion, prv, rdp, gdp."
)
_neighbors = click.option(
    "--neighbors",
    "neighboring",
    type=click.Choice(["add_remove", "replace"]),
    default="add_remove",
    show_default=True,
    help="What neighbouring data sets differ in.",
)


def _tolerance_option(text: str) -> Callable[[Command], Command]:
    return click.option("--tolerance", type=_NUMBER, default=None, help=text)


@dp.command()
@click.argument("expr")
@click.option("--delta", type=_NUMBER, required=True, help="The delta at which epsilon is wanted.")
@_method
@_tolerance_option("Width of the bracket (default: the larger of 1e-3 and 1e-4 of epsilon).")
@_neighbors
@click.option(
    "--certificate",
    "certificate_",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write the bracket as a file that `heliograph dp verify`, or another program, can check.",
)
@_as_json
def epsilon(
    expr: str,
    delta: float,
    method: str,
    tolerance: float | None,
    neighboring: Any,
    certificate_: Path | None,
    as_json: bool,
) -> None:
    """Epsilon of a composition at a delta, between proved bounds."""
    from heliograph.dp import accounting

    if certificate_ is not None:
        from heliograph.dp.accounting.certificate import certificate, write_certificate

        found = certificate(_parse(expr), delta, neighboring=neighboring, tolerance=_tolerance(tolerance))
        write_certificate(certificate_, found)
    bracket = accounting.epsilon(
        _parse(expr), delta, method=method, tolerance=_tolerance(tolerance), neighboring=neighboring
    )
    _print(bracket, as_json)


@dp.command()
@click.argument("expr")
@click.option("--epsilon", "epsilon_", type=_NUMBER, required=True, help="The epsilon at which delta is wanted.")
@_method
@_tolerance_option("Width of the bracket as a share of delta (default 0.01).")
@_neighbors
@_as_json
def delta(expr: str, epsilon_: float, method: str, tolerance: float | None, neighboring: Any, as_json: bool) -> None:
    """Delta of a composition at an epsilon, between proved bounds."""
    from heliograph.dp import accounting
    from heliograph.dp.accounting import Tolerance

    width = Tolerance() if tolerance is None else Tolerance(delta_share=_checked_tolerance(tolerance))
    _print(
        accounting.delta(_parse(expr), epsilon_, method=method, tolerance=width, neighboring=neighboring),
        as_json,
    )


@dp.command()
@click.argument("report", type=click.Path(path_type=Path))
@click.option("--delta", type=_NUMBER, default=None, help="The delta, where the file names none.")
@_as_json
def verify(report: Path, delta: float | None, as_json: bool) -> None:
    """Recompute epsilon from the ledger of releases of a report, an Opacus history or a dp-accounting event.

    A certificate of `heliograph dp epsilon --certificate` is checked claim by claim: delta is computed at each end of its
    brackets.
    """
    from heliograph.dp.accounting.certificate import check, is_certificate
    from heliograph.dp.accounting.ledger import load_json
    from heliograph.dp.accounting.ledger import verify as verify_file

    data = load_json(report)
    if is_certificate(data):
        checked = check(data)
        if as_json:
            _print_json(
                {
                    "holds": checked.holds,
                    "claims": checked.claims,
                    "delta": checked.delta,
                    "problems": list(checked.problems),
                    "undecided": list(checked.undecided),
                }
            )
        else:
            for line in (*checked.problems, *checked.undecided):
                click.echo(f"  problem: {line}")
            click.echo(
                f"{checked.claims} claims at delta {checked.delta:g}: {'they stand' if checked.holds else 'NOT ALL STAND'}"
            )
        if not checked.holds:
            sys.exit(1)
        return
    found = verify_file(report, delta)
    if as_json:
        _print_json(found.to_json())
    else:
        _print(found.bracket, False)
        click.echo(f"{found.releases} kinds of release, accounting: {found.accounting}")
        for problem in found.problems:
            click.echo(f"  problem: {problem}")
        claimed = "nothing" if found.epsilon_claimed is None else f"epsilon {found.epsilon_claimed:g}"
        click.echo(f"claimed: {claimed}; {'it stands' if found.holds else 'IT DOES NOT STAND'}")
    if not found.holds:
        sys.exit(1)


@dp.command()
@click.option("--p", type=_NUMBER, default=1.0, show_default=True, help="Poisson sampling probability.")
@click.option("--steps", type=_Whole(), required=True, help="Number of steps.")
@click.option("--epsilon", "epsilon_", type=_NUMBER, required=True, help="Target epsilon.")
@click.option("--delta", type=_NUMBER, required=True, help="Target delta.")
@click.option("--with", "besides", default=None, help="Further mechanisms of the same run, as an expression.")
@_neighbors
@_as_json
def noise(
    p: float, steps: int, epsilon_: float, delta: float, besides: str | None, neighboring: Any, as_json: bool
) -> None:
    """The smallest noise multiplier of (sampled) Gaussian steps for a target."""
    from heliograph.dp.calibrate import noise_multiplier

    rest = _parse(besides) if besides is not None else None
    found = noise_multiplier(epsilon_, delta, p=p, steps=steps, besides=rest, neighboring=neighboring)
    if as_json:
        _print_json(found.to_json())
        return
    click.echo(f"noise multiplier {found.value:.6g}")
    _print(found.bracket, False)
    click.echo(
        "0.1 % less noise is proved not to be enough" if found.tight else "not shown to be within 0.1 % of the best"
    )


@dp.command()
@click.option("--batches", type=_Whole(), required=True, help="Batches of the epoch.")
@click.option("--noise", "noise_", type=_NUMBER, required=True, help="Noise multiplier.")
@click.option("--delta", type=_NUMBER, required=True, help="The delta at which epsilon is wanted.")
@_as_json
def shuffle(batches: int, noise_: float, delta: float, as_json: bool) -> None:
    """A lower bound on epsilon of one epoch of shuffled batches, beside the figure of Poisson sampling."""
    from heliograph.dp.shuffling import ShuffledEpoch

    epoch = ShuffledEpoch(batches, noise_)
    lower, poisson = epoch.epsilon_lower(delta), epoch.poisson(delta)
    if as_json:
        _print_json({"delta": delta, "epsilon_lower": lower, "poisson": poisson.to_json()})
        return
    click.echo(
        f"shuffled: epsilon is at least {_shown(lower)} at delta {delta:.3g}, for a record that is there or null"
    )
    click.echo(f"accounted as Poisson samples: [{_shown(poisson.lower)}, {_shown(poisson.upper)}]")
    if poisson.upper is not None and lower > poisson.upper:
        click.echo("that figure is no bound for shuffled batches")


@dp.command()
@click.argument("expr")
@click.option("--delta", type=_NUMBER, required=True, help="The delta at which epsilon is wanted.")
@_tolerance_option("Width of the bracket for those methods that can be asked for one.")
@_as_json
def compare(expr: str, delta: float, tolerance: float | None, as_json: bool) -> None:
    """A table of all accountants on one composition, with their times."""
    from heliograph.dp import accounting
    from heliograph.dp.accounting.accountant import check_delta
    from heliograph.errors import HeliographError

    composition = _parse(expr)
    check_delta(delta)
    width = _tolerance(tolerance)
    rows: list[dict[str, Any]] = []
    for method in accounting.methods():
        try:
            bracket = accounting.epsilon(composition, delta, method=method, tolerance=width)
        except HeliographError as error:
            rows.append({"method": method, "error": error.what + (f" ({error.why})" if error.why else "")})
            continue
        rows.append(bracket.to_json() | {"method": method})
    if as_json:
        _print_json({"delta": delta, "expression": composition.text(), "accountants": rows})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "lower", "estimate", "upper", "width", "ms", "remark")
    for row in rows:
        if "error" in row:
            table.add_row(row["method"], "", "", "", "", "", row["error"])
            continue
        low, high = row["lower"], row["upper"]
        finite = all(isinstance(value, float | int) for value in (low, high))
        table.add_row(
            row["method"],
            _shown(low),
            _shown(row["estimate"]),
            _shown(high),
            f"{high - low:.2e}" if finite else "",
            f"{1000 * row['seconds']:.1f}",
            row["reason"],
        )
    Console().print(table)


@dp.command()
@click.argument("expr")
@click.option("--png", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Where the picture goes.")
@click.option("--from", "smallest", type=_NUMBER, default=1e-12, show_default=True, help="The smallest delta.")
@click.option("--to", "largest", type=_NUMBER, default=1e-2, show_default=True, help="The largest delta.")
@click.option("--points", type=click.IntRange(2, 200), default=25, show_default=True)
@_as_json
def curve(expr: str, png: Path, smallest: float, largest: float, points: int, as_json: bool) -> None:
    """Draw epsilon against delta, with its bracket."""
    from heliograph.dp.accounting.accountant import check_delta
    from heliograph.dp.accounting.curves import epsilon_curve
    from heliograph.dp.accounting.draw import draw_epsilon_curve
    from heliograph.dp.accounting.result import json_number
    from heliograph.errors import ProgramError

    composition = _parse(expr)
    check_delta(smallest)
    check_delta(largest)
    if not smallest < largest:
        raise ProgramError("the range of delta is empty", where="--from, --to")
    ratio = (largest / smallest) ** (1 / (points - 1))
    deltas = [smallest * ratio**i for i in range(points - 1)] + [largest]
    brackets = epsilon_curve(composition, deltas)
    draw_epsilon_curve(brackets, png, composition.text())
    rows = [
        {
            "delta": d,
            "lower": json_number(b.lower),
            "estimate": json_number(b.estimate),
            "upper": json_number(b.upper),
        }
        for d, b in zip(deltas, brackets, strict=True)
    ]
    if as_json:
        _print_json({"png": str(png), "curve": rows})
        return
    for row in rows[:: max(len(rows) // 8, 1)]:
        click.echo(f"delta {row['delta']:.3g}: epsilon in [{_shown(row['lower'])}, {_shown(row['upper'])}]")
    click.echo(f"drawn to {png}")


@dp.command()
@click.argument("expr")
@click.option("--png", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Draw the curve.")
@click.option("--lowest", type=_NUMBER, default=0.01, show_default=True, help="The smallest rate of the Gaussian fit.")
@click.option(
    "--points", type=click.IntRange(3, 400), default=48, show_default=True, help="Epsilons that are asked for."
)
@_neighbors
@_as_json
def tradeoff(expr: str, png: Path | None, lowest: float, points: int, neighboring: Any, as_json: bool) -> None:
    """The least false-negative rate of an attacker at a false-positive rate, between proved bounds, and mu-GDP fits."""
    from heliograph.dp.accounting.curves import gaussian_fit, gaussian_rates, trade_off
    from heliograph.dp.accounting.draw import draw_trade_off

    composition = _parse(expr)
    curve = trade_off(composition, gaussian_rates(lowest).tolist(), points, neighboring=neighboring)
    fit = gaussian_fit(curve)
    if png is not None:
        draw_trade_off(curve, (fit.private[1], fit.leaky[0]), png, composition.text())
    rows = [
        {"false_positive_rate": rate, "lower": low, "upper": high}
        for rate, low, high in zip(curve.false_positive_rate, curve.lower, curve.upper, strict=True)
    ]
    if as_json:
        fits = {"rates": [lowest, 1 - lowest], "private_mu": list(fit.private), "leaky_mu": list(fit.leaky)}
        _print_json({"curve": rows, **fits, "png": None if png is None else str(png)})
        return
    for row in rows[:: max(len(rows) // 10, 1)]:
        rate, low, high = row.values()
        click.echo(f"false positives {rate:.4g}: false negatives at least {low:.6g}, and some attack has {high:.6g}")
    click.echo(
        f"mu-GDP for rates in [{lowest:g}, {1 - lowest:g}] with mu in [{fit.private[0]:.4f}, {fit.private[1]:.4f}]"
    )
    click.echo(f"nowhere more private than mu in [{fit.leaky[0]:.4f}, {fit.leaky[1]:.4f}]")
    if png is not None:
        click.echo(f"drawn to {png}")


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


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, allow_nan=False))


def _shown(value: float | str | None) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else f"{value:.6g}"


def _print(bracket: Bracket, as_json: bool) -> None:
    if as_json:
        _print_json(bracket.to_json())
        return
    row = bracket.to_json()
    given = f"delta {row['delta']:.3g}" if bracket.quantity == "epsilon" else f"epsilon {row['epsilon']:.6g}"
    click.echo(
        f"{bracket.quantity} in [{_shown(row['lower'])}, {_shown(row['upper'])}], "
        f"about {_shown(row['estimate'])}, at {given}"
    )
    for name, (low, high) in row["directions"].items():
        click.echo(f"  {name}: [{_shown(low)}, {_shown(high)}]")
    kind = "proved" if bracket.proved else "not proved"
    click.echo(
        f"  method {bracket.method} ({kind}), neighbours by {bracket.neighboring}, {1000 * bracket.seconds:.1f} ms"
    )
    if bracket.reason:
        click.echo(f"  {bracket.reason}")
