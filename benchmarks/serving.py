"""Serving: many clients under kill -9 of workers and server, and the latency of HTTP beside a server in the same process.

A toy ring; `--secure` takes the latency of the same network at 128 bits.
"""

from __future__ import annotations

from common import ROOT, machine  # first: it imports heliograph

import argparse
import json
import os
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

import heliograph as hg
from heliograph.errors import InsecureWarning

sys.path.insert(0, str(ROOT / "tests"))

from runtime.support import INPUTS, mlp
from helpers.serving import Running

from heliograph.interpret import interpret


def sample(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, INPUTS)


def latency(running: Running, artifact: hg.Artifact, client: hg.Client, keys: Any, runs: int) -> dict[str, float]:
    """Median milliseconds of a job over HTTP and of the same in this process, in turns; bytes that are sent."""
    beside, over = [], []
    with (
        hg.RemoteServer(running.url, running.token) as remote,
        hg.Server(artifact, keys, allow_insecure=True) as server,
    ):
        remote.register(keys)
        for number in range(runs + 1):
            encrypted = client.encrypt(sample(number))
            data = encrypted.to_bytes()
            begun = time.perf_counter()
            server.run(hg.EncryptedInput.from_bytes(data)).to_bytes()
            middle = time.perf_counter()
            remote.run(encrypted)
            # The first run of each makes what later ones keep.
            if number:
                beside.append(middle - begun)
                over.append(time.perf_counter() - middle)
    figures = {"local_ms": 1e3 * float(np.median(beside)), "http_ms": 1e3 * float(np.median(over))}
    return {
        **figures,
        "over_local": figures["http_ms"] / figures["local_ms"],
        "key_bytes": len(keys.to_bytes()),
        "input_bytes": len(data),
        # What they take in memory, and took on the way before there were seeds.
        "whole_key_bytes": artifact.report.values["evaluation_key_bytes"],
        "whole_input_bytes": artifact.report.values["ciphertext_bytes"],
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=50, help="of all clients together")
    parser.add_argument("--kills", type=int, default=4, help="three of a worker, then one of the server, and so on")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20, help="for the latency")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--secure", action="store_true", help="128 bits, for the latency")
    parser.add_argument(
        "--degree", type=int, default=5, help="of the network's activation, for the latency of longer jobs"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    warnings.simplefilter("ignore", InsecureWarning)
    toy = hg.compile(mlp(), hg.Options(security_bits=None, degree=5))
    timed = hg.compile(mlp(), hg.Options(degree=options.degree)) if options.secure else toy
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        toy.save(folder / "toy.helio")
        running = Running(folder / "load", [folder / "toy.helio"], "--workers", str(options.workers)).start()
        loaded = load(running, toy, options.clients, options.jobs, options.kills, options.seed)
        running.stop()
        timed.save(folder / "timed.helio")
        alone = Running(folder / "alone", [folder / "timed.helio"]).start()
        client = hg.Client(timed.public(), allow_insecure=True)
        times = latency(alone, timed, client, client.evaluation_keys(), options.runs)
        alone.stop()
    result = {"machine": machine(), "load_average": os.getloadavg()[0], "load": loaded, "latency": times}
    if not options.json:
        print(f"{machine()}; load average {os.getloadavg()[0]:.1f}\n")
        for part in (loaded, times):
            for key, value in part.items():
                print(f"{key:<20} {value:.4g}" if isinstance(value, float) else f"{key:<20} {value}")
            print()
    print(json.dumps(result))
    if loaded["clients_that_failed"] or loaded["answers_off"] or loaded["ended_with_error"]:
        sys.exit("a job was lost or wrong")


if __name__ == "__main__":
    main()
