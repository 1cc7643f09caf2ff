"""`heliograph compile`: from a model in a file to an artifact."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import click

from heliograph.array_files import Array, one_per_name, read_arrays
from heliograph.cli.options import COMPILER_SECTIONS, chosen_options, compiler_options
from heliograph.cli.output import (
    emit,
    force_option,
    full_option,
    output_options,
    refuse_overwriting,
    refuse_overwriting_folder,
    remark,
)
from heliograph.cli.sections import SectionedCommand
from heliograph.compiler.options import INSIDE
from heliograph.errors import INSTALLS, HeliographError, ProgramError
from heliograph.tools.progress import progress_bar

if TYPE_CHECKING:
    from heliograph.execution.loop import Progress
    from heliograph.ir import Program
    from heliograph.report.explain import Explanation, Recorder


# Saved models of XGBoost and LightGBM.
_TREES = (".json", ".ubj", ".txt")


def read_shapes(values: tuple[str, ...]) -> list[tuple[int, ...]]:
    shapes = []
    for value in values:
        try:
            shape = tuple(int(part) for part in value.split(",") if part.strip())
        except ValueError:
            shape = (0,)
        if not shape or min(shape) < 1:
            raise ProgramError(f"--example-shape {value!r} is not a shape", hint="for example --example-shape 1,28,28")
        shapes.append(shape)
    return shapes


def load_module(target: str) -> Any:
    """The torch.nn.Module that `file.py:name` means: the object itself, or what it returns when called."""
    import torch

    found = load_object(target, called=lambda value: not isinstance(value, torch.nn.Module) and callable(value))
    if not isinstance(found, torch.nn.Module):
        raise ProgramError(f"{target} is {type(found).__name__}, not a torch.nn.Module or a function that returns one")
    return found


def load_model(target: str) -> Any:
    """The torch.nn.Module, or the estimator of scikit-learn, that `file.py:name` means, or what it returns when called."""
    found = load_object(target, called=lambda value: callable(value) and not _is_module(value))
    if not _is_module(found) and not _is_estimator(found):
        raise ProgramError(
            f"{target} is {type(found).__name__}, not a torch.nn.Module, an estimator of scikit-learn, or a function that "
            "returns one"
        )
    return found


def _is_module(value: object) -> bool:
    """Whether it is a module of PyTorch, which is loaded where there are any."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].nn.Module)


def _is_estimator(value: object) -> bool:
    return "sklearn" in sys.modules and isinstance(value, sys.modules["sklearn"].base.BaseEstimator)


def load_object(target: str, called: Callable[[Any], bool]) -> Any:
    """What `file.py:name` means: the object itself, or what it returns where it is one that is to be called."""
    file, _, name = target.rpartition(":")
    if not file or not name:
        if target.endswith(".onnx"):
            raise ProgramError(
                "ONNX files are not read", hint="compile the PyTorch module that the file was made from: FILE.py:NAME"
            )
        raise ProgramError(f"{target!r} does not say which module or function", hint="write file.py:name")
    path = Path(file)
    module = load_file(path)
    if not hasattr(module, name):
        from heliograph.dsl.diagnostics import did_you_mean

        defined = _defined(module)
        hint = did_you_mean(name, defined) or f"it has {', '.join(defined[:20])}"
        raise ProgramError(f"{path} defines no {name!r}", hint=hint if defined else "")
    found = getattr(module, name)
    with _users_errors(path):
        return found() if called(found) else found


def load_file(path: Path) -> ModuleType:
    """A user's Python file as a module, after it ran; what it raises becomes a ProgramError with the line.

    Its name in `sys.modules` and its folder behind all others in `sys.path` keep a file that is called like another
    module (types.py, random.py) from taking its place. The file can import those beside it.
    """
    if not path.is_file():
        raise ProgramError(f"{path} cannot be read", why="No such file or directory")
    name = f"heliograph_user_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProgramError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module
    with _users_errors(path):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _users_errors(path: Path) -> Iterator[None]:
    """Give what a user's file raises as the user's error. A missing package of ours is left to the command line."""
    try:
        yield
    except HeliographError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in INSTALLS:
            # The command line names the extra that installs it.
            raise
        raise _users_error(error, path) from None


