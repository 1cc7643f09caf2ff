"""The site builds strictly; links and anchors lead somewhere; navigation, errors and the reference are complete."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
from helpers import words
from helpers.pages import DOCS, ROOT

import heliograph as hg
from heliograph.ir.ops.table import OPS

# Pages that a reader of the repository meets, wherever they lie.
TEXTS = sorted(
    [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)
REFERENCE = sorted(DOCS.glob("reference*.md"))
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
# Pages that only the site has.
MADE = {"docs/errors.md", "docs/commands.md", "docs/operations.md"}


def script(name: str) -> ModuleType:
    """A module of docs/scripts."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------------- links


def without_code(text: str) -> str:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def headings(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site both write them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set()
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower())
        found.add(re.sub(r"\s", "-", plain.strip()))
    return found


def relative_links(path: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text()))
    return [link for link in links if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files_and_headings(path: Path) -> None:
    for link in relative_links(path):
        target, _, anchor = link.partition("#")
        place = posixpath.normpath(posixpath.join(path.parent.relative_to(ROOT).as_posix(), target)) if target else ""
        if place in MADE:
            continue
        found = ROOT / place if target else path
        assert found.exists(), f"{path.relative_to(ROOT)}: {link} is not there"
        if anchor:
            assert anchor in headings(found), f"{path.relative_to(ROOT)}: {link} has no such heading"


def test_there_are_links_to_look_at() -> None:
    assert sum(len(relative_links(path)) for path in TEXTS) > 100


def test_links_to_elsewhere_are_encrypted_and_whole() -> None:
    for path in TEXTS:
        for link in re.findall(r"\]\((https?:[^)\s]*)\)", path.read_text()):
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]+(/\S*)?", link), (path.name, link)


# ------------------------------------------------------------------------------------------- navigation


def nav_pages() -> list[str]:
    yaml = pytest.importorskip("yaml", reason="reading mkdocs.yml needs PyYAML (the extra `docs`)")
    entries = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = []
    while entries:
        ((_, value),) = entries.pop(0).items()
        if isinstance(value, list):
            entries = [*value, *entries]
        else:
            pages.append(value)
    return pages


def test_every_page_is_in_the_navigation_once() -> None:
    pytest.importorskip("mkdocs", reason="the site needs mkdocs (the extra `docs`)")
    sys.path.insert(0, str(DOCS / "scripts"))
    try:
        site = script("site")
    finally:
        sys.path.remove(str(DOCS / "scripts"))
    there = {path.name for path in [*DOCS.glob("*.md"), *DOCS.glob("*.ipynb")]}
    pages = nav_pages()
    assert len(pages) == len(set(pages))
    assert set(pages) == there | set(site.OUTSIDE.values()) | set(site.MADE)
    for source in site.OUTSIDE:
        assert (ROOT / source).exists()


def test_the_readme_leads_to_every_page() -> None:
    linked = {posixpath.normpath(link.partition("#")[0]) for link in relative_links(ROOT / "README.md")}
    pages = {f"docs/{path.name}" for path in [*DOCS.glob("*.md"), *DOCS.glob("*.ipynb")]}
    # The reference is made of docstrings, which only the site shows.
    assert pages - linked == {path.relative_to(ROOT).as_posix() for path in REFERENCE}


# ------------------------------------------------------------------------------------------- what is made from the code


def test_the_reference_has_every_public_name() -> None:
    text = "".join(path.read_text() for path in REFERENCE)
    named = re.findall(r"^::: heliograph\.(\w+)$", text, re.MULTILINE)
    assert len(named) == len(set(named))
    public = set(hg.__all__) - {"__version__"}
    assert set(named) == public, f"docs/reference*.md lack {sorted(public - set(named))}"


