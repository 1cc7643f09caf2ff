"""The figures of a report: records whose fields give each figure's bounds, label and unit.

The JSON and the checks of an untrusted file (heliograph/records.py), the stored part (`Stored`) and the labels of
tables (text.py, diff.py) follow from the fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

import scipy.special

from heliograph.ckks.costs import CostTable
from heliograph.ir.ops.tensors import DISTRIBUTIONS
from heliograph.ir.program import Comparison
from heliograph.records import Bounds, bounds_of

# In nanoseconds or microseconds; the same bound as in artifact/costs.py.
_LARGEST_PRICE = 1e6
_MOST_SAMPLES = 1 << 40
_MOST_SLOTS = 1 << 17

Unit = Literal["", "s", "ms", "bytes", "error", "share", "bits"]


@dataclass(frozen=True, slots=True)
class Figure(Bounds):
    """The bounds of a figure, its label in tables, and the unit in which `text.figure_text` writes it."""

    label: str = ""
    unit: Unit = ""


def figure_of(entry: Field[Any]) -> Figure:
    """The description of the figure in a field."""
    found = bounds_of(entry)
    return found if isinstance(found, Figure) else Figure()


def _about(label: str = "", unit: Unit = "", **more: Any) -> dict[str, Figure]:
    return {"bounds": Figure(label=label, unit=unit, **more)}


# ---------------------------------------------------------------------------------------------- rows and parts


@dataclass(frozen=True, slots=True)
class ClassAgreement:
    """The number of samples on which program and network agree about the largest output's position."""

    samples: int
    agree: int


@dataclass(frozen=True, slots=True)
class OutputPoint:
    """One output value of one sample on the client: the network's, and the one of the polynomials."""

    network: float
    program: float


@dataclass(frozen=True, slots=True)
class WorstLayer:
    """The layer whose interval held-out samples left most often, or else came closest to leaving.

    `largest`: how far they reached, in half intervals.
    """

    layer: str
    location: str
    left: int
    largest: float
    rate_bound: float


@dataclass(frozen=True, slots=True)
class UnseenInputs:
    """The held-out samples: `left` of `apart` left an interval that was set by `setting` other samples."""

    setting: int = field(metadata=_about(high=_MOST_SAMPLES))
    apart: int = field(metadata=_about(high=_MOST_SAMPLES))
    left: int = field(metadata=_about(high=_MOST_SAMPLES))
    rate_bound: float = field(metadata=_about(low=0.0, high=1.0))
    confidence: float = field(metadata=_about(low=0.0, high=1.0))
    worst: WorstLayer | None


@dataclass(frozen=True, slots=True)
class SpentLevels:
    """A node on the longest path, and the levels that it spends."""

    levels: int
    what: str
    layer: str
    location: str


@dataclass(frozen=True, slots=True)
class Saving:
    """A change that saves levels: in words, by kind, layer and place, with the resulting depth and error."""

    change: str
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    locations: tuple[str, ...]
    depth: int
    approximation_error: float


@dataclass(frozen=True, slots=True)
class LayerImpact:
    """The quantities behind the choice of one activation's degree (OLA, section 2).

    `mean`, `std`: of the activation's inputs.
    `impact`: A, the impact of an error in its output on the loss.
    `error`: E, the mean square error of its polynomial.
    `share`: A E as a share of the sum over all activations.
    """

    layer: str
    location: str
    function: str
    degree: int = field(metadata=_about(high=1 << 16))
    mean: float
    std: float = field(metadata=_about(low=0.0))
    impact: float = field(metadata=_about(low=0.0))
    error: float = field(metadata=_about(low=0.0))
    share: float = field(metadata=_about(low=0.0, high=1.0))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A Pareto-optimal allocation: its predicted milliseconds, and its predicted `loss`, the sum of A E.

    `measured`: the share of calibration samples that change their class, if it was measured.
    """

    ms: float = field(metadata=_about(low=0.0))
    loss: float = field(metadata=_about(low=0.0))
    measured: float | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation of degrees to layers.

    `mode`: "plan" or "paper".
    `allowed`: the share of samples that may change their class.
    `measured`: the share of `samples` whose class the chosen allocation changes.
    """

    mode: str
    allowed: float = field(metadata=_about(low=0.0, high=1.0))
    measured: float = field(metadata=_about(low=0.0))
    samples: int = field(metadata=_about(high=_MOST_SAMPLES))
    layers: tuple[LayerImpact, ...]
    curve: tuple[CurvePoint, ...]


