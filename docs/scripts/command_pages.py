"""The command line as Markdown: `--help` of every command, as click writes it.

`python docs/scripts/command_pages.py` prints it; the site has it as commands.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from heliograph.cli.main import cli

_HEAD = """# Command line

What `heliograph COMMAND --help` prints.
"""
# What fits a page of the site without scrolling sideways.
_WIDTH = 80


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, text in helps():
        parts.append(f"{'##' if name.count(' ') == 1 else '###'} {name}\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def helps() -> Iterator[tuple[str, str]]:
    """(`heliograph compile`, its help) of every command, subcommands after their group."""
    top = click.Context(cli, info_name="heliograph", terminal_width=_WIDTH, max_content_width=_WIDTH)
    yield from _of(cli, top)


def _of(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, terminal_width=_WIDTH, max_content_width=_WIDTH)
        yield inner.command_path, command.get_help(inner)
        if isinstance(command, click.Group):
            yield from _of(command, inner)


if __name__ == "__main__":
    print(page(), end="")
