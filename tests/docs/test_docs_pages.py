"""The pages that a new user reads first: every block runs, in order, and prints what the page says."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.pages import DOCS, ROOT, Page, blocks

# Page -> how many blocks run at least.
PAGES = {
    "coming_from.md": 6,
    "private.md": 6,
    "search.md": 2,
    "tutorial.md": 23,
    "bill.md": 7,
    "faq.md": 4,
    "glossary.md": 2,
    "pytorch.md": 2,
    "tables.md": 7,
}


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_the_page_print_what_it_says(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("openfhe", reason="OpenFHE is not installed")
    pytest.importorskip("sklearn", reason="the pages use scikit-learn's digits (the extra `demo`)")
    page = Page(tmp_path)
    if name == "tables.md":
        _model_of_xgboost(tmp_path)
    page.run(DOCS / name, update=request.config.getoption("--update-golden"))
    assert page.ran >= PAGES[name]


def _model_of_xgboost(folder: Path) -> None:
    """The files that the page says are there."""
    model = ROOT / "tests/frontends/trees_models/xgboost-binary.json"
    shutil.copy(model, folder / "model.json")
    with np.load(model.with_suffix(".answers.npz")) as answers:
        np.save(folder / "samples.npy", answers["samples"])


def test_a_page_that_prints_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert len(blocks(page.read_text())) == 2
    with pytest.raises(AssertionError):
        Page(tmp_path).run(page)
