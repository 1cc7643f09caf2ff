"""The engine on a Ray cluster: workers are actors on its machines; keys and artifacts are sent once to each machine.

Ray starts the workers and carries the messages. The pool hands out the jobs, and hands out a dead worker's job again,
as for the local engine. Workers on the pool's own machine read keys in place. On another machine, copies of the keys
are in the user's private folder in its temporary directory, and its workers map them there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from heliograph.errors import HeliographError, ProgramError
from heliograph.files import of_the_machine, open_file, write_file
from heliograph.serving.logs import log
from heliograph.serving.remote.records import FAILED, ErrorRecord
from heliograph.serving.work.engine import AGAIN, Report, Task, Work, WorkerGone, WorkerHandle, ended_by
from heliograph.serving.work.evaluation import Evaluation, Output

# The most time for a machine to answer a small call, and to receive a file.
_CALL_S, _SEND_S = 60.0, 600.0
_POLL_S = 1.0
# Concurrent calls of a worker: during a job it must also report its progress and receive `stop`.
_CALLS = 4
# Size of the digest at the end of each of our files.
_DIGEST = 32


class RayEngine:
    """Actors on the cluster at RAY_ADDRESS, else on a cluster that already runs here, else on one that is started here.

    Raises ProgramError if Ray is not installed, HeliographError if there is no such cluster.
    """

    name = "ray"

    def __init__(self, work: Work, workers: int) -> None:
        self._ray = _imported()
        self._connect()
        self._work, self._closed = work, threading.Event()
        self.node = self._ray.get_runtime_context().get_node_id()
        cpus = cpus_each([node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]], workers)
        threads = str(max(1, int(cpus)))
        own = {name: os.environ.get(name, threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
        self._actor = self._ray.remote(RayWorker).options(
            num_cpus=cpus,
            max_concurrency=_CALLS,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": own},
        )
        # The next process with the same home finds the files on the other machines again.
        self._home = hashlib.sha256(f"{socket.gethostname()}\0{work.home}".encode()).hexdigest()[:32]
        self._sending: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def start_worker(self) -> WorkerHandle:
        try:
            handle = self._actor.remote()
            waiting, said = handle.hello.remote(self._home), time.monotonic()
            while not self._ray.wait([waiting], timeout=_POLL_S)[0]:
                if self._closed.is_set():
                    self._ray.kill(handle)
                    raise WorkerGone("the engine was closed", killed=True)
                if time.monotonic() - said > _CALL_S:
                    said = time.monotonic()
                    log("no place", text="the cluster has no place for a worker yet")
            hello = self._ray.get(waiting)
        except self._ray.exceptions.RayError as error:
            raise WorkerGone(_short(error)) from None
        if hello["version"] != version("heliograph"):
            self._ray.kill(handle)
            raise HeliographError(
                f"the machine {hello['place']} has Heliograph {hello['version']}, and this one {version('heliograph')}",
                hint="install the same version on all machines of the cluster",
            )
        worker = _Actor(self._ray, handle, hello, self._sending[hello["node"]], here=hello["node"] == self.node)
        worker.prepare(self._work)
        return worker

    def close(self) -> None:
        self._closed.set()

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        # No usage statistics are sent unless the operator allows it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise HeliographError(
                "no Ray cluster can be reached",
                where=os.environ.get("RAY_ADDRESS", ""),
                why=_short(error),
                hint="start one (ray start --head), or unset RAY_ADDRESS to have one started on this machine",
            ) from None


def cpus_each(machines: Sequence[float], workers: int) -> float:
    """The cores of each worker, chosen so that all workers fit at once; a fraction of a core if there are too few."""
    for cores in range(int(max(machines, default=0.0)), 0, -1):
        if sum(int(machine // cores) for machine in machines) >= workers:
            return float(cores)
    parts = 2
    while sum(int(machine * parts) for machine in machines) < workers and parts < 1000:
        parts *= 2
    return 1.0 / parts


class RayWorker:
    """The actor's methods, on its machine."""

    def hello(self, home: str) -> dict[str, Any]:
        """The worker's place; copies for `home` go into a private folder that nobody else can write to."""
        import ray

        base = Path(tempfile.gettempdir()) / f"heliograph-ray-{os.geteuid()}"
        self._copies = base / home
        self._copies.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = base.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022 or base.is_symlink():
            raise HeliographError(f"{base} on {socket.gethostname()} can be written by others", hint="remove it")
        return {
            "node": ray.get_runtime_context().get_node_id(),
            "place": socket.gethostname(),
            "process": os.getpid(),
            "version": version("heliograph"),
        }

    def prepare(self, work: Work) -> None:
        """Set up the work; files that were sent are looked up by name among the copies."""
        self._evaluation = Evaluation(
            replace(
                work,
                paths={name: str(self._local(path)) for name, path in work.paths.items()},
                plain={name: str(self._local(path)) for name, path in work.plain.items()},
                kept={name: str(self._local(path)) for name, path in work.kept.items()},
                plaintexts=None if work.plaintexts is None else str(self._local(work.plaintexts)),
            )
        )

    def missing(self, files: dict[str, str]) -> list[str]:
        """The names of the copies that are missing or do not match their marks."""
        return [name for name, mark in files.items() if _mark(self._copies / name) != mark]

    def take(self, name: str, data: bytes) -> None:
        path = self._copies / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(path, data, private=True)

    def run(self, artifact: str, keys: str, data: bytes) -> tuple[Report, bytes]:
        outputs: list[bytes] = []

        def save(output: Output) -> None:
            outputs.append(output.to_bytes())

        report = self._evaluation.run(artifact, self._local(keys), data, save)
        return report, outputs[0] if outputs else b""

    def begin(self) -> None:
        self._evaluation.begin()

    def place(self) -> tuple[int, int]:
        return self._evaluation.place

    def stop(self) -> None:
        self._evaluation.stop()

    def drop(self, folders: list[str]) -> None:
        """Drop key sets and their copies on this machine."""
        self._evaluation.drop(folders)
        for folder in folders:
            shutil.rmtree(self._copies / "keys" / folder, ignore_errors=True)

    def _local(self, path: str) -> Path:
        """The local file for a path from the pool: a relative path is among the copies, an absolute one unchanged."""
        return Path(path) if os.path.isabs(path) else self._copies / path


