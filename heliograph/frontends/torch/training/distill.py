"""Distillation: training a module with polynomials to agree with the float network, on samples without labels.

Three measures make deep networks of degree 2 and 3 trainable at all, and none of them changes the final computation.

* The terms of a polynomial of high degree beyond the low degree fade out, so that the network works from the start.
* Values far outside an interval are clamped, so that no sample explodes; the range penalty brings them back. After
  that, both are relaxed: values are clamped further out, and penalised only where the polynomial begins to grow, but
  then by the sum over the samples instead of the mean, because the few samples without a clamp are the ones that
  explode. In the end those few are part of every batch.
* While the polynomials change, batch norms take their statistics from samples again; after that these are fixed.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from heliograph.errors import ProgramError, WireError
from heliograph.files import Bytes
from heliograph.frontends.torch.training.modules import INNER, ProgramModule
from heliograph.records import Named

Tensor = torch.Tensor
# Called with one batch of each input.
Augment: TypeAlias = "Callable[..., Any]"

# While polynomials fade, the batch norms' statistics are updated this many times, or once every this many steps if that is
# more often; and the weight of one update.
_LOOKS, _LOOK_STEPS, _LOOK_SHARE = 10, 10, 0.5
_LEAST_VARIANCE = 1e-12
# A channel's statistics are used if its variance is above this share of the mean one, and changes by less than this factor.
_ALIVE, _MOST_MOVED = 1e-3, 10.0
# After the first share of the training, the bounds on polynomials' arguments widen, over the second share, to the
# points where the Chebyshev polynomial of their degree has these sizes: penalised beyond one, clamped at the other.
_GIVES_WAY, _WITHIN, _GROWS, _LARGEST = 0.4, 0.3, 4.0, 26.0
# A sample counts as _DIVERGED misclassified ones if its outputs are not numbers, or above _TOO_LARGE times the
# teacher's largest, or if one of its arguments is more than TOO_FAR times as far out as the interval's end.
_TOO_LARGE, TOO_FAR, _DIVERGED = 100.0, 4.0, 10.0
# Once the bounds have widened, up to this share of each batch is taken from samples that still exceed them.
_AGAIN = 1 / 8
_WARM_UP = 0.15
# Coefficients learn this much more slowly: near the middle of an interval, where most arguments lie, values are small
# compared with the coefficients, and each coefficient moves all values of a layer.
_COEFFICIENTS_RATE = 0.1


@dataclass(frozen=True, slots=True)
class Training(metaclass=Named):
    """The settings of a training.

    epochs: passes over the samples.
    batch: samples of a step.
    rate: the largest learning rate (AdamW, one cycle).
    temperature: divides class scores before they are compared.
    features: weight of the relative squared error of the activations' inputs, beside the error of the outputs.
    penalty: weight of log(1 + excess) (ProgramModule.range_excesses), summed over the polynomials; the mean over the
        samples of a batch, in the last part of the training the sum.
    price: what all of the network's levels are worth, as an agreement: with 0.1, one level of a hundred is worth a
        thousandth. Softmax, exp, roots, quotients and layer norms give up levels by narrower ranges.
    classes: whether outputs are class scores; with None, one vector of several numbers is.
    fade: the share of the training over which the terms beyond the low degrees fade.
    clip: bound on the norm of a step's gradient.
    seed: for the order of the samples and for the numbers that `augment` draws from torch.
    """

    epochs: int = 10
    batch: int = 128
    rate: float = 5e-4
    temperature: float = 2.0
    features: float = 1.0
    penalty: float = 0.1
    price: float = 0.1
    classes: bool | None = None
    fade: float = 0.15
    clip: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ProgramError(f"{name}={value!r} cannot be used", why="a whole number above 0 is needed")
        for name in ("rate", "temperature", "clip", "features", "penalty", "price", "fade"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ProgramError(f"{name}={value!r} cannot be used", why="it is a number")
        if not (self.classes is None or isinstance(self.classes, bool)):
            raise ProgramError(f"classes={self.classes!r} cannot be used", why="it is True, False or None")
        for name in ("rate", "temperature", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ProgramError(f"{name}={getattr(self, name)!r} cannot be used", why="it is a positive number")
        for name in ("features", "penalty", "price"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ProgramError(f"{name}={getattr(self, name)!r} cannot be used", why="a weight is at least 0")
        if not 0 <= self.fade <= 1:
            raise ProgramError(f"fade={self.fade!r} cannot be used", why="it is a share of the training")


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass: the mean loss of its steps, then the agreement with the teacher on held-out samples, its seconds."""

    loss: float
    agreement: float
    seconds: float


