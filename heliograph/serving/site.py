"""One server: its folder, queue, artifacts and workers, for the HTTP application."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.artifact.container import file_digest
from heliograph.errors import ProgramError, TooLittleMemoryError
from heliograph.files import exclusive
from heliograph.runtime.server.steps import StepInput
from heliograph.runtime.wire.messages import EncryptedInput
from heliograph.serving.connections import Connections
from heliograph.serving.fairness import FairLock, RateLimit, RequestLimit
from heliograph.serving.logs import log
from heliograph.serving.queue.catalog import Catalog
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.jobs import Jobs
from heliograph.serving.queue.keysets import KeySets
from heliograph.serving.queue.notifier import Notifier
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.queue.sweep import Sweep
from heliograph.serving.queue.tenants import Tenants
from heliograph.serving.queue.uploads import Upload, Uploads
from heliograph.serving.refusals import Refused
from heliograph.serving.remote.records import JobRecord
from heliograph.serving.work.engine import Work, bytes_each
from heliograph.serving.work.engines import make_engine
from heliograph.serving.work.pool import Pool
from heliograph.serving.work.queued import QueuedJobs

# The rate limit for answers without a token, by address: a burst, the seconds between answers, and the longest wait.
_STRANGERS, _STRANGER_S, _LONGEST_S = 50, 0.02, 10.0
# Requests of all tenants that are processed at once: fewer than there are threads.
_TOGETHER = 24


@dataclass(frozen=True)
class SiteSettings:
    """The settings of a server.

    `memory_bytes`: the memory of all workers together, by default four fifths of the machine's free memory.
    `kept`: files of encrypted inputs that stay with the server (`Server(kept=...)`), by the name of the artifact.
    `plaintexts`: the folder in which workers keep encoded plaintexts.
    `origins`: the origins of other servers whose pages may use this one.
    `demo`: the folder of the package in JavaScript, whose example page is then at /demo/.
    """

    artifacts: Sequence[str | Path]
    root: Path
    workers: int = 1
    engine: str = "local"
    memory_bytes: int | None = None
    plain: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    backend: str | None = None
    allow_insecure: bool = False
    plaintexts: Path | None = None
    origins: Sequence[str] = ()
    demo: Path | None = None
    limits: Limits = field(default_factory=Limits)


class Site:
    """The parts of one server on its folder; `start` its workers, and `close` it at the end.

    Raises ProgramError if another process serves from the folder, and the errors of `Catalog` for its artifacts.
    """

    def __init__(self, settings: SiteSettings) -> None:
        if settings.workers < 1:
            raise ProgramError(f"{settings.workers} workers: at least one evaluates", where="serve")
        self.settings, self.limits = settings, settings.limits
        self.places = Places(settings.root)
        self.places.make()
        self._lock = contextlib.ExitStack()
        busy = ProgramError(
            f"another process serves from {self.places.root}",
            hint="stop it, or give this one its own folder (--data)",
        )
        self._lock.enter_context(exclusive(self.places.lock, busy))
        self.worker_bytes = bytes_each(settings.memory_bytes, settings.workers)
        self.catalog = Catalog(
            settings.artifacts,
            self.worker_bytes,
            plain=settings.plain,
            kept=settings.kept,
            backend=settings.backend,
            plaintexts=settings.plaintexts,
            allow_insecure=settings.allow_insecure,
        )
        self.database = Database(self.places.database, upgrade=True)
        self.tenants = Tenants(self.database)
        self.uploads = Uploads(self.database, self.places, self.limits)
        self.jobs = Jobs(self.database, self.places, self.limits, self.uploads)
        self.keysets = KeySets(self.database, self.places, self.limits, self.jobs)
        work = Work(
            home=str(settings.root.resolve()),
            paths=self.catalog.paths,
            plain={name: str(Path(path).resolve()) for name, path in settings.plain.items()},
            kept={name: str(Path(path).resolve()) for name, path in settings.kept.items()},
            worker_bytes=self.worker_bytes,
            backend=settings.backend,
            allow_insecure=settings.allow_insecure,
            plaintexts=None if settings.plaintexts is None else str(settings.plaintexts.resolve()),
        )
        self.notifier = Notifier()
        self._queued = QueuedJobs(self.database, self.keysets, self.jobs, self.places, self.notifier)
        engine = make_engine(settings.engine, work, settings.workers)
        self.pool = Pool(engine, self._queued, settings.workers, self.limits.worker_s)
        self._sweep = Sweep(self.database, self.places, self.limits, self.keysets, self.jobs)
        # Only one input at a time is read for its check, so that many clients cannot exhaust the server's memory.
        self._reading = threading.Lock()
        self.connections = Connections(self.limits.connections, self.limits.address_connections)
        self.open_requests = RequestLimit(self.limits.requests)
        self.rate_limit = RateLimit(_STRANGER_S, _STRANGERS, _LONGEST_S)
        self.turns = FairLock(self.limits.turns, _TOGETHER)
        # The slow work of requests: checks of keys, checks of inputs.
        self.taking, self.submitting = FairLock(), FairLock()

    def start(self) -> None:
        """Reconcile queue and files, and start workers."""
        self._sweep.settle()
        self.jobs.end_unserved([served.record.artifact for served in self.catalog])
        self._queued.begin()
        self.pool.start()
        self._sweep.start()
        for served in self.catalog:
            try:
                served.require_fit()
            except TooLittleMemoryError as error:
                log("does not fit", artifact=served.record.artifact, name=served.record.name, text=str(error))
        log("started", engine=self.settings.engine, workers=self.settings.workers, worker_bytes=self.worker_bytes)

    def close(self) -> None:
        self._sweep.close()
        self.pool.close()
        self.database.close()
        self._lock.close()
        log("stopped")

    def expected(self, tenant: int, id: str, artifact: str, client: str, digest: str) -> JobRecord | int:
        """The job of that name if it was accepted before, else the most bytes that its input may have.

        Artifacts that no worker can hold and clients without keys are refused.
        """
        served = self.catalog[artifact]
        known = self.jobs.known(tenant, id, artifact, client, digest)
        if known is not None:
            return known
        served.require_fit()
        self.keysets.for_job(tenant, artifact, client)
        return served.record.input_bytes + self.limits.frame_bytes

    def submit(self, tenant: int, id: str, artifact: str, client: str, digest: str, upload: Upload) -> JobRecord:
        """Accept a job on an upload, once: repeating the request returns the same job.

        Uploads that are not an input of this client are refused, and everything that `expected` refuses.
        """
        served = self.catalog[artifact]
        folder = self.keysets.for_job(tenant, artifact, client)
        kind = StepInput if served.steps else EncryptedInput
        with self._reading:
            kind.load(upload.path).check(artifact, client)
        if file_digest(upload.path) != digest:
            raise Refused(422, "the body is not the input that was announced: it ends with another digest")
        record = self.jobs.accept(tenant, id, artifact, client, folder, digest, upload, served.record.output_bytes)
        self.pool.wake()
        return record
