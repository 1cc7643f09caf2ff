"""The names that a program's metadata may have: what passes decide for the whole program.

A name outside these tables is a slip of the pen, and what it was to say would be ignored by whoever reads the right one.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

NAMES = {
    "inputs": "the secret inputs: names, shapes, layouts, declared ranges",
    "outputs": "the outputs: names, shapes, layouts",
    "batch": "samples side by side in one ciphertext",
    "output_ranges": "what each output can be",
    "ranges": "the intervals of the polynomials' inputs",
    "range_layouts": "the layouts of those inputs, by the number of their interval",
    "unit_sizes": "what a unit of such an input is in the values of the original program",
    "flood": "deviation of the noise that the server adds to its outputs",
    "log_primes": "logarithms of the chain's primes",
    "ring": "the ring",
    "rotation_keys": "amounts of rotation with a key in the whole chain",
    "rotation_paths": "how other amounts are composed of these",
    "relinearization_key": "whether the whole chain has one",
    "chains": "lower parts of the chain, with keys of their own",
    "resident_key_bytes": "the bound on keys in memory that the program was planned for",
    "bootstrap_slots": "numbers of slots that are bootstrapped",
    "paired_slots": "those whose bootstraps keep imaginary parts",
    "observed_bootstraps": "sizes of bootstrapped values that were observed, not proved",
    "last_uses": "which values are dropped after each node",
}
# The entries of lists and mappings among them.
_TENSOR = {"name", "shape", "layout", "low", "high"}
_ENTRIES: dict[str, Collection[str]] = {
    "inputs": _TENSOR,
    "outputs": _TENSOR,
    "output_ranges": {"low", "high", "range_source"},
    "chains": {"level", "digits", "rotation_keys", "relinearization_key"},
    "ranges": {
        "layer", "location", "function", "low", "high", "source", "samples", "margin", "observed", "proved", "degree",
        "method", "max_error", "rms_error", "proved_error",
        # Of single kinds: by units, composed of several polynomials, decisions, softmax.
        "units", "smallest_unit", "degrees", "construction", "relative_error", "gap", "gap_source", "closeness_bits",
        "count", "rows", "squarings",
    },
}  # fmt: skip


def unknown_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """What stands in the metadata under no known name, in words, with the name that may have been meant."""
    yield from (_told(name, "the metadata", NAMES) for name in metadata if name not in NAMES)
    for key, names in _ENTRIES.items():
        value = metadata.get(key, ())
        for entry in value.values() if isinstance(value, Mapping) else value:
            if isinstance(entry, Mapping):
                yield from (_told(name, f"{key} of the metadata", names) for name in entry if name not in names)


def _told(name: object, where: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(str(name), names, n=1)
    return f"{where} have no {str(name)[:60]!r}" + (f"; perhaps {near[0]!r} was meant" if near else "")
