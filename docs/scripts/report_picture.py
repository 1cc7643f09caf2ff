"""The README's picture: the report of examples/first_program.py as a browser shows it, written to docs/images/report.png.

    python docs/scripts/report_picture.py [--chromium PROGRAM]

Needs chromium and Pillow. Run it when the page changes, and look at the result.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/images/report.png"
WIDTH, HEIGHT, COLOURS = 1200, 900, 64


def page() -> str:
    """The report of the first program, with the built-in costs, as `heliograph inspect --html` writes it."""
    os.environ["HELIOGRAPH_COSTS"] = "built-in"
    with contextlib.redirect_stdout(io.StringIO()):
        names = runpy.run_path(str(ROOT / "examples/first_program.py"))
    import heliograph as hg

    return hg.html_report(names["private"].artifact)


def screenshot(chromium: str, html: str, target: Path) -> None:
    """The upper WIDTH x HEIGHT pixels of the page, in few colours."""
    with tempfile.TemporaryDirectory() as folder:
        source, taken = Path(folder, "report.html"), Path(folder, "taken.png")
        source.write_text(html)
        subprocess.run(
            [
                chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                "--disable-background-networking", "--virtual-time-budget=5000", f"--user-data-dir={folder}/profile",
                f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={taken}", source.as_uri(),
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        with Image.open(taken) as image:
            image.convert("RGB").quantize(COLOURS).save(target, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    chromium = parser.parse_args().chromium
    if not chromium:
        sys.exit("no chromium was found; install one, or name it with --chromium")
    PICTURE.parent.mkdir(exist_ok=True)
    screenshot(chromium, page(), PICTURE)
    print(f"wrote {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
