"""Serving: load under kill -9, the latency of HTTP, engines beside each other, and the bytes of keys and inputs.

Parts, all of them by default:

- `load`: clients with a toy artifact, and kill -9 of workers and server in between;
- `latency`: a job beside the same artifact without HTTP, a short one and (`--long-degree`) one above a second;
- `engines`: jobs on one and two workers of the local engine and of Ray, each with one core, and the floor;
- `sizes`: keys and inputs of a 784-512-10 network on MNIST, before and after seeds; with `--resnet20` those of ResNet-20.

`load` and `latency` take a toy ring without `--secure`.
"""

from __future__ import annotations

from common import hg, mnist, mnist_mlp, polynomial_logits  # first: it imports heliograph before torch

import importlib.util
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import ROOT, Run, benchmark, option
from heliograph.execution.memory import memory_bytes
from heliograph.serving.work.engine import Task, Work, bytes_each, follow, task_of
from heliograph.serving.work.engines import make_engine

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples")]

from runtime.support import INPUTS, mlp
from helpers.serving import Running

from heliograph.interpret import interpret

PARTS = ("load", "latency", "engines", "sizes")
SILENCE_S = 600.0
FLOOR_SAMPLES = 5


def sample(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, INPUTS)


def latency(folder: Path, artifact: hg.Artifact, runs: int) -> dict[str, float]:
    """Median milliseconds of a job over HTTP and of the same in this process, in turns; bytes that are sent."""
    artifact.save(folder / "timed.helio")
    client = hg.Client(artifact.public(), allow_insecure=True)
    keys = client.write_evaluation_keys(folder / "keys")
    running = Running(folder / "server", [folder / "timed.helio"]).start()
    beside, over, cpu_beside, cpu_over = [], [], [], []
    try:
        with (
            hg.RemoteServer(running.url, running.token) as remote,
            hg.Server(artifact, keys, allow_insecure=True) as server,
        ):
            remote.register(keys)
            for number in range(runs + 1):
                encrypted = client.encrypt(sample(number))
                sent = encrypted.to_bytes()
                begun, cpu_begun = time.perf_counter(), time.process_time()
                server.run(hg.EncryptedInput.from_bytes(sent)).to_bytes()
                middle, cpu_middle = time.perf_counter(), time.process_time()
                others = cpu_seconds(running)
                remote.run(encrypted)
                # The first run of each makes what later ones keep.
                if number:
                    beside.append(middle - begun)
                    over.append(time.perf_counter() - middle)
                    cpu_beside.append(cpu_middle - cpu_begun)
                    cpu_over.append(time.process_time() - cpu_middle + cpu_seconds(running) - others)
    finally:
        running.stop()
    figures = {"local_ms": 1e3 * float(np.median(beside)), "http_ms": 1e3 * float(np.median(over))}
    differences = [http - local for http, local in zip(over, beside, strict=True)]
    return {
        **figures,
        "over_local": figures["http_ms"] / figures["local_ms"],
        # What a pair of runs, one after the other, differs by: less of the machine's moods is in it.
        "difference_ms": 1e3 * float(np.median(differences)),
        # Of the processor, by all processes together, which other load changes little.
        "local_cpu_ms": 1e3 * float(np.median(cpu_beside)),
        "http_cpu_ms": 1e3 * float(np.median(cpu_over)),
        "runs": runs,
        "input_bytes": len(sent),
    }


def cpu_seconds(running: Running) -> float:
    """Seconds of the processor that a server and its workers have taken so far."""
    assert running.process is not None
    ticks = 0
    for process in (running.process.pid, *running.workers()):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def engines(folder: Path, artifact: hg.Artifact, jobs: int) -> dict[str, Any]:
    """Seconds for these jobs on one and two workers of each engine, each worker on one core, and the floor of one job.

    Workers are started and have run a job before the clock begins.
    """
    artifact.save(folder / "engines.helio")
    client = hg.Client(artifact.public(), allow_insecure=True)
    keys = client.write_evaluation_keys(folder / "engine-keys")
    paths = [folder / f"{number}.ct" for number in range(jobs)]
    for number, path in enumerate(paths):
        client.encrypt(sample(number)).save(path)
    found: dict[str, Any] = {"jobs": jobs, "floor_ms": floor(artifact, keys, client), "seconds": {}}
    names = ["local"] + (["ray"] if importlib.util.find_spec("ray") else [])
    for name in names:
        for workers in (1, 2):
            work = Work(
                home=str(folder),
                paths={artifact.fingerprint: str(folder / "engines.helio")},
                plain={},
                worker_bytes=bytes_each(None, workers),
                allow_insecure=True,
            )
            tasks = [task_of(artifact.fingerprint, keys.path, path, path.with_suffix(".out")) for path in paths]
            found["seconds"][f"{name}-{workers}"] = clocked(name, work, workers, tasks)
            for number, path in enumerate(paths):
                answer = client.decrypt(hg.EncryptedOutput.load(path.with_suffix(".out")))
                if np.abs(answer - interpret(artifact.program, sample(number))).max() > 1e-2:
                    sys.exit(f"the answer to {path.name} is wrong on {name} with {workers} workers")
    return found


