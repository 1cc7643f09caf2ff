"""Portable source paths for artifacts: the same wherever a program is compiled, and without anybody's folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from heliograph.errors import HeliographError
from heliograph.ir import Node, Program
from heliograph.texts import shown

_INSTALLED = ("site-packages", "dist-packages")


def portable(program: Program) -> tuple[Program, Mapping[str, str]]:
    """The program with portable paths, and the original path of each."""
    kept = portable_files(node.loc.file for node in program.nodes)
    new: dict[Node, Node] = {}
    for node in program.nodes:
        loc = replace(node.loc, file=kept[node.loc.file], layer=shown(node.loc.layer))
        new[node] = replace(node, inputs=tuple(new[operand] for operand in node.inputs), loc=loc)
    if all(node.loc == made.loc for node, made in new.items()):
        return program, {}
    inputs, nodes, outputs = (
        tuple(new[node] for node in group) for group in (program.inputs, program.nodes, program.outputs)
    )
    before = {name: file for file, name in kept.items() if name != file}
    return replace(program, inputs=inputs, nodes=nodes, outputs=outputs), before


def portable_files(files: Iterable[str]) -> dict[str, str]:
    """The portable path of each file: relative to the folder that all of the user's files share.

    Files of installed packages are relative to the folder of installed packages. If the files share only the user's
    home or a folder above it, only their names are kept.
    """
    names = {file for file in files if file}
    resolved = {file: _resolved(file) for file in names if not file.startswith("<")}
    own = [path for path in resolved.values() if not set(path.parts) & set(_INSTALLED)]
    base = Path(os.path.commonpath([path.parent for path in own])) if own else None
    if base is not None and (base in _HOMES or len(base.parts) < 2):
        base = None
    return {file: shown(_kept(resolved[file], base) if file in resolved else file) for file in (*names, "")}


def _homes() -> set[Path]:
    try:
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return set()
    return {home, *home.parents}


_HOMES = _homes()


def _resolved(file: str) -> Path:
    try:
        return Path(file).resolve()
    except (OSError, RuntimeError, ValueError):
        return Path("/", PurePath(file).name)


def _kept(path: Path, base: Path | None) -> str:
    for number in range(len(path.parts) - 1, 0, -1):
        if path.parts[number] in _INSTALLED:
            return PurePath(*path.parts[number + 1 :]).as_posix()
    if base is not None and path.is_relative_to(base):
        return path.relative_to(base).as_posix()
    return path.name


@contextlib.contextmanager
def told_by(before: Mapping[str, str]) -> Iterator[None]:
    """A context in which errors name files by their original paths, which the user can open."""
    try:
        yield
    except HeliographError as error:
        for kept, file in before.items():
            if error.where.startswith(f"{kept}:"):
                error.where = file + error.where[len(kept) :]
                error.args = (error._text(),)
                break
        raise
