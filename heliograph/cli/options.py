"""The compiler's options as flags of a command, and errors in the command line's own words: what flags its user types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from heliograph.compiler.options import ABOUT, Flag, Options, option_types, texts
from heliograph.errors import Argument, HeliographError, ProgramError, Said

# Suffix of an option's name: the parameter of its second flag.
_ALSO = "_also"
F = TypeVar("F", bound=Callable[..., Any])


def _sections() -> dict[str, tuple[str, ...]]:
    """The flags of the options in each section of a command's help."""
    found: dict[str, tuple[str, ...]] = {}
    title = ""
    for name, about in ABOUT.items():
        title = about.section or title
        found[title] = (*found.get(title, ()), name, *([] if about.also is None else [name + _ALSO]))
    return found


COMPILER_SECTIONS: Mapping[str, tuple[str, ...]] = _sections()


def compiler_options(command: F) -> F:
    """Add the flags to a command; it is called with what was given, by the names of the options (`chosen_options`)."""
    for name, about in reversed(list(ABOUT.items())):
        if about.also is not None:
            command = _flag(name, about.also, name + _ALSO)(command)
        command = _flag(name, about.flag, name)(command)
    return command


def chosen_options(given: Mapping[str, Any]) -> Options:
    """The options that the flags ask for; what was not given has its default."""
    chosen: dict[str, Any] = {}
    for parameter, value in given.items():
        name = parameter.removesuffix(_ALSO)
        about = ABOUT[name]
        flag = about.flag if parameter == name else about.also
        assert flag is not None
        if value is None or value == ():
            continue
        if name in chosen:
            assert about.also is not None
            raise ProgramError(
                f"{spelled(name, about.flag)} and {spelled(name, about.also)} are both given",
                hint="leave one of them out",
            )
        if flag.bare:
            value = flag.means
        elif flag.read is not None:
            value = flag.read(value)
        chosen[name] = value
    return Options(**chosen)


def spelled(name: str, flag: Flag) -> str:
    """A flag of an option as it is typed: --degree-of."""
    return f"--{flag.name or name.replace('_', '-')}"


def _flag(name: str, flag: Flag, parameter: str) -> Callable[[F], F]:
    typed, kind = spelled(name, flag), _kind(name)
    text = flag.help or texts().get(name, "").partition(". ")[0].rstrip(".") + "."
    given: dict[str, Any] = {"default": None, "help": text, "metavar": flag.metavar}
    if flag.bare:
        return click.option(typed, parameter, is_flag=True, flag_value=True, **given)
    if kind is bool:
        return click.option(f"{typed}/--no-{typed[2:]}", parameter, **given)
    choices = [str(choice) for choice in ABOUT[name].choices]
    return click.option(
        typed, parameter, type=click.Choice(choices) if choices else kind, multiple=flag.several, **given
    )


def _kind(name: str) -> Any:
    """What stands behind an option's flag: a number, or a text that the flag reads."""
    hint = option_types()[name]
    kinds: tuple[Any, ...] = (bool, int, float)
    return next((kind for kind in kinds if hint in (kind, kind | None)), str)


# Function arguments that commands have as flags, besides the compiler's options.
_ARGUMENTS: Mapping[str, str] = {
    "input_range": "--input-range",
    "calibration": "--calibration",
    "example_input": "the example (--example-shape, or the first sample of --calibration)",
    "plaintexts": "--plaintexts",
}
# Values of arguments that have a flag of their own, or stand for one.
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


def in_flags(error: HeliographError) -> str:
    """The error's text with the flags that its user typed, or could type, in place of the arguments of functions."""
    if type(error)._text is not HeliographError._text:
        return str(error)
    what, why, hint = (with_flags(part) for part in (error.what, error.why, error.hint))
    option = error.where.removeprefix("Options.")
    where = _typed(Argument(option)) if option != error.where else error.where
    # "--batch: --batch 3 cannot be used" would say it twice.
    return str(HeliographError(what, where="" if what.startswith(where) else where, why=why, hint=hint))


def with_flags(text: str) -> str:
    """A text with flags in place of the arguments that stand apart in it."""
    return text.with_flags(_typed) if isinstance(text, Said) else text


def _typed(argument: Argument) -> str:
    """What the command line calls an argument, with its value as it is typed."""
    if str(argument) in _SWITCHES:
        return _SWITCHES[str(argument)]
    name = argument.name.removeprefix("Options.")
    flag = spelled(name, ABOUT[name].flag) if name in ABOUT else _ARGUMENTS.get(name, argument.name)
    return f"{flag} {_value(argument.value)}" if argument.value else flag


def _value(value: str) -> str:
    """A Python value as it is written after a flag: {'act': 7} as act=7."""
    if value[0] not in "{[(":
        return value.strip("'\"") or value
    inner = re.sub(r"""['"]?([^'",:\s]+)['"]?:\s*""", r"\1=", value[1:-1])
    return ",".join(part.strip() for part in inner.split(","))
