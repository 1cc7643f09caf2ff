"""Audits of training runs: empirical lower bounds on epsilon to hold against the upper bound.

`audit_training` is one run with many canaries, each in the training set by its own fair coin (Steinke, Nasr, Jagielski
2023). It has the attacker's view that the guarantee assumes: every released gradient sum, and the parameters at its
release. There are two kinds of canaries.

- `gradients` (the default): records whose gradient is one entry of the parameters, a separate entry for each, larger
  than any clipping bound. They go through sampling, clipping, sum and noise like all records. A canary's score adds up,
  over the steps, the likelihood ratio of the release at its entry under the accounted mechanism; the sum of the true
  records there is subtracted, which an attacker who holds all other records can do (the guarantee gives their coins to
  the attacker too). Guessing alone refutes noise that is many times too small. In DP-SGD and DPIS the same sums also
  measure the mechanism (`dp.audit.measure`): at entries without canaries they are the noise; with Poisson samples and
  DPIS, crowds of canaries that share an entry show the inclusion probability and the clipping bound. BandMF, whose
  releases mix the sums of several steps, is not measured.
- `records`: true inputs and targets, with gradients computed by the module. The score is the released sum along the
  canary's own gradient. It is weaker, but covers the computation of gradients too.

`audit_norm_sum` compares the release of a norm sum with one record more and without it, drawn many times.

An audit can refute a guarantee; a small bound shows nothing. It trains on the data again: its output is a release
outside every budget, meant only for the holder of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from heliograph.dp.accounting import Tolerance, epsilon_at
from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.accounting.result import json_number
from heliograph.dp.audit import Audit, Measured, measure, one_run, one_run_bound, split
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Gaussian, SampledGaussian
from heliograph.dp.training.gradients import GradientEngine
from heliograph.dp.training.records import Canaries, Records
from heliograph.dp.training.releases import Observer
from heliograph.dp.training.report import PrivacyReport
from heliograph.dp.training.trainer import DPTrainer
from heliograph.errors import HeliographError, ProgramError

_CROWDS, _CROWD, _SPARE = 64, 100, 4000
"""Entries with crowds of canaries, the canaries of each, and further entries with none, at most."""

Build = Callable[[object, Observer], DPTrainer]
"""Makes the trainer to audit on a training set, with an observer of its releases."""


@dataclass(frozen=True)
class TrainingAudit:
    """The lower bound of an audit, beside the upper bound of the accounting."""

    audit: Audit
    epsilon_upper: float
    canaries: int
    most: float = math.inf
    """The largest epsilon that these guesses could have shown, all of them right."""
    measured: Measured | None = None
    """Bounds on noise, inclusion probability and clipping bound, as multiples of the accounted ones."""
    epsilon_worst: float | None = None
    """The plan's epsilon with all that was measured at its worst end; None outside of what is accounted for."""

    @property
    def refuted(self) -> bool:
        """Whether the audit contradicts the upper bound, or the mechanism that it is for; each with the confidence."""
        return self.audit.epsilon_lower > self.epsilon_upper or (self.measured is not None and self.measured.refuted)

    def to_json(self) -> dict[str, Any]:
        """The audit as a JSON object."""
        return {
            "epsilon_lower_empirical": self.audit.epsilon_lower,
            "epsilon_upper": self.epsilon_upper,
            "delta": self.audit.delta,
            "confidence": self.audit.confidence,
            "epsilon_lower_most": json_number(self.most),
            "canaries": self.canaries,
            "guesses": self.audit.guesses,
            "right": self.audit.right,
            "refuted": self.refuted,
            "measured": None
            if self.measured is None
            else {
                "noise": self.measured.noise,
                "probability": _numbers(self.measured.probability),
                "clipping": _numbers(self.measured.clipping),
                "samples": self.measured.samples,
            },
            "epsilon_measured_worst": json_number(self.epsilon_worst),
        }

    def words(self) -> str:
        """The audit in words."""
        verdict = "THE GUARANTEE IS REFUTED" if self.refuted else "not refuted, which proves nothing"
        if self.measured is not None and self.measured.refuted:
            verdict += ": the mechanism is not the one that is accounted for"
        if not self.refuted and self.most < self.epsilon_upper:
            verdict += "; this audit had too few canaries or guesses to refute it by guessing"
        measured = "the mechanism was not measured: that is for dp_sgd and dpis with canaries of the kind gradients\n"
        if self.measured is not None:
            measured = self._measured_words(self.measured)
        return (
            f"empirical lower bound: epsilon >= {self.audit.epsilon_lower:.4f} (confidence {self.audit.confidence:g},"
            f" {self.audit.right} of {self.audit.guesses} guesses right, {self.canaries} canaries;"
            f" with all of them right it would be {self.most:.4f})\n"
            f"proved upper bound:    epsilon <= {self.epsilon_upper:.4f} at delta {self.audit.delta:g}\n"
            f"{measured}{verdict}"
        )

    def _measured_words(self, measured: Measured) -> str:
        parts = (
            ("noise", measured.noise),
            ("probability", measured.probability),
            ("clipping bound", measured.clipping),
        )
        shown = ", ".join(f"{name} in [{each[0]:.4g}, {each[1]:.4g}]" for name, each in parts if each is not None)
        worst = "" if self.epsilon_worst is None else f"; epsilon {self.epsilon_worst:.4f} with all at the worst ends"
        return f"measured, as multiples of the accounted: {shown} ({measured.samples} values of noise){worst}\n"


