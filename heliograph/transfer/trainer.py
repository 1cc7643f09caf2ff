"""The server of a training: encrypted shards and weights in a folder, steps, logits for the client. It has no secret key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heliograph.errors import ProgramError
from heliograph.execution.loop import Progress
from heliograph.runtime.server.server import Server
from heliograph.runtime.server.session import Session
from heliograph.runtime.wire.messages import CarriedValues, EncryptedInput, EncryptedOutput
from heliograph.transfer.layers import WATCHED
from heliograph.transfer.settings import momentum


class Trainer:
    """The steps of one training, in `folder`: `shards/` has the client's data, `rounds/` the files of a `Session`.

    The next minibatch and momentum follow from the number of completed steps, so a new trainer on the same folder
    continues after a kill. `rate` is the learning rate.
    """

    def __init__(self, server: Server, folder: str | Path, rate: float) -> None:
        self.folder = Path(folder)
        self._shards = self.folder / "shards"
        self._shards.mkdir(parents=True, exist_ok=True)
        self.session = Session(server, self.folder / "rounds")
        self._rate, self._server = rate, server
        every = server.artifact.program.interface.outputs
        self._watched = [spec.name for spec in every if spec.name in WATCHED]

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.session.close()

    def receive(self, kind: str, number: int, shard: EncryptedInput) -> None:
        """Keep a minibatch (`kind` "batch") or validation samples ("held")."""
        shard.save(self._path(kind, number))

    def start(self, carried: CarriedValues) -> None:
        """Set the initial weights, unless a step is already done."""
        if not self.session.started:
            self.session.start(carried)

    def step(self, progress: Progress | None = None) -> EncryptedOutput:
        """Take the next step; returns the outputs for the client: the logits, and a hidden activation's inputs."""
        done, count = self.session.round, len(list(self._shards.glob("batch-*")))
        if not count:
            raise ProgramError(f"{self._shards} has no minibatch", hint="the client sends them first")
        shard = EncryptedInput.load(self._path("batch", done % count))
        # A step does not use the held-out samples, so they are not given.
        plain = {"rate": self._rate, "momentum": momentum(done)}
        return self.session.run(shard, progress, plain, outputs=self._watched)

    def held_logits(self, progress: Progress | None = None) -> Iterator[EncryptedOutput]:
        """The logits of the validation samples with the current weights."""
        for path in sorted(self._shards.glob("held-*")):
            yield self.session.look(EncryptedInput.load(path), ["held_logits"], progress)

    def answer(self, shard: EncryptedInput, progress: Progress | None = None) -> EncryptedOutput:
        """The logits of samples from the client (`Owner.questions`) with the best model so far.

        The model stays encrypted. If no epoch was judged yet, it is the model after the last step.
        """
        return self._server.look(shard, self.model(), ["held_logits"], progress)

    def model(self) -> CarriedValues:
        """The best encrypted weights so far, or the last step's if no epoch was judged yet.

        An `EncryptedModel` (transfer/model.py) can classify with them without a server of the training.
        """
        return self.session.carried(self.session.marked)

    def _path(self, kind: str, number: int) -> Path:
        return self._shards / f"{kind}-{number:05d}.inputs"
