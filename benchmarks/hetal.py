"""Training on ciphertexts after HETAL (ICML 2023): in the clear, simulated to the early stop, and real steps.

    python benchmarks/hetal.py
    python benchmarks/hetal.py --datasets snips --steps 3
    python benchmarks/hetal.py --datasets snips --steps 1 --hidden
    python benchmarks/hetal.py --datasets snips-small --to-stop

`snips`: sentence embeddings of the shared data (384 features, 7 classes). `snips-small`: 128 of its samples, 15 principal
components of each, one minibatch: small enough to be trained on ciphertexts to the early stop (`--to-stop`).
`mnist`: features of a small network that is trained here on half of the training images, at its last layer (32 features, 10
classes); the classifier is trained on the other half.
Compiled steps are kept in `--artifacts`, where that is given, and not compiled again.
Times are medians of the steps after the first, which encodes plaintexts; the floor is the sum of the primitives' times.
"""

from __future__ import annotations

from common import data, hg, mnist, train as train_network  # first: it imports heliograph before torch  # isort: skip

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from harness import BACKEND, BUILD, Run, Skip, benchmark, option
from heliograph.ckks.costs import BUILT_IN
from heliograph.execution.prices import priced_ms
from heliograph.runtime.server.floor import Floor
from heliograph.tools.measure import FLOOR_SAMPLES, peak_rss_bytes
from heliograph.transfer.clear import ClearRun, Epoch, History, accuracy, train
from heliograph.transfer.data import TransferData, load_test, softmax
from heliograph.transfer.encrypted import EncryptedRun
from heliograph.transfer.features import features
from heliograph.transfer.layers import Seen
from heliograph.transfer.owner import Owner
from heliograph.transfer.settings import TransferSettings
from heliograph.transfer.simulated import SimulatedRun
from heliograph.transfer.step import compile_step
from heliograph.transfer.trainer import Trainer

SETTINGS = {
    "snips": TransferSettings(batch=1024, rate=8.0, logit_range=20.0, weight_range=8.0),
    "snips-small": TransferSettings(batch=128, rate=13.0, logit_range=12.0, weight_range=8.0, patience=1),
    # Its weights grow to 12 in the clear.
    "mnist": TransferSettings(batch=1024, rate=2.0, logit_range=24.0, weight_range=16.0, most_epochs=20),
}
# With a hidden layer: squares make large steps unstable, and logits grow.
HIDDEN = {
    "snips": TransferSettings(
        batch=1024, rate=0.5, logit_range=64.0, weight_range=8.0, hidden=16, hidden_range=8.0, most_epochs=40
    ),
    "snips-small": TransferSettings(
        batch=128, rate=1.0, logit_range=20.0, weight_range=6.0, hidden=8, hidden_range=8.0, patience=1
    ),
}
PUBLISHED = {
    "snips": {"accuracy": 0.95, "accuracy_clear": 0.9443},
    "snips-small": None,
    "mnist": {"accuracy": 0.9673, "accuracy_clear": 0.9724},
}


def snips() -> tuple[TransferData, np.ndarray, np.ndarray]:
    path = data("snips_minilm_l6_features.npz")
    return TransferData.load(path), *load_test(path)


def small_snips() -> tuple[TransferData, np.ndarray, np.ndarray]:
    """Principal components of some of its samples: unit vectors again, which the client computes."""
    whole, test, labels = snips()
    rng = np.random.default_rng(0)
    own, held = (rng.permutation(len(y))[:count] for y, count in ((whole.y_train, 128), (whole.y_val, 128)))
    middle = whole.x_train.mean(axis=0)
    _, _, components = np.linalg.svd(whole.x_train - middle, full_matrices=False)

    def seen(x: np.ndarray) -> np.ndarray:
        found = (x - middle) @ components[:15].T
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))

    data = TransferData(seen(whole.x_train[own]), whole.y_train[own], seen(whole.x_val[held]), whole.y_val[held])
    return data, seen(test), labels


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


DATASETS = {"snips": snips, "snips-small": small_snips, "mnist": mnist_features}


def softmax_error(artifact: hg.Artifact, settings: TransferSettings, classes: int) -> float:
    """The largest error of a probability on random logits over the whole range, on the simulator of the step's ring, where
    chains are as fine as those of a step."""
    limit = settings.logit_range
    rows = np.random.default_rng(0).uniform(-limit, limit, (classes, settings.batch))
    program = hg.parse(
        f"program p\ninput x: secret tensor[{classes}, {settings.batch}] in [-{limit}, {limit}]\n"
        f"output softmax(x, axis=0)\n"
    )
    options = hg.Options(target_error=settings.softmax_error, precision_bits=13, log_ring=artifact.ring.log_ring)
    return float(np.abs(hg.simulate(hg.compile(program, options), rows) - softmax(rows)).max())


