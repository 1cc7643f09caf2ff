"""The bill: the costs and errors of an artifact, before anything is encrypted."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from heliograph.ckks.ring import sparse_log_q
from heliograph.ckks.security import SPARSE_WEIGHT, sparse_max_log_q
from heliograph.ckks.sharing import (
    DISTANCE_BITS,
    SHARE_BITS,
    SHARE_MARGIN,
    SHARE_RESULTS,
    flooding_std,
    sharing_cost_bits,
)
from heliograph.ir.program import Comparison
from heliograph.machine import available_bytes
from heliograph.records import key_of, to_json
from heliograph.report.figures import (
    Bootstrapping,
    Certified,
    CurvePoint,
    Figures,
    KeyLoading,
    LayerDegree,
    LowerChain,
    Predicted,
    Unit,
    UnseenInputs,
    figure_of,
)
from heliograph.report.markup import badge, fragment, table, tiles
from heliograph.report.terms import hovering, named, worded
from heliograph.rounding import upward_text
from heliograph.texts import number_of

SHARING = (
    "Decrypted values carry an error that depends on the secret key: do not share them with people you do not trust. "
    f"decrypt(share=True) hides that error under noise first, which costs {sharing_cost_bits():.1f} bits of precision for "
    f"one value, and half a bit more each time their number doubles. For {SHARE_RESULTS} results under one key this gives "
    f"{SHARE_BITS} bits of statistical (c,s)-security (a statistical distance of at most 2^-{DISTANCE_BITS}), "
    f"provided that the server computed what it should and that the error is at most {SHARE_MARGIN:.0f} times the predicted "
    "one, which is an estimate."
)
BOOTSTRAPPED = (
    "Decrypted values carry an error that depends on the secret key: do not share them with people you do not trust. "
    "decrypt(share=True) refuses them: this artifact bootstraps, and a bootstrap's error is known from measurements only."
)
_WIDTH = 118
# The most rows of the first screen, and its last line.
_SHORT = 8
FULL = "All figures: report.full(), heliograph inspect --full; what a name means: heliograph explain output error"


class HasFigures(Protocol):
    """A source of figures for the measured column, by the names of the report's `predicted`."""

    def figures(self) -> Mapping[str, Any]: ...


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def seconds_text(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2g} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def error_text(error: float, magnitude: float | None = None) -> str:
    """An error in words, with its share of `magnitude`, the largest output."""
    if error <= 0:
        return "0"
    if not magnitude:
        return f"{error:.2g}"
    share = error / magnitude
    if share < 1e-4:
        text = f"{share:.2g}"
    else:
        text = f"{100 * share:.2g}%" if share < 0.995 else f"{share:.0%}"
    return f"{error:.2g} ({text} of {magnitude:.3g})"


