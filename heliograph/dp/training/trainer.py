"""`DPTrainer`: trains a module privately and reports the bounds of the result."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.accounting.ledger import Ledger, Release
from heliograph.dp.banded import optimal_bands
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import SampledGaussian
from heliograph.dp.samplers import AllocationSampler, PoissonSampler, Sampler
from heliograph.dp.training.band_mf import BandedSteps
from heliograph.dp.training.budget import PlannedBudget, SizeStage
from heliograph.dp.training.checkpoint import Checkpoint
from heliograph.dp.training.dp_sgd import PoissonSteps
from heliograph.dp.training.dpis import ImportanceSteps, Schedule
from heliograph.dp.training.gradients import GradientEngine
from heliograph.dp.training.group import Group
from heliograph.dp.training.items import check_items
from heliograph.dp.training.layers import trained
from heliograph.dp.training.metrics import Metrics, measured
from heliograph.dp.training.noise import GaussianNoise
from heliograph.dp.training.plan import Plan, make_plan
from heliograph.dp.training.progress import Update, training_bar
from heliograph.dp.training.records import Canaries, Records
from heliograph.dp.training.refuse import check_loss, check_module, training_modes
from heliograph.dp.training.releases import Books, Observer, Releaser
from heliograph.dp.training.report import PrivacyReport
from heliograph.dp.training.run import Run, Stateful
from heliograph.dp.training.settings import ImportanceOptions, Method, Precision, Settings, check_size
from heliograph.errors import BudgetError, HeliographError, ProgramError

_MOST_TRIED = 512
"""Records that a module is tried on before training."""


class DPTrainer:
    """Private training of a module on a data set; `fit` trains `module` in place and returns the report.

    `loss(outputs, targets)` returns one value for each record. `optimizer` is a torch optimizer of the module's
    parameters, or a function that makes one from a list of parameters. `train_set` is (inputs, targets) as tensors or
    arrays, or a map-style dataset of such pairs; the trainer draws the batches. Inputs may be several: a tuple is passed
    to the module as its arguments, a dictionary by name. Items may be dictionaries with their target under `labels`, as
    Hugging Face has them; `loss` gets whatever the module returns. `collate` is a collate function, which is given one
    item at a time: it must make records of one shape. With `length`, sequences of integers are cut or filled up with
    zeros to this public length. `workers` threads read items, which must then be safe to read at the same time.

    Give `epsilon` to have the noise computed, or `noise_multiplier` (the standard deviation of the noise divided by
    `max_grad_norm`) to have epsilon computed. `batch_size` is the expected number of records in a step,
    `physical_batch_size` how many are computed at a time; an epoch has max(1, floor(N / batch_size)) steps. In place of
    `batch_size` a `sampler` of `heliograph.dp.samplers` may be given, which draws the batches and says how they are
    accounted for. N is `public_size` if the number of records is public; otherwise it is released first, with noise of
    standard deviation `size_noise`. It is never the length of the data set.

    Noise and coins come from a cryptographically secure generator, with values on a grid, unless `secure_noise=False`.
    A `seed` makes a run reproducible; it is not secure, and there is no guarantee against anyone who knows it.

    `precision="bfloat16"` is mixed precision: forward and backward passes under autocast, norms, clipping and sums in
    float32 and float64 (see `precision`).

    `public_set` is data that need no protection: accuracy and loss are measured on it after every epoch. `checkpoint` is a
    folder: a run that ended before its last step, whatever ended it, resumes from it when a trainer with the same
    parameters is created; it is written every epoch, or every `checkpoint_every` steps. `observer` is called with every
    release. `dpis` holds the parameters of importance sampling; `bands` is the number of steps that share noise in the
    method band_mf.

    `earlier` are the reports of other runs on these data: the report then has the bounds for all runs together. For
    another run of this process that is not among them, a CompositionWarning is given.

    If torch.distributed has a process group, its processes share one run: each creates the same trainer, with the
    whole data set, and computes a share of every batch (see `group`). Do not wrap the module. `alone` leaves a group out
    that is there for something else: the run is then this process's.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: Optimizer | Callable[[list[nn.Parameter]], Optimizer],
        train_set: object,
        *,
        method: Method = "dp_sgd",
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float,
        epochs: int,
        batch_size: float | None = None,
        max_grad_norm: float,
        sampler: Sampler | None = None,
        bands: int | None = None,
        public_size: int | None = None,
        size_noise: float = 100.0,
        seed: int | None = None,
        secure_noise: bool | None = None,
        physical_batch_size: int = 256,
        precision: Precision = "full",
        dpis: ImportanceOptions | None = None,
        public_set: object = None,
        collate: Callable[[list[Any]], Any] | None = None,
        length: int | None = None,
        workers: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | None = None,
        progress: bool = False,
        observer: Observer | None = None,
        earlier: Sequence[PrivacyReport] = (),
        alone: bool = False,
    ) -> None:
        if (batch_size is None) == (sampler is None):
            raise ProgramError(
                "give either batch_size or sampler",
                where="batch_size, sampler",
                why="a sampler has its own expected size; batch_size alone is Poisson sampling",
            )
        if batch_size is None:
            assert sampler is not None
            batch_size = sampler.expected_size
        self.settings = Settings(
            method=method,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
            epochs=epochs,
            batch_size=batch_size,
            max_grad_norm=max_grad_norm,
            public_size=public_size,
            size_noise=size_noise,
            seed=seed,
            secure_noise=seed is None if secure_noise is None else secure_noise,
            physical_batch_size=physical_batch_size,
            dpis=dpis or ImportanceOptions(),
            # Poisson sampling is the default, recorded as no sampler.
            sampler=None if isinstance(sampler, PoissonSampler) else sampler,
            bands=bands,
            precision=precision,
        )
        self.settings.clip_range  # noqa: B018 - checks it
        # What torch.compile makes is trained uncompiled: hooks have to see its layers.
        self.module = module = getattr(module, "_orig_mod", module)
        self.loss = loss
        mixed_rows = self.settings.mixed_rows
        check_module(module, mixed=mixed_rows is not None)
        parameters = [p for p in module.parameters() if p.requires_grad]
        self._parameters = parameters
        device = parameters[0].device
        self.optimizer = optimizer if isinstance(optimizer, Optimizer) else optimizer(parameters)
        _check_optimizer(self.optimizer, parameters)
        self._modes = training_modes(module)
        self._group = Group() if alone else Group.found(device)
        read: dict[str, Any] = {"collate": collate, "length": length, "workers": workers}
        self._records = Records(train_set, device, group=self._group, **read)
        if isinstance(train_set, Dataset):
            check_items(train_set)
        chosen = self.settings.sampler
        if chosen is not None and chosen.knows_count and len(self._records) != public_size:
            raise ProgramError(
                f"public_size is {public_size}, which is not the number of records",
                where="public_size, sampler",
                why=f"the sampler {chosen.name} is accounted for at the number of records that there is",
                hint="give the number of records, if it is public; or use Poisson sampling or AllocationSampler",
            )
        for report in earlier:
            if report.settings.neighboring != self.settings.neighboring:
                raise ProgramError(
                    f"an earlier run is accounted under {report.settings.neighboring}, this one under"
                    f" {self.settings.neighboring}",
                    where="earlier",
                    why="epsilons for different neighbours do not add up",
                    hint="use a sampler with the same neighbours, or report the runs apart",
                )
        self._public = None if public_set is None else Records(public_set, device, "public_set", **read)
        for layer, mode in self._modes:
            layer.training = mode
        _check(loss, module, self._records, self._public, physical_batch_size, mixed_rows)
        self._engine = GradientEngine(module, loss, mixed_rows)
        self._noise = GaussianNoise(seed=seed, secure=self.settings.secure_noise)
        self._observer = observer
        self._earlier = tuple(earlier)
        self._progress = progress
        self._checkpoint = None if checkpoint is None or not self._group.first else Checkpoint(checkpoint)
        if checkpoint_every is not None and checkpoint_every < 1:
            raise ProgramError(f"checkpoint_every = {checkpoint_every!r} is not positive", where="checkpoint_every")
        if checkpoint_every is not None and isinstance(chosen, AllocationSampler):
            raise ProgramError(
                "an allocated epoch is not interrupted",
                where="checkpoint_every",
                why="it is accounted for as a whole: batches that a resumed run makes again would be released twice",
                hint="leave checkpoint_every out: checkpoints are written after every epoch",
            )
        self._every = checkpoint_every
        self._run: Run | None = None
        self._planned: Plan | None = None
        self.report: PrivacyReport | None = None

    def fit(self, save: Callable[[PrivacyReport], object] | None = None) -> PrivacyReport:
        """Train, and return the privacy report; the module then has the trained parameters.

        `save` is called with the report before the checkpoint is removed: a run that ends while it writes the model is
        not lost. If the budget is exhausted, the training ends with the current parameters, and the report says so.
        Raises ProgramError for a second call: another run is another release and needs another trainer.
        """
        with contextlib.closing(self._run_steps((), save)) as steps:
            for _ in steps:
                self.optimizer.step()
        assert self.report is not None
        return self.report

    def steps(self, keep: Sequence[Stateful] = ()) -> Iterator[int]:
        """Every step of the run, for your own training loop: the private gradient is in `.grad` when it is yielded.

            for step in trainer.steps():
                optimizer.step()
                scheduler.step()

        yields the number of steps so far. Anything that is done with gradients and parameters is post-processing, as
        long as it does not look at the training data: schedules, averages of parameters, further clipping, early
        stopping on public data. Do not call `zero_grad` before `step`: it would remove the private gradient. Layers that
        were given in evaluation mode inside of a module in training mode stay in it (dropout of a frozen part).

        `report` is available when the loop is over, also if it was left early, by `break` or by an exception; it then
        has the plan's guarantee. The checkpoint of a loop that was left stays, and a new trainer resumes from it;
        `finish` removes it. `keep` is the loop's own state (schedulers, averages): objects with `state_dict` and
        `load_state_dict`, which is saved in the checkpoints and loaded, in this order, when a killed run resumes.
        """
        return self._run_steps(tuple(keep), None)

    def _run_steps(
        self, keep: tuple[Stateful, ...], save: Callable[[PrivacyReport], object] | None
    ) -> Generator[int, None, None]:
        if self._run is not None:
            raise ProgramError(
                "this trainer has been used",
                where="DPTrainer",
                why="a second run on the same data is another release, with a guarantee of its own",
                hint="make a new DPTrainer; the epsilons of both runs add up",
            )
        with contextlib.nullcontext() if self._checkpoint is None else self._checkpoint.held():
            self._run = run = self._start(keep)
            hook = self.optimizer.register_step_pre_hook(self._has_gradients)
            try:
                with training_bar(self._progress) as update:
                    try:
                        run.charge_lost()
                        yield from self._loop(run, update)
                    except BudgetError as error:
                        run.stopped = f"Stopped: {error.what}."
                        run.metrics = self._measure()
            except GeneratorExit:
                run.stopped = "Stopped by the training loop."
                raise
            except BaseException as error:
                run.stopped = f"Stopped by {type(error).__name__}."
                raise
            finally:
                hook.remove()
                self.module.eval()
                self.report = self._reported(run)
            if save is not None:
                save(self.report)
            self.finish()

    def finish(self) -> None:
        """Remove checkpoint and journal of a run that was left: it will not be resumed, and they hold secrets."""
        if self._checkpoint is not None:
            self._checkpoint.finish()

    def _has_gradients(self, *_: object) -> None:
        """Before every step of the optimizer: refuse one that would do nothing, after its release was paid for."""
        if not any(p.grad is not None and bool(p.grad.any()) for p in self._parameters):
            raise ProgramError(
                "the optimizer has no gradients",
                where="optimizer.step",
                why="the private gradient is in .grad when a step is yielded, and something removed it",
                hint="leave zero_grad() out of the loop over steps(), or call it after optimizer.step()",
            )

    def _check_parameters(self) -> None:
        """Before every charge: refuse to pay for steps that cannot train anything."""
        now = trained(self.module)
        if len(now) != len(self._parameters) or any(p is not q for p, q in zip(now, self._parameters, strict=True)):
            raise ProgramError(
                "other parameters are to be trained than at the start of the run",
                where="requires_grad",
                why="checkpoint, optimizer and the gradients of past steps are for the parameters of the start",
                hint="freeze or unfreeze before the trainer is made; a run with other parameters is another release",
            )
        if not all(bool(torch.isfinite(p).all()) for p in now):
            raise ProgramError(
                "the parameters are not finite any more",
                where="the module",
                why="no record has a finite gradient there: further steps would be charged and train nothing",
                hint="use a smaller learning rate; the last checkpoint, if there is one, has finite parameters",
            )

    @property
    def plan(self) -> Plan:
        """The plan of the run, before training as well. Raises ProgramError before a run that first releases N."""
        if self._run is not None:
            return self._run.plan
        settings = self.settings
        if settings.public_size is None:
            raise ProgramError(
                "the plan follows from the number of records, which the run releases first",
                where="DPTrainer.plan",
                hint="give public_size if the number is public, or ask in the loop over steps()",
            )
        if self._planned is None:
            self._planned = make_plan(settings, float(settings.public_size), settings.epsilon, settings.delta)
        return self._planned

    @property
    def total_steps(self) -> int:
        """The steps of the whole run, for schedulers."""
        return self.plan.steps * self.settings.epochs

    @property
    def noise_multiplier(self) -> float | None:
        """The noise's standard deviation over the clipping bound; None where it is chosen epoch by epoch."""
        return self.plan.sigma

    @property
    def event(self) -> Composition | None:
        """All planned releases but N~ (`exchange.to_event` makes an event of them); None under a filter."""
        budget = self.plan.budget
        return budget.plan if isinstance(budget, PlannedBudget) else None

    def insert(self, canaries: Canaries) -> None:
        """Train with an audit's canaries among the records; in every process of a group with the same ones.

        Raises ProgramError once training has begun.
        """
        if self._run is not None:
            raise ProgramError("training has begun", where="DPTrainer.insert")
        self._records.canaries = canaries

    @property
    def last_release(self) -> Release | None:
        """The last release of the run as it was charged: its mechanism, noise and sensitivity."""
        return None if self._run is None else self._run.steps.releaser.last

    def _start(self, keep: tuple[Stateful, ...]) -> Run:
        """The run, new or from the checkpoint: N, the plan, and all objects with state."""
        settings = self.settings
        self._join()

        def kept() -> tuple[tuple[dict[str, Any], int] | None, list[Release]]:
            return (None, []) if self._checkpoint is None else (self._checkpoint.load(), self._checkpoint.charges())

        found, journal = self._group.of_first(kept)
        state, included = found if found is not None else ({}, 0)
        if state and json.dumps(state["settings"]) != json.dumps(json.loads(json.dumps(settings.to_json()))):
            raise ProgramError(
                "the checkpoint is of a run with other parameters",
                where=self._checkpoint.path if self._checkpoint else "checkpoint",
                hint="use the same parameters, or another folder",
            )
        self._records.begin(resumed=bool(state), earlier=len(self._earlier))
        append = None if self._checkpoint is None else self._checkpoint.append
        ledger = Ledger.from_json(state["ledger"]) if state else Ledger()
        lost = journal[included:]
        stage = None
        if settings.public_size is not None:
            size = float(settings.public_size)
        else:
            target = settings.epsilon
            assert target is not None
            stage = SizeStage.within(target, settings.delta, settings.size_noise)
            if state:
                size = float(state["size"])
            else:
                if lost:
                    raise ProgramError(
                        "the run was killed while it released the number of records",
                        where=self._checkpoint.journal if self._checkpoint else "checkpoint",
                        why="it may be known already, and the budget of that stage admits one release",
                        hint=f"start again in another folder and add epsilon {stage.epsilon:.3g} at delta {stage.delta:.3g}",
                    )
                books = Books(PlannedBudget(stage.plan), ledger, append)
                size = self._releaser(books).size(len(self._records), settings.size_noise)
            check_size(size, settings, "N~ (the released number of records)")
        delta = settings.delta - (stage.delta if stage else 0.0)
        if state:
            plan = Plan.from_json(state["plan"], settings, delta)
        elif stage is None:
            plan = self.plan
        else:
            assert settings.epsilon is not None
            plan = make_plan(settings, size, settings.epsilon - stage.epsilon, delta)
        books = Books(plan.budget, ledger, append)
        steps = self._steps(plan, self._releaser(books), size)
        run = Run(
            settings,
            self.module,
            self.optimizer,
            self._noise,
            self._checkpoint,
            plan,
            books,
            steps,
            size,
            stage,
            lost,
            keep,
        )
        if state:
            run.restore(state)
        else:
            run.save()
        return run

    def _join(self) -> None:
        """Check that all processes of the group have the same run, the same parameters and the same noise."""
        group = self._group
        shapes, canaries = [tuple(p.shape) for p in self._parameters], self._records.canaries
        inserted = (
            None
            if canaries is None
            else [each.tolist() for each in (canaries.entries, canaries.present, canaries.lengths)]
        )
        group.check_same(json.dumps([self.settings.to_json(), len(self._records), shapes, inserted]), "runs")
        group.agree([p.data for p in self._parameters])
        group.agree([b for b in self.module.buffers() if b.is_floating_point()])
        if not group.alone:
            self._noise.restore(group.of_first(self._noise.state))

    def _releaser(self, books: Books) -> Releaser:
        return Releaser(books, self._noise, self._observer, self._group)

    def _steps(self, plan: Plan, releaser: Releaser, size: float) -> PoissonSteps | ImportanceSteps | BandedSteps:
        settings = self.settings
        if settings.method == "dpis":
            schedule = Schedule(settings, size, plan.steps)
            return ImportanceSteps(self._engine, self._records, releaser, schedule, plan.sigma, plan.mechanisms)
        mechanism, about = plan.mechanisms[0], (self._engine, self._records, releaser)
        shared: dict[str, Any] = {
            "max_grad_norm": settings.max_grad_norm,
            "batch_size": settings.batch_size,
            "physical": settings.physical_batch_size,
        }
        if settings.bands is not None:
            assert isinstance(mechanism, SampledGaussian)
            factor = optimal_bands(settings.bands, plan.steps * settings.epochs)
            return BandedSteps(*about, factor=factor, mechanism=mechanism, **shared)
        return PoissonSteps(*about, mechanism=mechanism, sampler=settings.sampler, steps=plan.steps, **shared)

    def _loop(self, run: Run, update: Update) -> Iterator[int]:
        while run.epoch < self.settings.epochs:
            yield from self._epoch(run, update)
            self._check_parameters()
            run.epoch, run.step = run.epoch + 1, 0
            run.metrics = self._measure()
            run.save()

    def _epoch(self, run: Run, update: Update) -> Iterator[int]:
        """The rest of an epoch."""
        while run.step < run.plan.steps:
            started, started_epoch = time.perf_counter(), run.step > 0
            # The user's own loop may have put the module into evaluation mode.
            for layer, mode in self._modes:
                layer.training = mode
            self._check_parameters()
            try:
                if run.step == 0:
                    run.steps.start_epoch(run.epoch)
                started_epoch = True
                gradients = run.steps.step()
            except BudgetError as error:
                if not started_epoch or not isinstance(run.books.budget, PlannedBudget):
                    raise
                # A killed run already made these steps; the budget planned for later epochs is not for them.
                run.stopped = f"Steps were left out: {error.what}."
                return
            finally:
                run.seconds += time.perf_counter() - started
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient.to(parameter.dtype)
            run.step += 1
            run.taken += 1
            yield run.taken
            words = "" if run.metrics is None else run.metrics.words()
            update(run.taken, run.plan.steps * self.settings.epochs, run.books.budget.committed, words)
            if self._every is not None and run.taken % self._every == 0 and run.step < run.plan.steps:
                self._check_parameters()
                run.save()

    def _measure(self) -> Metrics | None:
        if self._public is None:
            return None
        return measured(self.module, self.loss, self._public, self.settings.physical_batch_size)

    def _reported(self, run: Run) -> PrivacyReport:
        stage, plan = run.stage, run.plan
        if isinstance(run.books.budget, RenyiFilter):
            lower, upper = None, run.books.budget.epsilon
        else:
            assert plan.bracket is not None
            # If N~ was released first, the plan depends on it, and the lower bound covers the second stage alone.
            lower = plan.bracket.lower if stage is None else None
            assert plan.bracket.upper is not None
            upper = plan.bracket.upper
            if self.settings.epsilon is not None and stage is not None:
                upper = max(upper, self.settings.epsilon - stage.epsilon)
        noise = [epoch.sigma for epoch in run.released_epochs()] or [plan.sigma or 0.0]
        return PrivacyReport(
            settings=self.settings,
            epsilon_lower=lower,
            epsilon_upper=upper + (stage.epsilon if stage else 0.0),
            budget=run.books.budget,
            bracket=plan.bracket,
            ledger=run.books.ledger,
            size=run.size,
            size_stage=stage,
            steps=run.taken,
            steps_planned=plan.steps * self.settings.epochs,
            noise_multiplier=min(noise),
            stopped=run.stopped,
            replayed=run.replayed,
            seconds=run.seconds,
            accuracy=None if run.metrics is None else run.metrics.accuracy,
            public_set=self._public is not None,
            earlier=tuple((each.epsilon_upper, each.delta) for each in self._earlier),
            released={
                "epochs": [
                    {"clip": e.bound, "norm_total": e.norm_total, "sigma": e.sigma} for e in run.released_epochs()
                ]
            },
        )


