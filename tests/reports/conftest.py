"""The browser of the tests of pages."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="module")
def chromium() -> str:
    """The program of Chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no chromium is installed (apt-get install chromium)")
