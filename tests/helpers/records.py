"""The records of a program's text as plain values, to be changed and written back: what a forger of artifacts does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from heliograph.artifact import wire
from heliograph.ckks.chains import Chain
from heliograph.ir import Program
from heliograph.ir.text import parse_program
from heliograph.records import plain, to_json

_WORDS = ("input", "output", "carry", "chain", "path", "server", "range")


def values_of(program: Program) -> dict[str, Any]:
    """Interface, parameters and ranges as lists and dictionaries."""
    made: dict[str, Any] = {
        "inputs": [_deep(spec) for spec in program.interface.inputs],
        "outputs": [_deep(spec) for spec in program.interface.outputs],
        "ranges": [_deep(entry) for entry in program.ranges],
        "chains": [],
        "paths": {},
        "server": {},
    }
    if program.parameters is not None:
        whole, *lower = program.parameters.chains
        made["chains"] = [
            {"ring": _deep(whole.ring), **_keys(whole)},
            *({"level": chain.ring.levels, "digits": chain.ring.digits, **_keys(chain)} for chain in lower),
        ]
        made["paths"] = {str(amount): list(steps) for amount, steps in program.parameters.rotation_paths.items()}
        for name in ("flood", "resident_key_bytes"):
            if getattr(program.parameters, name) is not None:
                made["server"][name] = getattr(program.parameters, name)
    return made


def rewritten(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    """The text with its records changed."""
    found = values_of(parse_program(text))
    change(found)
    return with_values(text, found)


def with_values(text: str, found: dict[str, Any]) -> str:
    """The text with these records for its own."""
    head, title, *rest = text.split("\n")
    while rest[0].split(" ")[0] in _WORDS:
        rest.pop(0)
    return "\n".join([head, title, *_lines(found), *rest])


def _keys(chain: Any) -> dict[str, Any]:
    return {"rotation_keys": list(chain.rotation_keys), "relinearization_key": chain.relinearization_key}


def _deep(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {name: _deep(part) for name, part in plain(value).items()}
    return [_deep(part) for part in value] if isinstance(value, tuple) else value


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for word in ("input", "output"):
        for spec in _items(found.get(f"{word}s", ())):
            rest = (
                {key: value for key, value in spec.items() if key != "name"} if isinstance(spec, dict) else {"x": spec}
            )
            name = spec.get("name", "") if isinstance(spec, dict) else ""
            yield f"{word} {_shown(name)} {_shown(rest)}"
    for chain in _items(found.get("chains", ())):
        yield f"chain {_shown(chain)}"
    paths = found.get("paths", {})
    for amount, steps in paths.items() if isinstance(paths, dict) else (("x", paths),):
        yield f"path {amount} {_shown({'steps': steps})}"
    if found.get("server"):
        yield f"server {_shown(found['server'])}"
    for number, entry in enumerate(_items(found.get("ranges", ()))):
        yield f"range {number} {_shown(entry)}"


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_shown(part)}" for name, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return json.dumps(value) if isinstance(value, (str, bool)) or value is None else repr(value)


def chains_json(chains: Sequence[Chain]) -> dict[str, Any]:
    """The chains as JSON values, as a description has them."""
    return dict(to_json(wire.Chains(**wire.chains_values(chains))))


def read_chains(given: Mapping[str, Any]) -> tuple[Chain, ...]:
    """The chains in JSON values; a WireError if they are out of bounds."""
    return wire._chains(wire._read(wire.Chains, given), secure=True)