def floor(artifact: hg.Artifact, keys: hg.KeyFolder, client: hg.Client) -> float:
    """Milliseconds of a job's homomorphic calls alone, on one core."""
    import numba

    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with hg.Server(artifact, keys, allow_insecure=True) as server:
            server.run(client.encrypt(sample(0)))
            found = server.floor()
            for _ in range(FLOOR_SAMPLES):
                found.sample()
            return found.milliseconds()
    finally:
        numba.set_num_threads(threads)


def clocked(name: str, work: Work, workers: int, tasks: list[Task]) -> float:
    """Seconds in which an engine's workers evaluate these jobs, whichever is free."""
    one = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    before = {each: os.environ.get(each) for each in one}
    os.environ.update(one)
    engine = make_engine(name, work, workers)
    try:
        started = [engine.start_worker() for _ in range(workers)]
    finally:
        for each, value in before.items():
            os.environ.pop(each) if value is None else os.environ.update({each: value})
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    errors: list[str] = []

    def drain(worker: Any) -> None:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            report = follow(worker, task, lambda report: True, SILENCE_S)
            if report.state != "done":
                errors.append(f"{report.error}")

    for worker in started:
        waiting.put(tasks[0])
        drain(worker)
    for task in tasks:
        waiting.put(task)
    threads = [threading.Thread(target=drain, args=(worker,)) for worker in started]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    for worker in started:
        worker.close()
    engine.close()
    if errors:
        sys.exit(f"a job failed on {name}: {errors[0]}")
    return seconds


