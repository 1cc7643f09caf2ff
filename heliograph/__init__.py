"""Heliograph: a compiler, a small language and a runtime for machine-learning programs under CKKS.

`import heliograph as hg`; everything a user needs is an attribute of this package, loaded when first used, so that the
import costs neither torch nor OpenFHE.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from heliograph.errors import HeliographError

__version__ = "0.1.0"

# OpenMP threads that spin while they wait make OpenFHE ten times slower as soon as another process runs. The setting is
# read when the first library with OpenMP is loaded, which is often torch, so it is made here; a user's own one stays.
OPENMP_WAS_LOADED = "OMP_WAIT_POLICY" not in os.environ and "torch" in sys.modules
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Public name -> the module that defines it.
_PUBLIC: dict[str, str] = {
    "trace": "heliograph.frontends.torch_export",
    "parse": "heliograph.dsl.parse",
    "register_function": "heliograph.ir.activation_ops",
    "to_language": "heliograph.dsl.print",
    "write_language": "heliograph.dsl.print",
    "compile": "heliograph.compiler.driver",
    "approximate": "heliograph.compiler.polynomials",
    "top1": "heliograph.compiler.top1",
    "simulate": "heliograph.compiler.simulate",
    "debug": "heliograph.runtime.debug",
    "Options": "heliograph.compiler.options",
    "Artifact": "heliograph.compiler.artifact",
    "PublicArtifact": "heliograph.compiler.artifact",
    "Report": "heliograph.compiler.report",
    "Program": "heliograph.ir",
    "Client": "heliograph.runtime.client",
    "Server": "heliograph.runtime.server",
    "EvaluationKeys": "heliograph.runtime.messages",
    "EncryptedInput": "heliograph.runtime.messages",
    "EncryptedOutput": "heliograph.runtime.messages",
}

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