def is_composite(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of the range table is a composition of several polynomials."""
    return entry["method"] == "composite" or len(entry.get("degrees", ())) > 1


def degrees_text(entry: Mapping[str, Any]) -> str:
    """The degrees of an entry of the range table: "degree 7", or a composition's degrees in order."""
    degrees = entry.get("degrees", [entry["degree"]])
    return f"degree{'s' * (len(degrees) > 1)} {', '.join(map(str, degrees))}"


def largest_error_text(entry: Mapping[str, Any]) -> str:
    """The largest error of an entry of the range table, with its source: a proof, or evaluation on a grid."""
    if entry.get("proved_error") is not None:
        return f"error at most {upward_text(float(entry['proved_error']))} (proved)"
    return f"error {upward_text(float(entry['max_error']))} (seen)"


def figure_text(value: Any, unit: Unit, magnitude: float | None = None) -> str:
    """A figure of a table in words; empty if it is unknown. `magnitude` is the largest output."""
    if value is None:
        return ""
    if unit == "s":
        return seconds_text(value)
    if unit == "ms":
        return seconds_text(value / 1e3)
    if unit == "bytes":
        return bytes_text(value)
    if unit == "error":
        return error_text(value, magnitude)
    if unit == "share":
        return f"{value:.0%}"
    return f"{value:.1f}" if unit == "bits" else str(value)


def _unbounded_text(ms: float) -> str:
    return f"costs time: a run without it would take about {ms / 1e3:.3g} s"


def _sparse_text(figures: Figures) -> str:
    """The sparse secret of bootstraps, with the published limit for it."""
    if not figures.bootstraps or figures.security_bits is None:
        return ""
    log_q, most = sparse_log_q(figures.first_mod_bits), sparse_max_log_q(figures.ring_dim.bit_length() - 1)
    return f"; bootstraps begin under one of weight {SPARSE_WEIGHT}, modulo {log_q} of at most {most} bits (eprint 2026/279)"


def _bootstraps_text(count: int, found: Bootstrapping, lower: Sequence[LowerChain]) -> str:
    text = (
        f"{count} of {', '.join(map(str, found.slots))} slots, from level {found.from_level} to level "
        f"{found.to_level} at most; tables of {bytes_text(found.table_bytes)}; each adds an error of "
        f"deviation 2^{math.log2(found.deviation):.1f} to a value of size one"
    )
    for chain in lower:
        if chain.bootstraps:
            text += (
                f"; {chain.bootstraps} of them in the part of {chain.level} levels, to level {chain.to_level} at most"
            )
    if found.activations:
        all_of_them = "all" if found.activations == count else f"{found.activations} of them"
        text += f"; {all_of_them} compute the activation that follows"
    if found.paired_slots:
        slots = ", ".join(map(str, found.paired_slots))
        text += f"; those of {slots} slots refresh up to two values at once, with twice that deviation"
    return text


def _comparison_text(found: Comparison) -> str:
    """The comparison of the program with the model that it was traced from, in words."""
    if not found.samples:
        return "the traced program was not compared with it (check=False)"
    ties = f"; {found.ties} with an answer that rounding decides were left out" if found.ties else ""
    return (
        f"the traced program agrees with it on {number_of(found.samples, 'sample')}, alone and in batches, to "
        f"{found.difference:.0e} of the largest output{ties}"
    )


def _unseen_text(unseen: UnseenInputs) -> str:
    if not unseen.apart:
        return "nothing is known of how often one leaves a range: no sample could be held out"
    return (
        f"leave a range at a rate of at most {unseen.rate_bound:.2g} ({unseen.confidence:.0%} confidence; {unseen.left} of "
        f"{unseen.apart} held-out samples did)"
    )


# The titles of `degree_cells` and `curve_cells`.
DEGREE_TITLES = ("layer", "degree", "rms error", "impact", "share of the loss", "levels", "chain", "time")
CURVE_TITLES = ("predicted time", "predicted loss", "classes changed", "")


def degree_cells(row: LayerDegree) -> tuple[str, ...]:
    """A row of the table of degrees in words, with "-" for unknown values."""
    return (
        row.layer or row.function,
        str(row.degree),
        f"{row.rms_error:.2g}",
        "-" if row.impact is None else f"{row.impact:.2g}",
        "-" if row.share is None else share_text(row.share),
        str(row.levels),
        str(row.chain),
        seconds_text(row.ms / 1e3),
    )


def degree_rows(rows: Sequence[LayerDegree]) -> list[tuple[str, ...]]:
    """The table of degrees, titles first, without columns that are entirely unknown."""
    cells = [degree_cells(row) for row in rows]
    known = [place for place in range(len(DEGREE_TITLES)) if any(row[place] != "-" for row in cells)]
    return [tuple(row[place] for place in known) for row in (DEGREE_TITLES, *cells)]


def curve_cells(point: CurvePoint) -> tuple[str, ...]:
    """A point of an allocation's curve in words, with "-" if nothing was measured."""
    measured = "-" if point.measured is None else share_text(point.measured)
    return seconds_text(point.ms / 1e3), f"{point.loss:.2g}", measured, "chosen" if point.chosen else ""


def shortened(text: str, width: int) -> str:
    """A text on one line of at most this width, cut between words."""
    return textwrap.shorten(text, width, placeholder=" ...")


def round_text(value: float) -> str:
    """A number with two digits, up to a million without an exponent."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:.0f}" if 10 <= rounded < 1e6 else f"{rounded:.2g}"


def share_text(share: float) -> str:
    """A share with at most two digits: "12%", "0.5%", "0"."""
    return "0" if share == 0 else f"{100 * share:.2g}%" if share < 0.995 else f"{share:.0%}"


def allocation_text(figures: Figures) -> str:
    """The allocation of degrees in words, with the program's actual degrees; empty if there was none."""
    found = figures.allocation
    if found is None:
        return ""
    degrees = sorted({row.degree for row in figures.degrees if row.impact is not None})
    spread = " to ".join(map(str, dict.fromkeys((degrees[0], degrees[-1])))) + " by layer" if degrees else "none"
    changed = round(found.measured * found.samples)
    return (
        f"allocated ({found.mode}): {spread}; the class changes on {changed} of {found.samples} samples "
        f"({share_text(found.allowed)} allowed)"
    )


def certificate_text(found: Certified) -> str:
    """The certificate of the answers, with its probability of error, in words."""
    radius = {"l2": "an l2 radius", "l1": "an l1 radius", "fair": "a radius, in features divided by theta,"}[found.kind]
    return (
        f"{radius} of {found.radius:.3g} where {found.target} of {found.n} votes agree; wrong with a probability of at most "
        f"xi = {upward_text(found.xi)} ({found.alpha:g} sampling, {upward_text(found.beta_range)} ranges, "
        f"{upward_text(found.beta_difference)} ties, on {found.held_out} held-out inputs, {found.confidence:.0%} confidence)"
    )


def columns_text(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines, the first cell to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if place else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


@dataclass(frozen=True)
class Report:
    """Predicted figures of one artifact; `to_dict()` is the JSON, `str()` the table.

    `predicted_max_abs_error` is relative to the original network on the calibration samples (or random ones): the
    measured error of the polynomials plus the simulated error of encryption. `scheme_error` is the latter alone.
    """

    figures: Figures
    measured: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def values(self) -> Mapping[str, Any]:
        """The predicted figures as JSON values, by name."""
        found: dict[str, Any] = to_json(self.figures)
        return found

    def with_measured(self, measured: HasFigures | Mapping[str, Any]) -> Report:
        """The same report with a measured column, from `tools.measure.Measurement` or from figures by name."""
        figures = measured if isinstance(measured, Mapping) else measured.figures()
        return replace(self, measured={**self.measured, **figures})

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.values,
            "measured": dict(self.measured),
            "warning": self.sharing(),
            "sharing_cost_bits": sharing_cost_bits(),
        }

    def __repr__(self) -> str:
        f, predicted = self.figures, self.figures.predicted
        security = "INSECURE" if f.security_bits is None else f"{f.security_bits} bits"
        return (
            f"<Report of {f.name!r}: {security}, N = {f.ring_dim}, {number_of(f.levels, 'level')}, evaluation "
            f"{figure_text(predicted.evaluate_ms, 'ms')}, keys {bytes_text(predicted.evaluation_key_bytes)}, error "
            f"{error_text(predicted.max_abs_error, self._magnitude)}>"
        )

    def _repr_html_(self) -> str:
        """The view in a notebook: the tiles, the table of figures and the compiler's decisions."""
        parts = (
            self.badge(),
            self.sentence(),
            tiles([(value, named(label)) for value, label in self.tiles()]),
            self.figures_table(),
            table(("what the compiler chose", ""), hovering(self.rows())),
        )
        return fragment(f"{self.figures.name}: the bill", parts)

    def badge(self) -> str:
        """The security as an HTML fragment."""
        bits = self.figures.security_bits
        return badge("INSECURE: for tests only" if bits is None else f"{bits} bits, classical", bits is None)

    def tiles(self) -> list[tuple[str, str]]:
        """The most important figures in words, each with its label."""
        f, predicted = self.figures, self.figures.predicted
        error = ("output error", f"{predicted.max_abs_error:.2g}")
        if predicted.relative_error is not None:
            share = share_text(predicted.relative_error)
            error = (f"output error: {predicted.max_abs_error:.2g} of {self._magnitude:.3g}", share)
        agreement = f.class_agreement
        return [
            (error[1], error[0]),
            (f"{agreement.agree} of {agreement.samples}", "samples keep their class")
            if agreement
            else (bytes_text(f.ciphertext_bytes), "encrypted input"),
            (seconds_text(predicted.evaluate_ms / 1e3), "an evaluation, predicted"),
            (bytes_text(predicted.evaluation_key_bytes), "evaluation keys"),
            (bytes_text(predicted.server_peak_bytes), "server's memory"),
            (f"2^{int(f.ring_dim).bit_length() - 1}", "ring dimension"),
            (str(f.levels), "levels"),
            (str(f.key_switches), "key switches"),
        ]

    def figures_table(self) -> str:
        """Predicted and measured figures as an HTML table."""
        header = ("", "predicted", "measured") if self.measured else ("", "predicted")
        rows = [row if self.measured else row[:2] for row in self.figure_rows()]
        return table(header, hovering([*rows, *((label, "", text) for label, text in self.circumstances())]))

    def sentence(self) -> str:
        """What a run takes and how often the class is the model's, in a sentence of HTML; amber where classes differ."""
        f, predicted = self.figures, self.figures.predicted
        parts = [
            f"A run takes about {seconds_text(predicted.evaluate_ms / 1e3)} and {bytes_text(predicted.server_peak_bytes)} "
            f"of the server's memory; each client sends {bytes_text(predicted.sent_key_bytes)} of keys once."
        ]
        if (agreement := f.class_agreement) is not None:
            text = worded(f"The class {self.class_agreement()}.")
            parts.append(f"<span class=amber>{text}</span>" if agreement.agree < agreement.samples else text)
        return f"<p class=verdict>{' '.join(parts)}</p>"

    def rows(self) -> list[tuple[str, str]]:
        """The compiler's decisions, line by line."""
        f = self.figures
        if f.security_bits is None:
            security = "INSECURE: compiled without security, for tests only"
        else:
            security = f"{f.security_bits} bits classical (log PQ {f.log_pq:.1f} of at most {f.max_log_pq})"
        kinds = ", ".join(f"{number} {kind}" for kind, number in f.operations_by_kind.items())
        return [
            ("security", security),
            ("secret", f.secret_distribution + _sparse_text(f)),
            ("ring", f"N = {f.ring_dim}, {f.slots} slots, {f.digits} key-switching digits"),
            (
                "chain",
                f"{number_of(f.levels, 'level')}: first modulus {f.first_mod_bits} bits, "
                f"scale {f.scale_bits} bits, {number_of(f.special_primes, 'special prime')}",
            ),
            ("depth", str(f.depth)),
            *([("degrees", allocation_text(f))] if f.allocation else []),
            *([("certificate", certificate_text(f.certificate))] if f.certificate else []),
            *([("samples", f"{f.batch} at once")] if f.batch > 1 else []),
            *(("client sends", f"for {name}, {made}") for name, made in f.encodings.items()),
            ("operations", kinds),
            (
                "rotations",
                f"{f.rotations} with {number_of(f.rotation_keys, 'key')} of {self._key_size()}",
            ),
            *([("keys in memory", self._loading_text(f.key_loading))] if f.key_loading else []),
            *([("memory bound", _unbounded_text(f.unbounded_ms))] if f.unbounded_ms else []),
            ("key switches", str(f.key_switches)),
            *(
                [("bootstraps", _bootstraps_text(f.bootstraps, f.bootstrapping, f.lower_chains))]
                if f.bootstrapping and f.bootstraps
                else []
            ),
            ("ciphertext products", str(f.ciphertext_products)),
            ("plaintext products", str(f.plaintext_products)),
            ("ciphertexts", f"{bytes_text(f.ciphertext_bytes)} in, {bytes_text(f.output_bytes)} out"),
            ("outputs", self._outputs()),
            *([("model", _comparison_text(f.comparison))] if f.comparison else []),
            *([("new inputs", _unseen_text(f.unseen))] if f.unseen else []),
            *([("polynomials", self.polynomials_error())] if f.ranges and f.given_samples is not None else []),
            *([("class", self.class_agreement())] if f.class_agreement else []),
        ]

    @property
    def _magnitude(self) -> float:
        """The client's largest output on the samples."""
        f = self.figures
        return f.output_magnitude if f.largest_output is None else f.largest_output

    def _key_size(self) -> str:
        f = self.figures
        size = bytes_text(f.rotation_key_bytes)
        parts = [
            f"{chain.keys} of {bytes_text(chain.key_bytes)} for levels up to {chain.level}" for chain in f.lower_chains
        ]
        return f"{size}, or smaller: {', '.join(parts)}" if parts else size

    def _loading_text(self, loading: KeyLoading) -> str:
        text = f"{bytes_text(loading.resident_bytes)} of {bytes_text(self.figures.evaluation_key_bytes)}"
        if not loading.loads:
            return f"{text}, read once, from a folder"
        return (
            f"{text}; {loading.loads:.0f} keys ({bytes_text(loading.loaded_bytes)}) are read again in every run, "
            f"{loading.ms / 1e3:.3g} s of it"
        )

    def _outputs(self) -> str:
        f = self.figures
        ranges = [
            f"{name} within [{possible.low:.4g}, {possible.high:.4g}] ({possible.range_source})"
            # In the order in which a file keeps them.
            for name, possible in sorted(f.output_ranges.items())
        ]
        scaled = [
            f"the client multiplies {name} by {possible.scale:.0f} after decryption"
            for name, possible in sorted(f.output_ranges.items())
            if possible.scale is not None
        ]
        finished = [
            f"the client takes the {possible.finish} of {name} after decryption, exactly"
            for name, possible in sorted(f.output_ranges.items())
            if possible.finish is not None
        ]
        return "; ".join([f"up to {self._magnitude:.3g} on the samples", *ranges, *scaled, *finished])

    def polynomials_error(self) -> str:
        """The polynomials' error in words: on held-out samples, and on all calibration samples."""
        f = self.figures
        if f.given_error is None or f.given_samples is None:
            return ""
        given = f"by {f.given_error:.2g} at most on all {f.given_samples} that were given"
        if not f.errors_apart:
            return f"off {given}"
        return f"off by {f.approximation_error:.2g} at most on {f.error_samples} held-out samples, {given}"

    def class_agreement(self) -> str:
        """The share of samples on which the class agrees with the network's, in words; empty without classes."""
        entry = self.figures.class_agreement
        if not entry:
            return ""
        samples = "held-out samples" if self.figures.errors_apart else "samples"
        return f"agrees with the model on {entry.agree} of {entry.samples} {samples}"

    def predicted_ms_by_layer(self) -> dict[str, float]:
        """Predicted milliseconds of each layer, in program order."""
        return {row.layer: row.ms for row in self.figures.predicted_ms_by_layer}

    def figure_rows(self) -> list[tuple[str, str, str]]:
        """Name, predicted value and measured value of each figure that a run measures; unknown values are empty."""
        found = []
        for entry in fields(Predicted):
            about, key = figure_of(entry), key_of(entry)
            predicted, measured = getattr(self.figures.predicted, entry.name), self.measured.get(key)
            if about.label and (predicted is not None or key in self.measured):
                magnitude = self._magnitude
                text = figure_text(predicted, about.unit, magnitude)
                found.append((about.label, text, figure_text(measured, about.unit, magnitude)))
        return found

    def circumstances(self) -> list[tuple[str, str]]:
        """The conditions of the measured column: the machine and its load."""
        found = []
        if "machine" in self.measured:
            found.append(("machine", str(self.measured["machine"])))
        if "load_average" in self.measured:
            found.append(("load average", f"{self.measured['load_average']:.2f}"))
        return found

    def range_lines(self) -> list[str]:
        """The interval of each layer and its source, one line each, and the share of proved intervals."""
        f, lines = self.figures, []
        for entry in f.ranges:
            source = entry["source"]
            if source == "observed":
                source += f" on {entry['samples']} samples, widened by {entry['margin']:.0%}"
            if is_composite(entry):
                construction = f"{entry['function']} by {degrees_text(entry)}"
                if entry.get("gap") is not None:
                    construction += f", gap {entry['gap']:.3g} ({entry['gap_source']})"
                if entry.get("moved") is not None:
                    construction += f", threshold moved by {entry['moved']:.3g} away from values that equal it"
            else:
                construction = f"{degrees_text(entry)} ({entry['method']})"
            lines.append(
                f"{entry['layer'] or entry['function']} ({entry['location']}): "
                f"[{entry['low']:.4g}, {entry['high']:.4g}] {source}"
                + (f", per-unit ranges, the smallest {entry['smallest_unit']:.2g}" if "units" in entry else "")
                + f"; {construction}, {largest_error_text(entry)}"
            )
        if f.ranges:
            proved = sum(entry["source"] == "proved" for entry in f.ranges)
            bounds = sum(entry.get("proved_error") is not None for entry in f.ranges)
            lines.append(
                f"proved: {proved} of {len(f.ranges)} ranges ({f.proved_share:.0%}), "
                f"{bounds} of {len(f.ranges)} errors on them"
            )
        else:
            lines.append("no polynomial: there is no range to leave")
        return lines

    def sharing(self) -> str:
        """Whether decrypted values may be passed on, and the cost of doing so for this artifact."""
        if self.figures.bootstraps:
            return BOOTSTRAPPED
        std = flooding_std(self.figures.scheme_error)
        reach = self.figures.output_magnitude
        if std > reach / 2:
            return (
                f"{SHARING} Here that noise ({round_text(std)} in one value) would swamp the outputs (at most {reach:.3g}), "
                "so share=True will refuse; raise precision_bits."
            )
        return f"{SHARING} Here that noise is {round_text(std)} in one value; the outputs are at most {reach:.3g}."

    def work_lines(self) -> list[str]:
        """Rotations, key switches, products with plaintexts and bootstraps by layer and in total, as a table."""
        work = self.figures.work_by_layer
        rows = [(row.layer, row.rotations, row.key_switches, row.plaintext_products, row.bootstraps) for row in work]
        rows.append(
            (
                "all",
                sum(row.rotations for row in work),
                sum(row.key_switches for row in work),
                sum(row.plaintext_products for row in work),
                sum(row.bootstraps for row in work),
            )
        )
        width = max(len(row[0]) for row in rows)
        titles = f"{'':<{width}}  rotations  key switches  plaintext products  bootstraps"
        return [titles, *(f"{row[0]:<{width}}  {row[1]:>9}  {row[2]:>12}  {row[3]:>18}  {row[4]:>10}" for row in rows)]

    def degree_lines(self) -> list[str]:
        """The table of degrees by layer; if they were allocated, also the curve behind their choice."""
        f = self.figures
        if not f.degrees:
            return ["no single polynomial: there is no degree to choose"]
        lines = columns_text(degree_rows(f.degrees))
        if f.allocation is not None:
            lines += ["", allocation_text(f)]
            lines += columns_text([CURVE_TITLES, *map(curve_cells, f.allocation.curve)])
        return lines

    def depth_lines(self) -> list[str]:
        """The users of levels along the longest path, and changes that would save one."""
        f, lines = self.figures, []
        for entry in f.depth_by_line:
            lines.append(f"{entry.levels}  {entry.layer or entry.what} ({entry.location}): {entry.what}")
        if f.savings:
            lines.append("what would save a level:")
            lines += [f"   {text}" for text in self.saving_texts()]
        else:
            lines.append("no lower degree and no fusion saves a level")
        return lines

    def saving_texts(self) -> list[str]:
        """Changes that would save a level, one sentence each, with the locations of the changed layers."""
        return [
            f"{saving.change} ({', '.join(dict.fromkeys(saving.locations))}): depth {saving.depth}, approximation error "
            f"{saving.approximation_error:.2g} instead of {self.figures.approximation_error:.2g}"
            for saving in self.figures.savings
        ]

    def __str__(self) -> str:
        """Ten lines: the verdict for this machine, the most important figures, and where the others are."""
        rows = self.short_rows(available_bytes())
        width = max(len(name) for name, _ in rows)
        lines = [f"{self.figures.name}: {self.verdict(available_bytes())}"]
        lines += [f"  {name:<{width}}  {shortened(text, _WIDTH - width - 4)}" for name, text in rows]
        return "\n".join([*lines, f"  {FULL}"])

    def verdict(self, available: int | None) -> str:
        """Security, and whether a run fits a machine with this much free memory (None if unknown), and its time."""
        f, predicted = self.figures, self.figures.predicted
        security = "INSECURE, for tests only" if f.security_bits is None else f"{f.security_bits} bits of security"
        each = seconds_text(predicted.evaluate_ms / 1e3) + (f" for {f.batch} samples" if f.batch > 1 else " a sample")
        if available is None:
            return f"{security}; {each}"
        if predicted.server_peak_bytes > available:
            return (
                f"{security}; does NOT run here: it needs {bytes_text(predicted.server_peak_bytes)} of memory, and "
                f"{bytes_text(available)} are free"
            )
        return f"{security}; runs here, in about {each}"

    def short_rows(self, available: int | None = None) -> list[tuple[str, str]]:
        """The rows of the first screen; `available` is the free memory of the machine."""
        f, predicted = self.figures, self.figures.predicted
        measured = self.measured.get("evaluate_ms")
        evaluation = f"{seconds_text(predicted.evaluate_ms / 1e3)} predicted, on an idle machine"
        if measured is not None:
            evaluation = (
                f"{seconds_text(predicted.evaluate_ms / 1e3)} predicted, {seconds_text(measured / 1e3)} measured"
            )
        if predicted.evaluate_sample_ms is not None:
            evaluation += f"; {seconds_text(predicted.evaluate_sample_ms / 1e3)} a sample"
        free = "" if available is None else f"; {bytes_text(available)} are free here"
        bootstraps = f", {number_of(f.bootstraps, 'bootstrap')}" if f.bootstraps else ""
        saving = next(iter(self.saving_texts()), "")
        rows = [
            ("class", self.class_agreement()),
            ("certificate", certificate_text(f.certificate) if f.certificate else ""),
            ("output error", error_text(predicted.max_abs_error, self._magnitude)),
            ("new inputs", _unseen_text(f.unseen) if f.unseen else ""),
            ("evaluation", evaluation),
            ("server's memory", f"{bytes_text(predicted.server_peak_bytes)}{free}"),
            (
                "evaluation keys",
                f"{bytes_text(predicted.evaluation_key_bytes)}, sent once by each client as "
                f"{bytes_text(predicted.sent_key_bytes)}",
            ),
            (
                "encrypted input",
                f"{bytes_text(predicted.sent_input_bytes)} as sent; {bytes_text(f.output_bytes)} come back",
            ),
            ("ring", f"N = {f.ring_dim}, {number_of(f.levels, 'level')}{bootstraps}"),
            ("saves a level", saving),
        ]
        return [(name, text) for name, text in rows if text][:_SHORT]

    def full(self) -> str:
        """The whole bill: decisions, figures, ranges, levels, assumptions."""
        rows, figures = self.rows(), self.figure_rows()
        width = max(len(name) for name, *_ in (*rows, *figures))
        lines = [f"{self.figures.name}: the bill"]
        for name, text in rows:
            wrapped = textwrap.wrap(text, _WIDTH - width - 4) or [""]
            lines += [f"  {name if not i else '':<{width}}  {part}" for i, part in enumerate(wrapped)]
        column = 2 + max(20, *(len(predicted) for _, predicted, _ in figures))
        lines += ["", f"  {'':<{width}}  {'predicted':<{column}}{'measured' if self.measured else ''}".rstrip()]
        lines += [
            f"  {name:<{width}}  {predicted:<{column}}{measured}".rstrip() for name, predicted, measured in figures
        ]
        for label, text in self.circumstances():
            lines.append(f"  {label:<{width}}  {'':<{column}}{text}")
        for title, texts in (
            ("ranges of polynomials", self.range_lines()),
            ("levels, along the longest path", self.depth_lines()),
            ("assumed", [*self.figures.assumed, self.sharing()]),
        ):
            lines += ["", f"  {title}"]
            for text in texts:
                lines += textwrap.wrap(
                    text, _WIDTH, initial_indent="    ", subsequent_indent="      ", break_long_words=False
                )
        return "\n".join(lines)
