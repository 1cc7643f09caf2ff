"""`heliograph explain`: what the names in a report, and the operations of a program, mean."""

from __future__ import annotations

import click

from heliograph.cli.output import emit, output_options


@click.command("explain")
@click.argument("name", nargs=-1)
@output_options
def explain_command(name: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Explain NAME, a row or a word of the bill, a kind of call or an op of the IR, in one line; without NAME all of them.

    For example: heliograph explain output error
    """
    from heliograph.report.terms import CALLS, ROWS, TERMS, WORDS, explained

    if name:
        words = " ".join(name)
        line = explained(words)
        emit(f"{words}: {line}", {words: line}, as_json=as_json, quiet=quiet)
        return
    width = max(map(len, TERMS))
    parts = [
        f"{title}\n" + "\n".join(f"  {each:<{width}}  {line}" for each, line in entries.items())
        for title, entries in (("Rows of the bill", ROWS), ("Kinds of operations", CALLS), ("Words", WORDS))
    ]
    emit("\n\n".join(parts), TERMS, as_json=as_json, quiet=quiet)
