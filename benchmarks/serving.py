"""Serving: load under kill -9, the latency of HTTP, engines beside each other, and the bytes of keys and inputs.

Parts, all of them by default:

- `load`: clients with a toy artifact, and kill -9 of workers and server in between;
- `latency`: a job beside the same artifact without HTTP, a short one and (`--long-degree`) one above a second;
- `engines`: jobs on one and two workers of the local engine and of Ray, each with one core, and the floor;
- `sizes`: keys and inputs of a 784-512-10 network on MNIST, before and after seeds; with `--resnet20` those of ResNet-20.

`load` and `latency` take a toy ring without `--secure`.
"""

from __future__ import annotations

from common import ROOT, hg, machine, mnist, polynomial_logits, train  # first: it imports heliograph

import argparse
import importlib.util
import json
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heliograph.errors import InsecureWarning
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
        "load_average": os.getloadavg()[0],
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
    found["load_average"] = os.getloadavg()[0]
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
    x_train, y_train, x_test, y_test = mnist()
    x_train, x_test = x_train.reshape(-1, 784), x_test.reshape(-1, 784)
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    train(module, x_train, y_train, epochs)
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


def resnet20_sizes(folder: Path) -> list[dict[str, Any]]:
    """The same of the pretrained ResNet-20, as `resnet20.py` compiles it."""
    import cifar_resnet

    return [{"name": "ResNet-20", **sizes(folder / "resnet20", cifar_resnet.compiled(20), None)}]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=50, help="of all clients together")
    parser.add_argument("--kills", type=int, default=4, help="three of a worker, then one of the server, and so on")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20, help="for the latency")
    parser.add_argument("--long-runs", type=int, default=5, help="for the latency of the job above a second")
    parser.add_argument("--engine-jobs", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=2, help="of the network on MNIST")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--secure", action="store_true", help="128 bits, for the latency")
    parser.add_argument("--degree", type=int, default=5, help="of the activation of the short job")
    parser.add_argument("--long-degree", type=int, default=511, help="of that of the long job, on a ring of 2^16")
    parser.add_argument("--resnet20", action="store_true", help="sizes of ResNet-20 too: a minute, 4 GB on the disk")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    warnings.simplefilter("ignore", InsecureWarning)
    toy = hg.compile(mlp(), hg.Options(security_bits=None, degree=5))
    secure = 128 if options.secure else None
    result: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in options.parts:
            (folder / part).mkdir()
        if "load" in options.parts:
            toy.save(folder / "toy.helio")
            running = Running(folder / "load" / "server", [folder / "toy.helio"], "--workers", str(options.workers))
            running.start()
            result["load"] = load(running, toy, options.clients, options.jobs, options.kills, options.seed)
            running.stop()
        if "latency" in options.parts:
            for kind, degree, ring, runs in (
                ("short", options.degree, None, options.runs),
                ("long", options.long_degree, 16, options.long_runs),
            ):
                made = hg.compile(mlp(), hg.Options(security_bits=secure, degree=degree, log_ring=ring))
                (folder / "latency" / kind).mkdir()
                result[f"latency_{kind}"] = latency(folder / "latency" / kind, made, runs)
        if "engines" in options.parts:
            made = hg.compile(mlp(), hg.Options(security_bits=secure, degree=options.degree, log_ring=14))
            result["engines"] = engines(folder / "engines", made, options.engine_jobs)
        if "sizes" in options.parts:
            result["sizes"] = mnist_sizes(folder / "sizes", options.epochs)
            if options.resnet20:
                result["sizes"] += resnet20_sizes(folder / "sizes")
    result["load_average"] = os.getloadavg()[0]
    if not options.json:
        print(f"{machine()}; load average {os.getloadavg()[0]:.1f}\n")
        for part in (each for value in result.values() for each in (value if isinstance(value, list) else [value])):
            if isinstance(part, dict):
                for key, value in part.items():
                    print(f"{key:<20} {value:.4g}" if isinstance(value, float) else f"{key:<20} {value}")
                print()
    print(json.dumps(result))
    loaded = result.get("load", {})
    if loaded and (loaded["clients_that_failed"] or loaded["answers_off"] or loaded["ended_with_error"]):
        sys.exit("a job was lost or wrong")


if __name__ == "__main__":
    main()
