"""Searches of the tests are cached in a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("HELIOGRAPH_CACHE")
    os.environ["HELIOGRAPH_CACHE"] = str(tmp_path_factory.mktemp("approx-cache"))
    yield
    if before is None:
        del os.environ["HELIOGRAPH_CACHE"]
    else:
        os.environ["HELIOGRAPH_CACHE"] = before
