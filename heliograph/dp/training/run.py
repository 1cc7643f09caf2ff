"""The state of a run, and the part of it that a checkpoint keeps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from heliograph.dp.accounting.ledger import Release
from heliograph.dp.training.band_mf import BandedSteps
from heliograph.dp.training.budget import SizeStage
from heliograph.dp.training.checkpoint import Checkpoint
from heliograph.dp.training.dp_sgd import PoissonSteps
from heliograph.dp.training.dpis import Epoch, ImportanceSteps
from heliograph.dp.training.metrics import Metrics
from heliograph.dp.training.noise import GaussianNoise
from heliograph.dp.training.plan import Plan
from heliograph.dp.training.releases import Books
from heliograph.dp.training.settings import Settings
from heliograph.errors import ProgramError

_POSITION = ("epoch", "step", "taken", "replayed", "stopped", "seconds")


class Stateful(Protocol):
    """Further state of a training loop besides module and optimizer: a scheduler, an average of parameters."""

    def state_dict(self) -> dict[str, Any]:
        """JSON values and tensors."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Resume from such values."""


@dataclass
class Run:
    """A run: its plan and books, and its position in them."""

    settings: Settings
    module: nn.Module
    optimizer: Optimizer
    noise: GaussianNoise
    checkpoint: Checkpoint | None
    plan: Plan
    books: Books
    steps: PoissonSteps | ImportanceSteps | BandedSteps
    size: float
    stage: SizeStage | None
    lost: list[Release]
    """Charges of the journal that the checkpoint does not have."""
    keep: tuple[Stateful, ...] = ()
    """Whose state the checkpoints have, too."""
    replayed: int = 0
    stopped: str = ""
    epoch: int = 0
    step: int = 0
    """In the epoch."""
    taken: int = 0
    """Steps of all epochs."""
    seconds: float = 0.0
    metrics: Metrics | None = None

    def charge_lost(self) -> None:
        """Charge the entries after the last checkpoint again: their releases are now repeated."""
        for release in self.lost:
            self.books.budget.spend(release.mechanism, release.count)
            self.books.ledger.charge(release)
            self.replayed += release.count
        self.lost = []

    def released_epochs(self) -> list[Epoch]:
        """The released values of the epochs of DPIS."""
        return self.steps.epochs if isinstance(self.steps, ImportanceSteps) else []

    def save(self) -> None:
        """Write the checkpoint, if the run has one."""
        if self.checkpoint is None:
            return
        state: dict[str, Any] = {
            "settings": json.loads(json.dumps(self.settings.to_json())),
            "size": self.size,
            "plan": self.plan.to_json(),
            "ledger": self.books.ledger.to_json(),
            **{name: getattr(self, name) for name in _POSITION},
            "metrics": None if self.metrics is None else asdict(self.metrics),
            "module": dict(self.module.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "keep": [each.state_dict() for each in self.keep],
            # Without a seed a resumed run draws fresh noise: the same noise twice would reveal what changed in between.
            "noise": self.noise.state() if self.settings.seed is not None else None,
        }
        if isinstance(self.steps, ImportanceSteps):
            state["dpis"] = self.steps.state()
        self.checkpoint.save(state)

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint's state."""
        if len(state["keep"]) != len(self.keep):
            raise ProgramError(
                f"the checkpoint has the state of {len(state['keep'])} objects besides module and optimizer, and"
                f" {len(self.keep)} are given",
                where="keep",
                hint="give the same schedulers as before, in the same order, or use another folder",
            )
        for each, kept in zip(self.keep, state["keep"], strict=True):
            each.load_state_dict(kept)
        for name in _POSITION:
            setattr(self, name, state[name])
        self.metrics = None if state["metrics"] is None else Metrics(**state["metrics"])
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["noise"] is not None:
            self.noise.restore(state["noise"])
        if isinstance(self.steps, ImportanceSteps):
            self.steps.restore(state["dpis"])