@dataclass(slots=True)
class Distilled:
    """The best state by agreement, and its history.

    Samples that diverge count against a state, including training samples. Agreement is the share of the held-out
    samples with the teacher's class; where outputs are not class scores, the explained share of the outputs' variance.

    before: the agreement before training.
    agreement: the agreement of the best state.
    state: the best state; the state before training is a candidate, too.
    epochs: the passes, in order.
    interrupted: whether Ctrl-C ended the training.
    """

    before: float
    agreement: float
    state: dict[str, Tensor]
    epochs: list[Epoch] = field(default_factory=list)
    interrupted: bool = False


def distil(
    student: ProgramModule,
    teacher: nn.Module,
    samples: Sequence[Tensor],
    apart: Sequence[Tensor],
    training: Training,
    *,
    fading: Sequence[Tensor | None] = (),
    prices: Sequence[float] = (),
    augment: Augment | None = None,
    progress: Callable[[int, int], None] | None = None,
    checkpoint: Callable[[dict[str, Any]], None] | None = None,
    resume: Mapping[str, Any] | None = None,
) -> Distilled:
    """Train the student to agree with the teacher; it is left in eval mode, in the best state.

    `samples` and `apart` (held out from training) have a tensor for each input, (samples, ...). `fading` has, for each
    polynomial of the student, coefficients of any degree that are added in the beginning; `prices`, for each function of
    `student.ranged`, the price of a bit of its range. `augment` gets the tensors of a batch and returns them changed;
    its draws from torch are seeded. `progress(step, steps)` is called after every step. `checkpoint` gets, after
    every epoch, the argument for `resume`. The same seed and number of threads give the
    same state. On Ctrl-C the best state so far is kept. A ProgramError if the loss is no longer a number.
    """
    run = _Run(student, teacher, samples, apart, training, fading, augment, prices)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        if resume is None:
            run.best = run.among_all(run.look())
            run.result = Distilled(run.best[2], run.best[2], copy.deepcopy(student.state_dict()))
        else:
            run.resume(resume)
        try:
            for epoch in range(len(run.result.epochs), training.epochs):
                run.epoch(epoch, progress or (lambda done, steps: None))
                if checkpoint is not None:
                    checkpoint(run.state())
        except KeyboardInterrupt:
            run.result.interrupted = True
    run.still()
    student.load_state_dict(run.result.state)
    student.eval()
    return run.result


