"""docs/tour.ipynb runs from top to bottom, and prints what is kept in it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from helpers.pages import DOCS, ROOT, steady

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat (the extra `docs`)")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient (the extra `docs`)")

NOTEBOOK = DOCS / "tour.ipynb"


def printed(cell: object) -> list[str]:
    """What a cell printed, or the text of what it evaluates to, without what depends on the machine."""
    texts = [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs  # type: ignore[attr-defined]
        if output.get("name") != "stderr"
    ]
    return steady("".join(texts))


def rows(cell: object) -> list[str]:
    """What the rows of the tables that a cell shows are called: the kept ones have those that the bill has now."""
    pages = [output.get("data", {}).get("text/html", "") for output in cell.outputs]  # type: ignore[attr-defined]
    return re.findall(r"<tr><td>(?:<span[^>]*>)?([^<]+)", "".join(pages))


def test_the_notebook_runs_and_prints_what_it_shows(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openfhe", reason="OpenFHE is not installed")
    pytest.importorskip("sklearn", reason="the notebook uses scikit-learn's digits (the extra `demo`)")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    kept = nbformat.read(NOTEBOOK, as_version=4)
    ran = nbformat.read(NOTEBOOK, as_version=4)
    begun = time.monotonic()
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(ran, timeout=300, kernel_name="python3", resources=resources, record_timing=False)
    client.execute()
    if request.config.getoption("--update-golden"):
        for cell in ran.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        ran.metadata = kept.metadata
        nbformat.write(ran, NOTEBOOK)
        kept = ran
    pairs = [(old, new) for old, new in zip(kept.cells, ran.cells, strict=True) if old.cell_type == "code"]
    assert len(pairs) >= 6
    for old, new in pairs:
        assert printed(new) == printed(old), old.source
        assert rows(new) == rows(old), old.source
        assert old.outputs or not new.outputs
    # Kernels are compiled once on a machine; all else is well below a minute.
    print(f"the notebook took {time.monotonic() - begun:.0f} s")


def test_the_notebook_holds_no_place_of_a_machine() -> None:
    text = NOTEBOOK.read_text()
    for word in ("/home/", "/tmp/", "/work/", "site-packages"):
        assert word not in text
