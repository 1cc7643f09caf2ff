"""The client of a training: it owns the data and the secret key, and decides when to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from heliograph.errors import RangeError
from heliograph.ir import Array
from heliograph.runtime.client.client import Client
from heliograph.runtime.wire.messages import CarriedValues, EncryptedInput, EncryptedOutput
from heliograph.transfer.data import TransferData, in_minibatches
from heliograph.transfer.layers import Layers, Seen
from heliograph.transfer.settings import TransferSettings


class Owner:
    """Encrypts minibatches and validation samples as shards, reads logits, decrypts the weights."""

    def __init__(self, client: Client, data: TransferData, settings: TransferSettings) -> None:
        self._client, self._data, self.settings = client, data, settings
        self._layers = Layers.of(data, settings)

    def shards(self) -> Iterator[EncryptedInput]:
        """The minibatches of an epoch, in order."""
        for x, y in self._data.batches(self.settings):
            yield self._client.encrypt_some(x=x, y=y)

    def held(self) -> Iterator[EncryptedInput]:
        """The validation samples."""
        for x in self._data.validation(self.settings):
            yield self._client.encrypt_some(held=x)

    def start(self) -> CarriedValues:
        """The initial weights (`Layers.start`), encrypted."""
        layers, settings = self._layers, self.settings
        first = layers.matrices(layers.start(settings.seed) / settings.weight_range)
        names = zip(layers.carried, first, strict=True)
        return self._client.encrypt_carried(**{name: matrix for pair, matrix in names for name in pair})

    def seen(self, output: EncryptedOutput) -> Seen:
        """The largest values of one step; infinity if the answer shows that a value overflowed."""
        settings = self.settings
        try:
            found = {name: float(np.abs(value).max()) for name, value in self._client.decrypt_some(output).items()}
        except RangeError:
            return Seen(float("inf"))
        return Seen(found["logits"] * settings.logit_range, found.get("hidden", 0.0) * settings.hidden_range)

    def held_logits(self, outputs: Sequence[EncryptedOutput]) -> Array:
        """The logits of the validation samples, (classes, samples)."""
        found = [self._client.decrypt_some(output)["held_logits"] for output in outputs]
        return self._data.held_logits(found) * self.settings.logit_range

    def questions(self, x: Array) -> Iterator[EncryptedInput]:
        """Encrypted samples (samples, features) for the model on the server, in groups of a minibatch's size."""
        for part in in_minibatches(x, self.settings.batch):
            yield self._client.encrypt_some(held=part)

    def answers(self, outputs: Sequence[EncryptedOutput], samples: int) -> Array:
        """The logits (samples, classes) of this many samples, from the answers to `questions`."""
        found = [self._client.decrypt_some(output)["held_logits"] for output in outputs]
        return np.concatenate(found, axis=1).T[:samples] * self.settings.logit_range

    def weights(self, carried: CarriedValues) -> Array:
        """The weights in carried values (transfer/layers.py); a RangeError if they left their range."""
        found = self._client.decrypt_carried(carried)
        return self._layers.joined([found[name] for name, _ in self._layers.carried]) * self.settings.weight_range