def _defined(module: ModuleType) -> list[str]:
    """The public names of a file that the file itself defines, without what it imports."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and not (isinstance(value, (type, FunctionType)) and value.__module__ != module.__name__)
    ]


def _users_error(error: Exception, path: Path) -> ProgramError:
    """The user's own exception, with the last line of the user's file on the way to it."""
    where = str(path)
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename) == path or Path(frame.filename) == path.resolve():
            where = f"{path}:{frame.lineno}"
    return ProgramError(f"{type(error).__name__}: {str(error)[:500]}", where=where, why="the file raised it")


def _calibration(path: str | None, names: list[str]) -> list[Array] | None:
    return None if path is None else one_per_name(read_arrays(path), names, path)


def input_names(module: Any, count: int) -> list[str]:
    """The names of the first arguments of forward."""
    names = [
        name
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [
        name for name in names if inspect.signature(module.forward).parameters[name].default is inspect.Parameter.empty
    ]
    return names[:count] if count else required


@click.command(
    "compile",
    cls=SectionedCommand,
    sections={
        "The model": (
            *("calibration", "input_range", "example_shape", "plain", "name", "check", "scores", "binned"),
            *("top1", "gap"),
        ),
        "Print": ("full",),
        "Files": ("output", "public", "force"),
        **COMPILER_SECTIONS,
        INSIDE: (*COMPILER_SECTIONS[INSIDE], "explain"),
    },
)
@click.argument("target", metavar="FILE.py:NAME|FILE.hg|FILE.json|FILE.ubj|FILE.txt")
@click.option("-o", "--output", default=None, metavar="FILE", help="Where to write the artifact (default: NAME.helio).")
@click.option(
    "--public", default=None, metavar="FILE", help="Also write the public part of the artifact, which clients need."
)
@click.option(
    "--calibration",
    default=None,
    metavar="FILE",
    help="Calibration samples: .npy, or .npz with one array per input; the first axis counts samples.",
)
@click.option(
    "--input-range",
    type=(float, float),
    multiple=True,
    metavar="LOW HIGH",
    help="Range of the input (default: that of the samples); once, or once per input.",
)
@click.option(
    "--example-shape",
    multiple=True,
    metavar="SHAPE",
    help="Shape of one sample, for example 1,28,28 (default: that of the calibration samples).",
)
@click.option(
    "--plain", multiple=True, metavar="INPUT", help="This input stays unencrypted: the server supplies it. Repeatable."
)
@click.option("--name", default=None, help="Name of the program in the bill (default: the module's class).")
@click.option(
    "--check/--no-check",
    default=True,
    help="Compare the traced program with the model before it is compiled (default).",
)
@click.option("--scores", is_flag=True, help="Return a classifier's scores, not its probabilities.")
@click.option(
    "--binned", is_flag=True, help="Clients compare features with a tree model's thresholds, which they learn."
)
@click.option("--top1", is_flag=True, help="Return only the predicted class, one-hot, and keep the logits private.")
@click.option("--gap", type=float, default=None, help="With --top1: the smallest difference of logits to tell apart.")
@compiler_options
@click.option(
    "--explain", default=None, metavar="PASS", help="Instead of the bill: what this pass changed and what it improved."
)
@full_option
@force_option
@output_options
def compile_command(
    target: str,
    output: str | None,
    public: str | None,
    calibration: str | None,
    input_range: tuple[tuple[float, float], ...],
    example_shape: tuple[str, ...],
    plain: tuple[str, ...],
    name: str | None,
    check: bool,
    scores: bool,
    binned: bool,
    top1: bool,
    gap: float | None,
    explain: str | None,
    full: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Compile a model and print the bill: what it will cost and how accurate it is.

    FILE.py:NAME is a PyTorch module or a fitted estimator of scikit-learn in a Python file, or a function there that returns
    one. FILE.hg is a program in Heliograph's language. FILE.json and FILE.ubj are models that XGBoost saved, FILE.txt is one
    that LightGBM saved; neither library is needed.
    """
    import heliograph as hg
    from heliograph.compiler.pipeline import PASSES
    from heliograph.report.explain import Recorder, check_pass

    if gap is not None and not (top1 and 0 < gap < math.inf):
        raise ProgramError(
            f"--gap {gap:g} cannot be used",
            why="it is the smallest difference of logits that --top1 tells apart, a positive number",
            hint="give it with --top1",
        )
    if explain is not None:
        check_pass(explain, PASSES)
    # A program in the language, or of a model's file, has a name that is known only once it is read.
    own_name = Path(target).suffix in (".hg", *_TREES)
    path = output or (None if own_name else f"{target.rpartition(':')[2]}.helio")
    refuse_overwriting(path, public, force=force)
    recorder = Recorder()
    options = chosen_options(given)
    refuse_overwriting_folder(options.dump_ir, force=force)
    shapes = read_shapes(example_shape)
    with progress_bar(quiet) as progress:
        program = model_program(
            target,
            calibration,
            input_range,
            shapes,
            plain,
            progress,
            name=name,
            check=check,
            scores=scores,
            binned=binned,
        )
        if path is None:
            path = f"{program.name}.helio"
            refuse_overwriting(path, force=force)
        if top1:
            program = hg.top1(program, gap=gap)
        artifact = hg.compile(program, options, watch=recorder if explain else None, progress=progress)
    explanation = None if explain is None else _explained(recorder, program, explain)
    artifact.save(path)
    if public is not None:
        artifact.public().save(public)
    values = {
        **artifact.report.to_dict(),
        "artifact": path,
        "fingerprint": artifact.fingerprint,
        "compile_s": artifact.compile_s,
    }
    remark(f"wrote {path}", quiet)
    agreement = artifact.report.figures.class_agreement
    if agreement is not None and agreement.agree < agreement.samples:
        remark(
            f"warning: the class {artifact.report.class_agreement()}; higher degrees usually bring the others back, unless "
            "their largest outputs are almost equal",
            quiet,
        )
    text = artifact.report.full() if full else str(artifact.report)
    if explanation is not None:
        values["explain"] = explanation.to_dict()
        text = str(explanation)
    emit(text, values, as_json=as_json, quiet=quiet)


