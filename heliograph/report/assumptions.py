"""The assumptions behind a report's figures, in sentences."""

from __future__ import annotations

import math

from heliograph.ckks.ring import sparse_log_q
from heliograph.ckks.security import sparse_attack, sparse_max_log_q
from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES
from heliograph.report.figures import Certified, Figures, UnseenInputs
from heliograph.texts import number_of


def _unseen_text(unseen: UnseenInputs) -> str:
    """How often unseen inputs leave their intervals, as far as held-out samples show."""
    if not unseen.apart:
        return (
            f"New inputs: none of the {number_of(unseen.setting, 'calibration sample')} could be held out, "
            "so nothing is known of how often a new input leaves a range."
        )
    text = (
        f"New inputs: with the ranges set on {unseen.setting} of the samples, {unseen.left} of the {unseen.apart} held out "
        f"left one. Inputs like the samples leave a range at a rate of at most {unseen.rate_bound:.2g} "
        f"({unseen.confidence:.0%} confidence)"
    )
    worst = unseen.worst
    if worst is not None and worst.left:
        text += f"; {worst.layer} was left most often, by {worst.left}, a rate of at most {worst.rate_bound:.2g}"
    elif worst is not None:
        text += f"; they came closest at {worst.layer}, to {worst.largest:.2f} of its range"
    return text + ". More samples tighten the bound; it does not cover inputs unlike them."


def _certificate_text(found: Certified, soft: float, flood: float | None) -> str:
    """The assumptions behind a certificate's error, and how far outputs reveal votes for other classes.

    `soft` is the largest remainder of one such vote."""
    left = soft * max(found.target, found.n - found.target)
    noise = "" if flood is None else f", under the server's noise of deviation {flood:.3g}"
    return (
        f"Certificate: logits of a noisy copy are at most {found.spread:.3g} apart, and of no input do more than a share "
        f"{found.zeta:g} of all copies put a class that the network does not name less than {found.difference:.3g} behind "
        f"the largest (encryption moves that by at most {found.error:.2g}). The rates at which inputs break this are "
        f"bounded on {found.held_out} held-out inputs, and hold for inputs like them; encryption's error is simulated, no "
        f"bound. Where the guess is not a tie, what an answer holds at the other classes is within {left:.2g} of 0{noise}."
    )


def _attack_text(ring_dim: int) -> str:
    bits = sparse_attack(ring_dim.bit_length() - 1)
    if bits is None:
        return "attacks on it were not estimated for such a small ring"
    most = sparse_max_log_q(ring_dim.bit_length() - 1)
    return (
        f"the best attack on it that we know of costs at least 2^{bits}, as estimated in docs/security.md, and the table "
        f"after eprint 2026/279 allows {most} bits"
    )


def assumed(figures: Figures) -> list[str]:
    """The assumptions behind the figures, one sentence each."""
    lines = []
    if figures.security_bits is None:
        lines.append("No security: the parameters were chosen without the security table. For tests only.")
    else:
        lines.append(
            f"Security: log PQ is at most {figures.max_log_pq} for ring dimension {figures.ring_dim}, the limit of the "
            "Security Guidelines of 2024 (Bossuat et al., table 5.2) for a uniform ternary secret, errors of standard "
            "deviation 3.19 and classical attacks."
        )
    if figures.bootstrapping is not None:
        several = any(chain.bootstraps is not None for chain in figures.lower_chains)
        each = " Each chain that bootstraps has its own." if several else ""
        lines.append(
            "Bootstraps: each begins under a sparse secret of Hamming weight 32 (Bossuat, Troncoso-Pastoriza and Hubaux, "
            f"2022).{each} One key is encrypted under it, with a modulus of "
            f"{sparse_log_q(figures.first_mod_bits)} bits; {_attack_text(figures.ring_dim)}. The client's "
            "secret is uniform ternary, so the table holds for it."
        )
        lines.append(
            "No bootstrap fails by chance: the modular reduction covers every value that the sparse secret allows."
        )
        if figures.bootstrapping.observed:
            lines.append(
                f"The sizes of {figures.bootstrapping.observed} bootstrapped values were observed (and widened by "
                "twice the margin): a new input may exceed them, and its result is then meaningless."
            )
    ranges = figures.ranges
    seen = [entry for entry in ranges if entry["source"] == "observed"]
    declared = [entry for entry in ranges if entry["source"] == "declared"]
    if seen:
        margins = sorted(entry["margin"] for entry in seen)
        widened = f"{margins[0]:.0%}" + (
            f" to {margins[-1]:.0%}" if f"{margins[0]:.0%}" != f"{margins[-1]:.0%}" else ""
        )
        lines.append(
            f"Ranges: {len(seen)} of {len(ranges)} polynomial inputs have ranges that were observed on "
            f"{max(e['samples'] for e in seen)} samples and widened by {widened}. A new input may leave them, and its "
            "result is then meaningless."
        )
        assert figures.unseen is not None, "the compiler says what unseen inputs do where it saw samples"
        lines.append(_unseen_text(figures.unseen))
    if declared:
        lines.append(
            f"Ranges: {len(declared)} of {len(ranges)} polynomial inputs have ranges that the program declares."
        )
    decisions = [entry for entry in ranges if entry.get("gap") is not None]
    for entry in decisions:
        lines.append(
            f"{entry['layer'] or entry['function']}: differences below {entry['gap']:.3g} ({entry['gap_source']}) are not "
            "resolved; for these the result lies between the two."
        )
    if figures.certificate is not None:
        soft = max((float(entry["max_error"]) for entry in decisions), default=0.0)
        lines.append(_certificate_text(figures.certificate, soft, figures.flood))
    if figures.flood is not None:
        line = f"The server adds noise of deviation {figures.flood:.3g} to the outputs."
        if decisions:
            soft = max(entry["max_error"] for entry in decisions)
            hidden = math.log2(figures.flood / soft)
            line += (
                f" Outside the gap decisions differ from their limit by at most {soft:.2g}, {hidden:.1f} bits below it."
            )
        lines.append(line)
    kind = "random inputs from the declared ranges"
    if figures.calibrated:
        kind = "held-out samples" if figures.errors_apart else "calibration samples"
    given = figures.given_samples
    also = "" if given in (None, figures.error_samples) else f", and on all {given} that were given"
    lines.append(
        f"Errors: the approximation error was measured on {figures.error_samples} {kind}{also}; the encryption error was "
        "simulated on two of them, with OpenFHE's noise. Neither is a bound."
    )
    lines.append(
        f"Times: predicted for an idle machine (costs: {figures.costs}). Plaintexts are encoded in the first run and "
        "kept. Where they do not all fit, the native backend keeps their coefficients, a tenth as large; what does not fit "
        "even so is encoded again in every run, in a background thread."
    )
    keys = (
        "in a folder, made, written and read one by one (Client.write_evaluation_keys)"
        if figures.key_folder
        else "in one file"
    )
    lines.append(
        f"Memory: for processes without torch. The server caches at most {PLAINTEXT_CACHE_BYTES >> 20} MiB of encoded "
        f"plaintexts; the keys come {keys}."
    )
    return lines
