"""Refines a network: lowers the degrees of its activations, and trains weights and coefficients for them."""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.polynomial import chebyshev

from heliograph.compiler.arguments import require_program
from heliograph.compiler.options import Options
from heliograph.compiler.planning.allocation import allocation_curve
from heliograph.compiler.polynomials import approximate
from heliograph.errors import ProgramError, WireError
from heliograph.files import open_file, write_file
from heliograph.ir import Array, Builder, ConstantName, Node, Program, shape_of
from heliograph.ir.analysis.depth import depth_of_degree
from heliograph.passes.degrees.allocate_degrees import Point
from heliograph.passes.polynomials.squares import fits_a_square
from heliograph.tools.range_levels import range_bits, range_levels, range_prices

if TYPE_CHECKING:
    import torch

    from heliograph.frontends.torch.training.distill import Augment, Distilled, Epoch, Training
    from heliograph.frontends.torch.training.modules import ProgramModule

# Training starts from polynomials that hardly change the network: of this degree, or the highest that is asked for, on the
# observed ranges plus a small margin.
_START_DEGREE, _START_MARGIN = 15, 0.1
# Half an interval is this many standard deviations, plus this many per degree. The fit is weighted with a normal density
# this much wider than the observed one, plus a floor of a thousandth of its peak.
_DEVIATIONS, _DEVIATIONS_BY_DEGREE, _WIDER, _FLOOR = 2.0, 0.85, 1.3, 1e-3
_FIT_POINTS = 2000
# The final intervals reach beyond the samples by this share of their width, divided by the degree: a polynomial of low
# degree is the same on a wider interval.
_ROOM = 0.6
_CALIBRATION = 512
# One sample in this many is never trained on, up to the second number of them.
_APART, _MOST_APART = 8, 1024
# A polynomial gives up levels that training did not need: the agreement on held-out samples must not fall, and the loss
# on them may grow by at most this share.
_SPARED_LOSS = 0.01
# A round uses the next allocation whose predicted time is at most this share of the time before.
_CHEAPER = 0.8

Progress: TypeAlias = "Callable[[str, int, int], None]"


# The allocations of a program, cheapest last.
Allocate: TypeAlias = "Callable[[Program, Options], Sequence[Point]]"


@dataclass(frozen=True, slots=True)
class Round:
    """One round of training.

    `degrees`: by layer.
    `predicted_ms`: the predicted time of these degrees, if they were allocated.
    `before`, `agreement`: the agreement with the float network on held-out samples before and after training.
    `epochs`: the passes, in order.
    `range_levels`: the levels of softmax, exp, roots, quotients and layer norms by their ranges on samples, before and
        after.
    `kept`: whether the round was not undone.
    """

    degrees: Mapping[str, int]
    predicted_ms: float | None
    before: float
    agreement: float
    epochs: tuple[Epoch, ...]
    seconds: float
    range_levels: tuple[int, int]
    kept: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The round as JSON values."""
        return {**asdict(self), "degrees": dict(self.degrees), "epochs": [asdict(epoch) for epoch in self.epochs]}


@dataclass(frozen=True, slots=True)
class Refined:
    """The refined program, which `compile` accepts, with its module, the degree of each layer, and the rounds.

    `agreement`: the share of held-out samples on which the program gives the float network's class (if outputs are not
    scores: the explained share of their variance).
    `before`: the agreement in the first round before its training.
    """

    program: Program
    module: ProgramModule
    degrees: Mapping[str, int]
    rounds: tuple[Round, ...]
    before: float
    agreement: float
    samples_apart: int
    seconds: float
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Everything but program and module, as JSON values."""
        return {
            "degrees": dict(self.degrees),
            "before": self.before,
            "agreement": self.agreement,
            "samples_apart": self.samples_apart,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "rounds": [each.to_dict() for each in self.rounds],
        }


