"""The client's description of a program: JSON values in public artifacts and key files, checked when they are read."""

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

# The largest number of predicted figures, and the largest figure.
_MOST_PREDICTED = 64
_LARGEST_PREDICTED = 1e18


@dataclass(frozen=True, slots=True)
class PublicSpec(TensorSpec):
    """An input or output with the scales of its ciphertexts, and for an input their levels; outputs are at level 0.

    `carried`: whether an input comes from the previous run (`Interface.carried`); the client supplies it for the first
    run only.
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
    """The whole chain's ring and keys, and the lower parts of the chain."""

    ring: Ring
    rotation_keys: tuple[int, ...] = field(metadata=bounds(1))
    relinearization_key: bool
    chains: tuple[LowerPart, ...] = field(metadata=bounds(most=MAX_CHAINS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Chains):
    """A client's description of a program: chains, keys, inputs, outputs, some figures of the report, the certificate.

    `raising_chains`: the indices of the chains to whose top level bootstraps raise the modulus.
    """

    name: str = field(metadata=bounds(named=True))
    inputs: tuple[PublicSpec, ...] = field(metadata=bounds(most=MAX_TENSORS))
    outputs: tuple[PublicSpec, ...] = field(metadata=bounds(most=MAX_TENSORS))
    predicted: Mapping[str, float] = field(metadata=bounds(0.0, _LARGEST_PREDICTED, most=_MOST_PREDICTED))
    conjugation_key: bool
    raising_chains: tuple[int, ...] = field(default=(), metadata=bounds(optional=True))
    certificate: Certified | None = field(default=None, metadata=bounds(optional=True))


def chains_values(chains: Sequence[Chain]) -> dict[str, Any]:
    """The fields of `Chains` for these chains."""
    upper, *lower = chains
    return {
        "ring": upper.ring,
        "rotation_keys": upper.rotation_keys,
        "relinearization_key": upper.relinearization_key,
        "chains": tuple(map(LowerPart.of, lower)),
    }


def read_description(given: Mapping[str, Any], *, secure: bool = True) -> tuple[Description, tuple[Chain, ...]]:
    """The description in JSON values, and its chains; a WireError if it is out of bounds.

    `secure=False` leaves the check of the chains' security to the caller.
    """
    check_texts(given, "it")
    found = _read(Description, given)
    chains = _chains(found, secure)
    check_raising(found.raising_chains, chains)
    if found.certificate is not None:
        check_certificate(found.certificate)
    _check_specs(found.inputs, found.ring, "input")
    _check_specs(found.outputs, found.ring, "output")
    if len({spec.placed.batch for spec in (*found.inputs, *found.outputs)}) > 1:
        raise refuse("its layouts hold different numbers of samples")
    return found, chains


def _read(kind: Any, given: Mapping[str, Any]) -> Any:
    found = record(kind, given, "its description")
    # Optional fields must be left out where possible: every description has a single form.
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