class _Actor:
    """The handle of a worker on the cluster, for its thread."""

    def __init__(self, ray: Any, handle: Any, hello: dict[str, Any], sending: threading.Lock, *, here: bool) -> None:
        self._ray, self._handle, self._sending, self._here = ray, handle, sending, here
        self.process: int = hello["process"]
        self.place: str = hello["place"]
        self.held: dict[str, int] = {}
        self._node = hello["node"]
        self._running: Any = None
        self._output = ""
        self._failed: Report | None = None
        self._sent: set[str] = set()

    @property
    def alive(self) -> bool:
        try:
            self._call("place")
        except WorkerGone:
            return False
        return True

    def prepare(self, work: Work) -> None:
        """Send the files that the worker's machine lacks, and set up the work there."""
        if not self._here:
            paths = {name: f"artifacts/{name}.helio" for name in work.paths}
            plain = {name: f"plain/{_whole_mark(Path(path))}{Path(path).suffix}" for name, path in work.plain.items()}
            self._send({paths[name]: Path(path) for name, path in work.paths.items()})
            self._send({plain[name]: Path(path) for name, path in work.plain.items()})
            kept = {name: f"kept/{_whole_mark(Path(path))}" for name, path in work.kept.items()}
            self._send({kept[name]: Path(path) for name, path in work.kept.items()})
            # Each machine has its own plaintexts, which its workers share.
            own = None if work.plaintexts is None else "plaintexts"
            work = replace(work, paths=paths, plain=plain, kept=kept, plaintexts=own)
        self._call("prepare", work)

    def begin(self, task: Task) -> None:
        self._failed, kind = None, "WireError"
        try:
            data = Path(task.input).read_bytes()
            keys, kind = Path(task.keys), "KeysError"
            said = str(keys)
            if not self._here:
                said = f"keys/{keys.name}"
                # Once per worker: keys do not change, and dropped keys are sent again.
                if keys.name not in self._sent:
                    files = [file for file in sorted(keys.iterdir()) if file.is_file() and _is_sent(file)]
                    self._send({f"{said}/{file.name}": file for file in files})
                    self._sent.add(keys.name)
        except OSError as error:
            state = FAILED if of_the_machine(error) is None else AGAIN
            why = error.strerror or type(error).__name__
            self._failed = Report(state, error=ErrorRecord(kind, "the job's files cannot be read", why=why))
            return
        self._call("begin")
        self._output = task.output
        self._running = self._handle.run.remote(task.artifact, said, data)

    def poll(self, seconds: float) -> Report | None:
        if self._failed is not None:
            return self._failed
        try:
            if self._running is None or not self._ray.wait([self._running], timeout=seconds)[0]:
                place = self._handle.place.remote()
                if not self._ray.wait([place], timeout=seconds)[0]:
                    return None
                done, total = self._ray.get(place)
                return Report(done=done, total=total)
            report, output = self._ray.get(self._running, timeout=_SEND_S)
        except self._ray.exceptions.GetTimeoutError:
            return None
        except self._ray.exceptions.RayError as error:
            raise WorkerGone(_short(error)) from None
        self._running = None
        self.held = dict(report.held)
        if report.error is not None and report.error.kind == "KeysError":
            # A key that was damaged before it was sent is sent again once it is replaced.
            self._sent.clear()
        if output:
            try:
                write_file(self._output, output)
            except HeliographError as error:
                return ended_by(error)
        return report  # type: ignore[no-any-return]

    def stop(self) -> None:
        self._call("stop")

    def drop(self, folders: Collection[str]) -> None:
        self._call("drop", list(folders))
        self._sent -= set(folders)
        self.held = {folder: size for folder, size in self.held.items() if folder not in folders}

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._handle)

    def _call(self, name: str, *given: Any, seconds: float = _CALL_S) -> Any:
        """A small call; a worker that does not answer in time counts as gone."""
        try:
            return self._ray.get(getattr(self._handle, name).remote(*given), timeout=seconds)
        except self._ray.exceptions.RayError as error:
            raise WorkerGone(_short(error)) from None

    def _send(self, files: dict[str, Path]) -> None:
        """Send the files that the worker's machine lacks; only one worker per machine does so at a time."""
        with self._sending:
            missing = self._call("missing", {name: _mark(path) for name, path in files.items()})
            sent = 0
            for name in missing:
                data = files[name].read_bytes()
                self._call("take", name, data, seconds=_SEND_S)
                sent += len(data)
        if missing:
            log("sent", place=self.place, node=self._node, files=len(missing), bytes=sent)


def _is_sent(file: Path) -> bool:
    """Whether the file belongs to the keys themselves, and is not derived from them on this machine."""
    return not file.name.startswith((".", "mapped-"))


def _mark(path: Path) -> str | None:
    """A file's size and last bytes, with which our files give a digest of their contents. None if there is no file."""
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _DIGEST))
            return f"{size}-{file.read().hex()}"
    except OSError:
        return None


def _whole_mark(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _short(error: Exception) -> str:
    """The first line of a message from Ray, which can be pages long."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise ProgramError("Ray is not installed", hint="pip install 'heliograph[ray]', or --engine local") from None
    return ray