class Judge:
    """The quality of a module on samples, by comparison with the teacher, whose outputs on them are kept."""

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        samples: Sequence[Tensor],
        training: Training,
        prices: Sequence[float] = (),
    ) -> None:
        self.student, self.temperature = student, training.temperature
        self.prices = [training.price * price for price in prices]
        batch = min(training.batch, len(samples[0]))
        self.parts = [[each[i : i + batch] for each in samples] for i in range(0, len(samples[0]), batch)]
        teacher.eval()
        with torch.no_grad():
            self.wanted = [_outputs(teacher, part)[0] for part in self.parts]
        self.classes = _are_scores(self.wanted, training.classes)
        self.count = sum(len(part[0]) for part in self.parts)

    def look(self) -> tuple[float, float, float]:
        """The student's score (the agreement less the cost of samples that diverge and the price of ranges), minus its loss,
        and its agreement; the student is left in eval mode.
        """
        self.student.eval()
        ranged: list[Any] = self.student.ranged if self.prices else []  # type: ignore[assignment]
        for step in ranged:
            step.train()
        bits = [torch.tensor(-math.inf)] * len(self.prices)
        losses, agreed, diverged = [], 0.0, 0
        with torch.no_grad(), watched(self.student) as reached:
            for part, wanted in zip(self.parts, self.wanted, strict=True):
                found, _ = _outputs(self.student, part)
                losses.append(float(self.loss(found, wanted)) * len(part[0]))
                diverged += int((_diverged(found, wanted) | (reached() > TOO_FAR)).sum())
                bits = [torch.maximum(old, step.bits) for old, step in zip(bits, ranged, strict=True)]
                if self.classes:
                    agreed += float((found[0].argmax(1) == wanted[0].argmax(1)).sum())
        self.student.eval()
        loss = sum(losses) / self.count
        loss = loss if math.isfinite(loss) else math.inf
        agreement = agreed / self.count if self.classes else max(0.0, 1.0 - loss)
        price = sum(price * float(each.nan_to_num(math.inf)) for price, each in zip(self.prices, bits, strict=True))
        return agreement - _DIVERGED * diverged / self.count - price, -loss, agreement

    def loss(self, found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
        """Cross entropy in excess of the teacher's own, in units of a temperature of 1; or relative squared errors."""
        if not self.classes:
            return torch.stack([_relative(left, right) for left, right in zip(found, wanted, strict=True)]).mean()
        t = self.temperature
        own, theirs = (F.log_softmax(each[0] / t, 1) for each in (found, wanted))
        return F.kl_div(own, theirs, reduction="batchmean", log_target=True) * t * t


class _Run:
    """One training, with all that a step needs."""

    def __init__(
        self,
        student: ProgramModule,
        teacher: nn.Module,
        samples: Sequence[Tensor],
        apart: Sequence[Tensor],
        training: Training,
        fading: Sequence[Tensor | None],
        augment: Augment | None,
        prices: Sequence[float] = (),
    ) -> None:
        self.student, self.teacher, self.training, self.augment = student, teacher.eval(), training, augment
        self.samples = list(samples)
        self.fading = list(fading) or [None] * len(student.polynomials)
        count = len(self.samples[0])
        self.batch = min(training.batch, count)
        self.steps = count // self.batch
        self.total = self.steps * training.epochs
        keys = teacher.features if isinstance(teacher, ProgramModule) and training.features else ()
        shared = [key for key in keys if key in student.places and key in teacher.places]  # type: ignore[operator]
        self.own = [student.places[key] for key in shared]
        self.theirs = [teacher.places[key] for key in shared] if isinstance(teacher, ProgramModule) else []
        self.folds = [each for each in (student, teacher) if isinstance(each, ProgramModule)]
        slow = [step.coefficients for step in student.polynomials if isinstance(step.coefficients, nn.Parameter)]
        fast = [each for each in student.parameters() if all(each is not other for other in slow)]
        rates = (training.rate, _COEFFICIENTS_RATE * training.rate)
        groups = [{"params": each, "lr": rate} for each, rate in zip((fast, slow), rates, strict=True)]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, list(rates), total_steps=self.total + 1, pct_start=_WARM_UP, cycle_momentum=False
        )
        self.judge = Judge(student, self.teacher, apart, training, prices)
        self.best = (-math.inf, -math.inf, 0.0)
        self.result = Distilled(0.0, 0.0, {})

    def look(self) -> tuple[float, float, float]:
        """The judge's figures for the state in its final form, without fading terms or clamps."""
        self.still()
        return self.judge.look()

    def among_all(self, found: tuple[float, float, float]) -> tuple[float, float, float]:
        """The figures with the cost of each diverging training sample, equal to the cost of a held-out one: there are
        several times as many training samples, and the few that explode may all be among them.
        """
        diverged = int((self.reached() > TOO_FAR).sum())
        return (found[0] - _DIVERGED * diverged / self.judge.count, found[1], found[2])

    def reached(self) -> Tensor:
        """How far out each training sample's arguments are (`watched`), at the polynomials' current settings."""
        self.student.eval()
        found = []
        with torch.no_grad(), watched(self.student) as reached:
            for part in zip(*(each.split(self.batch) for each in self.samples), strict=True):
                self.student(*part)
                found.append(reached())
        return torch.cat(found)

    def still(self) -> None:
        """Remove the fading terms, set the bounds to the intervals, and fold no norm."""
        for step in self.student.polynomials:
            step.fading, step.inner, step.outer = None, INNER, 1.0
        for each in self.folds:
            each.folds_norms = False

    def epoch(self, number: int, progress: Callable[[int, int], None]) -> None:
        begun = time.perf_counter()
        order = torch.randperm(len(self.samples[0]))
        far = self.far(number * self.steps / self.total)
        again = min(len(far), int(_AGAIN * self.batch))
        losses = []
        for step in range(self.steps):
            chosen = order[step * self.batch : (step + 1) * self.batch]
            inputs = [each[chosen] for each in self.samples]
            if self.augment is not None:
                inputs = _listed(self.augment(*inputs))
            if again:
                those = far[torch.randperm(len(far))[:again]]
                inputs = [torch.cat([each[those], own[again:]]) for each, own in zip(self.samples, inputs, strict=True)]
            losses.append(self.step(number * self.steps + step, inputs))
            progress(number * self.steps + step + 1, self.total)
        found = self.look()
        if found > self.best:
            # A look at all samples takes a third of an epoch: only for a state better on the held-out ones.
            found = self.among_all(found)
        if found > self.best:
            self.best = found
            self.result.agreement, self.result.state = found[2], copy.deepcopy(self.student.state_dict())
        seconds = time.perf_counter() - begun
        self.result.epochs.append(Epoch(sum(losses) / len(losses), found[2], seconds))

    def far(self, done: float) -> Tensor:
        """The indices of the training samples beyond the widened bounds, empty before these are reached: they are few
        in thousands, and a pass over all samples hardly sees them.
        """
        if self.given(done) < 1.0:
            return torch.zeros(0, dtype=torch.long)
        self.still()
        self.set_polynomials(done)
        return (self.reached() > 1.0).nonzero()[:, 0]

    def step(self, number: int, inputs: Sequence[Tensor]) -> float:
        """One step of the optimizer; the loss."""
        done = number / self.total
        self.set_polynomials(done)
        between = max(1, min(_LOOK_STEPS, int(self.training.fade * self.total) // _LOOKS))
        if number == 0 or (done < self.training.fade and number % between == 0):
            self.follow_norms(inputs)
        self.student.train()
        for norm in self.student.norms:
            norm.eval()
        for each in self.folds:
            each.folds_norms = True
        with torch.no_grad():
            wanted, theirs = _outputs(self.teacher, inputs, self.theirs)
        found, own = _outputs(self.student, inputs, self.own)
        loss = self.judge.loss(found, wanted)
        weight = self.training.penalty * len(inputs[0]) ** self.given(done)
        for excess in self.student.range_excesses():
            # In logarithms, so that one outlying sample or layer does not drown out the others.
            loss = loss + weight * torch.log1p(excess).mean()
        for price, step in zip(self.judge.prices, self.student.ranged if self.judge.prices else (), strict=True):
            loss = loss + price * step.bits  # type: ignore[operator]
        for left, right in zip(own, theirs, strict=True):
            loss = loss + self.training.features / len(own) * _relative(left, right)
        self.optimizer.zero_grad()
        loss.backward()
        size = torch.nn.utils.clip_grad_norm_(self.student.parameters(), self.training.clip)
        if not (math.isfinite(float(loss.detach())) and math.isfinite(float(size))):
            raise ProgramError(
                f"the loss is no longer a number in step {number + 1} of {self.total}",
                why="values grew without bound in the network of polynomials",
                hint=f"a smaller rate than {self.training.rate:g}, higher degrees, or a longer fade",
            )
        self.optimizer.step()
        self.schedule.step()
        return float(loss.detach())

    def set_polynomials(self, done: float) -> None:
        """Set the remaining fading terms, and the bounds on arguments, for this share of the training."""
        left = 1.0 - done / self.training.fade if done < self.training.fade else 0.0
        given = self.given(done)
        for step, fading in zip(self.student.polynomials, self.fading, strict=True):
            step.fading = None if fading is None or not left else left * fading
            coefficients: Any = step.coefficients
            degree = max(1, coefficients.numel() - 1)
            inner, outer = (math.cosh(math.acosh(each) / degree) for each in (_GROWS, _LARGEST))
            step.inner, step.outer = INNER + given * (inner - INNER), 1.0 + given * (outer - 1.0)

    def given(self, done: float) -> float:
        """How far the bounds have widened at that share of the training, 0 to 1."""
        return min(1.0, max(0.0, (done - _GIVES_WAY) / _WITHIN))

    def follow_norms(self, inputs: Sequence[Tensor]) -> None:
        """Move the batch norms' statistics so that their outputs on these samples have the teacher's moments.

        From the first norm to the last, each behind the ones already moved. A norm without a counterpart in the teacher
        gets the statistics of the samples.
        """
        norms = self.student.norms
        if not norms:
            return
        keys = [(norm.layer, norm.op) for norm in norms]
        places = self.teacher.places if isinstance(self.teacher, ProgramModule) else {}
        known = [key for key in keys if key in places]
        wanted: dict[tuple[str, str], Tensor] = {}

        def follow(norm: Any, operands: tuple[Tensor, ...]) -> None:
            (x,) = operands
            axes = [axis for axis in range(x.ndim) if axis != 1]
            mean, variance = x.mean(axes), x.var(axes, correction=0)
            theirs = wanted.get((norm.layer, norm.op))
            if theirs is not None:
                weight, bias = norm.constant("weight"), norm.constant("bias")
                weight = torch.ones_like(mean) if weight is None else weight
                spread = theirs.var(axes, correction=0)
                ratio = (variance / spread.clamp_min(_LEAST_VARIANCE)).sqrt()
                mean = mean - (theirs.mean(axes) - (0.0 if bias is None else bias)) * weight.sign() * ratio
                variance = (weight * ratio).square() - norm.attrs["eps"]
                # A channel that hardly varies has no useful statistics.
                old = norm.constant("variance")
                alive = (
                    (spread > _ALIVE * spread.mean()) & (variance < _MOST_MOVED * old) & (old < _MOST_MOVED * variance)
                )
                mean = torch.where(alive, mean, norm.constant("mean"))
                variance = torch.where(alive, variance, old)
            norm.constant("mean").lerp_(mean, _LOOK_SHARE)
            norm.constant("variance").lerp_(variance, _LOOK_SHARE)

        for each in self.folds:
            each.folds_norms = False
        self.student.train()
        hooks = [norm.eval().register_forward_pre_hook(follow) for norm in norms]
        try:
            with torch.no_grad():
                _, kept = _outputs(self.teacher, inputs, [places[key] for key in known])
                wanted.update(zip(known, kept, strict=True))
                self.student(*inputs)
        finally:
            for hook in hooks:
                hook.remove()

    def state(self) -> dict[str, Any]:
        """The argument for `resume`: numbers and tensors."""
        return {
            "student": copy.deepcopy(self.student.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "schedule": {key: value for key, value in self.schedule.state_dict().items() if key != "_anneal_func_type"},
            "random": torch.get_rng_state(),
            "best": list(self.best[:2]),
            "before": self.result.before,
            "agreement": self.result.agreement,
            "state": self.result.state,
            "epochs": [[each.loss, each.agreement, each.seconds] for each in self.result.epochs],
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        self.student.load_state_dict(state["student"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"])
        self.best = (state["best"][0], state["best"][1], state["agreement"])
        epochs = [Epoch(*each) for each in state["epochs"]]
        self.result = Distilled(state["before"], state["agreement"], dict(state["state"]), epochs)


def _outputs(module: nn.Module, inputs: Sequence[Tensor], places: Sequence[int] = ()) -> tuple[Any, Any]:
    """The outputs as a list, and the values at these places."""
    found, kept = module.kept(inputs, places) if isinstance(module, ProgramModule) else (module(*inputs), [])
    return list(found.values()) if isinstance(found, dict) else _listed(found), kept


def _listed(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _diverged(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Which samples have outputs that are not numbers, or too large to be any use."""
    out = torch.zeros(len(found[0]), dtype=torch.bool)
    for own, theirs in zip(found, wanted, strict=True):
        out |= ~(own.abs().flatten(1).amax(1) <= _TOO_LARGE * theirs.abs().max())
    return out


@contextlib.contextmanager
def watched(module: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Yields a function that gives, after each call of the module, how far out each sample's arguments were: the
    largest of all polynomials, in multiples of the training bound (`outer`), (samples,). NaN counts as infinitely far.
    """
    steps = module.polynomials if isinstance(module, ProgramModule) else []
    farthest: list[Tensor] = []

    def see(step: Any, operands: tuple[Tensor, ...]) -> None:
        low, high = step.attrs["low"], step.attrs["high"]
        x = operands[0].detach()
        t = (x * 2 - (low + high)) / ((high - low) * step.outer)
        farthest.append(t.abs().reshape(len(x), -1).amax(1).nan_to_num(nan=math.inf))

    def reached() -> Tensor:
        found = torch.stack(farthest).amax(0) if farthest else torch.zeros(())
        farthest.clear()
        return found

    hooks = [step.register_forward_pre_hook(see) for step in steps]
    try:
        yield reached
    finally:
        for hook in hooks:
            hook.remove()


def _relative(found: Tensor, wanted: Tensor) -> Tensor:
    """The mean squared error over the variance of the wanted values."""
    return F.mse_loss(found, wanted) / wanted.var(correction=0).clamp_min(1e-12)


def _are_scores(wanted: Sequence[Sequence[Tensor]], told: bool | None) -> bool:
    """Whether the outputs are one vector of class scores for each sample: as told, where they can be."""
    possible = len(wanted[0]) == 1 and wanted[0][0].ndim == 2 and wanted[0][0].shape[1] > 1
    if told and not possible:
        shapes = ", ".join(str(tuple(each.shape[1:])) for each in wanted[0])
        raise ProgramError(
            "classes=True cannot be used",
            why=f"outputs of shapes {shapes} are no class scores",
            hint="leave it out",
        )
    return possible if told is None else told


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a polynomial's arguments lie in its interval, -1 to 1: mean, standard deviation, smallest, largest."""

    mean: float
    deviation: float
    low: float
    high: float


def reaches(module: ProgramModule, samples: Sequence[Tensor], *, held: bool = False, batch: int = 128) -> list[Reach]:
    """Where the arguments of each polynomial lie when the module, left in eval mode, runs on the samples.

    With `held`, each polynomial's arguments are clamped to its interval, as in training, so that later ones are finite.
    NaN counts as infinitely large.
    """
    steps = module.polynomials
    sums = torch.zeros(len(steps), 3, dtype=torch.float64)
    ends = torch.tensor([[math.inf, -math.inf]], dtype=torch.float64).repeat(len(steps), 1)

    def watch(row: int) -> Callable[..., None]:
        def see(step: Any, operands: tuple[Tensor, ...]) -> None:
            low, high = step.attrs["low"], step.attrs["high"]
            t = (operands[0].double() * 2 - (low + high)) / (high - low)
            t = t.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
            sums[row] += torch.stack([torch.tensor(float(t.numel())), t.sum(), t.square().sum()])
            ends[row, 0], ends[row, 1] = min(ends[row, 0], t.min()), max(ends[row, 1], t.max())

        return see

    hooks = [step.register_forward_pre_hook(watch(row)) for row, step in enumerate(steps)]
    for step in (*steps, *module.norms):
        step.train(held and step.op == "poly")
    try:
        with torch.no_grad():
            for start in range(0, len(samples[0]), batch):
                module(*(each[start : start + batch] for each in samples))
    finally:
        for hook in hooks:
            hook.remove()
        module.eval()
    found = []
    for (count, total, squares), (low, high) in zip(sums.tolist(), ends.tolist(), strict=True):
        mean = total / count
        found.append(Reach(mean, math.sqrt(max(0.0, squares / count - mean * mean)), low, high))
    return found


def packed(state: Mapping[str, Any]) -> bytes:
    """Numbers, texts and tensors as the bytes of a file, which begins with its SHA-256: torch checks no contents."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue()


def unpacked(data: Bytes, where: object) -> dict[str, Any]:
    """The argument of `packed` from its bytes; a WireError for anything but numbers, texts and tensors."""
    whole, hint = bytes(data), "remove it: the run begins anew"
    digest, held = whole[:32], whole[32:]
    if hashlib.sha256(held).digest() != digest:
        raise WireError(
            "the checkpoint cannot be read", where=where, why="its contents do not match its checksum", hint=hint
        )
    try:
        found = torch.load(io.BytesIO(held), weights_only=True)
    except Exception as error:
        # On untrusted bytes, torch raises whatever its archive reader and unpickler raise.
        raise WireError("the checkpoint cannot be read", where=where, why=str(error)[:200], hint=hint) from None
    if not isinstance(found, dict):
        raise WireError("the checkpoint cannot be read", where=where, why="it holds no states", hint=hint)
    return found
