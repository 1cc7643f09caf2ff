"""How modules import each other, beyond what the contracts in pyproject.toml say."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[2] / "heliograph"


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("heliograph", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(known: dict[str, Path]) -> nx.DiGraph:
    """Which module imports which, inside functions and for type checking too; the public names of the package apart."""
    graph = nx.DiGraph()
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if name != "heliograph" and isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    graph.add_edge(name, full if full in known else node.module)
    return graph


def test_no_circle_is_larger_than_a_pair() -> None:
    circles = [sorted(circle) for circle in nx.strongly_connected_components(imports(modules())) if len(circle) > 1]
    assert max(map(len, circles), default=0) <= 2, circles


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert {f"| `{room}` |" for room in rooms} <= {
        line[: line.index("|", 2) + 1] for line in text.splitlines() if line.startswith("| `")
    }
