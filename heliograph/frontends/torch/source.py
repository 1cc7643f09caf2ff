"""The origin of an exported operation: the user's line, and the name of its layer.

`torch.export` records the Python stack of each call as text, innermost frame last, and the path of modules around it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from heliograph.ir import Location
from heliograph.ir.location import display_path

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
_TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARY = str(Path(sysconfig.get_path("stdlib")).resolve()) + os.sep
# Our own code that calls the public functions: a user of the command line wrote no line of Python.
_PROGRAMS = tuple(_PACKAGE + name for name in ("cli" + os.sep, os.path.join("tools", "demo.py")))
_REPEATED = re.compile(r"@\d+")
# Modules made by `to_torch`: one op each, named after its layer.
_STEPS = "heliograph.frontends.torch.training.modules."

# The names of nn.Linear's first two parameters.
_NAMED_FIRST = re.compile(r"\b(?:in|out)_features=")
_LONGEST = 80

# Names that differ between exported forms of the same call; a layer has the name of the function that the user wrote.
_CALLED = {
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_unsafe_view": "view",
    "constant_pad_nd": "pad",
    "native_dropout": "dropout",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "max_pool1d_with_indices": "max_pool1d",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d",
    "special_softmax": "softmax",
    "special_log_softmax": "log_softmax",
    "_to_copy": "to",
    "convolution": "conv",
}


@functools.cache
def _is_user_file(file: str) -> bool:
    """Whether a frame of this file is the user's rather than torch's, ours, Python's own, or generated code."""
    if file.startswith("<"):
        return False
    resolved = str(Path(file).resolve())
    if resolved.startswith((_TORCH, _PACKAGE)):
        return False
    return not resolved.startswith(_LIBRARY) or _is_installed(resolved)


def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


def _pick(frames: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """The innermost frame of the user's own code; without one, of a package that the user installed."""
    mine = [frame for frame in frames if _is_user_file(frame[0])]
    own = [frame for frame in mine if not _is_installed(frame[0])]
    chosen = own or mine
    return chosen[-1] if chosen else None


def stack_location(stack_trace: str | None) -> Location | None:
    """The user's line in a recorded stack, or None where only torch's own frames are in it."""
    frame = _pick((file, int(line)) for file, line in _FRAME.findall(stack_trace or ""))
    return Location(display_path(frame[0]), frame[1]) if frame else None


@contextlib.contextmanager
def helper_frames() -> Iterator[None]:
    """Within this context, torch.export records the user's helper functions too, not only methods called `forward`.

    Newer versions of torch keep `forward` frames alone, by a filter that is meant to be replaced. A version without
    such a filter records all frames, and nothing is changed.
    """
    tracer: Any = torch.fx.proxy.TracerBase
    original = getattr(tracer, "_filter_traceback_frames", None)
    if original is None:
        yield
        return

    def keep(self: Any, summary: traceback.StackSummary) -> traceback.StackSummary:
        first = next((i for i, frame in enumerate(summary) if frame.name == "forward"), None)
        if first is None:
            return original(self, summary)  # type: ignore[no-any-return]
        kept = [frame for frame in summary[first:] if frame.name == "forward" or _is_user_file(frame.filename)]
        return traceback.StackSummary.from_list(kept)

    tracer._filter_traceback_frames = keep
    try:
        yield
    finally:
        tracer._filter_traceback_frames = original


def caller_location() -> Location:
    """The user's line that is running now, innermost; nothing if the command line is the caller."""
    frame: FrameType | None = sys._getframe(1)
    frames = []
    while frame is not None and not _resolved(frame.f_code.co_filename).startswith(_PROGRAMS):
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    chosen = _pick(reversed(frames))
    return Location(display_path(chosen[0]), chosen[1]) if chosen else Location()


@functools.cache
def _resolved(file: str) -> str:
    return str(Path(file).resolve())


def error_location(error: BaseException) -> Location | None:
    """The user's line inside the model that raised, or None if the error came from outside the user's code."""
    frames = []
    trace = error.__traceback__
    inside = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        inside = inside or str(Path(file).resolve()).startswith(_TORCH)
        if inside:  # frames before torch's are our callers
            frames.append((file, trace.tb_lineno))
        trace = trace.tb_next
    frame = _pick(frames)
    return Location(display_path(frame[0]), frame[1]) if frame else None


def forward_location(module: Any) -> Location | None:
    """The line on which the module's `forward` begins, or None where it is not the user's."""
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    if code is None or not _is_user_file(code.co_filename):
        return None
    return Location(display_path(code.co_filename), code.co_firstlineno)


def op_name(target: Any) -> str:
    """The registry's name of a call target: `aten.conv2d`, without overload; `mylib.foo` for `mylib::foo`."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return str(schema.name).replace("::", ".")
    return str(getattr(target, "__name__", target))


def short_name(target: Any) -> str:
    """The user's name of the op: `relu` for `aten.relu_`."""
    name = op_name(target).rsplit(".", 1)[-1]
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return _CALLED.get(name, name)


def module_stack(node: Any) -> list[tuple[str, str]]:
    """(path, class name) of the modules around a call, outermost first."""
    stack = []
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        stack.append((_REPEATED.sub("", str(path)), name))
    return stack


def leaf_module(node: Any) -> str:
    """The class of `torch.nn`, or of a module from a program, that made the call by itself (`ReLU`), or nothing."""
    stack = module_stack(node)
    if not stack or not stack[-1][1].startswith(("torch.nn.modules.", _STEPS)) or ".container." in stack[-1][1]:
        return ""
    return stack[-1][1].rsplit(".", 1)[-1]


def layer_text(node: Any, model: torch.nn.Module | None) -> str:
    """The layer that made a call as the user wrote it, `nn.Linear(32, 3)`; its class alone if the module is unknown."""
    stack = module_stack(node)
    if not stack:
        return ""
    path, kind = stack[-1]
    name = kind.rsplit(".", 1)[-1]
    text = f"nn.{name}" if kind.startswith("torch.nn.modules.") else name
    try:
        module = model.get_submodule(path) if model is not None else None
    except AttributeError:
        module = None
    if module is None or not leaf_module(node) or type(module).__name__ != name:
        return text
    arguments = _NAMED_FIRST.sub("", _without_defaults(module))
    return shortened(f"{text}({arguments})")


def _without_defaults(module: torch.nn.Module) -> str:
    """The module's arguments by its `repr`, without defaults that nobody wrote."""
    said = module.extra_repr()
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if parameter.default is not parameter.empty:
            said = re.sub(rf"(^|, ){name}={re.escape(repr(parameter.default))}(?=, |$)", "", said)
    return said.removeprefix(", ")


def shortened(text: str) -> str:
    """One line of text, truncated if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


class LayerNames:
    """A unique, stable name per call: the path of its layer, or path and op where a function was called.

    A layer of `torch.nn` gives its path (`features.0`); a function gives the path of the module that called it and the
    op (`block1.relu`). Later calls of one name get `_1`, `_2`, ... in call order. Paths of modules are never taken by
    functions.
    """

    def __init__(self, nodes: Iterable[Any]) -> None:
        self._paths = {path for node in nodes for path, _ in module_stack(node)} - {""}
        self._used: set[str] = set()

    def name(self, node: Any) -> str:
        stack = module_stack(node)
        path = stack[-1][0] if stack else ""
        leaf = bool(leaf_module(node)) and bool(path)
        base = path if leaf else ".".join(part for part in (path, short_name(node.target)) if part)
        name, count = base, 0
        while name in self._used or (name in self._paths and not (leaf and name == path)):
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name
