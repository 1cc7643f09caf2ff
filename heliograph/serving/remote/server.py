"""The client's view of a server at an address."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from typing import Any

from heliograph.artifact.container import digest_of
from heliograph.artifact.public import MAX_PUBLIC_BYTES, PublicArtifact
from heliograph.errors import HeliographError, ProgramError, WireError
from heliograph.execution.loop import Progress
from heliograph.files import open_file
from heliograph.runtime.server.steps import StepInput, StepOutput
from heliograph.runtime.wire.keyfolder import KeyFolder, key_parts
from heliograph.runtime.wire.messages import (
    CarriedValues,
    EncryptedInput,
    EncryptedOutput,
    EvaluationKeys,
    is_name,
)
from heliograph.serving.remote.records import (
    DONE,
    ENDED,
    QUEUED,
    RUNNING,
    ArtifactRecord,
    ErrorRecord,
    JobRecord,
    KeysRecord,
    as_error,
    read_record,
    strange,
)
from heliograph.serving.remote.transport import Transport

_WAIT_S = 20.0
# The pause between two requests for a job's state if the server answers at once.
_PAUSE_S = 0.1
# The most artifacts that an error names.
_MOST_NAMED = 20


class RemoteServer:
    """The server at `url`, for the client: `register` its evaluation keys once, then `run` as on a `Server`.

        remote = hg.RemoteServer("https://models.example.org", token)
        client = hg.Client(remote.public())
        remote.register(client.evaluation_keys())
        answer = client.decrypt(remote.run(client.encrypt(sample)))

    Keys and inputs are sent whole, one after the other. What has arrived stays on the server, so a call that failed, or a
    new process with the same keys and inputs, sends only what is missing. If the server is unreachable or busy, calls are
    retried for `patience_s` seconds. A request may take `timeout_s` with its answer, and a second more for each 32 kB of
    them; an answer has at most `max_answer_bytes`. A job lasts as long as the server says, or `job_s` at most. `verify` is a
    file with the certificates to trust, or True for the usual ones; False, which checks none, only with
    `allow_insecure=True`. Addresses without TLS are accepted on this machine, others only with `plain_http=True`. Use it as
    a context manager, or call `close`.

    Refusals by the server, and errors that a job ends with, are raised as errors of the same class with the server's
    text; HeliographError if the server cannot be reached; WireError if it does not answer like our servers. The server
    is trusted only to answer: compare `public().fingerprint` with a fingerprint from somebody you trust.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        verify: bool | str = True,
        plain_http: bool = False,
        allow_insecure: bool = False,
        timeout_s: float = 60.0,
        patience_s: float = 300.0,
        job_s: float = math.inf,
        max_answer_bytes: int = 1 << 30,
    ) -> None:
        self._transport = Transport(
            url,
            token,
            verify=verify,
            plain_http=plain_http,
            allow_insecure=allow_insecure,
            timeout_s=timeout_s,
            patience_s=patience_s,
        )
        self._max_answer_bytes, self._job_s = max_answer_bytes, job_s
        # Half of the time for an answer is left for its transfer.
        self._wait_s = min(_WAIT_S, timeout_s / 2)

    def __repr__(self) -> str:
        return f"<RemoteServer {self._transport.url}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("a remote server holds a token and is not pickled; make another one")

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; everything that was sent stays on the server."""
        self._transport.close()

    def artifacts(self, patience_s: float | None = None) -> dict[str, str]:
        """The artifacts that are served: names by fingerprint.

        `patience_s` is the patience with an address that may be wrong, in place of that of all calls.
        """
        served = self._transport.json("GET", "/v1/artifacts", patience_s=patience_s)
        if not isinstance(served, list):
            raise strange()
        return {entry.artifact: entry.name for entry in (read_record(ArtifactRecord, each) for each in served)}

    def public(self, artifact: str | None = None) -> PublicArtifact:
        """The public part of an artifact, by its fingerprint or name; of the only one if none is named.

        Raises ProgramError if there is no such artifact, or several, and WireError if a different one is sent.
        """
        served = self.artifacts()
        found = [key for key, name in served.items() if artifact in (None, key, name)]
        if len(found) != 1:
            names = (
                ", ".join(f"{name!r} ({key})" for key, name in itertools.islice(served.items(), _MOST_NAMED))
                or "nothing"
            )
            raise ProgramError(
                f"the server has {len(found)} artifacts of that name", where="RemoteServer.public", why=f"it serves {names}",
                hint="name one by its fingerprint",
            )  # fmt: skip
        data = self._transport.read("GET", f"/v1/artifacts/{found[0]}/public", max_bytes=MAX_PUBLIC_BYTES)
        public = PublicArtifact.from_bytes(data, self._transport.url)
        if public.fingerprint != found[0]:
            raise WireError("the server sent a different artifact from the one requested", where=self._transport.url)
        return public

    def register(self, keys: EvaluationKeys | KeyFolder, progress: Progress | None = None) -> None:
        """Send the evaluation keys that the server does not have yet; only one is in memory at a time.

        `progress("sending keys", done, total)` counts keys, including those that were already there. Keys stay on the
        server until no job has used them for its retention time, or `forget` is called.
        """
        if not isinstance(keys, (EvaluationKeys, KeyFolder)):
            raise WireError(f"a server takes evaluation keys, not {type(keys).__name__}")
        path = f"/v1/keys/{keys.artifact}/{keys.client}"
        state, here = read_record(KeysRecord, self._transport.json("PUT", path)), set(keys.names())
        missing = set(state.missing)
        if strange := missing - here:
            raise WireError(f"the server asks for the key {min(strange)[:60]!r}, which is not among these")
        for place, name in enumerate(sorted(missing)):
            if progress is not None:
                progress("sending keys", len(here) - len(missing) + place, len(here))
            answer = self._transport.json("PUT", f"{path}/{name}", data=_key_file(keys, name))
            state = read_record(KeysRecord, answer)
        if progress is not None:
            progress("sending keys", len(here), len(here))
        if not state.complete:
            raise WireError("the server does not have all keys, although they were sent", where=self._transport.url)

    def forget(self, keys: EvaluationKeys | KeyFolder | EncryptedInput) -> None:
        """Delete the client's evaluation keys on the server; its unfinished jobs end with an error."""
        self._transport.json("DELETE", f"/v1/keys/{keys.artifact}/{keys.client}")

    def run(self, encrypted: EncryptedInput, progress: Progress | None = None) -> EncryptedOutput:
        """The encrypted outputs for one encrypted sample; the client's keys must be registered.

        The job is identified by the inputs' `request`: if a run was interrupted and is called again with the same
        inputs, it continues the same job. `progress(stage, done, total)` is called with "sending" (bytes) and
        "evaluate" (operations). Raises WireError for inputs or an answer that are malformed or belong to another
        artifact or client.
        """
        return self.result(self.submit(encrypted, progress), progress)

    def step(
        self, encrypted: EncryptedInput, carried: CarriedValues, progress: Progress | None = None
    ) -> tuple[EncryptedOutput, CarriedValues]:
        """Like `run`, for a program that carries values from run to run: the outputs, and the input of the next step.

        The carried values stay with the client: they are sent with each step, and come back. Save them
        (`CarriedValues.save`) before the next step. The same inputs and carried values continue the same job, or repeat
        it.
        """
        if not isinstance(carried, CarriedValues):
            raise WireError(f"a step takes carried values, not {type(carried).__name__}")
        _require_inputs(encrypted)
        job = self._submitted(StepInput.of(encrypted, carried), progress)
        output: StepOutput = self._result(job, StepOutput, progress)
        return output.halves()

    def submit(self, encrypted: EncryptedInput, progress: Progress | None = None) -> str:
        """Send the inputs and start their evaluation; returns the name of the job, for `result`."""
        _require_inputs(encrypted)
        return self._submitted(encrypted, progress)

    def _submitted(self, encrypted: EncryptedInput | StepInput, progress: Progress | None) -> str:
        data = encrypted.to_bytes()
        query = {"artifact": encrypted.artifact, "client": encrypted.client, "digest": digest_of(data)}
        sent = None if progress is None else lambda done: progress("sending", done, len(data))
        self._transport.json("PUT", f"/v1/jobs/{encrypted.request}", query, data, sent)
        if sent is not None:
            sent(len(data))
        return encrypted.request

    def result(self, job: str, progress: Progress | None = None) -> EncryptedOutput:
        """The outputs of a job, as soon as it has ended; the server then deletes them.

        Raises the error that the job ended with.
        """
        if not is_name(job):
            raise ProgramError(f"{job[:60]!r} is not the name of a job", where="RemoteServer.result")
        output: EncryptedOutput = self._result(job, EncryptedOutput, progress)
        return output

    def _result(self, job: str, kind: type[EncryptedOutput | StepOutput], progress: Progress | None) -> Any:
        """The outputs of a job as a message of class `kind`, checked."""
        path = f"/v1/jobs/{job}"
        ended = self._ended(path, progress)
        if ended.state != DONE:
            self._delete(path)
            raise as_error(ended.error or ErrorRecord("", ""), f"{self._transport.url}, job {job}")
        data = self._transport.read("GET", f"{path}/result", max_bytes=self._max_answer_bytes)
        output = kind.from_bytes(data, f"the answer of {self._transport.url}")
        (output if isinstance(output, EncryptedOutput) else output.halves()[0]).check_answers(job)
        output.check(ended.artifact, ended.client)
        self._delete(path)
        return output

    def _delete(self, path: str) -> None:
        """Delete a job that has ended. If that fails, it expires on the server; its answer or error is not lost."""
        with contextlib.suppress(HeliographError):
            self._transport.json("DELETE", path)

    def _ended(self, path: str, progress: Progress | None) -> JobRecord:
        """Wait for the end of a job; returns its record. A broken stream of events is restarted."""
        end = time.monotonic() + self._job_s
        while True:
            begun = time.monotonic()
            if progress is not None:
                for event in self._transport.events(f"{path}/events"):
                    # The event of a job that is gone has no content.
                    if event and (job := read_record(JobRecord, event)).total:
                        progress("evaluate", min(job.done, job.total), job.total)
            wait = 0.0 if progress is not None else min(self._wait_s, max(0.0, end - begun))
            job = read_record(JobRecord, self._transport.json("GET", path, {"wait": wait}))
            if job.state in ENDED:
                return job
            if job.state not in (QUEUED, RUNNING):
                raise strange()
            if time.monotonic() >= end:
                raise HeliographError(
                    f"the job has not ended within {self._job_s:g} s",
                    where=self._transport.url,
                    hint="it goes on; ask for its result later",
                )
            if time.monotonic() - begun < _PAUSE_S:
                time.sleep(_PAUSE_S)


def _key_file(keys: EvaluationKeys | KeyFolder, name: str) -> bytes:
    """The bytes of one key's file."""
    if isinstance(keys, EvaluationKeys):
        return b"".join(key_parts(keys.artifact, keys.client, name, keys.blob(name)))
    path = keys.file(name)
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        raise WireError(f"{path} cannot be read", why=error.strerror or str(error)) from None


def _require_inputs(encrypted: object) -> None:
    if not isinstance(encrypted, EncryptedInput):
        raise WireError(f"a server runs on encrypted inputs, not on {type(encrypted).__name__}")
