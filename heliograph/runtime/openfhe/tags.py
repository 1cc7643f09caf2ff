"""The names under which evaluation keys are found: one for each chain of a program, made from one of the server's own."""

from __future__ import annotations

from heliograph.ckks.ring import Ring

# Separates the tag of the whole chain's keys from the level of a lower part; no client's tag contains it.
_LEVEL_MARK = "/"


def chain_tag(tag: str, whole: Ring, ring: Ring) -> str:
    """The name of a chain's keys: the whole chain's name, followed by the level for a lower part."""
    base = tag.partition(_LEVEL_MARK)[0]
    return base if ring == whole else f"{base}{_LEVEL_MARK}{ring.levels}"


def chain_levels(tag: str, whole: Ring) -> int:
    """The levels of the chain whose keys have this name."""
    mark = tag.partition(_LEVEL_MARK)[2]
    return int(mark) if mark else whole.levels
