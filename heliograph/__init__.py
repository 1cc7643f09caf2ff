"""Heliograph: a compiler, a small language and a runtime for machine-learning programs under CKKS.

`import heliograph as hg`; everything a user needs is an attribute of this package, loaded when first used, so that the
import costs neither torch nor OpenFHE.
"""

from __future__ import annotations

import importlib
from typing import Any

from heliograph.errors import HeliographError

__version__ = "0.1.0"

# Public name -> the module that defines it.
_PUBLIC: dict[str, str] = {}

__all__ = ["HeliographError", "__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    try:
        module = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module 'heliograph' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
