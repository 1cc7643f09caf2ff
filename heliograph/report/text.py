"""The bill: what an artifact costs and how wrong it can be, before anything is encrypted."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from heliograph.ckks.sharing import (
    SHARE_BITS,
    SHARE_MARGIN,
    SHARE_RESULTS,
    flooding_std,
    sharing_cost_bits,
    sharing_distance_bits,
)
from heliograph.report.markup import badge, fragment, table, tiles
from heliograph.rounding import upward_text

SHARING = (
    "Decrypted values carry an error that depends on the secret key: do not pass them on to strangers. decrypt(share=True) "
    f"floods them with noise first, which costs {sharing_cost_bits():.1f} bits of precision for one value, and half a bit "
    f"more for each doubling of their number. For {SHARE_RESULTS} results under one key that is {SHARE_BITS} bits of "
    f"statistical (c,s)-security (a statistical distance of at most 2^-{sharing_distance_bits():.1f}), if the server "
    f"computed what it should and the error is at most {SHARE_MARGIN:.0f} times the predicted one, which is an estimate."
)
BOOTSTRAPPED = (
    "Decrypted values carry an error that depends on the secret key: do not pass them on to strangers. decrypt(share=True) "
    "refuses them: this artifact bootstraps, and of a bootstrap's error we have a fit to measurements, no bound."
)
_WIDTH = 118


class HasFigures(Protocol):
    """What has figures to fill the measured column with, by the names of the report's `predicted`."""

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
    """An error, and what share of `magnitude`, the largest output, it is."""
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
    """Whether an entry of the range table stands for several polynomials, one behind the other."""
    return entry["method"] == "composite" or len(entry.get("degrees", ())) > 1


def degrees_text(entry: Mapping[str, Any]) -> str:
    """The degrees of an entry of the range table: "degree 7", or those of a composition in their order."""
    degrees = entry.get("degrees", [entry["degree"]])
    return f"degree{'s' * (len(degrees) > 1)} {', '.join(map(str, degrees))}"


def largest_error_text(entry: Mapping[str, Any]) -> str:
    """The largest error of an entry of the range table, and what it rests on: a proof, or what was seen on a grid."""
    if entry.get("proved_error") is not None:
        return f"error at most {upward_text(float(entry['proved_error']))} (proved)"
    return f"error {upward_text(float(entry['max_error']))} (seen)"


# Figures that a run measures: key, label, how it is written, factor to the unit that is written.
_FIGURES: tuple[tuple[str, str, str], ...] = (
    ("compile_s", "compilation", "s"),
    ("keygen_s", "key generation", "s"),
    ("encrypt_ms", "encryption", "ms"),
    ("evaluate_ms", "evaluation", "ms"),
    ("evaluate_sample_ms", "of it for each sample", "ms"),
    ("first_ms", "first evaluation", "ms"),
    ("decrypt_ms", "decryption", "ms"),
    ("server_peak_bytes", "server's memory", "bytes"),
    ("client_peak_bytes", "client's memory", "bytes"),
    ("process_peak_bytes", "memory of one process", "bytes"),
    ("evaluation_key_bytes", "evaluation keys", "bytes"),
    ("ciphertext_bytes", "encrypted input", "bytes"),
    ("max_abs_error", "output error", "error"),
    ("scheme_error", "of it encryption's", "error"),
)


def figure_text(value: Any, unit: str, magnitude: float | None = None) -> str:
    """A figure of the table in words; empty where it is not known. `magnitude` is that of the outputs."""
    if value is None:
        return ""
    if unit == "s":
        return seconds_text(value)
    if unit == "ms":
        return seconds_text(value / 1e3)
    return bytes_text(value) if unit == "bytes" else error_text(value, magnitude)


