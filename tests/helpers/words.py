"""Words that a reader of the documents reads: `python tests/helpers/words.py` prints them by page.

Counted as `wc -w` counts, on README.md and docs/*.md. Left out: blocks of code and output, tables that
`python -m benchmarks tables` writes, and docs/wire.md, a specification of bytes. Tables written by hand count.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = "wire.md"


def running(text: str) -> int:
    """Words of a page outside its blocks of code and its tables of records."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return len(re.sub(r"<!-- table .*?<!-- /table -->", "", text, flags=re.DOTALL).split())


def pages() -> dict[str, int]:
    """Running words of each page, the longest first."""
    paths = [ROOT / "README.md", *(path for path in (ROOT / "docs").glob("*.md") if path.name != SPECIFICATION)]
    found = {path.relative_to(ROOT).as_posix(): running(path.read_text()) for path in paths}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    counts = pages()
    for name, words in counts.items():
        print(f"{words:7} {name}")
    print(f"{sum(counts.values()):7} in {len(counts)} pages")
