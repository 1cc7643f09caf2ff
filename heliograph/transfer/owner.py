"""The client of a training: it owns the data and the secret key, and says when to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from heliograph.errors import RangeError
from heliograph.ir import Array
from heliograph.runtime.client import Client
from heliograph.runtime.messages import CarriedValues, EncryptedInput, EncryptedOutput
from heliograph.transfer.data import TransferData
from heliograph.transfer.settings import TransferSettings


class Owner:
    """Encrypts minibatches and validation samples as shards, reads logits, decrypts the weights."""

    def __init__(self, client: Client, data: TransferData, settings: TransferSettings) -> None:
        self._client, self._data, self._settings = client, data, settings

    def shards(self) -> Iterator[EncryptedInput]:
        """The minibatches of an epoch, in order."""
        for x, y in self._data.batches(self._settings):
            yield self._client.encrypt_some(x=x, y=y)

    def held(self) -> Iterator[EncryptedInput]:
        """The validation samples."""
        for x in self._data.validation(self._settings):
            yield self._client.encrypt_some(held=x)

    def start(self) -> CarriedValues:
        """The weights that training begins with: zeros."""
        zeros = np.zeros(self._data.weights_shape)
        return self._client.encrypt_carried(w=zeros, v=zeros)

    def largest_logit(self, output: EncryptedOutput) -> float:
        """Of one step; infinity where the answer shows that a value overflowed."""
        try:
            logits = self._client.decrypt_some(output)["logits"]
            return float(np.abs(logits).max()) * self._settings.logit_range
        except RangeError:
            return float("inf")

    def held_logits(self, outputs: Sequence[EncryptedOutput]) -> Array:
        """The logits of the validation samples, (classes, samples)."""
        found = [self._client.decrypt_some(output)["held_logits"] for output in outputs]
        return self._data.held_logits(found) * self._settings.logit_range

    def weights(self, carried: CarriedValues) -> Array:
        """(classes, features + 1), the bias last. A RangeError where they left their range."""
        return self._client.decrypt_carried(carried)["w"] * self._settings.weight_range