@dataclass(frozen=True, slots=True)
class Report:
    """Predicted figures of one artifact; `to_dict()` is the JSON, `str()` the table.

    `predicted_max_abs_error` is against the original network on the calibration samples (or random ones): the error of
    the polynomials, seen there, plus that of encryption, simulated. `scheme_error` is the latter alone.
    """

    values: Mapping[str, Any]
    measured: Mapping[str, Any] = field(default_factory=dict)

    def with_measured(self, measured: HasFigures | Mapping[str, Any]) -> Report:
        """The same report with a measured column, from `runtime.measure.Measurement` or from figures by name."""
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
        v, predicted = self.values, self.values["predicted"]
        security = "INSECURE" if v["security_bits"] is None else f"{v['security_bits']} bits"
        return (
            f"<Report of {v['name']!r}: {security}, N = {v['ring_dim']}, {v['levels']} levels, evaluation "
            f"{figure_text(predicted['evaluate_ms'], 'ms')}, keys {bytes_text(predicted['evaluation_key_bytes'])}, error "
            f"{error_text(predicted['max_abs_error'], v['output_magnitude'])}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the tiles, the table of figures and what was decided."""
        parts = (self.badge(), tiles(self.tiles()), self.figures_table(), table(("what was decided", ""), self.rows()))
        return fragment(f"{self.values['name']}: the bill", parts)

    def badge(self) -> str:
        """The security as a piece of HTML."""
        bits = self.values["security_bits"]
        return badge("INSECURE: for tests only" if bits is None else f"{bits} bits, classical", bits is None)

    def tiles(self) -> list[tuple[str, str]]:
        """The figures that matter most, in words, and what each of them is."""
        v, predicted = self.values, self.values["predicted"]
        return [
            (f"2^{int(v['ring_dim']).bit_length() - 1}", "ring dimension"),
            (str(v["levels"]), "levels"),
            (str(v["key_switches"]), "key switches"),
            (seconds_text(predicted["evaluate_ms"] / 1e3), "an evaluation, predicted"),
            (bytes_text(predicted["evaluation_key_bytes"]), "evaluation keys"),
            (bytes_text(predicted["server_peak_bytes"]), "server's memory"),
            (f"{predicted['max_abs_error']:.2g}", "output error, predicted"),
        ]

    def figures_table(self) -> str:
        """Predicted and measured figures as a table of HTML."""
        header = ("", "predicted", "measured") if self.measured else ("", "predicted")
        rows = [row if self.measured else row[:2] for row in self.figures()]
        return table(header, [*rows, *((label, "", text) for label, text in self.circumstances())])

    def rows(self) -> list[tuple[str, str]]:
        """What was decided, line by line."""
        v = self.values
        if v["security_bits"] is None:
            security = "INSECURE: no security was asked for; for tests only"
        else:
            security = f"{v['security_bits']} bits classical (log PQ {v['log_pq']:.1f} of at most {v['max_log_pq']})"
        kinds = ", ".join(f"{number} {kind}" for kind, number in v["operations_by_kind"].items())
        return [
            ("security", security),
            ("secret", v["secret_distribution"]),
            ("ring", f"N = {v['ring_dim']}, {v['slots']} slots, {v['digits']} key-switching digits"),
            (
                "chain",
                f"{v['levels']} levels: first modulus {v['first_mod_bits']} bits, scale {v['scale_bits']} bits, "
                f"{v['special_primes']} special primes",
            ),
            ("depth", str(v["depth"])),
            *([("samples", f"{v['batch']} at once")] if v.get("batch", 1) > 1 else []),
            ("operations", kinds),
            ("rotations", f"{v['rotations']} with {v['rotation_keys']} keys of {self._key_size()}"),
            *([("keys in memory", self._key_loading())] if v.get("key_loading") else []),
            *([("memory bound", self._unbounded())] if v.get("unbounded_ms") else []),
            ("key switches", str(v["key_switches"])),
            *([("bootstraps", self._bootstraps())] if v.get("bootstraps") else []),
            ("ciphertext products", str(v["ciphertext_products"])),
            ("plaintext products", str(v["plaintext_products"])),
            ("ciphertexts", f"{bytes_text(v['ciphertext_bytes'])} in, {bytes_text(v['output_bytes'])} out"),
            ("outputs", self._outputs()),
            *([("unseen inputs", self._unseen())] if v.get("unseen") else []),
            *([("class", self.class_agreement())] if v.get("class_agreement") else []),
        ]

    def _key_size(self) -> str:
        v = self.values
        lower = v.get("lower_chains") or []
        size = bytes_text(v["rotation_key_bytes"])
        parts = [
            f"{entry['keys']} of {bytes_text(entry['key_bytes'])} for levels up to {entry['level']}" for entry in lower
        ]
        return f"{size}, or smaller: {', '.join(parts)}" if parts else size

    def _key_loading(self) -> str:
        entry = self.values["key_loading"]
        text = f"{bytes_text(entry['resident_bytes'])} of {bytes_text(self.values['evaluation_key_bytes'])}"
        if not entry["loads"]:
            return f"{text}, read once, from a folder"
        return (
            f"{text}; {entry['loads']:.0f} keys ({bytes_text(entry['loaded_bytes'])}) are read again in every run, "
            f"{entry['ms'] / 1e3:.3g} s of it"
        )

    def _unbounded(self) -> str:
        return f"without the bound on memory a run would take about {self.values['unbounded_ms'] / 1e3:.3g} s"

    def _bootstraps(self) -> str:
        v = self.values
        entry = v["bootstrapping"]
        text = (
            f"{v['bootstraps']} of {', '.join(map(str, entry['slots']))} slots, from level {entry['from']} to level "
            f"{entry['to']} at most; tables of {bytes_text(entry['table_bytes'])}; they add a deviation of "
            f"2^{math.log2(entry['deviation']):.1f} to a value of size one"
        )
        if entry.get("iterations", 1) > 1:
            text += ", in two iterations each"
        if entry.get("paired_slots"):
            slots = ", ".join(map(str, entry["paired_slots"]))
            text += f"; those of {slots} slots refresh up to two values at once, each with twice that deviation"
        return text

    def _unseen(self) -> str:
        unseen = self.values["unseen"]
        if not unseen["apart"]:
            return "nothing is known of how often one leaves an interval: no sample could be kept apart"
        return (
            f"leave an interval at a rate of at most {unseen['rate_bound']:.2g} ({unseen['confidence']:.0%} confidence; "
            f"{unseen['left']} of {unseen['apart']} samples kept apart did)"
        )

    def _outputs(self) -> str:
        v = self.values
        possible = [
            f"{name} within [{entry['low']:.4g}, {entry['high']:.4g}] ({entry['range_source']})"
            # In the order that a file keeps.
            for name, entry in sorted(v["output_ranges"].items())
        ]
        return "; ".join([f"reach {v['output_magnitude']:.3g} on the samples", *possible])

    def class_agreement(self) -> str:
        """On how many samples the class is that of the network, in words; empty where there are no classes."""
        entry = self.values.get("class_agreement")
        if not entry:
            return ""
        apart = " kept apart" if self.values["errors_apart"] else ""
        return f"the largest output is the network's on {entry['agree']} of {entry['samples']} samples{apart}"

    def predicted_ms_by_layer(self) -> dict[str, float]:
        """Predicted milliseconds of each layer, in program order."""
        return {row["layer"]: row["ms"] for row in self.values["predicted_ms_by_layer"]}

    def figures(self) -> list[tuple[str, str, str]]:
        """Name, predicted and measured of what a run measures; an empty text where a figure is not known."""
        predicted, magnitude = self.values["predicted"], self.values["output_magnitude"]

        def text(column: Mapping[str, Any], key: str, unit: str) -> str:
            return figure_text(column.get(key), unit, magnitude)

        return [
            (label, text(predicted, key, unit), text(self.measured, key, unit))
            for key, label, unit in _FIGURES
            if key in predicted or key in self.measured
        ]

    def circumstances(self) -> list[tuple[str, str]]:
        """Under what the measured column was measured: the machine, and the work beside."""
        found = []
        if "machine" in self.measured:
            found.append(("machine", str(self.measured["machine"])))
        if "load_average" in self.measured:
            found.append(("load average", f"{self.measured['load_average']:.2f}"))
        return found

    def range_lines(self) -> list[str]:
        """Which layer rests on which interval, one line each, and the share that is proved."""
        v, lines = self.values, []
        for entry in v["ranges"]:
            source = entry["source"]
            if source == "observed":
                source += f" on {entry['samples']} samples, widened by {entry['margin']:.0%}"
            if is_composite(entry):
                construction = f"{entry['function']} by {degrees_text(entry)}"
                if entry.get("gap") is not None:
                    construction += f", gap {entry['gap']:.3g} ({entry['gap_source']})"
            else:
                construction = f"{degrees_text(entry)} ({entry['method']})"
            lines.append(
                f"{entry['layer'] or entry['function']} ({entry['location']}): "
                f"[{entry['low']:.4g}, {entry['high']:.4g}] {source}"
                + (f", by unit from {entry['smallest_unit']:.2g}" if "units" in entry else "")
                + f"; {construction}, {largest_error_text(entry)}"
            )
        if v["ranges"]:
            proved = sum(entry["source"] == "proved" for entry in v["ranges"])
            bounds = sum(entry.get("proved_error") is not None for entry in v["ranges"])
            lines.append(
                f"proved: {proved} of {len(v['ranges'])} polynomial inputs ({v['proved_share']:.0%}), "
                f"{bounds} of {len(v['ranges'])} errors on them"
            )
        else:
            lines.append("no polynomial: there is no interval to leave")
        return lines

    def sharing(self) -> str:
        """Whether decrypted values may be passed on, and what that costs here."""
        if self.values.get("bootstraps"):
            return BOOTSTRAPPED
        std = flooding_std(self.values["scheme_error"])
        reach = self.values["output_magnitude"]
        text = f"{SHARING} Here that noise would be {std:.2g} in one value, where outputs reach {reach:.3g}"
        return text + (": too much, it refuses; a larger precision_bits helps." if std > reach / 2 else ".")

    def work_lines(self) -> list[str]:
        """Rotations, key switches, products with plaintexts and bootstraps of each layer, and of all, as a table."""
        rows = [
            (row["layer"], *(row[key] for key in ("rotations", "key_switches", "plaintext_products", "bootstraps")))
            for row in self.values["work_by_layer"]
        ]
        rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
        width = max(len(row[0]) for row in rows)
        titles = f"{'':<{width}}  rotations  key switches  plaintext products  bootstraps"
        return [titles, *(f"{row[0]:<{width}}  {row[1]:>9}  {row[2]:>12}  {row[3]:>18}  {row[4]:>10}" for row in rows)]

    def depth_lines(self) -> list[str]:
        """Who spends each level along the longest path, and what would save one."""
        v, lines = self.values, []
        for entry in v["depth_by_line"]:
            lines.append(f"{entry['levels']}  {entry['layer'] or entry['what']} ({entry['location']}): {entry['what']}")
        if v["savings"]:
            lines.append("what would save a level:")
            lines += [f"   {text}" for text in self.saving_texts()]
        else:
            lines.append("no lower degree and no fusion saves a level")
        return lines

    def saving_texts(self) -> list[str]:
        """What would save a level, one sentence for each way, with the places of the layers that it changes."""
        return [
            f"{saving['change']} ({', '.join(dict.fromkeys(saving['locations']))}): depth {saving['depth']}, error of the "
            f"polynomials {saving['approximation_error']:.2g} instead of {self.values['approximation_error']:.2g}"
            for saving in self.values["savings"]
        ]

    def __str__(self) -> str:
        rows, figures = self.rows(), self.figures()
        width = max(len(name) for name, *_ in (*rows, *figures))
        lines = [f"{self.values['name']}: the bill"]
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
            ("assumed", [*self.values["assumed"], self.sharing()]),
        ):
            lines += ["", f"  {title}"]
            for text in texts:
                lines += textwrap.wrap(
                    text, _WIDTH, initial_indent="    ", subsequent_indent="      ", break_long_words=False
                )
        return "\n".join(lines)
