"""Heliograph: a compiler, a small language and a runtime for machine-learning programs under CKKS.

`import heliograph as hg`; everything a user needs is an attribute of this package, loaded when first used, so that the
import costs neither torch nor OpenFHE.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from heliograph import openmp as openmp  # first: it sets how OpenMP waits
from heliograph.errors import HeliographError, UnsupportedError, packages_named

__version__ = "0.1.0"

if sys.byteorder != "little":
    raise UnsupportedError(
        "this processor is big-endian",
        why="files, messages and keys are arrays of little-endian numbers, which are worked on as they lie in memory",
        hint="run it on x86-64 or ARM",
    )

# Public name -> the module that defines it. Type checkers read the imports below instead; a test keeps both equal.
_PUBLIC: dict[str, str] = {
    "Private": "heliograph.private.model",
    "load_client": "heliograph.private.model",
    "Hit": "heliograph.private.search",
    "encrypt_index": "heliograph.private.search",
    "search": "heliograph.private.search",
    "search_index": "heliograph.private.search",
    "trace": "heliograph.frontends.torch.export",
    "from_sklearn": "heliograph.frontends.sklearn.program",
    "from_trees": "heliograph.frontends.trees.program",
    "parse": "heliograph.dsl.parse",
    "register_function": "heliograph.ir.ops.activations",
    "to_language": "heliograph.dsl.print",
    "to_torch": "heliograph.frontends.torch.training.modules",
    "write_language": "heliograph.dsl.print",
    "compile": "heliograph.compiler.driver",
    "approximate": "heliograph.compiler.polynomials",
    "top1": "heliograph.compiler.top1",
    "certify": "heliograph.certified.certify",
    "Certificate": "heliograph.certified.certificate",
    "run": "heliograph.tools.run",
    "simulate": "heliograph.tools.simulate",
    "debug": "heliograph.tools.debug",
    "measure": "heliograph.tools.measure",
    "refine": "heliograph.tools.refine",
    "Training": "heliograph.frontends.torch.training.distill",
    "tune": "heliograph.tools.tune",
    "Tuning": "heliograph.tools.tune",
    "export": "heliograph.tools.exports.export",
    "html_report": "heliograph.report.html",
    "save_plots": "heliograph.report.plots",
    "Options": "heliograph.compiler.options",
    "CostTable": "heliograph.ckks.costs",
    "Recorder": "heliograph.report.explain",
    "Artifact": "heliograph.artifact.artifact",
    "PublicArtifact": "heliograph.artifact.public",
    "Report": "heliograph.report.text",
    "Program": "heliograph.ir",
    "Client": "heliograph.runtime.client.client",
    "Server": "heliograph.runtime.server.server",
    "RemoteServer": "heliograph.serving.remote.server",
    "Session": "heliograph.runtime.server.session",
    "KeyFolder": "heliograph.runtime.wire.keyfolder",
    "Answer": "heliograph.runtime.client.answers",
    "read_answer": "heliograph.runtime.client.answers",
    "EvaluationKeys": "heliograph.runtime.wire.messages",
    "CarriedValues": "heliograph.runtime.wire.messages",
    "EncryptedInput": "heliograph.runtime.wire.messages",
    "EncryptedOutput": "heliograph.runtime.wire.messages",
    "Measurement": "heliograph.tools.measure",
    "ProgramError": "heliograph.errors",
    "UnsupportedError": "heliograph.errors",
    "PlanningError": "heliograph.errors",
    "RangeError": "heliograph.errors",
    "WireError": "heliograph.errors",
    "SecurityError": "heliograph.errors",
    "MissingPackageError": "heliograph.errors",
    "VerifyError": "heliograph.errors",
    "InternalError": "heliograph.errors",
    "CompositionWarning": "heliograph.errors",
    "InsecureWarning": "heliograph.errors",
    "LanguageError": "heliograph.errors",
    "TooLittleMemoryError": "heliograph.errors",
    "TooLittleDiskError": "heliograph.errors",
    "StatusError": "heliograph.errors",
    "BudgetError": "heliograph.errors",
    "UnsupportedLanguageError": "heliograph.errors",
}

__all__ = ["HeliographError", "__version__", *_PUBLIC]

if TYPE_CHECKING:
    from heliograph.artifact.artifact import Artifact as Artifact
    from heliograph.artifact.public import PublicArtifact as PublicArtifact
    from heliograph.certified.certificate import Certificate as Certificate
    from heliograph.certified.certify import certify as certify
    from heliograph.ckks.costs import CostTable as CostTable
    from heliograph.compiler.driver import compile as compile
    from heliograph.compiler.options import Options as Options
    from heliograph.compiler.polynomials import approximate as approximate
    from heliograph.compiler.top1 import top1 as top1
    from heliograph.dsl.parse import parse as parse
    from heliograph.dsl.print import to_language as to_language
    from heliograph.dsl.print import write_language as write_language
    from heliograph.errors import BudgetError as BudgetError
    from heliograph.errors import CompositionWarning as CompositionWarning
    from heliograph.errors import InsecureWarning as InsecureWarning
    from heliograph.errors import InternalError as InternalError
    from heliograph.errors import LanguageError as LanguageError
    from heliograph.errors import MissingPackageError as MissingPackageError
    from heliograph.errors import PlanningError as PlanningError
    from heliograph.errors import ProgramError as ProgramError
    from heliograph.errors import RangeError as RangeError
    from heliograph.errors import SecurityError as SecurityError
    from heliograph.errors import StatusError as StatusError
    from heliograph.errors import TooLittleDiskError as TooLittleDiskError
    from heliograph.errors import TooLittleMemoryError as TooLittleMemoryError
    from heliograph.errors import UnsupportedError as UnsupportedError
    from heliograph.errors import UnsupportedLanguageError as UnsupportedLanguageError
    from heliograph.errors import VerifyError as VerifyError
    from heliograph.errors import WireError as WireError
    from heliograph.frontends.sklearn.program import from_sklearn as from_sklearn
    from heliograph.frontends.torch.export import trace as trace
    from heliograph.frontends.torch.training.distill import Training as Training
    from heliograph.frontends.torch.training.modules import to_torch as to_torch
    from heliograph.frontends.trees.program import from_trees as from_trees
    from heliograph.ir import Program as Program
    from heliograph.ir.ops.activations import register_function as register_function
    from heliograph.private.model import Private as Private
    from heliograph.private.model import load_client as load_client
    from heliograph.private.search import Hit as Hit
    from heliograph.private.search import encrypt_index as encrypt_index
    from heliograph.private.search import search as search
    from heliograph.private.search import search_index as search_index
    from heliograph.report.explain import Recorder as Recorder
    from heliograph.report.html import html_report as html_report
    from heliograph.report.plots import save_plots as save_plots
    from heliograph.report.text import Report as Report
    from heliograph.runtime.client.answers import Answer as Answer
    from heliograph.runtime.client.answers import read_answer as read_answer
    from heliograph.runtime.client.client import Client as Client
    from heliograph.runtime.server.server import Server as Server
    from heliograph.runtime.server.session import Session as Session
    from heliograph.runtime.wire.keyfolder import KeyFolder as KeyFolder
    from heliograph.runtime.wire.messages import CarriedValues as CarriedValues
    from heliograph.runtime.wire.messages import EncryptedInput as EncryptedInput
    from heliograph.runtime.wire.messages import EncryptedOutput as EncryptedOutput
    from heliograph.runtime.wire.messages import EvaluationKeys as EvaluationKeys
    from heliograph.serving.remote.server import RemoteServer as RemoteServer
    from heliograph.tools.debug import debug as debug
    from heliograph.tools.exports.export import export as export
    from heliograph.tools.measure import Measurement as Measurement
    from heliograph.tools.measure import measure as measure
    from heliograph.tools.refine import refine as refine
    from heliograph.tools.run import run as run
    from heliograph.tools.simulate import simulate as simulate
    from heliograph.tools.tune import Tuning as Tuning
    from heliograph.tools.tune import tune as tune
else:

    def __getattr__(name):
        try:
            module = _PUBLIC[name]
        except KeyError:
            raise AttributeError(f"module 'heliograph' has no attribute {name!r}") from None
        with packages_named():
            value = getattr(importlib.import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