def refine(
    program: Program,
    samples: Any,
    options: Options | None = None,
    *,
    degrees: Mapping[str, int] | int | None = None,
    rounds: int = 4,
    epochs: int = 10,
    augment: Augment | None = None,
    accuracy_loss: float | None = None,
    progress: Progress | None = None,
    training: Training | None = None,
    allocate: Allocate | None = None,
    checkpoint: str | Path | None = None,
) -> Refined:
    """The program with polynomials of low degree, trained to reproduce its present outputs; no labels are needed.

    `program` is the result of `trace` or `parse`, `samples` an array or tensor (for several inputs a tuple of them, or a
    mapping from their names) with a leading sample axis. Every eighth sample is held out to measure the result. If the
    program has no calibration samples, the first samples are used.

    With `degrees`, one for all activations or by layer (others have 15), there is one round. Without them, and without
    a degree in the options, each round takes the degrees that `allocate(program, options)` (by default from
    `compiler.allocation`) returns for the current network, at least a fifth cheaper than the round before. The rounds
    end when one changes more than `accuracy_loss` of the classes (by default as in the options); that round is undone.

    `augment` gets the tensors of a batch and returns others like them; it should draw from torch, whose generator is
    seeded. `training` has the other settings (`hg.Training`); `epochs` overrides its value. `progress(stage, done,
    total)` is called after every step. `checkpoint` is a file that is written after every epoch; the same call resumes
    from it, and it is removed at the end.

    On Ctrl-C the best state so far is returned. Raises ProgramError if the training diverges or there is nothing to
    refine.
    """
    from heliograph.frontends.torch.training.distill import Training

    require_program(program, "refine")
    options = options or Options()
    training = replace(training or Training(), epochs=epochs)
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ProgramError(f"rounds={rounds!r} cannot be used", why="a whole number above 0 is needed")
    arrays = _arrays(samples, program)
    if not program.calibration:
        program = replace(program, calibration=tuple(each[:_CALIBRATION].astype(np.float64) for each in arrays))
    given: Any = degrees if degrees is not None else options.degree or options.degrees or None
    loss = options.accuracy_loss if accuracy_loss is None else accuracy_loss
    if progress is not None:
        progress("approximating", 0, 0)
    report = progress or (lambda stage, done, total: None)
    refiner = _Refiner(program, arrays, options, training, augment, report, _most(given))
    if checkpoint is not None:
        refiner.keep(Path(checkpoint), given)
    try:
        if given is not None:
            refiner.round(_by_layer(refiner.program, given), None)
        else:
            _descend(refiner, allocate or allocation_curve, rounds, loss)
    except KeyboardInterrupt:
        # Interrupted, perhaps between two trainings: keep the result so far.
        if not refiner.rounds:
            raise
        refiner.interrupted = True
    refined = refiner.finished()
    if checkpoint is not None and not refined.interrupted:
        Path(checkpoint).unlink(missing_ok=True)
    return refined


def _descend(refiner: _Refiner, allocate: Allocate, rounds: int, loss: float) -> None:
    """Rounds of cheaper and cheaper allocations, as long as the classes stay."""
    milliseconds = np.inf
    while len(refiner.rounds) < rounds and not refiner.interrupted:
        points = allocate(refiner.float_network(), refiner.options)
        point = next((each for each in points if each.predicted_ms <= _CHEAPER * milliseconds), None)
        if point is None:
            if not refiner.rounds:
                raise ProgramError(
                    f"no allocation of degrees was found for {refiner.original.name}", hint="give degrees"
                )
            return
        before = refiner.reached
        done = refiner.round(_by_layer(refiner.program, point.degrees), point.predicted_ms)
        milliseconds = point.predicted_ms
        if 1.0 - done.agreement > loss:
            if before is not None:
                refiner.undo(before)
            return


def _arrays(samples: Any, program: Program) -> tuple[Array, ...]:
    """The samples as float32 arrays, one for each input."""
    names = [node.attrs["name"] for node in program.inputs]
    if isinstance(samples, Mapping):
        if set(samples) != set(names):
            raise ProgramError(
                f"samples are given for {', '.join(map(repr, samples))}",
                why=f"the inputs are {', '.join(map(repr, names))}",
            )
        samples = tuple(samples[name] for name in names)
    items = samples if isinstance(samples, list | tuple) else (samples,)
    if len(items) != len(program.inputs):
        raise ProgramError(f"{len(items)} arrays of samples were given for {len(program.inputs)} inputs")
    arrays = []
    for node, item in zip(program.inputs, items, strict=True):
        if hasattr(item, "detach"):
            item = item.detach().cpu().numpy()
        array = np.asarray(item, dtype=np.float32)
        if array.shape[1:] != shape_of(node):
            raise ProgramError(
                f"samples of input {node.attrs['name']!r} have shape {array.shape}, expected (samples, "
                f"{', '.join(map(str, shape_of(node)))})"
            )
        if not np.isfinite(array).all():
            raise ProgramError(f"samples of input {node.attrs['name']!r} hold NaN or infinity")
        arrays.append(array)
    counts = {len(array) for array in arrays}
    if len(counts) > 1 or min(counts) < 2 * _APART:
        raise ProgramError(
            f"{' and '.join(map(str, sorted(counts)))} samples cannot be refined with",
            why=f"the same number of each input is needed, at least {2 * _APART}; a thousand are few",
        )
    return tuple(arrays)


