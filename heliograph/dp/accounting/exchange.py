"""Compositions exchanged with other libraries: histories of Opacus, events of dp-accounting, both ways.

Conventions follow their documentation: a Gaussian event's noise multiplier is noise standard deviation over the bound
on one record's vector, also inside events that draw batches of one size; a Laplace event's is scale over sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from heliograph.dp.batches import FixedSizeGaussian, TruncatedGaussian, WithReplacementGaussian
from heliograph.dp.composition import Composition
from heliograph.dp.concentrated import Zcdp
from heliograph.dp.mechanisms import (
    Approximate,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
    MixtureGaussian,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)
from heliograph.errors import UnsupportedError, WireError

Get = Callable[..., Any]


def _response(get: Get) -> Mechanism:
    # With probability p the answer is drawn afresh, uniformly from all k: the true one has 1 - p + p / k, any other p / k.
    p, buckets = get("noise_parameter"), get("num_buckets")
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p < 1:
        raise WireError(f"noise_parameter = {p!r} is not inside (0, 1)", where="RandomizedResponseDpEvent")
    if isinstance(buckets, bool) or not isinstance(buckets, int) or not 2 <= buckets <= 10**9:
        raise WireError(f"num_buckets = {buckets!r} is not a number of answers", where="RandomizedResponseDpEvent")
    return RandomizedResponse(math.log1p(buckets * (1 - p) / p), buckets)


def _laplace(get: Get) -> Mechanism:
    scale = get("noise_multiplier")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not scale > 0:
        raise WireError(f"noise_multiplier = {scale!r} is not a positive number", where="LaplaceDpEvent")
    return Laplace(1 / scale)


def _discrete_gaussian(get: Get) -> Mechanism:
    # An integer vector of norm 1 moves one number, so that more dimensions change nothing; of other norms they do.
    if get("sensitivity") != 1 and get("dimension", 0) != 1:
        raise WireError("only one dimension, or sensitivity 1, is accounted for", where="DiscreteGaussianDpEvent")
    return DiscreteGaussian(get("sigma"), get("sensitivity"))


def _tree(get: Get) -> Mechanism:
    # A record is in one tree, in one leaf: it moves the sums on the way to the root, each a Gaussian release.
    counts, noise = get("step_counts"), get("noise_multiplier")
    counts = counts if isinstance(counts, list | tuple) else [counts]
    if not counts or any(isinstance(each, bool) or not isinstance(each, int) or each < 1 for each in counts):
        raise WireError(f"step_counts = {counts!r} are not counts", where="SingleEpochTreeAggregationDpEvent")
    return _together([(Gaussian(noise), max(counts).bit_length())])


def _together(gaussians: list[tuple[Gaussian, int]]) -> Gaussian:
    """One Gaussian for Gaussians on the same records, its multiplier rounded down."""
    precision = math.fsum(count / mechanism.noise_multiplier**2 for mechanism, count in gaussians)
    exact = len(gaussians) == 1 and gaussians[0][1] == 1
    return gaussians[0][0] if exact else Gaussian(math.sqrt(1 / precision) * (1 - 1e-15))


# Events whose fields are those of a mechanism: the event, the mechanism, and its name for each field.
_PLAIN: tuple[tuple[str, type[Mechanism], dict[str, str]], ...] = (
    ("GaussianDpEvent", Gaussian, {"noise_multiplier": "noise_multiplier"}),
    ("DiscreteLaplaceDpEvent", DiscreteLaplace, {"noise_parameter": "epsilon", "sensitivity": "sensitivity"}),
    ("EpsilonDeltaDpEvent", Approximate, {"epsilon": "epsilon", "delta": "delta"}),
    ("ZCDpEvent", Zcdp, {"rho": "rho", "xi": "xi"}),
    (
        "MixtureOfGaussiansDpEvent",
        MixtureGaussian,
        {
            "standard_deviation": "standard_deviation",
            "sensitivities": "sensitivities",
            "sampling_probs": "probabilities",
        },
    ),
    (
        "TruncatedSubsampledGaussianDpEvent",
        TruncatedGaussian,
        {
            "dataset_size": "records",
            "sampling_probability": "p",
            "truncated_batch_size": "most",
            "noise_multiplier": "noise_multiplier",
        },
    ),
)


def _plain(kind: type[Mechanism], names: dict[str, str], get: Get) -> Mechanism:
    return kind(**{name: get(field, 0.0 if field == "xi" else None) for field, name in names.items()})


_SIMPLE: dict[str, Callable[[Get], Mechanism]] = {
    **{event: partial(_plain, kind, names) for event, kind, names in _PLAIN},
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "LaplaceDpEvent": _laplace,
    "RandomizedResponseDpEvent": _response,
    "SingleEpochTreeAggregationDpEvent": _tree,
}
_KNOWN = (
    *(name.removesuffix("DpEvent") for name in _SIMPLE),
    "PoissonSampled",
    "SampledWithoutReplacement",
    "SampledWithReplacement",
    "SelfComposed",
    "Composed",
    "NoOp",
)


def read_history(data: object) -> Composition:
    """The composition of an Opacus accountant's history or a dp-accounting event; objects or their JSON forms.

    Opacus: a list of (noise_multiplier, sample_rate, steps), or the accountant or its state_dict with a `history`; a
    sample rate is a Poisson probability. dp-accounting: a DpEvent, its named tuple, or that as nested JSON objects with
    `class_name`. Raises WireError for anything else, and for events that are not private or have no Poisson sampling.
    """
    history = data.get("history") if isinstance(data, dict) else getattr(data, "history", None)
    if history is None and isinstance(data, list | tuple) and not hasattr(data, "class_name"):
        history = data
    if history is not None:
        return _opacus(history)
    return Composition(tuple(_event(data, "event", 0)))


def _opacus(history: Any) -> Composition:
    items: list[tuple[Mechanism, int]] = []
    for number, entry in enumerate(history):
        where = f"history[{number}]"
        try:
            multiplier, rate, steps = entry
        except (TypeError, ValueError):
            raise WireError("an entry is (noise_multiplier, sample_rate, steps)", where=where) from None
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise WireError(f"steps = {steps!r} is not a count", where=where)
        mechanism = Gaussian(multiplier) if rate == 1 else SampledGaussian(rate, multiplier)
        items.append((mechanism, steps))
    return Composition(tuple(items))


def _event(event: Any, where: str, depth: int) -> list[tuple[Mechanism, int]]:
    if depth > 50:
        raise WireError("events are nested too deep", where=where)

    def get(key: str, otherwise: Any = None) -> Any:
        value = event.get(key) if isinstance(event, dict) else getattr(event, key, None)
        value = otherwise if value is None else value
        if value is None:
            raise WireError(f"the event has no {key}", where=where)
        return value

    if isinstance(event, dict):
        kind = event.get("class_name")
    else:
        kind = getattr(event, "class_name", None) or type(event).__name__
    if kind == "NoOpDpEvent":
        return []
    simple = _SIMPLE.get(str(kind))
    if simple is not None:
        return [(simple(get), 1)]
    if kind == "SelfComposedDpEvent":
        count = get("count")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise WireError(f"count = {count!r} is not a count", where=where)
        return [(mechanism, each * count) for mechanism, each in _event(get("event"), f"{where}.event", depth + 1)]
    if kind == "ComposedDpEvent":
        found: list[tuple[Mechanism, int]] = []
        for number, each in enumerate(get("events")):
            found.extend(_event(each, f"{where}.events[{number}]", depth + 1))
        return found
    if kind in ("SampledWithoutReplacementDpEvent", "SampledWithReplacementDpEvent"):
        inner = _event(get("event"), f"{where}.event", depth + 1)
        if len(inner) != 1 or inner[0][1] != 1 or not isinstance(inner[0][0], Gaussian):
            raise WireError("only one Gaussian mechanism can be sampled in batches of one size", where=where)
        made = FixedSizeGaussian if kind == "SampledWithoutReplacementDpEvent" else WithReplacementGaussian
        return [(made(get("sample_size"), get("source_dataset_size"), inner[0][0].noise_multiplier), 1)]
    if kind == "PoissonSampledDpEvent":
        inner = _event(get("event"), f"{where}.event", depth + 1)
        if not inner:
            return []
        p = get("sampling_probability")
        mechanism, count = inner[0]
        gaussians = [(each, times) for each, times in inner if isinstance(each, Gaussian) and times]
        if gaussians and len(gaussians) == len(inner):
            return [(SampledGaussian(p, _together(gaussians).noise_multiplier), 1)]
        if len(inner) == 1 and count == 1 and isinstance(mechanism, Laplace):
            return [(SampledLaplace(p, mechanism.epsilon), 1)]
        raise WireError("only Gaussians, or one Laplace mechanism, can be Poisson-sampled", where=where)
    raise WireError(
        f"the event {str(kind)[:60]!r} is not accounted for",
        where=where,
        why="it is not private, or not known",
        hint=f"known: {', '.join(_KNOWN)}",
    )


def to_event(composition: Composition | Mechanism) -> dict[str, Any]:
    """The composition as dp-accounting's event, nested JSON objects with `class_name`.

    Raises UnsupportedError for mechanisms without such an event.
    """
    events = [_repeated(_event_of(mechanism), count) for mechanism, count in Composition.of(composition)]
    if not events:
        return _made("NoOpDpEvent")
    return events[0] if len(events) == 1 else _made("ComposedDpEvent", events=events)


def dp_accounting_event(composition: Composition | Mechanism) -> Any:
    """The composition as an event object of dp-accounting. Raises UnsupportedError if it is not installed."""
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise UnsupportedError(
            "dp-accounting is not installed",
            where="dp_accounting_event",
            why=str(error),
            hint="pip install dp-accounting, or take `to_event`, which needs nothing",
        ) from None

    def built(value: Any) -> Any:
        if isinstance(value, list):
            return [built(each) for each in value]
        if not isinstance(value, dict):
            return value
        kind = getattr(dp_event, value["class_name"], None)
        if kind is None:
            raise UnsupportedError(
                f"this dp-accounting has no {value['class_name']}",
                where="dp_accounting_event",
                hint="use a newer one, or take `to_event`, which needs nothing",
            )
        return kind(**{key: built(each) for key, each in value.items() if key != "class_name"})

    return built(to_event(composition))


def to_opacus(composition: Composition | Mechanism) -> list[tuple[float, float, int]]:
    """The composition as the history of an Opacus accountant: (noise_multiplier, sample_rate, steps)."""
    history = []
    for mechanism, count in Composition.of(composition):
        if not isinstance(mechanism, Gaussian | SampledGaussian):
            raise UnsupportedError(
                f"Opacus has no {mechanism.name}",
                where="to_opacus",
                why="its accountants know Gaussian noise, with Poisson sampling or without",
            )
        rate = mechanism.p if isinstance(mechanism, SampledGaussian) else 1.0
        history.append((mechanism.noise_multiplier, rate, count))
    return history


def _made(name: str, **fields: Any) -> dict[str, Any]:
    return {"class_name": name, **fields}


def _repeated(event: dict[str, Any], count: int) -> dict[str, Any]:
    return event if count == 1 else _made("SelfComposedDpEvent", event=event, count=count)


def _event_of(mechanism: Mechanism) -> dict[str, Any]:
    for event, kind, names in _PLAIN:
        if type(mechanism) is kind:
            values = {field: getattr(mechanism, name) for field, name in names.items()}
            return _made(
                event, **{key: list(each) if isinstance(each, tuple) else each for key, each in values.items()}
            )
    if isinstance(mechanism, Laplace):
        return _made("LaplaceDpEvent", noise_multiplier=1 / mechanism.epsilon)
    if isinstance(mechanism, SampledGaussian):
        inner = _event_of(Gaussian(mechanism.noise_multiplier))
        return _made("PoissonSampledDpEvent", sampling_probability=mechanism.p, event=inner)
    if isinstance(mechanism, SampledLaplace):
        return _made(
            "PoissonSampledDpEvent", sampling_probability=mechanism.p, event=_event_of(Laplace(mechanism.epsilon))
        )
    if isinstance(mechanism, DiscreteGaussian):
        return _made(
            "DiscreteGaussianDpEvent", sigma=mechanism.sigma, sensitivity=float(mechanism.sensitivity), dimension=1
        )
    if isinstance(mechanism, RandomizedResponse):
        k = int(mechanism.categories)
        return _made(
            "RandomizedResponseDpEvent", noise_parameter=k / (math.expm1(mechanism.epsilon) + k), num_buckets=k
        )
    if isinstance(mechanism, FixedSizeGaussian | WithReplacementGaussian):
        how = "Without" if isinstance(mechanism, FixedSizeGaussian) else "With"
        return _made(
            f"Sampled{how}ReplacementDpEvent",
            source_dataset_size=int(mechanism.records),
            sample_size=int(mechanism.size),
            event=_event_of(Gaussian(mechanism.noise_multiplier)),
        )
    raise UnsupportedError(
        f"dp-accounting has no event for {mechanism.name}",
        where="to_event",
        hint="state what is known of it: approximate(epsilon=..., delta=...)",
    )


__all__ = ["dp_accounting_event", "read_history", "to_event", "to_opacus"]