def _check_optimizer(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    """Raise ProgramError for an optimizer that cannot train these parameters."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in held for p in parameters):
        raise ProgramError(
            "the optimizer has none of the module's parameters",
            where="optimizer",
            why="it would not train it",
            hint="make the optimizer after the module, from module.parameters()",
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ProgramError(
            "LBFGS evaluates the loss by itself, several times a step",
            where="optimizer",
            why="every evaluation on the training data would be a release",
            hint="use an optimizer that takes gradients from .grad, such as SGD or Adam",
        )


def _check(
    loss: Any, module: nn.Module, records: Records, public: Records | None, physical: int, mixed_rows: int | None
) -> None:
    """Try loss and module on public records, or on made-up ones: a refusal must not depend on private records.

    They are as many as in a physical batch: some layers mix records of large batches only.
    """
    made_up = public is None or len(public) < 2
    count = max(min(physical, _MOST_TRIED), 4)
    if public is None or made_up:
        sample = records.made_up(count)
    else:
        sample = public.batch(torch.arange(count) % len(public))
    try:
        check_loss(loss, module, sample, mixed_rows=mixed_rows)
    except HeliographError:
        raise
    except Exception as error:
        raise ProgramError(
            "the module or the loss fails on a sample",
            where=type(module).__name__,
            why=f"{type(error).__name__}: {str(error)[:300]}",
            hint="give a public_set, whose records are then used to try them: random ones may not suit"
            if made_up
            else "check that the module takes the records of public_set",
        ) from None