def _polynomials(program: Program) -> list[Node]:
    return [node for node in program.nodes if node.op == "poly"]


def _by_layer(program: Program, degrees: Any) -> dict[str, int]:
    """The degrees by layer: from one for all, a mapping, or a list in program order."""
    layers = [node.loc.layer for node in _polynomials(program)]
    if isinstance(degrees, Mapping):
        unknown = sorted(set(degrees) - set(layers))
        if unknown:
            raise ProgramError(
                f"no layer with a polynomial is called {unknown[0]!r}",
                hint=f"the layers are {', '.join(dict.fromkeys(layers))}",
            )
        table = dict(degrees)
    elif isinstance(degrees, Sequence):
        if len(degrees) != len(layers):
            raise ProgramError(f"degrees lists {len(degrees)} of them for {len(layers)} polynomials")
        table = dict(zip(layers, degrees, strict=True))
    else:
        table = dict.fromkeys(layers, degrees)
    # Degrees are checked as the option checks them.
    return dict(Options(degrees=table).degrees)  # type: ignore[arg-type]


def _most(degrees: Any) -> int:
    """The highest of the degrees that are asked for."""
    listed = (
        degrees.values() if isinstance(degrees, Mapping) else degrees if isinstance(degrees, Sequence) else [degrees]
    )
    return max((degree for degree in listed if isinstance(degree, int)), default=0)


