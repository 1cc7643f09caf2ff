"""The planned parameters of a program: its chains with their keys, and the server's work beside evaluating."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from heliograph.ckks.chains import Chain
from heliograph.ckks.ring import Ring


@dataclass(frozen=True, slots=True)
class Parameters:
    """The decisions of the passes from PlanLevels on for the whole program.

    `chains`: the whole chain first, then its sub-chains from the highest to the lowest, each with its keys.
    `rotation_paths`: the rotations that compose an amount without its own key, for the steps of a `linear_transform`.
    `flood`: the standard deviation of the noise that the server adds to its outputs.
    `resident_key_bytes`: the bound on the keys in memory that the program was planned for; None if all of them stay.
    """

    chains: tuple[Chain, ...]
    rotation_paths: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    flood: float | None = None
    resident_key_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rotation_paths", MappingProxyType(dict(self.rotation_paths)))

    @property
    def ring(self) -> Ring:
        """The ring of the whole chain."""
        return self.chains[0].ring