class TimedRun(EncryptedRun):
    """A training on ciphertexts beside the same one in the clear: seconds of each step, how far the weights are off."""

    def __init__(self, owner: Owner, server: hg.Server, trainer: Trainer, clear: ClearRun, say: Any) -> None:
        super().__init__(owner, trainer)
        self._server, self._clear, self._say = server, clear, say
        self.trace = server.trace
        self.seconds: list[float] = []
        self.largest = 0.0

    def step(self) -> Seen:
        begun = time.perf_counter()
        seen = super().step()
        self.seconds.append(time.perf_counter() - begun)
        self.trace = self._server.trace
        self._clear.step()
        self.largest = max(self.largest, float(np.abs(self.weights() - self._clear.state.weights).max()))
        load = os.getloadavg()[0]
        self._say(f"step {self.done}: {self.seconds[-1]:.1f} s, weights off by {self.largest:.2g}, load {load:.1f}")
        return seen


def measured(
    artifact: hg.Artifact, found: TransferData, settings: TransferSettings, given: argparse.Namespace, say: Any
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Real steps on ciphertexts, so many or a training to its early stop: seconds, the floor, the error of the
    weights, memory; and the weights of the best epoch, where a training was done."""
    folder = Path(tempfile.mkdtemp(prefix="hetal", dir=BUILD))
    try:
        client = hg.Client(artifact.public())
        begun = time.perf_counter()
        client.write_evaluation_keys(folder / "keys")
        keys_s = time.perf_counter() - begun
        say(f"keys made: {keys_s:.0f} s")
        owner = Owner(client, found, settings)
        server = hg.Server(artifact, hg.KeyFolder(folder / "keys"), mapped=given.mapped, backend=given.backend)
        begun, history = time.perf_counter(), History()
        with server, Trainer(server, folder / "trainer", settings.rate) as trainer:
            for number, shard in enumerate(itertools.islice(owner.shards(), None if given.to_stop else given.steps)):
                trainer.receive("batch", number, shard)
            run = TimedRun(owner, server, trainer, ClearRun(found, settings), say)
            if given.to_stop:
                for number, shard in enumerate(owner.held()):
                    trainer.receive("held", number, shard)
                train(run, found, settings, history, lambda epoch: say(f"epoch {epoch.number}: loss {epoch.loss:.4f}"))
            else:
                for _ in range(given.steps):
                    run.step()
            training_s = time.perf_counter() - begun
            kinds: dict[str, float] = defaultdict(float)
            for call, count in run.trace.calls.items():
                kinds[call.primitive] += count * priced_ms(call, artifact.program.planned.chains, BUILT_IN) / 1e3
            floor = Floor(server.evaluator, run.trace.calls)
            while floor.samples < FLOOR_SAMPLES:
                floor.sample()
            shard = next(owner.shards())
        return {
            "first_seconds": run.seconds[0],
            "seconds_per_step": statistics.median(run.seconds[1:] or run.seconds),
            "seconds": run.seconds,
            "floor_seconds": floor.milliseconds() / 1e3,
            "predicted_seconds_by_kind": dict(kinds),
            "seconds_by_layer": dict(run.trace.by_layer),
            "steps_encrypted": len(run.seconds),
            "max_weight_error": run.largest,
            "epochs_encrypted": len(history.epochs),
            "losses_encrypted": [epoch.loss for epoch in history.epochs],
            "best_encrypted": history.best,
            "training_seconds": training_s,
            "keygen_seconds": keys_s,
            "key_bytes": sum(key.bytes for key in artifact.evaluation_keys),
            "upload_bytes_per_step": sum(len(shard.blob(name)) for name in shard.names()),
            "keys_mapped": given.mapped,
            "peak_rss_bytes": peak_rss_bytes(),
        }, run.best
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compiled(
    name: str, found: TransferData, settings: TransferSettings, options: hg.Options, folder: Path | None
) -> tuple[hg.Artifact, float | None]:
    """The artifact of a step, and the seconds that compiling it took, None where it was compiled before."""
    path = None if folder is None else folder / f"{name}.helio"
    if path is not None and path.exists():
        return hg.Artifact.load(path), None
    begun = time.perf_counter()
    artifact = compile_step(found, settings, options)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        artifact.save(path)
    return artifact, time.perf_counter() - begun


def same_stop(epochs: int, best: int, exact: History) -> bool:
    return (epochs, best) == (len(exact.epochs), exact.best)


def row(name: str, given: argparse.Namespace, say: Any) -> dict[str, Any]:
    hidden = given.hidden
    settings = (HIDDEN if hidden else SETTINGS)[name]
    found, test, labels = DATASETS[name]()
    clear = ClearRun(found, settings)
    exact = train(clear, found, settings, History())
    right = accuracy(clear.best.weights, test, labels, clear.layers)
    say(f"in the clear: {len(exact.epochs)} epochs, best {exact.best}, {right:.4f}")
    options = hg.Options(memory_bytes=int(given.memory * 1e9), log_ring=given.log_ring)
    artifact, seconds = compiled(name + "-hidden" * hidden, found, settings, options, given.artifacts)
    result: dict[str, Any] = {
        **dict.fromkeys(MEASURED),
        "classes": found.classes,
        "features": found.features,
        "settings": asdict(settings),
        "published": None if hidden else PUBLISHED[name],
        "accuracy_clear": right,
        "epochs_clear": len(exact.epochs),
        "losses_clear": [epoch.loss for epoch in exact.epochs],
        "compile_seconds": seconds,
        "predicted_seconds": artifact.report.figures.predicted_ms / 1e3,
        "bootstraps": artifact.report.figures.bootstraps,
        "log_pq": artifact.ring.log_pq,
        "security_bits": artifact.ring.security_bits,
        "softmax_max_error": softmax_error(artifact, settings, found.classes),
    }
    say(f"compiled: {artifact}")
    if given.steps or given.to_stop:
        figures, best = measured(artifact, found, settings, given, say)
        result |= figures
        if best is not None:
            result["accuracy_encrypted"] = accuracy(best, test, labels, clear.layers)
            result["same_stop_encrypted"] = same_stop(len(result["losses_encrypted"]), result["best_encrypted"], exact)
    if not given.no_simulation:
        simulated = SimulatedRun(artifact, found, settings)

        def told(epoch: Epoch) -> None:
            say(f"simulated epoch {epoch.number}: loss {epoch.loss:.4f}, {epoch.accuracy:.4f}")

        history = train(simulated, found, settings, History(), told)
        result |= {
            "accuracy_simulated": accuracy(simulated.best, test, labels, clear.layers),
            "epochs_simulated": len(history.epochs),
            "losses_simulated": [epoch.loss for epoch in history.epochs],
            "same_stop": same_stop(len(history.epochs), history.best, exact),
        }
    return result


MEASURED = (
    "seconds_per_step", "first_seconds", "floor_seconds", "max_weight_error", "key_bytes", "upload_bytes_per_step",
    "peak_rss_bytes", "accuracy_encrypted", "accuracy_simulated",
)  # fmt: skip


@benchmark(
    option("--datasets", nargs="*", default=["snips", "mnist"], choices=tuple(DATASETS)),
    option("--steps", type=int, default=3, help="steps on ciphertexts"),
    option("--hidden", action="store_true", help="train a hidden layer too"),
    option("--to-stop", action="store_true", help="train on ciphertexts to the early stop"),
    option("--mapped", action="store_true", help="map the keys: the system may let go of them"),
    option("--no-simulation", action="store_true"),
    option("--memory", type=float, default=14.0, help="gigabytes that the server may take"),
    option("--log-ring", type=int, help="of N = 2^LOG_RING alone: compiled sooner"),
    option("--artifacts", type=Path, help="folder of compiled steps"),
    BACKEND,
    columns={
        "accuracy_clear": "", "epochs_clear": "", "predicted_seconds": "s", "bootstraps": "", "log_pq": "",
        "softmax_max_error": "", "compile_seconds": "s", **dict.fromkeys(MEASURED, ""),
    },
    data=("mnist.npz", "snips_minilm_l6_features.npz"),
    memory_gb=15,
    minutes=30,
)  # fmt: skip
def hetal(run: Run) -> None:
    """Columns are None for what was not run."""
    given = run.options
    if given.hidden and (strange := set(given.datasets) - set(HIDDEN)):
        raise Skip(f"no hidden layer is set up for {', '.join(sorted(strange))}")
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in given.datasets:
        run.row({"dataset": name}, partial(row, name, given, run.say))


if __name__ == "__main__":
    hetal.main()