def audit_training(
    build: Build,
    train_set: object,
    *,
    kind: Literal["gradients", "records"] | None = None,
    canaries: tuple[Tensor, Tensor] | None = None,
    count: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> TrainingAudit:
    """One run with canaries, each in the training set with probability 1/2, and the epsilon that guessing them refutes.

    `kind` is the kind of canaries: `gradients` unless `canaries`, (inputs, targets), are given. Without these, canaries
    of the kind `records` are made from the training set (`make_canaries`). There are `count` of them; for `gradients`,
    at most as many as the module has parameters, beside 64 of crowds. Half of `guesses` (default: half of the canaries)
    are the highest scores, guessed in; the other half are the lowest, guessed out.
    """
    if (kind or ("gradients" if canaries is None else "records")) == "gradients":
        return _audit_gradients(build, train_set, count, guesses, confidence, seed)
    inputs, targets = make_canaries(train_set, count, seed) if canaries is None else canaries
    number = len(targets)
    coins = np.random.default_rng(seed).random(number) < 0.5
    chosen = torch.from_numpy(np.flatnonzero(coins))
    scores = torch.zeros(number, dtype=torch.float64)
    trainer: DPTrainer | None = None

    def observe(name: str, value: Any) -> None:
        if name == "gradients":
            assert trainer is not None
            scores.add_(_alignment(trainer.module, trainer.loss, inputs, targets, value))

    trainer = build(_with(train_set, inputs[chosen], targets[chosen]), observe)
    return _judged(trainer.fit(), scores, coins, guesses, confidence)


def _audit_gradients(
    build: Build, train_set: object, count: int, guesses: int | None, confidence: float, seed: int
) -> TrainingAudit:
    trainer: DPTrainer | None = None
    noises: list[Any] = []
    crowded: list[Any] = []

    def observe(name: str, value: Any) -> None:
        if name != "gradients":
            return
        assert trainer is not None
        release, others = trainer.last_release, present.others
        assert release is not None
        assert release.sensitivity is not None
        assert release.noise_std is not None
        p, std, bound = release.sampling_probability or 1.0, release.noise_std, release.sensitivity
        seen = (everyone.at_entries(value) - (others if isinstance(others, Tensor) else 0.0)).numpy()
        own = seen[:number]
        ratio = (own - bound / 2) * (bound / std**2)
        scores.add_(torch.from_numpy(np.logaddexp(np.log1p(-p) if p < 1 else -np.inf, np.log(p) + ratio)))
        if trainer.settings.method == "band_mf":
            return
        noises.append(np.concatenate((own[~coins], seen[number : number + spare])) / std)
        if isinstance(release.mechanism, SampledGaussian):
            values = seen[number + spare :: _CROWD] / bound
            crowded.append((values, *(np.full(len(values), each) for each in (std / bound, p)), long / bound))

    trainer = build(train_set, observe)
    sizes = sum(p.numel() for p in trainer.module.parameters() if p.requires_grad)
    crowds = 0 if trainer.settings.sampler is not None else 2 * min(_CROWDS // 2, sizes // 8)
    number = min(count, sizes - crowds)
    spare = min(_SPARE, sizes - crowds - number)
    if count < 1:
        raise ProgramError("an audit needs at least one canary", where="audit")
    rng = np.random.default_rng(seed)
    coins = rng.random(number) < 0.5
    drawn = torch.from_numpy(rng.choice(sizes, size=number + spare + crowds, replace=False))
    scores = torch.zeros(number, dtype=torch.float64)
    # Far above every bound; every other crowd of DP-SGD is below the bound, which DPIS does not tell by its length.
    lengths = torch.full((number + spare + crowds,), 20.0 * max(trainer.settings.clip_range), dtype=torch.float64)
    if trainer.settings.method == "dp_sgd":
        lengths[number + spare :: 2] = 0.9 * trainer.settings.max_grad_norm
    long = lengths[number + spare :].numpy()
    repeats = torch.ones(len(drawn), dtype=torch.long)
    repeats[number + spare :] = _CROWD
    entries, each = drawn.repeat_interleave(repeats), lengths.repeat_interleave(repeats)
    there = torch.cat((torch.from_numpy(np.flatnonzero(coins)), torch.arange(number + spare, len(entries))))
    everyone, present = Canaries(entries, each), Canaries(entries, each, present=there)
    trainer.insert(present)
    report = trainer.fit()
    found = _judged(report, scores, coins, guesses, confidence)
    if not any(map(len, noises)):
        return found
    values, *about = (np.concatenate(each) for each in zip(*crowded, strict=True)) if crowded else ((),)
    seen = measure(np.concatenate(noises), values, _CROWD, *about, confidence=confidence)
    return replace(found, measured=seen, epsilon_worst=_worst(report, seen))


def _worst(report: PrivacyReport, found: Measured) -> float | None:
    """The epsilon of a plan, or at a filter's order of what was released, with the steps as they were measured, at the
    worst ends."""
    probability = 1.0 if found.probability is None else found.probability[1]
    clipping = 1.0 if found.clipping is None else found.clipping[1]
    budget, stage = report.budget, report.size_stage

    def changed(mechanism: Any) -> Any:
        # Norm sums have noise of their own, which is not measured.
        if isinstance(mechanism, Gaussian):
            return mechanism
        given = {"noise_multiplier": mechanism.noise_multiplier * found.noise[0] / clipping}
        if isinstance(mechanism, SampledGaussian):
            given["p"] = min(mechanism.p * probability, 1.0)
        return replace(mechanism, **given)

    try:
        if isinstance(budget, RenyiFilter):
            steps = report.ledger.composition.items if stage is None else report.ledger.composition.items[1:]
            costs = math.fsum(budget.cost(changed(mechanism), count) for mechanism, count in steps)
            upper: float | None = budget.epsilon - budget.budget + costs
        else:
            upper = epsilon_at(
                Composition(tuple((changed(mechanism), count) for mechanism, count in budget.plan)),
                report.delta - (stage.delta if stage else 0.0),
                tolerance=Tolerance(absolute=0.01, relative=0.01),
                neighboring=report.settings.neighboring,
            ).upper
    except HeliographError:
        # Such as the noise of random allocation, which is not accounted for below 0.3.
        return None
    return None if upper is None else upper + (stage.epsilon if stage else 0.0)


def _numbers(ends: tuple[float, float] | None) -> list[Any] | None:
    return None if ends is None else [json_number(each) for each in ends]


def _judged(report: PrivacyReport, scores: Tensor, coins: Any, guesses: int | None, confidence: float) -> TrainingAudit:
    half = (len(scores) // 2 if guesses is None else guesses) // 2
    found = one_run(
        scores.tolist(), coins.tolist(), guess_in=half, guess_out=half, delta=report.delta, confidence=confidence
    )
    most = one_run_bound(2 * half, 2 * half, len(scores), report.delta, confidence)
    return TrainingAudit(found, report.epsilon_upper, len(scores), most)


def audit_norm_sum(
    release: Callable[[Tensor], float],
    norms: Tensor,
    canary: float,
    *,
    epsilon_upper: float,
    delta: float,
    trials: int = 2000,
    confidence: float = 0.95,
) -> TrainingAudit:
    """The release of a norm sum with a canary's norm and without it, each drawn `trials` times."""
    more = torch.cat((norms, norms.new_tensor([canary])))
    members = [release(more) for _ in range(trials)]
    others = [release(norms) for _ in range(trials)]
    return TrainingAudit(split(members, others, delta=delta, confidence=confidence), epsilon_upper, 1)


def make_canaries(train_set: object, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Canaries unlike any record: inputs of the training set with permuted features, and other records' targets."""
    records = Records(train_set, torch.device("cpu"))
    if count < 1 or len(records) < 2:
        raise ProgramError("an audit needs at least one canary and two records", where="audit")
    rng = np.random.default_rng(seed)
    inputs, targets = records.batch(torch.from_numpy(rng.integers(len(records), size=count)))
    if not isinstance(inputs, Tensor):
        raise ProgramError(
            "canaries are made for inputs of one tensor only", where="audit", hint="give canaries of your own"
        )
    flat = inputs.reshape(count, -1).clone()
    for row in range(count):
        flat[row] = flat[row][torch.from_numpy(rng.permutation(flat.shape[1]))]
    return flat.reshape(inputs.shape), targets[torch.from_numpy(rng.permutation(count))]


def _with(train_set: object, inputs: Tensor, targets: Tensor) -> object:
    """The training set with further records."""
    if isinstance(train_set, Dataset):
        return ConcatDataset([train_set, TensorDataset(inputs, targets)])
    known_inputs, known_targets = (torch.as_tensor(each) for each in train_set)  # type: ignore[attr-defined]
    return torch.cat((known_inputs, inputs.to(known_inputs))), torch.cat((known_targets, targets.to(known_targets)))


def _alignment(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    released: Sequence[Tensor],
) -> Tensor:
    """The released sum along each canary's gradient, in units of that gradient's norm."""
    engine = GradientEngine(module, loss)
    device = released[0].device
    found = []
    for part in torch.arange(len(targets)).split(64):
        gradients = engine.per_sample(inputs[part].to(device), targets[part].to(device))
        along = torch.zeros(part.numel(), dtype=torch.float64)
        square = torch.zeros_like(along)
        for gradient, value in zip(gradients, released, strict=True):
            flat = gradient.flatten(1).double().cpu()
            along += flat @ value.flatten().double().cpu()
            square += flat.square().sum(1)
        found.append(along / square.sqrt().clamp(min=1e-30))
    return torch.nan_to_num(torch.cat(found))
