"""Errors in the command line's own words: the package says `calibration=samples`, its user types `--calibration`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

from heliograph.cli.options import spelled
from heliograph.compiler.options import ABOUT
from heliograph.errors import HeliographError

# Function arguments that commands have as flags, besides the compiler's options.
_ARGUMENTS: Mapping[str, str] = {
    "input_range": "--input-range",
    "calibration": "--calibration",
    "example_input": "the example (--example-shape, or the first sample of --calibration)",
    "backend": "--backend",
    "check_memory": "--no-memory-check",
    "allow_insecure": "--insecure",
    "overwrite": "--force",
    "plain_http": "--plain-http",
    "plaintexts": "--plaintexts",
}
_SWITCHES: Mapping[str, str] = {
    "bootstrap=True": "--bootstrap",
    "bootstrap=False": "--no-bootstrap",
    "bootstrap=None": "neither --bootstrap nor --no-bootstrap",
    "security_bits=None": "--insecure",
    "check_memory=False": "--no-memory-check",
    "check=False": "--no-check",
    "allow_insecure=True": "--insecure",
    "overwrite=True": "--force",
    "plain_http=True": "--plain-http",
    "calibration=samples": "--calibration FILE",
    "input_range=(low, high)": "--input-range LOW HIGH",
}
# Whole phrases, replaced before anything else is looked at.
_PHRASES: tuple[tuple[str, str], ...] = (
    (r"pass (calibration=samples(?: or input_range=\(low, high\))?) to trace", r"give \1"),
    (r"allow_insecure=True \(on the command line --insecure\)", "allow_insecure=True"),
    (r'take the scores: hg\.from_sklearn\(estimator, samples, outputs="scores"\)', "take the scores: give --scores"),
    (r"compile it with hg\.certify", "compile it with heliograph certify"),
    (r"see whether model\(example_input\) runs; example_input needs a batch axis", "see whether the model runs on it"),
    (r" with security_bits=128", " without --insecure"),
    (r"Options\((\w+)=\.\.\.\)", r"Options.\1"),
    (r"Server\((\w+)=\.\.\.\)", r"Options.\1"),
)
_VALUE = r"""\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|'[^']*'|"[^"]*"|[\w.+-]*\w"""


def _flags() -> dict[str, str]:
    """What each argument is called on the command line."""
    flags = dict(_ARGUMENTS)
    for name, about in ABOUT.items():
        flags[name] = spelled(name, about.flag)
    return flags


@functools.cache
def _translator() -> Callable[[str], str]:
    flags = _flags()
    names = "|".join(sorted(flags, key=len, reverse=True))
    # A single word such as `batch` is an argument only if a value follows; anything in quotes is the user's own.
    unmistakable = "|".join(name for name in flags if "_" in name)
    pattern = re.compile(
        rf"(?P<quoted>(?<!\w)'[^'\n]*'(?!\w))|\bOptions\.(?P<option>{names})\b"
        rf"|\b(?P<name>{names})=(?P<value>{_VALUE})|\b(?P<bare>{unmistakable})\b"
    )

    def replaced(found: re.Match[str]) -> str:
        if found["quoted"]:
            return found[0]
        if found[0] in _SWITCHES:
            return _SWITCHES[found[0]]
        if found["name"]:
            return f"{flags[found['name']]} {_as_typed(found['value'])}"
        return flags[found["option"] or found["bare"]]

    def translated(text: str) -> str:
        for phrase, instead in _PHRASES:
            text = re.sub(phrase, instead, text)
        return pattern.sub(replaced, text)

    return translated


def _as_typed(value: str) -> str:
    """A Python value as it is written after a flag: {'act': 7} as act=7."""
    if value[0] not in "{[(":
        return value.strip("'\"") or value
    inner = re.sub(r"""['"]?([^'",:\s]+)['"]?:\s*""", r"\1=", value[1:-1])
    return ",".join(part.strip() for part in inner.split(","))


def with_flags(text: str) -> str:
    """A text of the package with flags in place of arguments."""
    return _translator()(text)


def in_flags(error: HeliographError) -> str:
    """The error's text with the flags that its user typed, or could type, in place of the arguments of functions."""
    if type(error)._text is not HeliographError._text:
        return str(error)
    what, where = with_flags(error.what), with_flags(error.where)
    # "--batch: --batch 3 cannot be used" would say it twice.
    if where.startswith("--") and what.startswith(where):
        where = ""
    return str(HeliographError(what, where=where, why=with_flags(error.why), hint=with_flags(error.hint)))
