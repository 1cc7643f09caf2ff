"""The compiler's options as flags of a command: a flag for each field of `Options` that has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from heliograph.compiler.options import ABOUT, Flag, Options, option_types, texts
from heliograph.errors import ProgramError

# Suffix of an option's name: the parameter of its second flag.
_ALSO = "_also"
INSIDE = "The compiler's steps"
# The flags in each section of a command's help.
COMPILER_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Polynomials": (
        "degree",
        "degrees",
        "degrees" + _ALSO,
        "allocate",
        "accuracy_loss",
        "target_error",
        "errors",
        "method",
        "spread",
        "margin",
        "samples_apart",
    ),
    "Precision of encryption": ("precision_bits", "gap_error", "flood"),
    "Speed and size": ("batch", "objective", "key_bytes", "memory_bytes", "costs"),
    "Bootstrapping": ("bootstrap", "bootstrap_activations", "chains"),
    "Parameters of the ring": ("log_ring", "scale_bits", "security_bits"),
    INSIDE: ("dump_ir",),
}
F = TypeVar("F", bound=Callable[..., Any])


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
    (kind,) = [each for each in (bool, int, float) if hint in (each, each | None)] or [str]
    return kind
