"""Training on ciphertexts after HETAL (ICML 2023): in the clear, simulated to the early stop, and real steps.

    python benchmarks/hetal.py
    python benchmarks/hetal.py --datasets snips --steps 3 --json
    python benchmarks/hetal.py --datasets snips --steps 1 --hidden

`snips`: sentence embeddings of the shared data (384 features, 7 classes). `mnist`: features of a small network that is
trained here on half of the training images, at its last layer (32 features, 10 classes); the classifier is trained on the
other half.
Times are medians of the steps after the first, which encodes plaintexts; the floor is the sum of the primitives' times.
"""

from __future__ import annotations

from common import ROOT, data, hg, machine, mnist, train as train_network  # first: it imports heliograph  # isort: skip

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from heliograph.ckks.costs import BUILT_IN
from heliograph.execution.prices import priced_ms
from heliograph.tools.measure import FLOOR_SAMPLES, peak_rss_bytes
from heliograph.transfer.clear import ClearRun, Epoch, History, accuracy, train
from heliograph.transfer.data import TransferData, load_test, softmax
from heliograph.transfer.encrypted import EncryptedRun
from heliograph.transfer.features import features
from heliograph.transfer.owner import Owner
from heliograph.transfer.settings import TransferSettings
from heliograph.transfer.simulated import SimulatedRun
from heliograph.transfer.step import compile_step
from heliograph.transfer.trainer import Trainer

SETTINGS = {
    "snips": TransferSettings(batch=1024, rate=8.0, logit_range=20.0, weight_range=8.0),
    # Its weights grow to 12 in the clear.
    "mnist": TransferSettings(batch=1024, rate=2.0, logit_range=24.0, weight_range=16.0, most_epochs=20),
}
# With a hidden layer: squares make large steps unstable, and logits grow.
HIDDEN = TransferSettings(
    batch=1024, rate=0.5, logit_range=64.0, weight_range=8.0, hidden=16, hidden_range=8.0, most_epochs=40
)
PUBLISHED = {
    "snips": {"accuracy": 0.95, "accuracy_clear": 0.9443},
    "mnist": {"accuracy": 0.9673, "accuracy_clear": 0.9724},
}


def snips() -> tuple[TransferData, np.ndarray, np.ndarray]:
    path = data("snips_minilm_l6_features.npz")
    return TransferData.load(path), *load_test(path)


def mnist_features() -> tuple[TransferData, np.ndarray, np.ndarray]:
    """What a small network, trained on other images, makes of the images: unit vectors."""
    x, y, test, labels = mnist()
    x, test = x.reshape(-1, 1, 28, 28), test.reshape(-1, 1, 28, 28)
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
    )
    train_network(nn.Sequential(body, nn.Linear(32, 10)), x[:30000], y[:30000], epochs=3)
    made, own, held = features(body, x[30000:]), slice(0, 26384), slice(26384, 30000)
    y = y[30000:]
    return TransferData(made[own], y[own], made[held], y[held]), features(body, test), labels


DATASETS = {"snips": snips, "mnist": mnist_features}


def softmax_error(artifact: hg.Artifact, settings: TransferSettings, classes: int) -> float:
    """The largest error of a probability on random logits over the whole range, on the simulator."""
    limit = settings.logit_range
    rows = np.random.default_rng(0).uniform(-limit, limit, (classes, settings.batch))
    program = hg.parse(
        f"program p\ninput x: secret tensor[{classes}, {settings.batch}] in [-{limit}, {limit}]\n"
        f"output softmax(x, axis=0)\n"
    )
    options = hg.Options(target_error=settings.softmax_error, precision_bits=14)
    return float(np.abs(hg.simulate(hg.compile(program, options), rows) - softmax(rows)).max())


