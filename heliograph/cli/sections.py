"""Help in sections, for commands with too many options for one list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

# The section for options without one, including --json, --quiet and --help.
OTHERS = "Other options"


class SectionedCommand(click.Command):
    """A command whose --help lists its options in sections.

    sections: the names of options by section title, in the order to be shown; options that are not named come last.
    """

    def __init__(self, *given: Any, sections: Mapping[str, Sequence[str]], **named: Any) -> None:
        super().__init__(*given, **named)
        self.sections = sections
        unknown = {name for names in sections.values() for name in names} - {each.name for each in self.params}
        assert not unknown, f"sections of {self.name} name parameters that it does not have: {sorted(unknown)}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        given = {
            str(each.name): each.get_help_record(ctx) for each in self.get_params(ctx) if isinstance(each, click.Option)
        }
        rows = {title: [given.pop(name) for name in names] for title, names in self.sections.items()}
        rows[OTHERS] = list(given.values())
        write_sections(formatter, {title: [row for row in section if row] for title, section in rows.items()})


def write_sections(formatter: click.HelpFormatter, rows: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write lists of (what is typed, what it does) under their titles, in columns of the same width."""
    width = max((len(typed) for section in rows.values() for typed, _ in section if len(typed) <= _TYPED), default=0)
    for title, section in rows.items():
        if section:
            with formatter.section(title):
                # click makes the column as wide as the widest entry of the section.
                formatter.write_dl([(typed.ljust(width), text) for typed, text in section], col_max=width)


# The widest entry that sets the width of the column. The text of a wider one begins on the next line.
_TYPED = 30