# The kinds of certificates, and the unit of each kind's radius.
CERTIFIED_KINDS: Mapping[str, str] = {
    "l2": "in l2",
    "l1": "in l1",
    "fair": "in features divided by theta",
}


def radius_of(kind: str, deviation: float, share: float) -> float:
    """The certified radius if more than this share of all noise votes for a class; `deviation` is as in `Certified`.

    Normal noise: Cohen et al. 2019, theorem 1; uniform noise: Yang et al. 2020.
    """
    return 2.0 * deviation * (share - 0.5) if kind == "l1" else deviation * float(scipy.special.ndtri(share))


@dataclass(frozen=True, slots=True)
class Certified:
    """The certificate of an answer, and its probability of error (certified/certificate.py).

    `radius`: how far an input may be changed, in l2 or l1, or for the kind "fair" in features divided by theta.
    `n`, `target`: the number of votes, and how many of them certify.
    `deviation`: the factor of noise of this `distribution` (for fairness in addition to theta).
    `spread`: the largest assumed difference between two logits of a copy.
    `difference`: the smallest assumed distance of a copy's largest logit from the next.
    `gap`: the smallest difference that the argmax distinguishes.
    `error`: the largest change of a difference by encryption.
    `beta_range`: a bound on the rate of inputs that leave the range.
    `beta_difference`: a bound on the rate of inputs for which more than a share zeta of the copies are nearer to a tie.
    `held_out`: the number of inputs behind both bounds, which hold together with `confidence`.
    `xi`: alpha + beta_range + beta_difference, a bound on the probability that an answer is wrong.
    """

    kind: str = field(metadata=_about(choices=tuple(CERTIFIED_KINDS)))
    radius: float = field(metadata=_about(low=0.0))
    n: int = field(metadata=_about(low=1, high=1 << 20))
    n0: int = field(metadata=_about(low=1, high=1 << 20))
    target: int = field(metadata=_about(low=1, high=1 << 20))
    tau: float = field(metadata=_about(low=0.0, high=1.0))
    zeta: float = field(metadata=_about(low=0.0, high=1.0))
    alpha: float = field(metadata=_about(low=0.0, high=1.0))
    distribution: str = field(metadata=_about(choices=DISTRIBUTIONS))
    deviation: float = field(metadata=_about(low=0.0))
    spread: float = field(metadata=_about(low=0.0))
    difference: float = field(metadata=_about(low=0.0))
    gap: float = field(metadata=_about(low=0.0))
    error: float = field(metadata=_about(low=0.0))
    beta_range: float = field(metadata=_about(low=0.0, high=1.0))
    beta_difference: float = field(metadata=_about(low=0.0, high=1.0))
    xi: float = field(metadata=_about(low=0.0))
    confidence: float = field(metadata=_about(low=0.0, high=1.0))
    held_out: int = field(metadata=_about(high=_MOST_SAMPLES))


