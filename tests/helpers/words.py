"""Words that a reader of the documents reads: `python tests/helpers/words.py` prints them by page.

A word has a letter or a digit, so that marks of lists and tables are none. Counted are README.md and docs/*.md without
docs/wire.md, a specification of bytes. Left out: blocks of code and output, comments, directives of the reference, and
tables that `python -m benchmarks tables` writes. Tables written by hand count.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = "wire.md"


def running(text: str) -> int:
    """Words of a page outside its blocks of code and its tables of records."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!-- table .*?<!-- /table -->", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|^:::.*$", "", text, flags=re.MULTILINE)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def pages(root: Path = ROOT) -> dict[str, int]:
    """Running words of each page, the longest first."""
    paths = [root / "README.md", *(path for path in (root / "docs").glob("*.md") if path.name != SPECIFICATION)]
    found = {path.relative_to(root).as_posix(): running(path.read_text()) for path in paths}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    counts = pages(*map(Path, sys.argv[1:2]))
    for name, words in counts.items():
        print(f"{words:7} {name}")
    print(f"{sum(counts.values()):7} in {len(counts)} pages")