class _Refiner:
    """The current network and the results of its rounds."""

    def __init__(
        self,
        program: Program,
        arrays: tuple[Array, ...],
        options: Options,
        training: Training,
        augment: Augment | None,
        progress: Progress,
        most: int,
    ) -> None:
        import torch

        from heliograph.frontends.torch.training.modules import to_torch

        self.begun = time.perf_counter()
        self.original, self.options, self.training = program, options, training
        self.augment, self.progress = augment, progress
        self.teacher = to_torch(program)
        start = replace(
            options,
            degree=max(_START_DEGREE, most),
            degrees={},
            target_error=None,
            allocate=None,
            margin=_START_MARGIN if options.margin is None else options.margin,
        )
        self.program = approximate(program, start)
        if not _polynomials(self.program):
            raise ProgramError(f"{program.name} has no activation that becomes a polynomial, and nothing to refine")
        tensors = [torch.from_numpy(array.copy()) for array in arrays]
        chosen = np.arange(len(arrays[0])) % _APART == _APART - 1
        chosen &= np.cumsum(chosen) <= _MOST_APART
        apart = torch.from_numpy(chosen)
        self.samples, self.apart = [each[~apart] for each in tensors], [each[apart] for each in tensors]
        self.module = to_torch(self.program, train_coefficients=True)
        self.rounds: list[Round] = []
        self.reached: Program | None = None
        self.interrupted = False
        self.checkpoint: Path | None = None
        self.told = ""
        # The contents of the loaded checkpoint, and the contents to save about completed rounds.
        self.saved: dict[str, Any] = {}
        self.states: list[dict[str, Any]] = []

    def keep(self, path: Path, degrees: object) -> None:
        """Write a checkpoint to this file after every epoch, and resume from it if it exists."""
        from heliograph.frontends.torch.training.distill import unpacked

        digest = hashlib.sha256(str(self.original).encode())
        for tensor in (*self.samples, *self.apart):
            digest.update(tensor.numpy().tobytes())
        augment = getattr(self.augment, "__qualname__", type(self.augment).__qualname__)
        told = [asdict(self.training), self.options.told(), repr(degrees), augment, digest.hexdigest()]
        self.checkpoint, self.told = path, json.dumps(told, sort_keys=True, default=str)
        try:
            with open_file(path) as file:
                self.saved = unpacked(file.read(), path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise WireError("the checkpoint cannot be read", where=path, why=error.strerror or "") from None
        if self.saved.get("told") != self.told:
            raise ProgramError(
                "the checkpoint is of another run",
                where=path,
                why="network, samples, degrees, augmentation or settings are others",
                hint="remove it, or choose another output",
            )

    def round(self, degrees: Mapping[str, int], milliseconds: float | None) -> Round:
        """Lower the degrees and train; the result becomes the current network."""
        import torch

        from heliograph.frontends.torch.training.distill import Distilled, Epoch, distil, packed, reaches
        from heliograph.frontends.torch.training.modules import to_torch

        begun = time.perf_counter()
        number = len(self.rounds)
        finished = self.saved.get("rounds", [])
        running = self.saved.get("running") if number == len(finished) else None
        measured = [part[:_CALIBRATION] for part in self.samples]
        lowered, rest = _lowered(self.program, degrees, reaches(self.module, measured, held=True))
        bits = range_bits(self.module, measured)
        module = to_torch(lowered, train_coefficients=True)
        stage = f"round {number + 1}"

        def save(state: dict[str, Any]) -> None:
            self.write(packed({"told": self.told, "rounds": self.states, "running": state}))

        if number < len(finished):
            known = finished[number]
            module.load_state_dict(known["state"])
            epochs = [Epoch(*each) for each in known["epochs"]]
            done: Distilled = Distilled(known["before"], known["agreement"], known["state"], epochs)
        else:
            done = distil(
                module,
                self.teacher,
                self.samples,
                self.apart,
                replace(self.training, seed=self.training.seed + number),
                fading=[None if each is None else torch.from_numpy(each).float() for each in rest],
                prices=range_prices(self.module, bits),
                augment=self.augment,
                progress=lambda step, steps: self.progress(stage, step, steps),
                checkpoint=save if self.checkpoint is not None else None,
                resume=running,
            )
        self.interrupted = done.interrupted
        made = Round(
            _degrees(lowered),
            milliseconds,
            done.before,
            done.agreement,
            tuple(done.epochs),
            time.perf_counter() - begun,
            (sum(range_levels(module, bits)), sum(range_levels(module, range_bits(module, measured)))),
        )
        self.states.append(_state_of(done))
        self.rounds.append(made)
        self.module, self.program = module, module.written(lowered)
        self.reached = self.program
        return made

    def write(self, data: bytes) -> None:
        assert self.checkpoint is not None
        write_file(self.checkpoint, data, private=True)

    def undo(self, before: Program) -> None:
        """Go back to the network before the last round."""
        from heliograph.frontends.torch.training.modules import to_torch

        self.rounds[-1] = replace(self.rounds[-1], kept=False)
        self.program = self.reached = before
        self.module = to_torch(before, train_coefficients=True)

    def float_network(self) -> Program:
        """The original program with the current weights in the layers that have them."""
        trained = {(node.loc.layer, node.op): node for node in self.program.nodes}
        builder = Builder(self.original.name, self.original.stage, replace(self.original, constants={}))

        def emit(node: Node, operands: list[Node]) -> Node:
            twin = trained.get((node.loc.layer, node.op))
            source, theirs = (self.original, node) if twin is None else (self.program, twin)

            def renewed(value: Any, their: Any) -> Any:
                if isinstance(value, tuple):
                    return tuple(renewed(one, other) for one, other in zip(value, their, strict=True))
                is_constant = isinstance(value, ConstantName)
                return builder.constant(source.constants[str(their)], str(value)) if is_constant else value

            attrs = {name: renewed(value, theirs.attrs[name]) for name, value in node.attrs.items()}
            return builder.op(node.op, operands, node.loc, **attrs)

        return builder.rewrite(self.original, emit)

    def finished(self) -> Refined:
        """The result, with intervals from the samples; a warning if some samples exceed all bounds."""
        from heliograph.frontends.torch.check import compared_with
        from heliograph.frontends.torch.training.distill import TOO_FAR
        from heliograph.frontends.torch.training.modules import to_torch

        program, fits = self.on_intervals(self.program)
        agreement = [each for each in self.rounds if each.kept][-1].agreement
        if not self.interrupted:
            spared, found = self.spared(program)
            # Values that depend on a changed polynomial reach other ranges.
            moved, still_fits = (program, fits) if spared is program else self.on_intervals(spared)
            if still_fits >= fits:
                program, agreement, fits = moved, found, still_fits
        if not fits:
            warnings.warn(
                f"{self.original.name}: of some samples values reach beyond {TOO_FAR:g} times the intervals that were "
                "trained; longer training, a larger penalty or higher degrees bring them back",
                stacklevel=3,
            )
        module = to_torch(program, train_coefficients=True)
        # As in `trace`: compares the program with the trained module.
        program = replace(program, comparison=compared_with(program, module, self.samples))
        return Refined(
            program,
            module,
            _degrees(program),
            tuple(self.rounds),
            self.rounds[0].before,
            agreement,
            len(self.apart[0]),
            time.perf_counter() - self.begun,
            self.interrupted,
        )

    def on_intervals(self, program: Program) -> tuple[Program, bool]:
        """The program on the samples' intervals, with a margin, and whether no sample exceeds all bounds."""
        from heliograph.frontends.torch.training.distill import TOO_FAR, reaches
        from heliograph.frontends.torch.training.modules import to_torch

        module = to_torch(program, train_coefficients=True)
        everything = [
            np.concatenate([first.numpy(), second.numpy()])
            for first, second in zip(self.samples, self.apart, strict=True)
        ]
        seen = reaches(module, self._tensors(everything))
        calibration = reaches(module, self._tensors(program.calibration))
        ends = [(min(a.low, b.low), max(a.high, b.high)) for a, b in zip(seen, calibration, strict=True)]
        fits = all(max(-low, high) <= TOO_FAR for low, high in ends)
        return _on_intervals(program, np.clip(ends, -TOO_FAR, TOO_FAR).tolist()), fits

    def spared(self, program: Program) -> tuple[Program, float]:
        """The program without degrees that training left unused, and its agreement.

        For each polynomial in turn, it tries the nearest polynomial with fewer levels; those that change least come
        first.
        """
        import torch

        from heliograph.frontends.torch.training.distill import Judge, reaches
        from heliograph.frontends.torch.training.modules import to_torch

        module = to_torch(program, train_coefficients=True)
        judge = Judge(module, self.teacher, self.apart, self.training)
        best = judge.look()
        tries = []
        seen = reaches(module, self.apart)
        for place, (node, reach) in enumerate(zip(_polynomials(program), seen, strict=True)):
            old = program.array(node.attrs["coefficients"]).astype(np.float64)
            degree = _fewer_levels(old.size - 1)
            if degree is None or not math.isfinite(reach.deviation):
                continue
            new = _projected(old, degree, reach.mean, _WIDER * max(reach.deviation, 1e-3))
            if degree == 2 and not fits_a_square(new):
                continue
            change = np.abs(np.pad(new, (0, old.size - new.size)) - old).sum() / np.abs(old).sum()
            tries.append((float(change), place, node, new))
        changes: dict[Node, tuple[Array, float, float]] = {}
        for _, place, node, new in sorted(tries, key=lambda each: each[:2]):
            coefficients: Any = module.polynomials[place].coefficients
            before = coefficients.detach().clone()
            with torch.no_grad():
                coefficients.copy_(torch.from_numpy(np.pad(new, (0, len(before) - new.size))))
            found = judge.look()
            # (goodness, minus the loss, agreement)
            if found[0] >= best[0] and -found[1] <= -best[1] * (1 + _SPARED_LOSS):
                best, changes[node] = found, (new, -1.0, 1.0)
            else:
                with torch.no_grad():
                    coefficients.copy_(before)
        return (_with_polynomials(program, changes) if changes else program), best[2]

    def _tensors(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        import torch

        return [torch.from_numpy(np.require(array, np.float32, "W")) for array in arrays]


def _state_of(done: Distilled) -> dict[str, Any]:
    return {
        "before": done.before,
        "agreement": done.agreement,
        "state": done.state,
        "epochs": [[each.loss, each.agreement, each.seconds] for each in done.epochs],
    }


def _degrees(program: Program) -> dict[str, int]:
    return {node.loc.layer: program.array(node.attrs["coefficients"]).size - 1 for node in _polynomials(program)}


# ---------------------------------------------------------------------------------------------- polynomials


def _fewer_levels(degree: int) -> int | None:
    """The highest degree with fewer levels than this one; 2 counts as a square (passes/polynomials/squares.py)."""
    if degree < 3:
        return None
    return (
        2
        if degree == 3
        else next(low for low in range(degree, 0, -1) if depth_of_degree(low) < depth_of_degree(degree))
    )


def _moved(coefficients: Array, low: float, high: float) -> Array:
    """A polynomial's coefficients in the basis of [low, high], from coefficients in the basis of [-1, 1]."""
    middle, half = (low + high) / 2, (high - low) / 2
    return chebyshev.chebinterpolate(
        lambda t: chebyshev.chebval(middle + half * t, coefficients), coefficients.size - 1
    )


def _lowered(program: Program, degrees: Mapping[str, int], seen: Sequence[Any]) -> tuple[Program, list[Array | None]]:
    """The program with polynomials of these degrees, and for each its difference from the old one, to be faded out.

    An interval is a number of standard deviations around the observed mean, within the old interval.
    """
    changes, rest = {}, list[Array | None]()
    for node, reach in zip(_polynomials(program), seen, strict=True):
        old = program.array(node.attrs["coefficients"]).astype(np.float64)
        if not math.isfinite(reach.deviation):
            raise ProgramError(
                "the samples give values that are not numbers", where=node.loc, hint="scale the samples as in training"
            )
        degree = degrees.get(node.loc.layer, old.size - 1)
        if degree >= old.size - 1:
            changes[node] = (np.pad(old, (0, degree + 1 - old.size)), -1.0, 1.0)
            rest.append(None)
            continue
        half = (_DEVIATIONS + _DEVIATIONS_BY_DEGREE * degree) * max(reach.deviation, 1e-3)
        low, high = max(-1.0, reach.mean - half), min(1.0, reach.mean + half)
        moved = _moved(old, low, high)
        centre, width = (2 * reach.mean - low - high) / (high - low), 2 * reach.deviation / (high - low)
        new = _projected(moved, degree, centre, _WIDER * max(width, 1e-3))
        moved[: new.size] -= new
        changes[node] = (new, low, high)
        rest.append(moved)
    return _with_polynomials(program, changes), rest


def _projected(coefficients: Array, degree: int, mean: float, deviation: float) -> Array:
    """The nearest polynomial of lower degree on [-1, 1], weighted by a normal density with a floor."""
    t = np.cos(np.pi * (np.arange(_FIT_POINTS) + 0.5) / _FIT_POINTS)
    weight = np.exp(-0.5 * ((t - mean) / deviation) ** 2) + _FLOOR
    # The points are denser at the ends.
    root = np.sqrt(weight * np.sqrt(1 - t * t))
    basis = chebyshev.chebvander(t, degree)
    values = chebyshev.chebval(t, coefficients)
    found: Array = np.linalg.lstsq(basis * root[:, None], values * root, rcond=None)[0]
    return found


def _on_intervals(program: Program, seen: Sequence[tuple[float, float]]) -> Program:
    """The program with its polynomials on the observed intervals (-1 to 1 is the old one), with room on both sides."""
    changes = {}
    for node, (low, high) in zip(_polynomials(program), seen, strict=True):
        old = program.array(node.attrs["coefficients"]).astype(np.float64)
        room = _ROOM / max(1, old.size - 1) * max(high - low, 1e-6)
        changes[node] = (_moved(old, low - room, high + room), low - room, high + room)
    return _with_polynomials(program, changes)


def _with_polynomials(program: Program, changes: Mapping[Node, tuple[Array, float, float]]) -> Program:
    """The program with new coefficients and intervals; the new intervals are in coordinates of the old ones."""
    builder = Builder(program.name, program.stage, program)

    def emit(node: Node, operands: list[Node]) -> Node:
        if node not in changes:
            return builder.copy(node, operands)
        coefficients, low, high = changes[node]
        middle, half = (node.attrs["low"] + node.attrs["high"]) / 2, (node.attrs["high"] - node.attrs["low"]) / 2
        attrs = {
            **node.attrs,
            "coefficients": builder.constant(coefficients, f"{node.loc.layer or node.op}.refined"),
            "low": middle + half * low,
            "high": middle + half * high,
        }
        return builder.op("poly", operands, node.loc, **attrs)

    return builder.rewrite(program, emit)