def measured(
    artifact: hg.Artifact, found: TransferData, settings: TransferSettings, steps: int, say: Any
) -> dict[str, Any]:
    """Real steps on ciphertexts: seconds, the floor, the error of the weights, memory."""
    folder = Path(tempfile.mkdtemp(prefix="hetal", dir=ROOT / "build"))
    try:
        client = hg.Client(artifact.public())
        begun = time.perf_counter()
        client.write_evaluation_keys(folder / "keys")
        keys_s = time.perf_counter() - begun
        owner = Owner(client, found, settings)
        server = hg.Server(artifact, hg.KeyFolder(folder / "keys"))
        seconds: list[float] = []
        with server, Trainer(server, folder / "trainer", settings.rate) as trainer:
            for number, shard in enumerate(owner.shards()):
                trainer.receive("batch", number, shard)
            clear, run, largest = ClearRun(found, settings), EncryptedRun(owner, trainer), 0.0
            for number in range(steps):
                begun = time.perf_counter()
                run.step()
                seconds.append(time.perf_counter() - begun)
                clear.step()
                largest = max(largest, float(np.abs(run.weights() - clear.state.weights).max()))
                say(f"step {number + 1}: {seconds[-1]:.1f} s, weights off by {largest:.2g}")
            trace = server.trace
            kinds: dict[str, float] = defaultdict(float)
            for call, count in trace.calls.items():
                kinds[call.primitive] += count * priced_ms(call, artifact.program.planned.chains, BUILT_IN) / 1e3
            floor = server.floor()
            while floor.samples < FLOOR_SAMPLES:
                floor.sample()
            shard = next(owner.shards())
        return {
            "seconds_per_step": statistics.median(seconds[1:] or seconds),
            "first_step_seconds": seconds[0],
            "floor_seconds": floor.milliseconds() / 1e3,
            "predicted_seconds_by_kind": dict(kinds),
            "seconds_by_layer": dict(trace.by_layer),
            "steps_encrypted": steps,
            "max_weight_error": largest,
            "keygen_seconds": keys_s,
            "key_bytes": sum(key.bytes for key in artifact.evaluation_keys),
            "upload_bytes_per_step": sum(len(shard.blob(name)) for name in shard.names()),
            "peak_rss_bytes": peak_rss_bytes(),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def row(name: str, steps: int, simulate: bool, hidden: bool, memory: float, say: Any) -> dict[str, Any]:
    settings = HIDDEN if hidden else SETTINGS[name]
    found, test, labels = DATASETS[name]()
    clear = ClearRun(found, settings)
    exact = train(clear, found, settings, History())
    right = accuracy(clear.best.weights, test, labels, clear.layers)
    say(f"in the clear: {len(exact.epochs)} epochs, best {exact.best}, {right:.4f}")
    begun = time.perf_counter()
    artifact = compile_step(found, settings, hg.Options(memory_bytes=int(memory * 1e9)))
    result: dict[str, Any] = {
        "classes": found.classes,
        "features": found.features,
        "settings": asdict(settings),
        "published": None if hidden else PUBLISHED[name],
        "accuracy_clear": right,
        "epochs_clear": len(exact.epochs),
        "losses_clear": [epoch.loss for epoch in exact.epochs],
        "compile_seconds": time.perf_counter() - begun,
        "predicted_seconds": artifact.report.figures.predicted_ms / 1e3,
        "bootstraps": artifact.report.figures.bootstraps,
        "log_pq": artifact.ring.log_pq,
        "security_bits": artifact.ring.security_bits,
        "softmax_max_error": softmax_error(artifact, settings, found.classes),
    }
    say(f"compiled: {artifact}")
    if steps:
        result |= measured(artifact, found, settings, steps, say)
    if simulate:
        simulated = SimulatedRun(artifact, found, settings)

        def told(epoch: Epoch) -> None:
            say(f"simulated epoch {epoch.number}: loss {epoch.loss:.4f}, {epoch.accuracy:.4f}")

        history = train(simulated, found, settings, History(), told)
        result |= {
            "accuracy_simulated": accuracy(simulated.best, test, labels, clear.layers),
            "epochs_simulated": len(history.epochs),
            "losses_simulated": [epoch.loss for epoch in history.epochs],
            "same_stop": len(history.epochs) == len(exact.epochs) and history.best == exact.best,
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--datasets", nargs="*", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--steps", type=int, default=3, help="steps on ciphertexts")
    parser.add_argument("--hidden", action="store_true", help="train a hidden layer of 16 units too")
    parser.add_argument("--no-simulation", action="store_true")
    parser.add_argument("--memory", type=float, default=15.5, help="gigabytes that the server may take")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    load = os.getloadavg()[0]
    (ROOT / "build").mkdir(exist_ok=True)
    rows = {
        name: row(name, given.steps, not given.no_simulation, given.hidden, given.memory, say)
        for name in given.datasets
    }
    values = {"machine": machine(), "load_average": load, "datasets": rows}
    if given.json:
        print(json.dumps(values))
        return
    print(f"{values['machine']}, load average {load:.1f}")
    for name, found in rows.items():
        print(f"\n{name}:")
        for key, value in found.items():
            print(f"  {key}: {value:.6g}" if isinstance(value, float) else f"  {key}: {value}")


if __name__ == "__main__":
    main()
