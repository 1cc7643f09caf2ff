"""Python on the pages that show a few lines of it: it runs, given what the page says is there."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.pages import DOCS, ROOT, blocks

import heliograph as hg


def python(name: str) -> str:
    """The page's only block of Python."""
    (block,) = (text for kind, text in blocks((DOCS / name).read_text()) if kind == "python")
    return block


def records(number: int) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3)
    data = torch.utils.data.TensorDataset(torch.rand(number, 4), torch.randint(0, 3, (number,)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return {
        "torch": torch,
        "module": module,
        "data": data,
        "loader": torch.utils.data.DataLoader(data, batch_size=20, shuffle=True),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
        "loss": torch.nn.CrossEntropyLoss(reduction="none"),
    }


def test_coming_from_opacus() -> None:
    names = records(200)
    before = names["module"].weight.detach().clone()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(python("from_opacus.md"), names)
    assert "epsilon" in shown.getvalue()
    assert not names["torch"].equal(before, names["module"].weight)


def test_a_bracket_in_python() -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(python("privacy.md"), {})
    assert shown.getvalue().startswith("epsilon in [")


def test_a_sampler_is_given_to_the_trainer() -> None:
    block = python("samplers.md")
    names = records(600)
    # A data set of the page's size, and the search for its noise, take minutes; the calls are the same.
    small = block.replace("60_000", "600").replace("(100, 600)", "(5, 600)").replace("epochs=10", "epochs=1")
    assert "epsilon=2, " in small
    small = small.replace("epsilon=2, ", "noise_multiplier=2.0, ")
    exec(small, names)
    assert names["trainer"].fit() is not None


@pytest.mark.front
def test_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openfhe")
    monkeypatch.chdir(tmp_path)
    (program,) = (text for kind, text in blocks((DOCS / "transfer.md").read_text()) if kind == "hg")
    # On a toy ring: the page's server does not say so.
    artifact = hg.compile(hg.parse(program), hg.Options(security_bits=None))
    toys = SimpleNamespace(Server=functools.partial(hg.Server, allow_insecure=True), Session=hg.Session)
    names = {"hg": toys, "artifact": artifact, "client": hg.Client(artifact.public(), allow_insecure=True)}
    exec(python("transfer.md"), names)
    np.testing.assert_allclose(names["total"], [0.25] * 4, atol=1e-2)  # type: ignore[arg-type]


def test_a_function_of_your_own() -> None:
    # In a process of its own: what is registered stays.
    code = python("approximation.md") + (
        "program = hg.parse('program p\\ninput x: secret tensor[2] in [-1, 1]\\noutput y = bump(x) with degree = 7')\n"
        "print(abs(hg.simulate(hg.compile(program), [0.0, 1.0]) - np.exp([0.0, -1.0])).max() < 1e-2)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


def test_the_page_on_backends_counts_the_rings_of_the_suite() -> None:
    from heliograph.testing import RINGS

    scales = [ring.scale_bits for ring in RINGS]
    said = f"the {len(RINGS)} rings of `RINGS`, with scales of {min(scales)} to {max(scales)} bits"
    assert said in " ".join((DOCS / "backends.md").read_text().split())


def test_a_backend_of_your_own() -> None:
    pytest.importorskip("numba")
    from heliograph.runtime.native.backend import NativeBackend

    names: dict[str, Any] = {"MyBackend": NativeBackend}
    exec(python("backends.md"), names)
    assert names["check"].name == "key of the key of another rotation"


# Pages whose Python runs elsewhere: whole examples, the language, and what one of the pages above runs too.
ELSEWHERE = {
    "allocation.md": "tests/compiler/test_allocation.py",
    "batches.md": "tests/examples/test_examples.py",
    "certified.md": "tests/examples/test_examples.py",
    "deep_networks.md": "tests/examples/test_examples.py",
    "language.md": "tests/dsl/test_docs.py",
    "refinement.md": "tests/frontends/test_refine.py",
}
# Lattice estimates need Sage; a server behind a name on the internet runs in the tutorial with another address.
NOT_RUN = {"security.md", "serving.md"}


def test_every_page_with_python_runs_somewhere() -> None:
    pages = {path.name for path in DOCS.glob("*.md") if re.search(r"^```python$", path.read_text(), re.MULTILINE)}
    from test_docs_pages import PAGES

    here = {"from_opacus.md", "samplers.md", "transfer.md", "approximation.md", "privacy.md", "backends.md"}
    assert pages == {*here, *(page for page in PAGES if page in pages), *ELSEWHERE, *NOT_RUN}
    for page, test in ELSEWHERE.items():
        text = (ROOT / test).read_text()
        assert page in text or ("docs" in text and page.removesuffix(".md") in text), (page, test)