@dataclass(frozen=True, slots=True)
class LayerDegree:
    """A row of the table of degrees: the polynomial of one activation.

    `levels`: the levels that it spends.
    `chain`: the top level of the chain in which it is evaluated.
    `ms`: its predicted milliseconds.
    `impact`, `share`: as in `LayerImpact`, if degrees were allocated.
    """

    layer: str
    location: str
    function: str
    degree: int
    rms_error: float
    levels: int
    chain: int
    ms: float
    impact: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The calls of a layer."""

    layer: str
    rotations: int
    key_switches: int
    plaintext_products: int
    bootstraps: int


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The predicted milliseconds of a layer, and how much of them is linear maps, polynomials and bootstraps.

    What is in none of the three, such as products of two values of the program, is in `ms` alone.
    """

    layer: str
    ms: float
    linear_ms: float = field(default=0.0, metadata=_about(optional=True))
    activation_ms: float = field(default=0.0, metadata=_about(optional=True))
    bootstrap_ms: float = field(default=0.0, metadata=_about(optional=True))


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The number of evaluation keys of one kind and size."""

    kind: str
    keys: int
    key_bytes: int


@dataclass(frozen=True, slots=True)
class LowerChain:
    """The keys of a lower part of the chain; if it bootstraps, how often, and the highest level after a bootstrap."""

    level: int
    keys: int
    key_bytes: int
    bootstraps: int | None = field(default=None, metadata=_about(optional=True))
    to_level: int | None = field(default=None, metadata=_about(optional=True))


@dataclass(frozen=True, slots=True)
class Bootstrapping:
    """The bootstraps of a run: slots (`paired_slots` if one refreshes two values), levels, tables, and their error.

    `activations`: how many bootstraps compute the activation that follows them; None if none does.
    """

    slots: tuple[int, ...] = field(metadata=_about(low=1, high=_MOST_SLOTS))
    paired_slots: tuple[int, ...] = field(metadata=_about(low=1, high=_MOST_SLOTS))
    from_level: int = field(metadata=_about(key="from"))
    to_level: int = field(metadata=_about(key="to"))
    table_bytes: int
    deviation: float = field(metadata=_about(low=math.ulp(0.0), high=math.nextafter(1.0, 0.0)))
    observed: int = field(metadata=_about(high=1 << 20))
    activations: int | None = field(default=None, metadata=_about(optional=True, low=1, high=1 << 20))


@dataclass(frozen=True, slots=True)
class KeyLoading:
    """The bytes of keys that stay in memory, and the keys that are read again in every run."""

    resident_bytes: int
    loads: int
    loaded_bytes: int
    ms: float


@dataclass(frozen=True, slots=True)
class OutputRange:
    """The range of an encrypted output, its source (proved or observed), and the client's last operation on it."""

    low: float
    high: float
    range_source: str
    finish: str | None = None
    # The client's factor for the output before `finish`.
    scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The figures that a run measures, in the table's order; relative errors are shares of the largest output."""

    keygen_s: float = field(metadata=_about("key generation", "s"))
    encrypt_ms: float = field(metadata=_about("encryption", "ms"))
    evaluate_ms: float = field(metadata=_about("evaluation", "ms"))
    evaluate_sample_ms: float | None = field(
        default=None, metadata=_about("evaluation per sample", "ms", optional=True)
    )
    first_ms: float = field(metadata=_about("first evaluation", "ms"))
    decrypt_ms: float = field(metadata=_about("decryption", "ms"))
    server_peak_bytes: int = field(metadata=_about("server's memory", "bytes"))
    client_peak_bytes: int = field(metadata=_about("client's memory", "bytes"))
    # Measured if client and server share a process; never predicted.
    process_peak_bytes: int | None = field(
        default=None, metadata=_about("memory of one process", "bytes", optional=True)
    )
    evaluation_key_bytes: int = field(metadata=_about("evaluation keys", "bytes"))
    sent_key_bytes: int = field(metadata=_about("keys as sent", "bytes"))
    ciphertext_bytes: int = field(metadata=_about("encrypted input", "bytes"))
    sent_input_bytes: int = field(metadata=_about("input as sent", "bytes"))
    ciphertext_sample_bytes: int | None = field(
        default=None, metadata=_about("input per sample", "bytes", optional=True)
    )
    max_abs_error: float = field(metadata=_about("output error", "error"))
    relative_error: float | None
    scheme_error: float = field(metadata=_about("of which encryption", "error"))
    relative_scheme_error: float | None


