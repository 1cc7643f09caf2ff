"""Interface and chains as JSON values, as public artifacts and key files hold them, and back with every bound checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from heliograph.artifact.validate import (
    MAX_LOG_SCALE,
    MAX_TENSORS,
    check_chains,
    check_raising,
    check_ring,
    check_spec,
    check_texts,
    real,
    refuse,
    whole,
)
from heliograph.ckks.chains import Chain, LowerPart
from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError
from heliograph.ir.interface import TensorSpec
from heliograph.ir.records import record

R = TypeVar("R")
# A field that a file has only if the program bootstraps: the chains to whose top modulus is raised.
RAISING = "raising_chains"


@dataclass(frozen=True, slots=True)
class PublicSpec(TensorSpec):
    """An input or output with the scales of its ciphertexts, and of an input their levels; outputs are at level 0.

    `carried`: an input that comes from the run before (`Interface.carried`); it is given for the first run only.
    """

    levels: tuple[int, ...] = ()
    log_scales: tuple[float, ...] = ()
    carried: bool = False


def public_spec(
    spec: TensorSpec, levels: tuple[int, ...], log_scales: tuple[float, ...], carried: bool = False
) -> PublicSpec:
    """The spec with levels and scales."""
    values = {field.name: getattr(spec, field.name) for field in fields(TensorSpec)}
    return PublicSpec(**values, levels=levels, log_scales=log_scales, carried=carried)


def spec_json(spec: PublicSpec) -> dict[str, Any]:
    """An input or output as JSON values, without what is not known."""
    made: dict[str, Any] = {"name": spec.name, "shape": list(spec.shape), "layout": spec.placed.to_json()}
    told = ("low", "high", "range_source", "classes", "finish", "finish_axis", "scale", "columns")
    made |= {key: getattr(spec, key) for key in told if getattr(spec, key) is not None}
    if spec.levels:
        made["levels"] = list(spec.levels)
    if spec.carried:
        made["carried"] = True
    return {**made, "log_scales": list(spec.log_scales)}


def chains_json(chains: Sequence[Chain]) -> dict[str, Any]:
    """The chains as JSON values: the ring and the keys of the whole one, and `chains`, the lower parts."""
    whole_chain, *lower = chains
    return {
        "ring": whole_chain.ring.to_json(),
        "rotation_keys": list(whole_chain.rotation_keys),
        "relinearization_key": whole_chain.relinearization_key,
        "chains": [_part_json(LowerPart.of(chain)) for chain in lower],
    }


def _part_json(part: LowerPart) -> dict[str, Any]:
    """A lower part as JSON values: all its fields, and whether it bootstraps only where it does."""
    made = {**asdict(part), "rotation_keys": list(part.rotation_keys)}
    if not part.bootstraps:
        del made["bootstraps"]
    return made


def read_chains(given: Mapping[str, Any], *, secure: bool = True) -> tuple[Chain, ...]:
    """The chains of such JSON values; a WireError where they are out of bounds.

    `secure=False` leaves the security that they claim to the caller.
    """
    lower = given["chains"]
    if not isinstance(lower, Sequence) or isinstance(lower, str):
        raise refuse("the list of lower chains is malformed")
    ring = _read(Ring, given["ring"], "ring")
    check_ring(ring, secure=secure)
    keys = {"rotation_keys": given["rotation_keys"], "relinearization_key": given["relinearization_key"]}
    chains = [_read(Chain, {"ring": ring, **keys}, "chain")]
    for each in lower:
        part = _read(LowerPart, each, "lower chain")
        # A file gives all fields; a text omits those with their usual value.
        if set(each) != set(_part_json(part)):
            raise refuse("a lower chain is malformed")
        if part.bootstraps and ring.bootstrap is None:
            raise refuse("a lower chain bootstraps, and the whole one does not")
        level = whole(part.level, "the level of a lower chain", 1, ring.levels)
        whole(part.digits, "the digits of a lower chain", 1, level + 1)
        chains.append(part.under(ring))
    check_chains(chains, secure=secure)
    return tuple(chains)


def raising_json(raising: Sequence[int]) -> dict[str, Any]:
    """The chains to whose top modulus is raised as JSON values; nothing where it is raised in none."""
    return {RAISING: list(raising)} if raising else {}


def read_raising(given: Mapping[str, Any], chains: Sequence[Chain]) -> tuple[int, ...]:
    """The same from such JSON values; a WireError where they are not some of these chains."""
    return check_raising(given[RAISING], chains) if RAISING in given else ()


def read_interface(given: Mapping[str, Any], ring: Ring) -> tuple[tuple[PublicSpec, ...], tuple[PublicSpec, ...]]:
    """The inputs and the outputs of such JSON values; a WireError where they are out of bounds."""
    inputs, outputs = _specs(given["inputs"], ring, "input"), _specs(given["outputs"], ring, "output")
    if len({spec.placed.stride for spec in (*inputs, *outputs)}) > 1:
        raise refuse("its layouts hold different numbers of samples")
    return inputs, outputs


def _specs(given: object, ring: Ring, direction: str) -> tuple[PublicSpec, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not 0 < len(given) <= MAX_TENSORS:
        raise refuse(f"the list of {direction}s is malformed")
    check_texts(given, f"its list of {direction}s")
    specs = tuple(_read(PublicSpec, each, direction) for each in given)
    for spec in specs:
        count = check_spec(spec, ring, direction).ciphertexts
        if len(spec.log_scales) != count or len(spec.levels) != (count if direction == "input" else 0):
            raise refuse(f"the levels or scales of {direction} {spec.name!r} do not fit its ciphertexts")
        if spec.carried and direction == "output":
            raise refuse(f"output {spec.name!r} is one that comes from a run before")
        for scale in spec.log_scales:
            real(scale, f"a scale of {direction} {spec.name!r}", 1.0, MAX_LOG_SCALE)
        for level in spec.levels:
            whole(level, f"a level of {direction} {spec.name!r}", 0, ring.levels)
    if len({spec.name for spec in specs}) != len(specs):
        raise refuse(f"two {direction}s have one name")
    return specs


def _read(kind: type[R], given: object, what: str) -> R:
    if not isinstance(given, Mapping):
        raise refuse(f"an entry that should be a {what} is malformed")
    try:
        return record(kind, given, what)
    except ProgramError as error:
        raise refuse(error.what) from None
