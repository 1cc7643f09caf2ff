"""An encrypted training with owner and trainer in one process; each has its own folder."""

from __future__ import annotations

from heliograph.execution.loop import Progress
from heliograph.ir import Array
from heliograph.runtime.wire.messages import CarriedValues
from heliograph.transfer.layers import Seen
from heliograph.transfer.owner import Owner
from heliograph.transfer.trainer import Trainer


class EncryptedRun:
    """A training on ciphertexts: the trainer's work and the owner's view of it, step by step."""

    def __init__(self, owner: Owner, trainer: Trainer, progress: Progress | None = None) -> None:
        self._owner, self._trainer, self._progress = owner, trainer, progress
        trainer.start(owner.start())
        # The carried values after the last epoch, if the trainer must not know which epoch was the best.
        self._left: CarriedValues | None = None
        # The last weights that were kept.
        self.best: Array | None = None
        # If the process was killed after a step, that step's output may not have been checked.
        self._unseen = Seen(0.0)
        if trainer.session.round:
            self._unseen = owner.seen(trainer.session.output())

    @property
    def done(self) -> int:
        return self._trainer.session.round

    def step(self) -> Seen:
        unseen, self._unseen = self._unseen, Seen(0.0)
        seen = self._owner.seen(self._trainer.step(self._progress))
        return Seen(max(unseen.logit, seen.logit), max(unseen.hidden, seen.hidden))

    def validate(self) -> Array:
        found = list(self._trainer.held_logits(self._progress))
        if self._owner.settings.fixed_epochs:
            # After each epoch, so that it does not reveal which one the client keeps; before anything is decrypted.
            self._left = self._trainer.session.carried()
        return self._owner.held_logits(found)

    def keep(self) -> None:
        if self._left is not None:
            self.best = self._owner.weights(self._left)
            return
        self.best = self.weights()
        self._trainer.session.keep(self.done)

    def weights(self, step: int | None = None) -> Array:
        """The weights after a kept step, by default the last one."""
        return self._owner.weights(self._trainer.session.carried(step))
