"""Files of the versions before: which are read, and what turns their contents into those of the present version.

A step does not change what the fingerprint of its kind covers, so that keys and ciphertexts still belong to the artifact.
`tests/formats/test_earlier.py` holds files of each version that is read, and the fingerprints that they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from heliograph.artifact.container import Container
from heliograph.artifact.validate import refuse

Step: TypeAlias = Callable[[Container], Container]


def _figures_of_the_public_part(found: Container) -> Container:
    """Version 12 of an artifact stores the figures of its public part that version 11 left to its reader."""
    if "predicted" in found.fields:
        raise refuse("its fields are not those of an artifact of version 11")
    return replace(found, fields={**found.fields, "predicted": None})


# By kind, the step from each earlier version to the next.
STEPS: Mapping[str, Mapping[int, Step]] = {"artifact": {11: _figures_of_the_public_part}}


def readable(kind: str, present: int) -> tuple[int, ...]:
    """The versions of this kind that are read, ascending: the present one and those from which steps lead to it."""
    steps, first = STEPS.get(kind, {}), present
    while first - 1 in steps:
        first -= 1
    return tuple(range(first, present + 1))


def as_present(found: Container, present: int) -> Container:
    """The contents as the present version has them; they are checked by its reader, as those of any file."""
    while found.version < present:
        found = replace(STEPS[found.kind][found.version](found), version=found.version + 1)
    return found
