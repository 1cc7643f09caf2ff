"""The messages of one step of a program that carries values, for servers over HTTP: one message each way.

    inputs of a step    encrypted inputs, and the carried values that the step starts from
    outputs of a step   encrypted outputs, and the carried values for the next step

Objects have the same names as in their own messages, with the prefix `given/`, `answer/` or `carried/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.errors import WireError
from heliograph.files import Bytes
from heliograph.runtime.wire.messages import CarriedValues, EncryptedInput, EncryptedOutput, Message, fresh_request

_CARRIED, _GIVEN, _ANSWER = "carried/", "given/", "answer/"


@dataclass(frozen=True, slots=True, eq=False)
class StepInput(Message):
    """The inputs of one step; `request` is copied from the encrypted inputs."""

    request: str = field(default_factory=fresh_request, kw_only=True)

    kind = "inputs of a step"
    named = ("artifact", "client", "request")
    max_bytes = EncryptedInput.max_bytes + CarriedValues.max_bytes

    @staticmethod
    def of(encrypted: EncryptedInput, carried: CarriedValues) -> StepInput:
        """Both as one message; a WireError if they belong to different artifacts or clients."""
        carried.check(encrypted.artifact, encrypted.client)
        blobs = _joined(_GIVEN, encrypted, carried)
        return StepInput(encrypted.artifact, encrypted.client, blobs, request=encrypted.request)

    def halves(self) -> tuple[EncryptedInput, CarriedValues]:
        """The encrypted inputs and the carried values; a WireError for other objects."""
        given, carried = _split(_GIVEN, self)
        return (
            EncryptedInput(self.artifact, self.client, given, request=self.request),
            CarriedValues(self.artifact, self.client, carried),
        )


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput(Message):
    """The outputs of one step; `request` is copied from its inputs."""

    request: str = field(kw_only=True)

    kind = "outputs of a step"
    named = ("artifact", "client", "request")
    max_bytes = EncryptedOutput.max_bytes + CarriedValues.max_bytes

    @staticmethod
    def of(answer: EncryptedOutput, carried: CarriedValues) -> StepOutput:
        """Both as one message."""
        return StepOutput(answer.artifact, answer.client, _joined(_ANSWER, answer, carried), request=answer.request)

    def halves(self) -> tuple[EncryptedOutput, CarriedValues]:
        """The encrypted outputs and the carried values; a WireError for other objects."""
        answer, carried = _split(_ANSWER, self)
        return (
            EncryptedOutput(self.artifact, self.client, answer, request=self.request),
            CarriedValues(self.artifact, self.client, carried),
        )


def _joined(prefix: str, first: Message, carried: CarriedValues) -> dict[str, Bytes]:
    own = {prefix + name: first.blob(name) for name in first.names()}
    return own | {_CARRIED + name: carried.blob(name) for name in carried.names()}


def _split(prefix: str, message: Message) -> tuple[dict[str, Bytes], dict[str, Bytes]]:
    parts: dict[str, dict[str, Bytes]] = {prefix: {}, _CARRIED: {}}
    for name in message.names():
        place = next((each for each in parts if name.startswith(each)), None)
        if place is None:
            raise WireError(f"these {message.kind} hold an object {name[:60]!r}, which is neither")
        parts[place][name.removeprefix(place)] = message.blob(name)
    return parts[prefix], parts[_CARRIED]