def model_program(
    target: str,
    calibration: str | None,
    input_range: tuple[tuple[float, float], ...],
    shapes: Sequence[tuple[int, ...]],
    plain: tuple[str, ...],
    progress: Progress,
    *,
    name: str | None = None,
    check: bool = True,
    scores: bool = False,
    binned: bool = False,
) -> Program:
    """The program of what a command names: a model in a Python file, a program in the language, a file of trees."""
    import heliograph as hg

    progress("loading", 0, 0)
    if target.endswith(".hg"):
        _check_tabular(target, scores, binned)
        program = _read_program(target, calibration, [*shapes, *input_range, *plain])
        if name is not None:
            program = replace(program, name=name)
    elif Path(target).suffix in _TREES:
        program = _of_estimator(target, calibration, input_range, name, scores, binned, [*shapes, *plain])
    else:
        module = load_model(target)
        progress("tracing", 0, 0)
        if not _is_estimator(module):
            _check_tabular(target, scores, binned)
        if _is_module(module):
            samples = _calibration(calibration, input_names(module, len(shapes)))
            program = hg.trace(
                module,
                _examples(shapes, samples),
                input_range=declared_ranges(input_range, len(samples or shapes)),
                calibration=None if samples is None else samples[0] if len(samples) == 1 else tuple(samples),
                name=name,
                plain=plain,
                check=check,
            )
        else:
            program = _of_estimator(module, calibration, input_range, name, scores, binned, [*shapes, *plain])
    return program


def _explained(recorder: Recorder, program: Program, name: str) -> Explanation:
    """What the pass did; a ProgramError where this program had no need of it."""
    ran = list(dict.fromkeys(step for step, _ in recorder.steps))
    if name not in ran:
        raise ProgramError(f"the pass {name} did not run on this program", hint=f"these did: {', '.join(ran)}")
    return recorder.explain(program, name)


def _read_program(path: str, calibration: str | None, given: Sequence[object]) -> Program:
    """The program of a file in the language, with calibration samples where there are some."""
    import heliograph as hg

    if given:
        raise ProgramError(
            "--example-shape, --input-range and --plain are for PyTorch modules",
            where=path,
            hint="a program in the language declares its inputs: their shapes, their ranges, and which of them are secret",
        )
    program: Program = hg.parse(Path(path))
    samples = _calibration(calibration, [str(node.attrs["name"]) for node in program.inputs])
    return program if samples is None else replace(program, calibration=tuple(samples))


def _check_tabular(target: str, scores: bool, binned: bool) -> None:
    """Raise a ProgramError for options of estimators, which this model is not."""
    if scores or binned:
        flag, kind = ("--scores", "classifiers") if scores else ("--binned", "tree models")
        raise ProgramError(f"{flag} is for {kind} of scikit-learn, XGBoost and LightGBM", where=target)


def _of_estimator(
    estimator: Any,
    calibration: str | None,
    input_range: tuple[tuple[float, float], ...],
    name: str | None,
    scores: bool,
    binned: bool,
    given: Sequence[object],
) -> Program:
    """The program of an estimator of scikit-learn, or of the file of a tree model."""
    import heliograph as hg

    if calibration is None:
        raise ProgramError("an estimator is compiled with samples", hint="give --calibration FILE")
    if given:
        raise ProgramError(
            "--example-shape and --plain are for PyTorch modules", hint="an estimator takes samples as they are"
        )
    (samples,) = one_per_name(read_arrays(calibration), ["x"], calibration)
    read = hg.from_trees if isinstance(estimator, str) else hg.from_sklearn
    program: Program = read(
        estimator,
        samples,
        input_range=declared_ranges(input_range, 1),
        name=name,
        outputs="scores" if scores else "probabilities",
        binned=binned,
    )
    return program


def _examples(shapes: Sequence[tuple[int, ...]], samples: list[Array] | None) -> Any:
    """One example per input, with a batch axis of one: zeros of the shape given, or the first sample."""
    import numpy as np
    import torch

    if shapes:
        tensors = [torch.zeros((1, *shape)) for shape in shapes]
    elif samples:
        for array in samples:
            if array.ndim < 2 or not array.shape[0]:
                raise ProgramError(f"calibration of shape {array.shape} has no sample axis with samples")
        tensors = [torch.from_numpy(np.require(array[:1], np.float32, "W")) for array in samples]
    else:
        raise ProgramError("the shape of the input is unknown", hint="give --calibration or --example-shape")
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def declared_ranges(ranges: tuple[tuple[float, float], ...], inputs: int) -> Any:
    if len(ranges) not in (0, 1, inputs):
        raise ProgramError(f"--input-range stands {len(ranges)} times for {inputs} inputs")
    if not ranges:
        return None
    return ranges[0] if inputs == 1 else ranges * inputs if len(ranges) == 1 else ranges
