"""`heliograph approx`: argument parsing and printing; the work is in heliograph.approx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli.output import emit, force_option, output_options, refuse_overwriting

if TYPE_CHECKING:
    from heliograph.approx.result import ArgmaxPlan, Stage
    from heliograph.functions import Function
    from heliograph.ir import Program

_png = click.option(
    "--png",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Where to write a plot of function, approximation and error.",
)
_scale_bits = click.option(
    "--scale-bits", type=click.IntRange(20, 120), default=None, help="Bound rounding errors at this scale."
)


class _Functions(click.Group):
    """The constructions, and a command for every other name: a function, which its own file may register."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from heliograph.functions import names

        constructions = super().list_commands(ctx)
        return [*constructions, *(name for name in names() if name not in constructions)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The constructions with a line each; the other functions differ by their names alone."""
        from heliograph.functions import names

        constructions = super().list_commands(ctx)
        with formatter.section("Compositions"):
            commands = ((name, self.get_command(ctx, name)) for name in constructions)
            formatter.write_dl([(name, command.get_short_help_str(90)) for name, command in commands if command])
        with formatter.section("Functions, as in `heliograph approx gelu --help`"):
            formatter.write_text(", ".join(name for name in names() if name not in constructions))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or _function_command(cmd_name)


@click.group(cls=_Functions)
def approx() -> None:
    """Approximate functions by polynomials: cost and proven error.

    sign, argmax and softmax are compositions of several polynomials; every other function is one polynomial.
    """


def _function_command(name: str) -> click.Command:
    def command(**chosen: Any) -> None:
        _run_function(name, **chosen)

    for parameter in reversed(_parameters(name)):
        command = parameter(command)
    wrapped = command
    for option in reversed(_FUNCTION_OPTIONS):
        wrapped = option(wrapped)
    text = f"""A polynomial for {name}.

    With --range: the minimax polynomial on that interval. With --mu and --sigma: the least-squares polynomial for normally
    distributed inputs.
    """
    return click.command(name, help=text)(wrapped)


_FUNCTION_OPTIONS = (
    click.option("--degree", type=click.IntRange(1, 255), required=True, help="Degree of the polynomial."),
    click.option("--range", "range_", type=(float, float), default=None, metavar="LOW HIGH", help="The interval."),
    click.option("--mu", type=float, default=None, help="Mean of the input."),
    click.option("--sigma", type=float, default=None, help="Standard deviation of the input."),
    click.option(
        "--method",
        default=None,
        help="minimax or interpolation (need --range); gaussian, the compiler's fit (needs --range, --mu, --sigma); "
        "hermite, least squares on the whole line (needs --mu, --sigma). Without --range, gaussian means hermite.",
    ),
    click.option(
        "--from",
        "source",
        type=click.Path(path_type=Path),
        default=None,
        help="Python file to run first; it may register functions of your own.",
    ),
    _scale_bits,
    _png,
    force_option,
    output_options,
)
_KINDS: dict[str, Any] = {"float?": float, "str?": str}


def _parameters(name: str) -> list[Any]:
    """An option for each parameter of the function: --negative-slope of leaky_relu."""
    from heliograph.functions import known

    family = known(name)
    return [
        click.option(
            f"--{key.replace('_', '-')}", key, type=_KINDS[kind], default=None, help=f"The parameter {key} of {name}."
        )
        for key, kind in (family.parameters.items() if family is not None else ())
    ]


def _run_function(
    name: str,
    degree: int,
    range_: tuple[float, float] | None,
    mu: float | None,
    sigma: float | None,
    method: str | None,
    source: Path | None,
    scale_bits: int | None,
    png: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    **parameters: Any,
) -> None:
    refuse_overwriting(png, force=force)
    if source is not None:
        from heliograph.cli.compile import load_file

        load_file(source)
    from heliograph.functions import family

    given = {key: value for key, value in parameters.items() if value is not None}
    of = family(name).of(given)
    values, stage = _fitted(of, degree, range_, mu, sigma, method, scale_bits)
    values = {"function": name, **given, **values} | _stages([stage])
    if png is not None:
        from heliograph.cli.approx_plot import draw

        low, high = stage.low, stage.high
        if mu is not None and sigma is not None and values["method"] == "hermite":
            low, high = mu - 4 * sigma, mu + 4 * sigma
        draw(png, f"{name}, degree {degree}", low, high, of.evaluate, stage)
    _print(values, as_json, quiet)


def _fitted(
    of: Function,
    degree: int,
    range_: tuple[float, float] | None,
    mu: float | None,
    sigma: float | None,
    method: str | None,
    scale_bits: int | None,
) -> tuple[dict[str, Any], Stage]:
    from heliograph.approx.compositions.sign import DEFAULT_SCALE_BITS
    from heliograph.approx.fits import hermite
    from heliograph.approx.fits.fit import fit
    from heliograph.approx.proofs import proof
    from heliograph.approx.proofs.fit_proof import largest_error
    from heliograph.approx.result import Stage
    from heliograph.errors import ProgramError
    from heliograph.functions import checked_values

    if method is None:
        method = (of.method or "minimax") if mu is None else "gaussian"
    if method == "gaussian" and range_ is None:
        method = "hermite"
    scale_bits = scale_bits or DEFAULT_SCALE_BITS
    values: dict[str, Any] = {"method": method, "degree": degree}
    if method in ("gaussian", "hermite"):
        if mu is None or sigma is None:
            raise ProgramError(f"method {method} needs the input's distribution", hint="give --mu and --sigma")
        values |= {"mu": mu, "sigma": sigma}
    if method == "hermite":
        assert mu is not None
        assert sigma is not None
        made = hermite.least_squares(of.evaluate, mu, sigma, degree, of.kinks)
        stage = made.stage
        values |= {"mean_squared_error": made.mean_squared_error, "hermite_coefficients": list(made.hermite)}
    else:
        if range_ is None and of.low is not None and of.high is not None:
            range_ = (of.low, of.high)
        if range_ is None:
            raise ProgramError(f"method {method} needs an interval", hint="give --range low high")
        low, high = range_
        fitted = fit(lambda x: checked_values(of, x), low, high, degree, method, mu, sigma, of.kinks)
        stage = Stage(fitted.coefficients, low, high)
        error, proved = largest_error(stage.coefficients, low, high, of)
        values |= {"max_error": error, "proved": proved, "rms_error": fitted.rms_error}
    rounding = proof.rounding_error(stage.coefficients, scale_bits)
    values |= _costs(stage) | {"scale_bits": scale_bits, "rounding": rounding}
    return values, stage


@approx.command()
@click.option("--gap", type=float, required=True, help="The smallest |x| whose sign must be right.")
@click.option("--precision-bits", type=float, required=True, help="The result is within 2^-BITS of the sign.")
@click.option(
    "--family",
    default="best",
    show_default=True,
    help="Family of polynomials: iterated, hetal, minimax or best (the cheapest).",
)
@click.option(
    "--cost", default="depth", show_default=True, help="With --family best: minimize depth or multiplications."
)
@click.option(
    "--max-depth", type=click.IntRange(1), default=None, help="With --family best: use at most this many levels."
)
@_scale_bits
@_png
@force_option
@output_options
def sign(
    gap: float,
    precision_bits: float,
    family: str,
    cost: str,
    max_depth: int | None,
    scale_bits: int | None,
    png: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """The sign of x in [-1, 1], outside a gap around zero."""
    import numpy as np

    from heliograph.approx.compositions.sign import DEFAULT_SCALE_BITS
    from heliograph.approx.compositions.sign import sign as make

    scale_bits = scale_bits or DEFAULT_SCALE_BITS
    refuse_overwriting(png, force=force)
    plan = make(gap, precision_bits, family, cost=cost, max_depth=max_depth, scale_bits=scale_bits)
    values: dict[str, Any] = {"family": family, "gap": gap, "precision_bits": precision_bits}
    if plan.dq is not None:
        values |= {"dq": plan.dq, "dp": plan.dp}
    values |= {"degrees": list(plan.degrees), "closeness_bits": plan.closeness_bits} | _costs(plan)
    values |= {"error": plan.error, "rounding": plan.rounding, "scale_bits": plan.scale_bits} | _stages(plan.stages)
    if png is not None:
        from heliograph.cli.approx_plot import draw

        draw(png, f"sign, gap {gap:g}, {family}", -1.0, 1.0, np.sign, plan, near=gap)
    _print(values, as_json, quiet)


@approx.command()
@click.option("--classes", type=int, required=True, help="Number of values in a row.")
@click.option(
    "--gap", type=float, required=True, help="Smallest difference between the two largest values, scaled to [0, 1]."
)
@click.option(
    "--count", type=int, default=1, show_default=True, help="Number of results that will be summed and rounded."
)
@click.option("--family", default="best", show_default=True, help="Family of polynomials: iterated or best.")
@_scale_bits
@_png
@force_option
@output_options
def argmax(
    classes: int,
    gap: float,
    count: int,
    family: str,
    scale_bits: int | None,
    png: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """The one-hot argmax of a row, by comparing all pairs of values."""
    from heliograph.approx.compositions.argmax import argmax as make
    from heliograph.approx.compositions.sign import DEFAULT_SCALE_BITS

    refuse_overwriting(png, force=force)
    plan = make(classes, gap, count, family, scale_bits=scale_bits or DEFAULT_SCALE_BITS)
    second = plan.sign2.stages if plan.sign2 else ()
    values: dict[str, Any] = {"family": family, "classes": classes, "gap": gap, "count": count}
    if family == "iterated":
        values |= {"dq1": plan.sign1.dq, "dp1": plan.sign1.dp}
        values |= {"dq2": getattr(plan.sign2, "dq", 0), "dp2": getattr(plan.sign2, "dp", 0)}
    values |= {"degrees1": list(plan.sign1.degrees), "degrees2": [stage.degree for stage in second]}
    values |= {"psi1": plan.psi1, "phi2": plan.phi2, "psi2": plan.psi2} | _costs(plan)
    values |= {"max_count": plan.max_count, "max_count_at_scale": plan.max_count_at_scale}
    values |= {"scale_bits": plan.sign1.scale_bits, "score_scale": plan.score_scale, "score_shift": plan.score_shift}
    made = _stages((*plan.sign1.stages, *second))
    for place, stage in enumerate(made["stages"]):
        stage["part"] = "sign1" if place < len(plan.sign1.stages) else "sign2"
    if png is not None:
        _draw_argmax(png, plan)
    _print(values | made, as_json, quiet)


def _draw_argmax(png: Path, plan: ArgmaxPlan) -> None:
    """The first entry of rows whose first value passes the second, the others at zero."""
    import numpy as np

    from heliograph.cli.approx_plot import draw

    def entry(difference: Any) -> Any:
        rows = np.zeros((len(difference), plan.classes))
        rows[:, 0], rows[:, 1] = 0.5 + difference / 2, 0.5 - difference / 2
        return plan(rows)[:, 0]

    reach = min(1.0, 50 * plan.gap)
    title = f"argmax of {plan.classes}, {plan.family}: first entry by difference, exact once it is rounded"
    draw(png, title, -reach, reach, lambda d: (np.sign(d) + 1) / 2, entry, near=plan.gap, threshold=0.5)


@approx.command()
@click.option("--columns", type=int, required=True, help="Number of values in a row.")
@click.option("--range", "range_", type=float, required=True, help="The largest absolute value of the inputs.")
@click.option(
    "--samples", type=click.IntRange(1), default=100_000, show_default=True, help="Random rows to measure the error on."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random rows.")
@click.option("--max-error", type=float, default=None, help="The largest proven error.")
@_scale_bits
@_png
@force_option
@output_options
def softmax(
    columns: int,
    range_: float,
    samples: int,
    seed: int,
    max_error: float | None,
    scale_bits: int | None,
    png: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """The softmax of a row: its cost, and its error on random rows."""
    from heliograph.approx.compositions import softmax as package
    from heliograph.approx.compositions.sampling import CHUNK, sampled_error, softmax_values
    from heliograph.interpret import interpret_batch

    refuse_overwriting(png, force=force)
    plan = package.softmax(
        columns,
        range_,
        max_error=max_error or package.DEFAULT_ERROR,
        scale_bits=scale_bits or package.DEFAULT_SCALE_BITS,
    )

    def evaluate(rows: Any) -> Any:
        """The nodes that the compiler writes, on rows."""
        return interpret_batch(plan.program, rows[..., None])[0][..., 0]

    found = sampled_error(evaluate, columns, range_, samples, seed)
    values: dict[str, Any] = {"columns": columns, "range": range_}
    values |= {"max_error": found.max_error, "mean_error": found.mean_error} | _costs(plan)
    values |= {"proved_error": plan.error, "rounding": plan.rounding, "scale_bits": plan.scale_bits}
    values |= {"samples": found.rows, "seed": seed, "boxes": list(found.boxes)}
    if png is not None:
        import numpy as np

        from heliograph.cli.approx_plot import draw

        def first(x: Any, value: Callable[[Any], Any]) -> Any:
            rows = np.zeros((len(x), columns))
            rows[:, 0] = x
            return np.concatenate([value(part)[:, 0] for part in np.array_split(rows, len(rows) // CHUNK + 1)])

        reach = min(range_, 16.0)
        draw(
            png,
            f"softmax of (x, 0, ...), {columns} columns",
            -reach,
            reach,
            lambda x: first(x, softmax_values),
            lambda x: first(x, evaluate),
        )
    values |= _stages([plan.polynomial])
    values |= {"nodes": _nodes(plan.program)}
    _print(values, as_json, quiet)


def _nodes(program: Program) -> list[dict[str, Any]]:
    """The nodes in order, operands by their numbers, attributes with the values of constants."""
    from heliograph.ir import ConstantName

    numbers = {node: number for number, node in enumerate(program.nodes)}
    return [
        {"op": node.op, "operands": [numbers[operand] for operand in node.inputs]}
        | {
            key: program.array(value).tolist() if isinstance(value, ConstantName) else value
            for key, value in node.attrs.items()
        }
        for node in program.nodes
    ]


def _costs(plan: Any) -> dict[str, Any]:
    return {
        "depth": plan.depth,
        "multiplications": plan.multiplications,
        "plaintext_multiplications": plan.plaintext_multiplications,
    }


def _stages(stages: Sequence[Stage]) -> dict[str, Any]:
    """All stages; where there is one, its coefficients, basis and interval stand at the top too."""
    made = {"stages": [stage.as_json() for stage in stages]}
    if len(stages) != 1:
        return made
    return {key: made["stages"][0][key] for key in ("coefficients", "basis", "interval")} | made


_LISTS = {"stages", "nodes", "coefficients", "hermite_coefficients"}


def _print(values: dict[str, Any], as_json: bool, quiet: bool) -> None:
    emit("" if as_json or quiet else _table(values), values, as_json=as_json, quiet=quiet)


def _table(values: dict[str, Any]) -> str:
    """A small table of what is not a long list."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, value in values.items():
        if key not in _LISTS:
            shown = f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
            table.add_row(key.replace("_", " "), shown)
    out = StringIO()
    Console(file=out, width=100).print(table)
    return out.getvalue().rstrip()