def mnist_sizes(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Keys and inputs of 784-512-10 with a ReLU of degree 15, and of degree 7 as it is and refined; test accuracy."""
    x_train, _, x_test, y_test = mnist()
    x_train, x_test = x_train.reshape(-1, 784), x_test.reshape(-1, 784)
    module = mnist_mlp(512, epochs)
    with torch.no_grad():
        clear = float((module(torch.from_numpy(x_test)).numpy().argmax(1) == y_test).mean())
    program = hg.trace(
        module, torch.from_numpy(x_test[:1]), input_range=(0.0, 1.0), calibration=x_train[:512], name="mnist_mlp"
    )
    refined = hg.refine(program, x_train[:8000], degrees=7, epochs=2 * epochs).program
    rows = []
    for name, network, options in (
        ("784-512-10, degree 15", program, hg.Options(degree=15)),
        ("784-512-10, degree 7", program, hg.Options(degree=7)),
        ("784-512-10, degree 7, refined", refined, hg.Options()),
    ):
        artifact = hg.compile(network, options)
        polynomial = float((polynomial_logits(network, options, x_test).argmax(1) == y_test).mean())
        row = sizes(folder / str(len(rows)), artifact, x_test[0])
        rows.append({"name": name, "accuracy_clear": clear, "accuracy_polynomial": polynomial, **row})
    return rows


def resnet20_sizes(folder: Path) -> dict[str, Any]:
    """The same of the pretrained ResNet-20, as `resnets.py` compiles it."""
    from models import cifar

    return sizes(folder / "resnet20", cifar.compiled("resnet20"), None)


def sizes(folder: Path, artifact: hg.Artifact, image: Any) -> dict[str, Any]:
    """Bytes of keys and one input: as they were sent before there were seeds, and of files that were written."""
    client = hg.Client(artifact.public())
    keys = client.write_evaluation_keys(folder)
    written = sum(file.stat().st_size for file in keys.path.iterdir())
    planned = memory_bytes(artifact.program, artifact.ring)
    image = np.zeros(artifact.public().inputs[0].shape) if image is None else image
    return {
        "ring_dim": artifact.ring.ring_dim,
        "levels": artifact.ring.levels,
        "scale_bits": artifact.ring.scale_bits,
        "keys": len(keys.names()),
        "whole_key_bytes": planned["evaluation_keys"],
        "key_bytes": written,
        "whole_input_bytes": planned["inputs"],
        "input_bytes": len(client.encrypt(image).to_bytes()),
    }


def load(running: Running, artifact: hg.Artifact, clients: int, jobs: int, kills: int, seed: int) -> dict[str, Any]:
    """Clients in threads, and kills spread over their jobs: what ended how."""
    errors: list[float] = []
    wrong: list[str] = []
    ended, lock = [0], threading.Lock()

    def work(number: int) -> None:
        client = hg.Client(artifact.public(), allow_insecure=True)
        mine = len(range(number, jobs, clients))
        try:
            with hg.RemoteServer(running.url, running.token, patience_s=600) as remote:
                remote.register(client.evaluation_keys())
                for job in range(mine):
                    x = sample(1000 * number + job)
                    error = float(
                        np.abs(client.decrypt(remote.run(client.encrypt(x))) - interpret(artifact.program, x)).max()
                    )
                    with lock:
                        errors.append(error)
                        ended[0] += 1
        except Exception as error:
            with lock:
                wrong.append(f"client {number}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    chance, done = random.Random(seed), {"worker": 0, "server": 0}
    while any(thread.is_alive() for thread in threads):
        total = sum(done.values())
        if total < kills and ended[0] * (kills + 1) >= (total + 1) * jobs:
            if total % 4 == 3:
                running.kill()
                running.start()
                done["server"] += 1
            elif workers := running.workers():
                os.kill(chance.choice(workers), signal.SIGKILL)
                done["worker"] += 1
        time.sleep(0.02)
    seconds = time.monotonic() - begun
    metrics = running.get("/metrics", running.operator).text.splitlines()
    counted = {line.split()[0]: float(line.split()[1]) for line in metrics if not line.startswith("#")}
    return {
        "clients": clients,
        "jobs": jobs,
        "kills": done,
        "accepted": int(counted["heliograph_jobs_accepted_total"]),
        "ended_with_result": int(counted["heliograph_jobs_done_total"]),
        "ended_with_error": int(counted["heliograph_jobs_failed_total"]),
        "answers": len(errors),
        "answers_off": sum(error > 1e-3 for error in errors),
        "largest_error": max(errors, default=0.0),
        "clients_that_failed": wrong,
        "seconds": seconds,
    }


def under_load(folder: Path, toy: hg.Artifact, given: Any) -> dict[str, Any]:
    """`load` on a server of its own."""
    toy.save(folder / "toy.helio")
    running = Running(folder / "server", [folder / "toy.helio"], "--workers", str(given.workers))
    running.start()
    try:
        return load(running, toy, given.clients, given.jobs, given.kills, given.seed)
    finally:
        running.stop()


@benchmark(
    option("--parts", nargs="+", choices=PARTS, default=PARTS),
    option("--clients", type=int, default=5),
    option("--jobs", type=int, default=50, help="of all clients together"),
    option("--kills", type=int, default=4, help="three of a worker, then one of the server, and so on"),
    option("--workers", type=int, default=2),
    option("--runs", type=int, default=20, help="for the latency"),
    option("--long-runs", type=int, default=5, help="for the latency of the job above a second"),
    option("--engine-jobs", type=int, default=12),
    option("--epochs", type=int, default=2, help="of the network on MNIST"),
    option("--seed", type=int, default=1),
    option("--secure", action="store_true", help="128 bits, for the latency"),
    option("--degree", type=int, default=5, help="of the activation of the short job"),
    option("--long-degree", type=int, default=511, help="of that of the long job, on a ring of 2^16"),
    option("--resnet20", action="store_true", selects=True, help="sizes of ResNet-20 too: a minute, 4 GB on the disk"),
    packages=("starlette",),
    memory_gb=6,
    minutes=6,
)
def serving(run: Run) -> None:
    given = run.options
    warnings.simplefilter("ignore", hg.InsecureWarning)
    secure = 128 if given.secure else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in given.parts:
            (folder / part).mkdir()
        if "load" in given.parts:
            toy = hg.compile(mlp(), hg.Options(security_bits=None, degree=5))
            found = run.row({"part": "load", "what": "toy"}, partial(under_load, folder / "load", toy, given))
            if found["clients_that_failed"] or found["answers_off"] or found["ended_with_error"]:
                run.failures.append("a job was lost or wrong")
        if "latency" in given.parts:
            for kind, degree, ring, runs in (
                ("short", given.degree, None, given.runs),
                ("long", given.long_degree, 16, given.long_runs),
            ):
                made = hg.compile(mlp(), hg.Options(security_bits=secure, degree=degree, log_ring=ring))
                (folder / "latency" / kind).mkdir()
                run.row({"part": "latency", "what": kind}, partial(latency, folder / "latency" / kind, made, runs))
        if "engines" in given.parts:
            made = hg.compile(mlp(), hg.Options(security_bits=secure, degree=given.degree, log_ring=14))
            key = {"part": "engines", "what": f"{given.engine_jobs} jobs"}
            run.row(key, partial(engines, folder / "engines", made, given.engine_jobs))
        if "sizes" in given.parts:
            for row in mnist_sizes(folder / "sizes", given.epochs):
                run.row({"part": "sizes", "what": row.pop("name")}, lambda row=row: row)  # type: ignore[misc]
            if given.resnet20:
                run.row({"part": "sizes", "what": "ResNet-20"}, partial(resnet20_sizes, folder / "sizes"))


if __name__ == "__main__":
    serving.main()
