"""What mkdocs.yml hooks in: pages that lie outside docs/, and pages that are made from the sources."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import command_pages
import error_index
import op_pages
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]

# A page outside docs/ -> its name in the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "benchmarks/data.md": "data.md",
}
# Files that pages link to as they are.
FILES = [
    path.relative_to(ROOT).as_posix() for kind in ("py", "hg") for path in sorted((ROOT / "examples").glob(f"*.{kind}"))
]
MADE = {"errors.md": error_index.page, "commands.md": command_pages.page, "operations.md": op_pages.page}

# The first page has no table of contents beside it: its program needs the width.
_WIDE = "---\nhide:\n  - toc\n---\n\n"
_SOURCE = re.compile(r'(?<=\ssrc=")(?![a-z]+:)([^"#]+)()(?=")')
_NOTEBOOK_LINK = re.compile(r'(?<=\shref=")(?![a-z]+:)([^"#]+)\.md(?=[#"])')
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files in docs/."""
    for source, name in OUTSIDE.items():
        text = relinked((ROOT / source).read_text(), source)
        files.append(File.generated(config, name, content=_WIDE + text if name == "index.md" else text))
    for name in FILES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    for name, page in MADE.items():
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of a page in docs/ to pages outside go to their names in the site."""
    if page.file.src_uri in {*OUTSIDE.values(), *MADE}:
        return markdown
    return relinked(markdown, f"docs/{page.file.src_uri}")


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Links of a notebook, which mkdocs leaves as they are, go to the pages that the site makes of the files."""
    return _NOTEBOOK_LINK.sub(r"\1.html", output) if page.file.src_uri.endswith(".ipynb") else output


def relinked(markdown: str, source: str) -> str:
    """The text of the file `source` (a path from the root) with its relative links as the site has them."""

    def place(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        return OUTSIDE.get(target, target.removeprefix("docs/")) + (match[2] or "")

    return _SOURCE.sub(place, _LINK.sub(place, markdown))
