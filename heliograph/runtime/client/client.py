"""The client: makes and keeps the secret key, encrypts samples, decrypts results."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.public import PublicArtifact
from heliograph.artifact.wire import PublicSpec
from heliograph.ckks.sharing import least_error
from heliograph.errors import ProgramError, RangeError, SecurityError, WireError, said
from heliograph.execution.interface import (
    check_input,
    check_spec_range,
    clipped,
    encrypted_input,
    given_as,
    one_row,
    sample_count,
)
from heliograph.execution.loop import Progress
from heliograph.execution.memory import key_making_bytes
from heliograph.files import Bytes
from heliograph.ir import Array
from heliograph.runtime.client.answers import Answer, certificate_of, read_answer
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.client.keyfile import read_key, write_key
from heliograph.runtime.client.outputs import check_carried, check_output, check_sharing, flood
from heliograph.runtime.client.shares import Shares
from heliograph.runtime.memory import check_memory as require_memory
from heliograph.runtime.security import require_security
from heliograph.runtime.wire.forms import read_ciphertext
from heliograph.runtime.wire.keyfolder import KeyFolder, write_keys
from heliograph.runtime.wire.messages import CarriedValues, EncryptedInput, EncryptedOutput, EvaluationKeys, object_name

_LOG = logging.getLogger(__name__)


class Client:
    """Holds one secret key for one artifact; made from the public part, which has no weights.

    A whole `Artifact` is accepted too; only its public part is used.

    Raises SecurityError for an artifact without 128 bits of security: it comes from the server, the party that the
    client protects its data from. `allow_insecure=True`, for tests without secrets, turns this into a warning.
    """

    def __init__(
        self,
        artifact: Artifact | PublicArtifact,
        *,
        allow_insecure: bool = False,
        cryptor: Cryptor | None = None,
    ) -> None:
        self.public = artifact.public()
        require_security(self.public, allow_insecure=allow_insecure, for_whom="Client")
        self._cryptor = Cryptor(self.public.ring) if cryptor is None else cryptor
        self._shares = Shares(self.id)
        # The artifact of the client that this one was made from (`for_artifact`).
        self._earlier: PublicArtifact | None = None

    def __repr__(self) -> str:
        return f"<Client {self.id[:12]} of {self.public.name!r}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise SecurityError("a client holds a secret key and is not pickled or copied", hint="use save and load")

    @property
    def id(self) -> str:
        """The name of this client's key; evaluation keys and ciphertexts carry it."""
        return self._cryptor.tag

    def save(self, path: str | Path, passphrase: str | None = None, *, overwrite: bool = False) -> None:
        """Write the secret key to a file that only its owner can read, encrypted if a passphrase is given.

        An existing file is replaced only with `overwrite=True`: with its key, everything that was encrypted for it
        would be lost. Results that are shared from now on (`decrypt`) are counted next to it, in `NAME.shared`.
        """
        secret = self._cryptor.secret_bytes()
        write_key(path, self.public, self.id, secret, self._shares.count, passphrase, overwrite)
        self._shares.beside(path)

    @staticmethod
    def load(
        path: str | Path,
        passphrase: str | None = None,
        *,
        artifact: Artifact | PublicArtifact | None = None,
        allow_insecure: bool = False,
    ) -> Client:
        """The client in a key file. If an artifact is given, the key must have been made for it.

        Raises SecurityError for a missing or wrong passphrase, and for a key without 128 bits of security unless
        `allow_insecure` is given; WireError if the file is not a key file of this version.
        """
        stored = read_key(path, passphrase)
        cryptor = Cryptor.from_secret_bytes(stored.public.ring, stored.secret, stored.client)
        client = Client(stored.public, allow_insecure=allow_insecure, cryptor=cryptor)
        client._shares = Shares(client.id, stored.shared)
        client._shares.beside(path)
        if artifact is not None:
            client.check_artifact(artifact, f"the key in {path}")
        return client

    def for_artifact(self, artifact: Artifact | PublicArtifact, *, allow_insecure: bool = False) -> Client:
        """The same secret key for another artifact on the same ring: a new version of the model, or one trained under it.

        It has its own evaluation keys; those that both artifacts need alike can be kept (`reuse` in
        `write_evaluation_keys`). Shared results count for both. Raises ProgramError for a different ring.
        """
        ring = artifact.public().ring
        if ring != self.public.ring:
            raise ProgramError(
                f"{artifact.name} is on another ring than {self.public.name}",
                where="Client.for_artifact",
                why=f"it has {ring}, the key {self.public.ring}",
                hint="make a new client for it: Client(artifact)",
            )
        client = Client(artifact, allow_insecure=allow_insecure, cryptor=self._cryptor)
        client._shares = self._shares
        client._earlier = self.public
        return client

    def kept_keys(self, keys: EvaluationKeys | KeyFolder) -> frozenset[str]:
        """The names of the evaluation keys that this client's artifact needs just like the one before.

        keys: those of the client from which this one was made (`for_artifact`).

        Raises ProgramError if there is none, and WireError for keys of another client or artifact.
        """
        if self._earlier is None:
            raise ProgramError(
                "no earlier keys can be kept by this client",
                where="reuse",
                hint="make it from the earlier one: Client.load(path).for_artifact(artifact)",
            )
        keys.check(self._earlier.fingerprint, self.id)
        there, earlier = set(keys.names()), {key.name: key for key in self._earlier.evaluation_keys}
        return frozenset(
            key.name for key in self.public.evaluation_keys if earlier.get(key.name) == key and key.name in there
        )

    def check_artifact(self, artifact: Artifact | PublicArtifact, what: str = "the client's key") -> None:
        """Raise a WireError unless this client was made for the artifact."""
        if artifact.fingerprint != self.public.fingerprint:
            raise WireError(
                f"{what} was made for another artifact",
                why=f"it was made for {self.public.fingerprint[:12]}, this one is {artifact.fingerprint[:12]}",
                hint="use it for this artifact too with Client.for_artifact or heliograph upgrade, or make a new one",
            )

    @property
    def evaluation_key_bytes(self) -> int:
        """The size of the evaluation keys in wire form, computed from their rings and number."""
        return sum(key.sent_bytes for key in self.public.evaluation_keys)

    def evaluation_keys(self, progress: Progress | None = None, *, check_memory: bool = True) -> EvaluationKeys:
        """Fresh keys that the server needs, all in memory. They reveal nothing about the secret key.

        Each call makes new ones. `progress(stage, done, total)` is called after every key. If the machine does not have
        the memory for them, TooLittleMemoryError is raised before the first is made (not with `check_memory=False`).
        """
        if check_memory:
            require_memory(key_making_bytes(self.public.evaluation_keys, False), "making the evaluation keys")
        keys, begun = self.public.evaluation_keys, time.perf_counter()
        made: dict[str, Bytes] = {}
        for key in keys:
            made[key.name] = self._cryptor.evaluation_key_bytes(key)
            if progress is not None:
                progress("evaluation keys", len(made), len(keys))
        self._log_keys(begun)
        return EvaluationKeys(self.public.fingerprint, self.id, made)

    def _log_keys(self, begun: float) -> None:
        number, size = len(self.public.evaluation_keys), self.evaluation_key_bytes
        seconds = time.perf_counter() - begun
        _LOG.info("%s: %d evaluation keys of %d bytes are made, after %.2f s", self.public.name, number, size, seconds)

    def write_evaluation_keys(
        self,
        path: str | Path,
        progress: Progress | None = None,
        *,
        check_memory: bool = True,
        reuse: EvaluationKeys | KeyFolder | None = None,
    ) -> KeyFolder:
        """Write the keys that the server needs into a folder, each as soon as it is made.

        Only one key is in memory at a time, and each file is written completely or not at all. If this client began the
        folder earlier and did not finish, it is completed: save the client first, so that it can be loaded again.
        `progress(stage, done, total)` is called after every key. With `reuse`, the keys of the client from which this one
        was made (`for_artifact`), keys that both artifacts need alike are copied, not made.

        Raises WireError if the folder holds the keys of another client or artifact, or another process is writing into
        it; HeliographError if the disk is full; TooLittleMemoryError (not with `check_memory=False`) if one of the keys
        does not fit in memory.
        """
        if check_memory:
            require_memory(key_making_bytes(self.public.evaluation_keys, True), "making an evaluation key")
        keys = {key.name: key for key in self.public.evaluation_keys}
        kept, begun = frozenset() if reuse is None else self.kept_keys(reuse), time.perf_counter()

        def make(name: str) -> Bytes:
            if reuse is not None and name in kept:
                return reuse.blob(name)
            return self._cryptor.evaluation_key_bytes(keys[name])

        def done(number: int, total: int) -> None:
            if progress is not None:
                progress("evaluation keys", number, total)

        folder = write_keys(
            path,
            self.public.fingerprint,
            self.id,
            {name: key.sent_bytes for name, key in keys.items()},
            make,
            done,
        )
        self._log_keys(begun)
        return folder

    def encrypt(self, *samples: Any, clip: bool = False) -> Any:
        """One sample, encrypted, or a list of many, as `encrypt_many` makes them: one array per input.

        One sample has no axis in front, many have one; carried inputs are left out. An artifact for several samples at
        once (`Options.batch`) takes up to that many in one `EncryptedInput`, with an axis in front. If there are fewer,
        the last one is repeated. With `clip`, values outside the declared range are replaced by its nearer end.

        Raises ProgramError for a wrong shape or NaN, and RangeError for a value outside the declared range, naming its
        position.
        """
        specs = self.public.given
        self._check_count(samples, "encrypt")
        count, batch = sample_count(specs, samples), specs[0].placed.batch if specs else 1
        if count is not None and count > (batch if batch > 1 else 0):
            return list(self.encrypt_many(*samples, clip=clip))
        if count == 0 and batch > 1:
            samples = tuple(one_row(sample) for sample in samples)
        return self._message(dict(zip(specs, samples, strict=True)), clip)

    def encrypt_some(self, **values: Any) -> EncryptedInput:
        """Some inputs, by name, for the outputs that depend on no others (`Server.look`).

        Raises the errors of `encrypt`.
        """
        known = {spec.name: spec for spec in self.public.given}
        if strange := sorted(set(values) - set(known)):
            names = ", ".join(map(repr, known))
            raise ProgramError(
                f"{self.public.name} has no input {strange[0]!r}", where="encrypt_some", why=f"it has {names}"
            )
        return self._message({known[name]: value for name, value in values.items()})

    def _message(self, values: Mapping[PublicSpec, Any], clip: bool = False) -> EncryptedInput:
        """The values of some inputs, encrypted; a ProgramError unless all inputs have the same number of samples."""
        blobs = self._encrypted(values, clip)
        counts = [len(value) for spec, value in values.items() if spec.placed.batch > 1]
        _check_counts(counts)
        return EncryptedInput(self.public.fingerprint, self.id, blobs, samples=counts[0] if counts else None)

    def decrypt_some(self, output: EncryptedOutput, *, of: EncryptedInput | str | None = None) -> dict[str, Array]:
        """The outputs in an answer, by name; `of` and the errors are as in `decrypt`."""
        self._check_answer(output, of)
        there, found = set(output.names()), {}
        expected: set[str] = set()
        for spec, numbers in self._outputs():
            if {str(each) for each in numbers} & there:
                expected |= {str(each) for each in numbers}
                output.check_names(there | expected)
                found[spec.name] = spec.finished(self._tensor(output, spec, numbers)[0])
        output.check_names(expected)
        return found

    def encrypt_carried(self, **values: Any) -> CarriedValues:
        """The carried values that the first run starts from: one array for each carried input, by name.

        Raises ProgramError if the names are not those of `public.carried`, for a wrong shape or NaN, and RangeError for
        a value outside the declared range.
        """
        specs = self.public.carried
        if {spec.name for spec in specs} != set(values):
            names = ", ".join(repr(spec.name) for spec in specs) or "none"
            raise ProgramError(f"{self.public.name} carries the inputs {names}", where="encrypt_carried")
        blobs = self._encrypted({spec: values[spec.name] for spec in specs})
        return CarriedValues(self.public.fingerprint, self.id, blobs)

    def decrypt_carried(self, values: CarriedValues) -> dict[str, Array]:
        """The values that a run passed to the next, by the names of its inputs.

        Raises RangeError if a value left the range in which it may be carried on: the results of later runs are then
        meaningless.
        """
        if not isinstance(values, CarriedValues):
            raise WireError(f"decrypt_carried takes carried values, not {type(values).__name__}")
        values.check(self.public.fingerprint, self.id)
        specs = self.public.carried
        values.check_names([object_name(spec.name, chunk) for spec in specs for chunk in range(len(spec.levels))])
        found = {}
        for spec in specs:
            vectors = []
            for chunk, (level, log_scale) in enumerate(zip(spec.levels, spec.log_scales, strict=True)):
                name, what = object_name(spec.name, chunk), f"carried value {spec.name!r}"
                vectors.append(self._decrypted(values, spec, name, level, log_scale, what)[0])
            tensor = _unpacked(spec, vectors)
            check_carried(spec, tensor)
            found[spec.name] = tensor
        return found

    def _encrypted(self, samples: Mapping[PublicSpec, Any], clip: bool = False) -> dict[str, Bytes]:
        """The ciphertexts of some inputs, in wire form."""
        made: dict[str, Bytes] = {}
        for spec, sample in samples.items():
            for chunk, vector in enumerate(spec.placed.pack(encrypted_input(spec, sample, clip=clip))):
                level, log_scale = spec.levels[chunk], spec.log_scales[chunk]
                made[object_name(spec.name, chunk)] = self._cryptor.encrypted_bytes(vector, level, log_scale)
        return made

    def _check_count(self, samples: Sequence[Any], where: str) -> None:
        """Raise a ProgramError unless there is one array for each input."""
        count = len(self.public.given)
        if len(samples) != count:
            raise ProgramError(f"{self.public.name} takes {count} inputs, not {len(samples)}", where=where)

    def encrypt_many(self, *samples: Any, clip: bool = False) -> Iterator[EncryptedInput]:
        """Any number of samples, with a leading axis, encrypted in groups of as many as the artifact takes at once.

        The last group is padded. Shapes and ranges are checked before the first sample is encrypted; the errors are as
        in `encrypt`. `decrypt_many` puts the answers together, and needs the inputs for that.
        """
        self._check_count(samples, "encrypt_many")
        arrays = []
        for spec, given in zip(self.public.given, samples, strict=True):
            given = given_as(spec, given)
            array = check_input(spec.name, (max(1, len(given)) if np.ndim(given) else 1, *spec.shape), given)
            if clip:
                array = clipped(spec, array)
            check_spec_range(spec, array)
            arrays.append(array)
        _check_counts([len(array) for array in arrays])
        return self._batches(arrays)

    def _batches(self, arrays: Sequence[Array]) -> Iterator[EncryptedInput]:
        batch = self.public.inputs[0].placed.batch
        for start in range(0, len(arrays[0]), batch):
            yield self.encrypt(*(array[start] if batch == 1 else array[start : start + batch] for array in arrays))

    def decrypt_many(
        self, outputs: Iterable[EncryptedOutput], *, of: Iterable[EncryptedInput | str], scores: bool = False
    ) -> Any:
        """The results of the answers to `encrypt_many`, with a leading axis, in the order of the inputs.

        `of` are the encrypted inputs, or their receipts; for an artifact that takes one sample at a time, a `request`
        (the name of a job) is enough. The answers may come in any order, and each is decrypted as it comes. Raises
        WireError if an answer is missing, comes twice, or belongs to none of the inputs; `scores` and other errors are
        as in `decrypt`.
        """
        asked = [of] if isinstance(of, (EncryptedInput, str)) else list(of)
        rows = {each if isinstance(each, str) else each.request: self._samples_of(each) for each in asked}
        places = {request: place for place, request in enumerate(rows, 1)}
        if not asked or len(rows) < len(asked):
            raise WireError("`of` names no inputs" if not asked else "`of` names inputs twice", where="decrypt_many")
        found: dict[str, tuple[Array, ...]] = {}
        for output in outputs:
            self._check_answer(output, None)
            request = output.request
            if request in found:
                raise WireError(
                    f"there are two answers to the inputs {request[:12]}, number {places[request]} of `of`",
                    where="decrypt_many",
                )
            if request not in places:
                raise WireError(
                    f"an answer carries the request {request[:12]!r}, which none of the inputs has",
                    where="decrypt_many",
                    hint="give all inputs that were evaluated: of=inputs",
                )
            tensors = self.decrypt(output, scores=scores)
            parts = tensors if isinstance(tensors, tuple) else (tensors,)
            count = rows[request]
            found[request] = tuple(part[np.newaxis] if count is None else part[:count] for part in parts)
        if missing := [request for request in places if request not in found]:
            raise WireError(
                f"{len(missing)} of {len(places)} inputs have no answer",
                where="decrypt_many",
                why=f"the first of them is {missing[0][:12]}, number {places[missing[0]]} of `of`",
                hint="evaluate these inputs, or leave them out of `of`",
            )
        joined = tuple(np.concatenate(column) for column in zip(*(found[request] for request in places), strict=True))
        return joined[0] if len(joined) == 1 else joined

    def _samples_of(self, asked: EncryptedInput | str) -> int | None:
        """The number of samples in these inputs; None if the artifact takes one at a time."""
        batch = self.public.inputs[0].placed.batch
        if batch == 1:
            return None
        count = None if isinstance(asked, str) else asked.samples
        if count is None or not 0 < count <= batch:
            raise ProgramError(
                f"it is not known how many of up to {batch} samples these inputs hold",
                where="decrypt_many",
                hint="give the encrypted inputs, or what their receipt() returns, in place of their requests",
            )
        return count

    def decrypt(
        self,
        output: EncryptedOutput,
        *,
        share: bool = False,
        of: EncryptedInput | str | None = None,
        scores: bool = False,
    ) -> Any:
        """The result: one array, or a tuple if the program has several outputs.

        If the model ends in a softmax (or its logarithm) that was left to the client, it is computed here, exactly, or
        left out with `scores`. For an artifact that takes several samples at once, the result has a leading axis with all
        of them; if fewer were encrypted, the last results belong to the repeated sample.

        With `of`, the encrypted inputs or their `request`, the answer to other inputs is refused (WireError). This
        detects accidents: a dishonest server can write any request on its answer.

        Raises RangeError if the result shows that a value overflowed on the way. The values are approximate, and their
        error depends on the key: do not pass them on to people you do not trust, and do not tell them whether this
        raised an error.

        With `share=True`, noise that hides the error is added to the values. It costs about 20 bits of precision for
        one value and half a bit more for each doubling of their number (`ckks.sharing.sharing_cost_bits`). It is meant
        for people you do not trust who see the results of a server that computed what it should: the noise is computed
        from the error that the artifact predicts, or from the smallest error of the client's own model if that is
        larger, and not from a proof. Results are counted, next to the key's file if there is one, before they are
        returned. Raises SecurityError after `ckks.sharing.SHARE_RESULTS` results, for an error larger than assumed, and
        for artifacts that bootstrap, whose error we cannot bound; ProgramError if the noise would swamp the values.
        """
        self._check_answer(output, of)
        if share and self.public.bootstraps:
            raise SecurityError(
                "results of an artifact that bootstraps cannot be shared",
                where="decrypt(share=True)",
                why="what is known of a bootstrap's error is a fit to measurements, not a bound, and it depends on the key",
                hint=said("compile with {bootstrap=False} if a ring is large enough, or keep the results"),
            )
        count = sum(len(spec.log_scales) for spec in self.public.outputs)
        output.check_names([str(number) for number in range(count)])
        results = [(spec.name, *self._tensor(output, spec, numbers)) for spec, numbers in self._outputs()]
        tensors = self._flooded(results) if share else [tensor for _, tensor, _, _ in results]
        tensors = [
            spec.finished(tensor, scores=scores) for spec, tensor in zip(self.public.outputs, tensors, strict=True)
        ]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _outputs(self) -> Iterator[tuple[PublicSpec, range]]:
        """Each output with the numbers of its ciphertexts in an answer."""
        number = 0
        for spec in self.public.outputs:
            yield spec, range(number, number + len(spec.log_scales))
            number += len(spec.log_scales)

    def _check_answer(self, output: EncryptedOutput, of: EncryptedInput | str | None) -> None:
        """Raise a WireError unless these are outputs for this client, and the answer to these inputs."""
        if not isinstance(output, EncryptedOutput):
            raise WireError(f"decrypt takes encrypted outputs, not {type(output).__name__}")
        output.check(self.public.fingerprint, self.id)
        if of is not None:
            output.check_answers(of)

    def _tensor(self, output: EncryptedOutput, spec: PublicSpec, numbers: Sequence[int]) -> tuple[Array, float, float]:
        """One output from its ciphertexts, checked, with its estimated and its expected error."""
        vectors, errors = [], []
        for number, log_scale in zip(numbers, spec.log_scales, strict=True):
            what = f"output ciphertext {number}"
            vector, error = self._decrypted(output, spec, str(number), 0, log_scale, what)
            vectors.append(vector)
            errors.append(error)
        tensor, expected = _unpacked(spec, vectors), self._expected_error(spec)
        check_output(spec, tensor, max(errors), expected)
        return tensor, max(errors), expected

    def answer(self, output: EncryptedOutput, *, of: EncryptedInput | str | None = None) -> Answer:
        """The answer of a certified program (hg.certify): a class, and whether it is certified.

        If the result shows that a value left its range, nothing is certified. `of` is as in `decrypt`. Raises
        ProgramError if the artifact certifies nothing.
        """
        known = certificate_of(self.public)
        try:
            values = self.decrypt(output, of=of)
        except RangeError as error:
            return Answer(None, None, False, known, error.what)
        return read_answer(self.public, values)

    def _expected_error(self, spec: PublicSpec) -> float:
        """The predicted error of an output, but at least the ring's smallest error by the client's own model."""
        least = max(least_error(self.public.ring, log_scale) for log_scale in spec.log_scales)
        return max(float(self.public.predicted.get("scheme_error", 0.0)), least)

    def _flooded(self, results: Sequence[tuple[str, Array, float, float]]) -> list[Array]:
        """All outputs with noise, after the result has been counted."""
        values = sum(tensor.size for _, tensor, _, _ in results)
        for name, _, estimated, expected in results:
            check_sharing(name, values, expected, estimated, self.public.predicted)
        self._shares.take()
        return [flood(tensor, expected, values) for _, tensor, _, expected in results]

    def _decrypted(
        self,
        message: EncryptedOutput | CarriedValues,
        spec: PublicSpec,
        name: str,
        level: int,
        log_scale: float,
        what: str,
    ) -> tuple[Array, float]:
        """The slots of one ciphertext of a message that hold its tensor, checked, and an estimate of their error."""
        residues = read_ciphertext(message.blobs[name], self.public.ring, level, self.id, what)
        return self._cryptor.decrypted(residues, log_scale, spec.placed.first_copy)


def _check_counts(counts: Sequence[int]) -> None:
    """Raise a ProgramError unless all inputs have the same number of samples."""
    if len(set(counts)) > 1:
        raise ProgramError(f"inputs have {' and '.join(map(str, counts))} samples")


def _unpacked(spec: PublicSpec, vectors: list[Array]) -> Array:
    """The tensor in decrypted slot vectors, with a leading axis of samples if the artifact takes several at once."""
    layout = spec.placed
    batch = () if layout.batch == 1 else (layout.batch,)
    return layout.unpack(vectors).reshape((*batch, *spec.shape))
