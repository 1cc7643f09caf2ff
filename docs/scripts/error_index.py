"""The index of errors as Markdown: every error that the package can raise, read from its sources.

`python docs/scripts/error_index.py` prints it; the site has it as errors.md.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "heliograph"

_HEAD = """# Errors

Every error of Heliograph is a `HeliographError`: one sentence that says *what* is wrong, after the place where it is, then
`why:` and `try:` where there is more to say. This page is made from the sources. Search it for words of the message that do
not depend on your program; `{...}` stands for a part that does. An empty column means that the message says it all, or that
advice is written for each case. Classes with many errors are divided by the room of the package that raises them.

Catch the base class, or one of these:

"""

_MANY = 50


@dataclass(frozen=True, slots=True)
class Raised:
    """One place that makes an error: its class, its texts (`{...}` for what is filled in), and the module."""

    kind: str
    what: str
    hint: str
    module: str


def error_classes() -> dict[str, tuple[str, str]]:
    """Class -> (its base, the first paragraph of its docstring), for every error that the package defines."""
    classes = {}
    for _, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.bases:
                text = (ast.get_docstring(node) or "").split("\n\n")[0]
                classes[node.name] = (ast.unparse(node.bases[0]).split(".")[-1], " ".join(text.split()))
    ours = {"HeliographError"}
    while True:
        more = {name for name, (base, _) in classes.items() if base in ours} - ours
        if not more:
            return {name: classes[name] for name in sorted(ours)}
        ours |= more


def raised() -> list[Raised]:
    """Every place in the package that makes one of these errors with a text of its own, in order of class and text."""
    known = error_classes()
    found = set()
    for module, tree in _modules():
        constants = _texts_of(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
                continue
            kind = ast.unparse(node.func).split(".")[-1]
            if kind not in known or not node.args:
                continue
            hints = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
            what = _text(node.args[0], constants)
            # A text that is only filled in elsewhere says nothing here.
            if re.search(r"[a-z]{3}", re.sub(r"\{[^}]*\}", "", what)):
                found.add(Raised(kind, what, _text(hints[0], constants) if hints else "", module))
    return sorted(found, key=lambda error: (error.kind, error.what.lower(), error.hint, error.module))


def page() -> str:
    """The whole page."""
    classes = error_classes()
    errors = raised()
    lines = [_HEAD.rstrip("\n"), "", "| class | is a | raised when |", "|---|---|---|"]
    lines += [
        f"| `{name}` | `{base}` | {_docstring(text)} |" for name, (base, text) in classes.items() if not _inner(name)
    ]
    for kind in sorted({error.kind for error in errors if not _inner(error.kind)}):
        lines += ["", f"## {kind}"]
        ours = [error for error in errors if error.kind == kind]
        # Many errors of one class are put together by the room of the package that raises them.
        rooms = {error: _room(error.module) if len(ours) > _MANY else "" for error in ours}
        for room in sorted(set(rooms.values())):
            lines += ["", f"### {kind}: {room}"] if room else []
            lines += ["", '<div class="errors" markdown>', "", "| what | try |", "|---|---|"]
            texts = {(error.what, error.hint): None for error in ours if rooms[error] == room}
            lines += [f"| {_cell(what)} | {_cell(hint)} |" for what, hint in texts]
            lines += ["", "</div>"]
    return "\n".join(lines) + "\n"


def _room(module: str) -> str:
    """The room of a module; of front ends, which of them."""
    room, *rest = module.removesuffix(".py").split("/")
    return f"{room}/{rest[0]}" if room == "frontends" and len(rest) > 1 else room


def _inner(name: str) -> bool:
    return name.startswith("_") or name in vars(builtins)


@functools.cache
def _modules() -> tuple[tuple[str, ast.Module], ...]:
    """The name and the tree of each module."""
    return tuple(
        (path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))
    )


def _texts_of(tree: ast.Module) -> dict[str, ast.expr]:
    """The module's constants that hold a text."""
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Call))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _text(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    """A text as the sources have it: what is filled in stands as its name in braces, or as `{...}`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "said":
        # Arguments stand in braces (heliograph/errors.py): here they are called as in Python.
        parts = [part for text in node.args for part in (text.values if isinstance(text, ast.JoinedStr) else [text])]
        return "".join(
            re.sub(r"\{([^{}|]+)(\|[^{}]*)?\}", r"\1", _text(part, constants))
            if isinstance(part, ast.Constant)
            else _text(part, constants)
            for part in parts
        )
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Argument":
        return f"{_text(node.args[0], constants)}={{...}}"
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        named = {ast.Name: "id", ast.Attribute: "attr"}.get(type(node.value), "")
        return "{" + (getattr(node.value, named) if named else "...") + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, constants) + _text(node.right, constants)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, constants)} / {_text(node.orelse, constants)}"
    if isinstance(node, ast.Name) and node.id in constants:
        return _text(constants[node.id], {})
    return "{...}"


def _docstring(text: str) -> str:
    """A docstring for a cell of a table; what is in backquotes there is code here too."""
    return " ".join(text.split()).replace("|", "&#124;")


def _cell(text: str) -> str:
    """Text for a cell of a table: nothing in it is markup, and one that is filled in as a whole is left empty."""
    if text == "{...}":
        return ""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"&#{ord(sign)};")
    return " ".join(text.split())


if __name__ == "__main__":
    print(page(), end="")
