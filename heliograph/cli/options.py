"""The compiler's options as flags of a command: a flag for each field of `Options` that has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from heliograph.compiler.options import ABOUT, About, Flag, Options

F = TypeVar("F", bound=Callable[..., Any])


def compiler_options(command: F) -> F:
    """Add the flags to a command; it is called with what was given, by the names of the options (`chosen_options`)."""
    for name, about in reversed(list(ABOUT.items())):
        if about.flag is not None:
            command = _flag(name, about, about.flag)(command)
    return command


def chosen_options(given: Mapping[str, Any]) -> Options:
    """The options that the flags ask for; what was not given has its default."""
    chosen = {}
    for name, value in given.items():
        about = ABOUT[name]
        assert about.flag is not None
        if value is None or value == ():
            continue
        if about.flag.bare:
            value = about.flag.means
        elif about.flag.read is not None:
            value = about.flag.read(value)
        elif not _is_switch(about):
            value = next((choice for choice in about.choices if str(choice) == value), value)
        chosen[name] = value
    return Options(**chosen)


def _is_switch(about: About) -> bool:
    return True in about.choices and False in about.choices


def _flag(name: str, about: About, flag: Flag) -> Callable[[F], F]:
    spelled = flag.name or name.replace("_", "-")
    given: dict[str, Any] = {"default": None, "help": flag.help, "metavar": flag.metavar}
    if flag.bare:
        return click.option(f"--{spelled}", name, is_flag=True, flag_value=True, **given)
    if _is_switch(about):
        return click.option(f"--{spelled}/--no-{spelled}", name, **given)
    if about.choices:
        kind: Any = click.Choice([str(choice) for choice in about.choices if choice is not None])
    else:
        kind = about.kind or str
    return click.option(f"--{spelled}", name, type=kind, multiple=flag.several, **given)
