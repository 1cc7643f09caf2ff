"""The figures of a report: records whose fields say what each may be, what it is called and how it is written.

The JSON and the checks of an untrusted file (heliograph/records.py), what the file holds (`Stored`) and the labels of tables
(text.py, diff.py) follow from the fields.
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
    """The bounds of a figure, what tables call it (label), and how they write it (unit: `text.figure_text`)."""

    label: str = ""
    unit: Unit = ""


def figure_of(entry: Field[Any]) -> Figure:
    """What is known of the figure in a field."""
    found = bounds_of(entry)
    return found if isinstance(found, Figure) else Figure()


def _about(label: str = "", unit: Unit = "", **more: Any) -> dict[str, Figure]:
    return {"bounds": Figure(label=label, unit=unit, **more)}


# ---------------------------------------------------------------------------------------------- rows and parts


@dataclass(frozen=True, slots=True)
class ClassAgreement:
    """On how many samples the largest output is at the same position as the network's."""

    samples: int
    agree: int


@dataclass(frozen=True, slots=True)
class WorstLayer:
    """The layer that samples kept apart left most often, or reached furthest: to `largest` times half its interval."""

    layer: str
    location: str
    left: int
    largest: float
    rate_bound: float


@dataclass(frozen=True, slots=True)
class UnseenInputs:
    """What samples kept apart showed: `left` of `apart` left an interval that `setting` others had set."""

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
    """A change that saves levels: in words, by kind, layer and place, and the depth and error that it leads to."""

    change: str
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    locations: tuple[str, ...]
    depth: int
    approximation_error: float


@dataclass(frozen=True, slots=True)
class LayerImpact:
    """What the degree of one activation was chosen by (OLA, section 2): its inputs' `mean` and `std`, the `impact` A of an
    error of its output on the loss, the mean square `error` E of its polynomial, and A E as a `share` of the sum over all.
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
    """An allocation that no other one beats in both: its predicted milliseconds, and the predicted `loss`, the sum of A E.

    `measured` is the share of calibration samples that change their class, where that was looked at.
    """

    ms: float = field(metadata=_about(low=0.0))
    loss: float = field(metadata=_about(low=0.0))
    measured: float | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """How degrees were allocated to layers: `mode` is "plan" or "paper"; `measured` is the share of `samples` whose class
    the chosen one changes, `allowed` what was asked for.
    """

    mode: str
    allowed: float = field(metadata=_about(low=0.0, high=1.0))
    measured: float = field(metadata=_about(low=0.0))
    samples: int = field(metadata=_about(high=_MOST_SAMPLES))
    layers: tuple[LayerImpact, ...]
    curve: tuple[CurvePoint, ...]


# What can be certified, and how its radius is measured.
CERTIFIED_KINDS: Mapping[str, str] = {
    "l2": "in l2",
    "l1": "in l1",
    "fair": "in features divided by theta",
}


def radius_of(kind: str, deviation: float, share: float) -> float:
    """The radius where more than that share of all noise votes for a class; `deviation` as in `Certified`.

    Normal noise: Cohen et al. 2019, theorem 1; uniform noise: Yang et al. 2020.
    """
    return 2.0 * deviation * (share - 0.5) if kind == "l1" else deviation * float(scipy.special.ndtri(share))


@dataclass(frozen=True, slots=True)
class Certified:
    """What an answer certifies, and how sure that is (certified/certificate.py).

    `radius` is how far an input may be changed: in l2 or l1, or (kind fair) in features divided by theta. Of `n` votes
    `target` certify. `deviation` is what noise of that `distribution` is multiplied by (of fairness: beside theta). Logits
    of a copy are taken to be at most `spread` apart, and the largest at least `difference` above the next; the argmax tells
    `gap` apart, and encryption moves a difference by at most `error`.
    `beta_range` and `beta_difference` bound the rates of inputs that leave the range, and of those more than a share zeta
    of whose copies are nearer to a tie; they rest on `held_out` inputs, and hold together with `confidence`. An answer is
    wrong with probability at most xi = alpha + beta_range + beta_difference.
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
    """A row of the table of degrees: what stands for an activation, the levels that it spends, the top level of the chain
    that it is evaluated in, and its predicted milliseconds; impact and share where degrees were allocated.
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
    """The predicted milliseconds of a layer."""

    layer: str
    ms: float


@dataclass(frozen=True, slots=True)
class KeyRow:
    """How many evaluation keys there are of a kind and size."""

    kind: str
    keys: int
    key_bytes: int


@dataclass(frozen=True, slots=True)
class LowerChain:
    """The keys of a lower part of the chain; where it bootstraps, how often, and to which level at most."""

    level: int
    keys: int
    key_bytes: int
    bootstraps: int | None = field(default=None, metadata=_about(optional=True))
    to_level: int | None = field(default=None, metadata=_about(optional=True))


@dataclass(frozen=True, slots=True)
class Bootstrapping:
    """Slots of the bootstraps (of those that refresh two values: `paired_slots`), levels, tables, and what they add.

    activations: how many compute the activation that follows them, None where none does.
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
    """What stays of the keys, and what is read again in every run."""

    resident_bytes: int
    loads: int
    loaded_bytes: int
    ms: float


@dataclass(frozen=True, slots=True)
class OutputRange:
    """What an encrypted output can be, what that rests on (proved or observed), and what the client makes of it."""

    low: float
    high: float
    range_source: str
    finish: str | None = None
    # What the client multiplies it with before that.
    scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The figures that a run measures, in the order of the table; errors as shares are of the largest output."""

    compile_s: float = field(metadata=_about("compilation", "s"))
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
    """What the compiler measured or was told, and nothing else can be asked for: all that a file holds of a report."""

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
    # The largest error of the polynomials on all calibration samples, and how many these are.
    given_error: float | None = field(default=None, metadata=_about(low=0.0, optional=True))
    given_samples: int | None = field(default=None, metadata=_about(high=_MOST_SAMPLES, optional=True))
    # How degrees were allocated, if they were (passes/degrees/allocate_degrees.py).
    allocation: Allocation | None = field(default=None, metadata=_about(optional=True))
    # What the answers certify, if anything (certified/).
    certificate: Certified | None = field(default=None, metadata=_about(optional=True))
    # How the program compares with the model that it was traced from, if it was.
    comparison: Comparison | None = field(default=None, metadata=_about(optional=True))
    # The largest output on the samples as the client has it, where it multiplies outputs: all errors but `scheme_error` are
    # then those that the client has, and `output_magnitude` and `scheme_error` those of what is encrypted.
    largest_output: float | None = field(default=None, metadata=_about(low=0.0, optional=True))
    # The options as the compiler reports them (`told` in compiler/options.py).
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(Stored):
    """All that a report says of one program: what is stored, and what follows from the program (artifact/figures.py)."""

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
    # The first by primitive, level and parts; the second by primitive.
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
    output_ranges: Mapping[str, OutputRange]
    flood: float | None
    proved_share: float = field(metadata=_about("proved share of ranges", "share"))
    predicted: Predicted
    assumed: tuple[str, ...]
