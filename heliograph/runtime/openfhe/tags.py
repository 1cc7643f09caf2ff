"""The names of evaluation keys in OpenFHE: one for each chain of a program, derived from the server's tag."""

from __future__ import annotations

from heliograph.ckks.ring import Ring

# Separates the tag of the whole chain's keys from the level of a lower part; no client's tag contains it.
_LEVEL_MARK = "/"


def chain_tag(tag: str, whole: Ring, ring: Ring) -> str:
    """The name of a chain's keys: the whole chain's name, followed by the level for a lower part."""
    base = tag.partition(_LEVEL_MARK)[0]
    return base if ring == whole else f"{base}{_LEVEL_MARK}{ring.levels}"


def chain_levels(tag: str, whole: Ring) -> int:
    """The number of levels of the chain with this tag."""
    mark = tag.partition(_LEVEL_MARK)[2]
    return int(mark) if mark else whole.levels
