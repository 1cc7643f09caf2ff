"""One client floods a server; how long does a whole job of another tenant take meanwhile, and how long alone?

A job is encrypted, sent, evaluated, fetched and decrypted; the floods are those of `flooding.py`. Server, its one
worker, the flood (one process) and the other tenant share the cores of this machine, so a part of each ratio is the
flood's own work. `--secure` takes a program at 128 bits instead of one on a toy ring.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import json
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import flooding
import numpy as np

from harness import ROOT, Run, benchmark, option
from heliograph.errors import HeliographError
from heliograph.serving.queue.database import Database

sys.path[:0] = [str(ROOT / "tests")]

from runtime.support import mlp, sample
from helpers.serving import Running

# Jobs of the tenant that floods, for the floods that ask for them.
OWN_JOBS = 2000
LABELS = {
    "no token": "no token", "unknown job": "jobs that are not there",
    "begin key sets": "key sets, begun", "list jobs": "pages of 2,000 jobs", "wait": "`?wait=30`",
    "idle": "idle connections", "unread": "answers that are not read",
}  # fmt: skip
IDLE = 1100
_PATIENCE_S = 60.0


def job(running: Running, client: hg.Client, number: int) -> float:
    """Seconds of a whole job of the other tenant, on a connection of its own."""
    begun = time.perf_counter()
    with hg.RemoteServer(running.url, running.other, patience_s=_PATIENCE_S) as remote:
        client.decrypt(remote.run(client.encrypt(sample(number))))
    return time.perf_counter() - begun


def flooded(
    running: Running, client: hg.Client, artifact: str, kind: str, seconds: float, connections: int
) -> dict[str, Any]:
    """Seconds of jobs alone and under a flood, the ratio of the medians, and what the flood was answered."""
    alone = [job(running, client, number) for number in range(8)]
    command = [sys.executable, flooding.__file__, kind, str(running.port), running.token]
    flood = subprocess.Popen([*command, str(seconds), str(connections), artifact], stdout=subprocess.PIPE, text=True)
    assert flood.stdout is not None
    flood.stdout.readline()
    begun = time.monotonic()
    time.sleep(1)
    meanwhile, failed = [], 0
    while time.monotonic() < begun + seconds - 1 or not meanwhile:
        try:
            meanwhile.append(job(running, client, len(meanwhile)))
        except HeliographError:
            failed += 1
            meanwhile.append(float("inf"))
    seen = json.loads(flood.communicate(timeout=seconds + 60)[0].splitlines()[-1])
    answers = sum(number for name, number in seen.items() if name != "lost connections")
    return {
        "connections": connections,
        "alone_s": float(np.median(alone)),
        "meanwhile_s": float(np.median(meanwhile)),
        "longest_s": max(meanwhile),
        "ratio": float(np.median(meanwhile) / np.median(alone)),
        "jobs": len(meanwhile),
        "failed": failed,
        "requests_per_s": answers / seconds,
        "answers": seen,
    }


def own_jobs(running: Running, artifact: str, number: int) -> None:
    """Jobs of the first tenant as they are while workers have them, so that they need not be evaluated for hours."""
    names = "tenant, id, artifact, client, folder, digest, input, bytes, state, created, worker"
    with Database(running.places.database).writing() as connection:
        connection.executemany(
            f"INSERT INTO jobs ({names}) VALUES (1, ?, ?, ?, 'none', ?, 'none', 0, 'running', ?, 'nobody')",
            [(f"{place + 1:032x}", artifact, "0" * 32, "0" * 64, time.time()) for place in range(number)],
        )


@benchmark(
    option("--floods", nargs="+", choices=flooding.KINDS, default=flooding.KINDS),
    option("--seconds", type=float, default=6.0, help="of each flood"),
    option("--connections", type=int, default=240, help=f"of a flood; idle ones are {IDLE}"),
    option("--secure", action="store_true", help="128 bits"),
    columns={
        "alone_s": "s", "meanwhile_s": "s", "longest_s": "s", "ratio": "", "jobs": "", "failed": "", "requests_per_s": "",
    },
    packages=("starlette", "torch"),
    minutes=2,
)  # fmt: skip
def floods(run: Run) -> None:
    given = run.options
    warnings.simplefilter("ignore", hg.InsecureWarning)
    artifact = hg.compile(mlp(), hg.Options(security_bits=128 if given.secure else None, degree=5))
    client = hg.Client(artifact.public(), allow_insecure=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact.save(folder / "flooded.helio")
        running = Running(folder / "server", [folder / "flooded.helio"]).start()
        try:
            own_jobs(running, artifact.fingerprint, OWN_JOBS)
            with hg.RemoteServer(running.url, running.other) as remote:
                remote.register(client.evaluation_keys())
            for kind in given.floods:
                most = IDLE if kind == "idle" else given.connections
                run.row(
                    {"flood": LABELS[kind]},
                    partial(flooded, running, client, artifact.fingerprint, kind, given.seconds, most),
                )
        finally:
            running.stop()


if __name__ == "__main__":
    floods.main()