def test_the_page_of_operations_has_every_op() -> None:
    pytest.importorskip("torch", reason="operations of PyTorch need the extra `torch`")
    ours, _, torch = script("op_pages").page().partition("\n## Operations of PyTorch\n")
    rows = re.findall(r"^\| `(\w+)` \|", ours, re.MULTILINE)
    assert sorted(rows) == sorted(OPS)
    assert {"`conv2d`", "`cumsum`", "`mish`", "`sort`"} <= set(re.findall(r"`\w+`", torch))


def test_the_index_has_the_errors_of_the_code() -> None:
    errors = script("error_index")
    classes = errors.error_classes()
    assert {name for name in hg.__all__ if name.endswith("Error")} - {"InternalError"} <= set(classes)
    found = {error.what for error in errors.raised()}
    assert len(found) > 500
    # One of each kind of text: plain, filled in, of a constant in parentheses.
    assert "the privacy budget does not admit {mechanism} * {count}" in found or any(
        "privacy budget" in w for w in found
    )
    (missing,) = (error for error in errors.raised() if error.what == "{package} is not installed")
    assert missing.kind == "MissingPackageError"
    assert missing.hint.startswith("pip install '")
    page = errors.page()
    for name in ("PlanningError", "RangeError", "WireError"):
        assert f"\n## {name}\n" in page
    # Nothing in a cell starts a column of its own.
    for line in page.splitlines():
        if line.startswith("| "):
            assert line.count("|") in (3, 4), line


def test_the_commands_are_all_there_with_their_help() -> None:
    from heliograph.cli.main import _COMMANDS

    page = script("command_pages").page()
    for name in _COMMANDS:
        assert f"\n## heliograph {name}\n" in page
    assert "\n### heliograph dp epsilon\n" in page
    assert page.count("Usage: heliograph ") >= len(_COMMANDS)


def test_every_row_of_the_bill_is_explained() -> None:
    from dataclasses import fields

    from heliograph.report.figures import Predicted, figure_of
    from heliograph.report.text import Report

    explained = set(re.findall(r"\*\*([^*]+)\*\*", (DOCS / "bill.md").read_text()))
    labels = {figure_of(entry).label for entry in fields(Predicted)} - {""}
    program = hg.parse("program rows\ninput x: secret tensor[8] in [-1, 1]\noutput y = relu(x) with degree = 7\n")
    rows = {label for label, _ in hg.compile(program).report.rows()}
    # Rows that only some programs have are read from the source.
    known = set(re.findall(r'\("([a-z ]+)", ', inspect.getsource(Report.rows)))
    assert {"class", "new inputs", "memory bound", "bootstraps"} <= known
    assert len(labels) >= 10
    assert len(rows) >= 10
    rows |= known
    assert labels | rows <= explained, sorted((labels | rows) - explained)


# ------------------------------------------------------------------------------------------- figures


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_readme_compares_with_figures_of_the_page_on_comparisons() -> None:
    readme = cells((ROOT / "README.md").read_text().partition("## Comparison")[2].partition("\n## ")[0])
    networks = (DOCS / "comparison.md").read_text().partition("## ResNet-20")[2]
    page = {row[0].partition(",")[0]: row for row in reversed(cells(networks))}
    assert len(readme) >= 7
    for name, seconds, _, memory, security, source in readme[2:]:
        row = page[name.partition(",")[0]]
        assert set(re.findall(r"[\d,.]+", seconds)) <= set(re.findall(r"[\d,.]*\d", row[1])), name
        assert set(re.findall(r"\d[\d.]* GB", memory)) <= set(re.findall(r"\d[\d.]* GB", " ".join(row[2:4]))), name
        assert security == row[4]
        assert set(re.findall(r"https:[^)]+", source)) <= set(re.findall(r"https:[^)]+", row[5])), name