# ---------------------------------------------------------------------------------------------- the report


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The stored part of a report: facts that only the compiler knows, from its measurements and options."""

    approximation_error: float = field(metadata=_about(low=0.0))
    scheme_error: float = field(metadata=_about(low=0.0))
    class_agreement: ClassAgreement | None
    error_samples: int = field(metadata=_about(high=_MOST_SAMPLES))
    errors_apart: bool
    unseen: UnseenInputs | None
    calibrated: bool
    output_magnitude: float = field(metadata=_about(low=0.0))
    unbounded_ms: float | None
    costs: str = field(metadata=_about("cost table"))
    cost_table: Mapping[str, float] = field(
        metadata=_about(
            low=0.0,
            high=_LARGEST_PRICE,
            keys=frozenset(entry.name for entry in fields(CostTable) if entry.name != "machine"),
        )
    )
    depth_by_line: tuple[SpentLevels, ...]
    savings: tuple[Saving, ...]
    # The largest error of the polynomials on all calibration samples, and the number of samples.
    given_error: float | None = field(default=None, metadata=_about(low=0.0, optional=True))
    given_samples: int | None = field(default=None, metadata=_about(high=_MOST_SAMPLES, optional=True))
    # The allocation of degrees, if there was one (passes/degrees/allocate_degrees.py).
    allocation: Allocation | None = field(default=None, metadata=_about(optional=True))
    # The certificate of the answers, if there is one (certified/).
    certificate: Certified | None = field(default=None, metadata=_about(optional=True))
    # The comparison of the program with the model that it was traced from, if any.
    comparison: Comparison | None = field(default=None, metadata=_about(optional=True))
    # The client's largest output on the samples, if the client multiplies outputs. All errors except `scheme_error`
    # then refer to the client's values; `output_magnitude` and `scheme_error` refer to the encrypted values.
    largest_output: float | None = field(default=None, metadata=_about(low=0.0, optional=True))
    # Outputs on the samples behind `approximation_error`, at most a few hundred of them.
    output_points: tuple[OutputPoint, ...] = field(default=(), metadata=_about(optional=True))
    # The options as the compiler reports them (`told` in compiler/options.py).
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(Stored):
    """All figures of one program: the stored ones, and those that follow from the program (artifact/figures.py)."""

    name: str
    security_bits: int | None = field(metadata=_about("security bits"))
    insecure: bool
    secret_distribution: str
    ring_dim: int = field(metadata=_about("ring dimension"))
    slots: int
    log_pq: float = field(metadata=_about("log PQ", "bits"))
    max_log_pq: float | None
    first_mod_bits: int
    scale_bits: int = field(metadata=_about("scale bits"))
    special_primes: int
    digits: int = field(metadata=_about("key-switching digits"))
    depth: int = field(metadata=_about("depth"))
    levels: int = field(metadata=_about("levels"))
    rotations: int = field(metadata=_about("rotations"))
    rotation_keys: int = field(metadata=_about("rotation keys"))
    rotation_key_bytes: int
    relinearization_key: bool
    bootstraps: int
    bootstrapping: Bootstrapping | None
    lower_chains: tuple[LowerChain, ...]
    key_switches: int = field(metadata=_about("key switches"))
    ciphertext_products: int = field(metadata=_about("ciphertext products"))
    plaintext_products: int = field(metadata=_about("plaintext products"))
    # The first is by primitive, level and parts, the second by primitive.
    operations: Mapping[str, int]
    operations_by_kind: Mapping[str, int]
    evaluation_key_bytes: int = field(metadata=_about("evaluation keys", "bytes"))
    sent_key_bytes: int = field(metadata=_about("keys as sent", "bytes"))
    keys_by_kind: tuple[KeyRow, ...]
    key_folder: bool
    key_loading: KeyLoading | None
    ciphertext_bytes: int = field(metadata=_about("encrypted input", "bytes"))
    sent_input_bytes: int = field(metadata=_about("input as sent", "bytes"))
    output_bytes: int
    server_peak_bytes: int
    client_peak_bytes: int
    predicted_ms: float
    work_by_layer: tuple[LayerWork, ...]
    # In program order, which is why it is not a table.
    predicted_ms_by_layer: tuple[LayerTime, ...]
    # In the order of the ranges, without compositions. The milliseconds include the bootstraps that a polynomial reads.
    degrees: tuple[LayerDegree, ...]
    predicted_max_abs_error: float
    # The program's table of its polynomials' inputs, by row.
    ranges: tuple[Mapping[str, Any], ...]
    batch: int
    # What clients make of a row before encryption, by input, in words.
    encodings: Mapping[str, str]
    output_ranges: Mapping[str, OutputRange]
    flood: float | None
    proved_share: float = field(metadata=_about("proved share of ranges", "share"))
    predicted: Predicted
    assumed: tuple[str, ...]
