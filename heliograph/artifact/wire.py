"""What a client is told of a program, as JSON values that public artifacts and key files hold, and back, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heliograph.artifact.report_fields import check_certificate
from heliograph.artifact.validate import (
    MAX_CHAINS,
    MAX_LOG_SCALE,
    MAX_TENSORS,
    check_chains,
    check_raising,
    check_ring,
    check_spec,
    check_texts,
    record,
    refuse,
    whole,
)
from heliograph.ckks.chains import Chain, LowerPart
from heliograph.ckks.ring import MOST_LEVELS, Ring
from heliograph.ir.interface import TensorSpec
from heliograph.records import bounds, plain, to_json
from heliograph.report.figures import Certified

# The most predicted figures, and the largest.
_MOST_PREDICTED = 64
_LARGEST_PREDICTED = 1e18


@dataclass(frozen=True, slots=True)
class PublicSpec(TensorSpec):
    """An input or output with the scales of its ciphertexts, and of an input their levels; outputs are at level 0.

    `carried`: an input that comes from the run before (`Interface.carried`); it is given for the first run only.
    """

    levels: tuple[int, ...] = field(default=(), metadata=bounds(0, MOST_LEVELS, optional=True))
    log_scales: tuple[float, ...] = field(default=(), metadata=bounds(1.0, MAX_LOG_SCALE))
    carried: bool = field(default=False, metadata=bounds(optional=True))


def public_spec(
    spec: TensorSpec, levels: tuple[int, ...], log_scales: tuple[float, ...], carried: bool = False
) -> PublicSpec:
    """The spec with levels and scales."""
    return PublicSpec(**plain(spec), levels=levels, log_scales=log_scales, carried=carried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """The chains: the ring and the keys of the whole one, and the lower parts."""

    ring: Ring
    rotation_keys: tuple[int, ...] = field(metadata=bounds(1))
    relinearization_key: bool
    chains: tuple[LowerPart, ...] = field(metadata=bounds(most=MAX_CHAINS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Chains):
    """What a client is told: chains and keys, inputs and outputs, some figures of the report, what answers certify.

    `raising_chains` are the numbers of the chains to whose top bootstraps raise the modulus.
    """

    name: str = field(metadata=bounds(named=True))
    inputs: tuple[PublicSpec, ...] = field(metadata=bounds(most=MAX_TENSORS))
    outputs: tuple[PublicSpec, ...] = field(metadata=bounds(most=MAX_TENSORS))
    predicted: Mapping[str, float] = field(metadata=bounds(0.0, _LARGEST_PREDICTED, most=_MOST_PREDICTED))
    conjugation_key: bool
    raising_chains: tuple[int, ...] = field(default=(), metadata=bounds(optional=True))
    certificate: Certified | None = field(default=None, metadata=bounds(optional=True))


def chains_values(chains: Sequence[Chain]) -> dict[str, Any]:
    """The fields of `Chains` for these."""
    upper, *lower = chains
    return {
        "ring": upper.ring,
        "rotation_keys": upper.rotation_keys,
        "relinearization_key": upper.relinearization_key,
        "chains": tuple(map(LowerPart.of, lower)),
    }


def chains_json(chains: Sequence[Chain]) -> dict[str, Any]:
    """The chains as JSON values."""
    found: dict[str, Any] = to_json(Chains(**chains_values(chains)))
    return found


def read_chains(given: Mapping[str, Any]) -> tuple[Chain, ...]:
    """The chains of such JSON values; a WireError where they are out of bounds."""
    return _chains(_read(Chains, given), secure=True)


def read_description(given: Mapping[str, Any], *, secure: bool = True) -> tuple[Description, tuple[Chain, ...]]:
    """The description in JSON values, and its chains; a WireError where it is out of bounds.

    `secure=False` leaves the security that the chains claim to the caller.
    """
    check_texts(given, "it")
    found = _read(Description, given)
    chains = _chains(found, secure)
    check_raising(found.raising_chains, chains)
    if found.certificate is not None:
        check_certificate(found.certificate)
    _check_specs(found.inputs, found.ring, "input")
    _check_specs(found.outputs, found.ring, "output")
    if len({spec.placed.stride for spec in (*found.inputs, *found.outputs)}) > 1:
        raise refuse("its layouts hold different numbers of samples")
    return found, chains


def _read(kind: Any, given: Mapping[str, Any]) -> Any:
    found = record(kind, given, "its description")
    # What may be left out is left out: every description has one form.
    if to_json(found) != given:
        raise refuse("its fields are malformed: one has its usual value, or is lacking")
    return found


def _chains(found: Chains, secure: bool) -> tuple[Chain, ...]:
    ring = check_ring(found.ring, secure=secure)
    chains = [Chain(ring, found.rotation_keys, found.relinearization_key)]
    for part in found.chains:
        if part.bootstraps and ring.bootstrap is None:
            raise refuse("a lower chain bootstraps, and the whole one does not")
        whole(part.level, "the level of a lower chain", 1, ring.levels)
        chains.append(part.under(ring))
    check_chains(chains, secure=secure)
    return tuple(chains)


def _check_specs(specs: Sequence[PublicSpec], ring: Ring, direction: str) -> None:
    if not specs:
        raise refuse(f"the list of {direction}s is malformed")
    for spec in specs:
        count = check_spec(spec, ring, direction).ciphertexts
        if len(spec.log_scales) != count or len(spec.levels) != (count if direction == "input" else 0):
            raise refuse(f"the levels or scales of {direction} {spec.name!r} do not fit its ciphertexts")
        if spec.carried and direction == "output":
            raise refuse(f"output {spec.name!r} is one that comes from a run before")
        if max(spec.levels, default=0) > ring.levels:
            raise refuse(f"input {spec.name!r} has more levels than the ring")
    if len({spec.name for spec in specs}) != len(specs):
        raise refuse(f"two {direction}s have one name")