def test_the_chart_shows_the_table() -> None:
    made = script("comparison_chart")
    systems = made.rows((ROOT / "README.md").read_text())
    assert systems[0][0] == "Heliograph"
    assert len(systems) >= 5
    # Decimals too: 12.4 is not the smaller one of 12 and 4.
    row = "| Ours; with two kinds | 12.4; 1,161 | 1; 16 | |\n"
    table = f"<!-- table comparison-readme -->\n| system |\n|---|\n{row}<!-- /table -->"
    assert made.rows(table) == [("Ours; with two kinds", 12.4, "1")]
    assert made.chart(systems) == made.CHART.read_text(), "run python docs/scripts/comparison_chart.py"


# ------------------------------------------------------------------------------------------- the build


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings", "mkdocs_jupyter"):
        pytest.importorskip(package, reason=f"the site needs {package} (the extra `docs`)")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_strictly(site: Path) -> None:
    for name in ("index", "tutorial", "tour", "errors", "commands", "reference", "changelog", "data"):
        assert (site / f"{name}.html").exists()
    assert (site / "images/report.png").stat().st_size < 100_000
    assert not (site / "scripts").exists()


def test_the_site_shows_docstrings_and_outputs(site: Path) -> None:
    reference = (site / "reference_compile.html").read_text()
    assert 'id="heliograph.compile"' in reference
    assert "security_bits" in reference
    # Parameters are items of lists (docs/scripts/parameters.py).
    assert "<li><code>degree</code>: Polynomial degree of every activation" in reference
    assert 'id="heliograph.Client"' in (site / "reference_run.html").read_text()
    index = json.loads((site / "search/search_index.json").read_text())
    assert any(entry["location"].startswith("glossary.html#digit") for entry in index["docs"])
    assert "encrypted 2, in the clear 2, labelled 2" in (site / "tour.html").read_text()


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for path in site.glob("*.html"):
        text = path.read_text()
        sources = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="(https?:[^"]*)', text)
        sources += re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(https?:[^"]*)', text)
        assert not sources, (path.name, sources)


def test_what_pages_name_is_there(site: Path) -> None:
    """Every picture, script, style and page to which a page of the site leads."""
    for path in site.rglob("*.html"):
        if path.name == "404.html":
            continue
        for name in re.findall(r'\s(?:src|href)="([^"#?]+)[^"]*"', path.read_text()):
            if re.match(r"[a-z]+:|//", name):
                continue
            target = path.parent / unquote(name)
            assert target.exists(), (path.name, name)


# ------------------------------------------------------------------------------------------- a real browser

# What is wide: tables, listings, signatures, a picture, the notebook.
NARROW = ("index", "comparison", "privacy_proofs", "language", "reference_compile", "errors", "tour")
MEASURE = """<!doctype html><body><script>
const pages = %s;
(async () => {
  for (const name of pages) {
    const frame = document.createElement("iframe");
    frame.style = "width: 390px; height: 844px; border: 0";
    frame.src = `${name}.html`;
    await new Promise((done) => { frame.onload = done; document.body.append(frame); });
    await new Promise((done) => setTimeout(done, 500));
    const root = frame.contentDocument.documentElement, scheme = frame.contentDocument.body.dataset.mdColorScheme;
    document.body.append(`${name}: ${root.clientWidth} ${root.scrollWidth} ${scheme};`);
    frame.remove();
  }
})();
</script></body>"""


def browsed(folder: Path, address: str, *options: str) -> str:
    """The document that a browser makes of a page."""
    if BROWSER is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
        "--no-first-run", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000", "--dump-dom",
        *options, address,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The site behind an address of this machine, so that a page can measure others."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("scheme", "preferred"), [("default", 1), ("slate", 0)])
def test_no_page_is_wider_than_a_phone(scheme: str, preferred: int, site: Path, served: str, tmp_path: Path) -> None:
    wide = site / "wide.html"
    wide.write_text('<!doctype html><body data-md-color-scheme="none"><div style="width: 500px">x</div></body>')
    page = site / "measure.html"
    page.write_text(MEASURE % json.dumps([*NARROW, "wide"]))
    try:
        shown = browsed(tmp_path, f"{served}/measure.html", f"--blink-settings=preferredColorScheme={preferred}")
    finally:
        page.unlink()
        wide.unlink()
    found = {name: rest for name, *rest in re.findall(r"(\w+): (\d+) (\d+) (\w+);", shown)}
    # The measure sees what is too wide.
    assert int(found.pop("wide")[1]) > 390
    assert found == {name: ["390", "390", scheme] for name in NARROW}


def test_search_finds_a_page_in_a_folder(site: Path, tmp_path: Path) -> None:
    """The site as `make docs` leaves it: opened as a file, without a server."""
    shown = browsed(tmp_path, f"{(site / 'index.html').as_uri()}?q=relinearization")
    found = re.findall(r'href="([^"]*)" class="md-search-result__link"', shown)
    assert any("glossary.html" in link and link.endswith("#relinearization") for link in found), found
    shown = browsed(tmp_path, f"{(site / 'index.html').as_uri()}?q=thereisnosuchword")
    assert "md-search-result__link" not in shown


def test_parameters_become_a_list() -> None:
    pytest.importorskip("griffe", reason="the site needs mkdocstrings (the extra `docs`)")
    text = "What it does.\n\nx: a number.\nlow, high: an interval,\nin order.\n\nNote: y stays."
    assert script("parameters").listed(text, {"x", "low", "high", "y"}) == (
        "What it does.\n\n- `x`: a number.\n- `low`, `high`: an interval,\n    in order.\n\nNote: y stays."
    )


def test_pages_tell_no_history() -> None:
    """Figures are of this version or say of which day; only upgrades speak of earlier versions."""
    for path in [ROOT / "README.md", *DOCS.glob("*.md")]:
        if path.name not in ("serving.md", "compatibility.md"):
            found = re.search(r"earlier\s+(version|code|one\b)|before\s+double\s+hoisting", path.read_text())
            assert not found, (path.name, found)


def test_resnet20_has_one_time() -> None:
    """Seconds of an image at degree 31 on our kernels stand in three tables, all the same."""
    tables = {name: (DOCS / f"{name}.md").read_text() for name in ("benchmarks", "comparison")}
    tables["comparison"] = tables["comparison"].partition("## ResNet-20")[2]
    tables["README"] = (ROOT / "README.md").read_text()
    (measured,) = re.findall(
        r"\| one image: calls as [^|]*\| [\d.]+ / ([\d.]+) /", tables["benchmarks"].split("## ResNets")[1]
    )
    ours = {
        re.findall(r"^\| Heliograph(?:, pretrained[^|]*)? \| ([\d.]+) \|", tables[name], re.MULTILINE)[0]
        for name in ("comparison", "README")
    }
    assert ours == {measured}


def test_the_page_for_deciders_is_one_page() -> None:
    """It stands alone: who learns what, what is checked, what not to do, what nobody has proved, in 600 words."""
    text = (DOCS / "deciders.md").read_text()
    assert words.running(text) <= 600
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == 4
    assert "Nobody outside has reviewed the code" in text
    # Moved, not copied.
    said = {line for line in text.splitlines() if line.startswith(("- ", "| "))} - {"|---|---|---|"}
    assert not said & set((DOCS / "security.md").read_text().splitlines())


def test_the_glossary_is_in_order_and_has_the_terms_of_options_and_servers() -> None:
    terms = re.findall(r"^## (.+)$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert terms == sorted(terms, key=str.lower)
    assert {"Hoisting", "Margin", "Special primes", "Spread", "Tenant", "Token"} <= set(terms)


def test_the_documents_are_short() -> None:
    """At most 30,000 words of running text, and a README of 1,100 words with its programs and tables."""
    assert len((ROOT / "README.md").read_text().split()) <= 1100
    assert sum(words.pages().values()) <= 30_000
