"""Every public name is what it says, however the package was entered."""

from __future__ import annotations

import subprocess
import sys


def test_public_names_are_no_modules() -> None:
    code = (
        "import types, heliograph.interpret, heliograph.dsl.parse, heliograph.runtime.debug\n"
        "import heliograph as hg\n"
        "bad = [n for n in hg.__all__ if isinstance(getattr(hg, n), types.ModuleType)]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
