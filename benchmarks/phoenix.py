"""Certified private inference after Phoenix (CCS 2022): robust and fair answers under encryption.

    python benchmarks/phoenix.py
    python benchmarks/phoenix.py --settings mnist adult

Each setting trains a network with noise (weights are kept in build/benchmarks), certifies it with held-out inputs, and
answers test inputs in the clear, on the simulator and encrypted, with the same noise where they are compared. Certified
accuracy counts inputs that are certified and rightly classified. Published figures: Phoenix, tables 1 and 3.
"""

from __future__ import annotations

from common import data, hg, mnist, once  # first: it imports heliograph before torch

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from harness import BACKEND, FOLDER, Run, apart, benchmark, option
from heliograph.certified.certify import certify
from heliograph.certified.clear import Smoothed, by_votes
from heliograph.certified.train import Square, perceptron, train
from heliograph.execution.interface import draw
from heliograph.runtime.client.answers import share_shown
from heliograph.tools.measure import FLOOR_SAMPLES, peak_rss_bytes

# Features of Adult that are numbers, and how far apart two people must be in each to count as dissimilar.
ADULT = {
    "age": 2.0,
    "fnlwgt": 20_000.0,
    "education-num": 1.0,
    "capital-gain": 500.0,
    "capital-loss": 100.0,
    "hours-per-week": 3.0,
}


@dataclass(frozen=True)
class Setting:
    """A network, what is certified of it, and on how many inputs it is looked at."""

    model: Callable[[], nn.Module]
    certificate: Callable[[], hg.Certificate]
    images: tuple[int, int, int]
    epochs: int = 40
    rate: float = 0.01
    held_out: int = 2000
    options: hg.Options = field(default_factory=hg.Options)
    weights: str = ""
    published: Mapping[str, float] = field(default_factory=dict)


def mlp() -> nn.Module:
    return perceptron(784, 32, 10)


def relu() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 4, 5, stride=3),
        nn.Flatten(),
        Square(256),
        nn.Linear(256, 64),
        Square(64),
        nn.Linear(64, 10),
    )


def smoothing(sigma: float, tau: float, n: int = 128, n0: int = 32) -> Callable[[], hg.Certificate]:
    return lambda: hg.Certificate("l2", sigma=sigma, tau=tau, n=n, n0=n0, alpha=0.001)


def fairness() -> hg.Certificate:
    stds = [adult_columns()[name][0].std() for name in ADULT]
    theta = [distance / std for distance, std in zip(ADULT.values(), stds, strict=True)]
    return hg.Certificate("fair", theta=theta, tau=0.719, n=1024, n0=1024, alpha=0.001)


PHOENIX = {"certified": 0.861, "accuracy": 0.968, "radius": 0.34, "seconds_on_64_cores": 900.0}
SETTINGS: dict[str, Setting] = {
    "mnist": Setting(mlp, smoothing(0.5, 0.76), (1000, 200, 10), held_out=9000, published=PHOENIX),
    "mnist_4096": Setting(mlp, smoothing(0.5, 0.95, 4096), (1000, 2, 2), weights="mnist"),
    "mnist_sigma_0.25": Setting(mlp, smoothing(0.25, 0.92), (1000, 10, 2)),
    "mnist_sigma_1.0": Setting(
        mlp, smoothing(1.0, 0.643), (1000, 10, 2), published={"certified": 0.681, "accuracy": 0.943}
    ),
    "mnist_l1": Setting(
        mlp,
        lambda: hg.Certificate("l1", eta=2.0, tau=0.635, n=128, n0=32, alpha=0.001),
        (1000, 10, 2),
        held_out=500,
        published={"certified": 0.621, "accuracy": 0.9325},
    ),
    "adult": Setting(
        lambda: perceptron(len(ADULT), 32, 2),
        fairness,
        (1000, 10, 2),
        epochs=10,
        published={"certified": 0.957, "accuracy": 0.816, "seconds_on_64_cores": 420.0},
    ),
    "mnist_relu": Setting(relu, smoothing(0.5, 0.76), (1000, 10, 2), held_out=500, options=hg.Options(degree=7)),
    "mnist_convolutional": Setting(convolutional, smoothing(0.5, 0.76, 64, 16), (1000, 2, 2), epochs=8, held_out=300),
}


def adult_columns() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The columns of numbers, training and test."""
    with np.load(data("adult.npz"), allow_pickle=False) as file:
        names = {name.replace("_", "-"): name for name in map(str, file["columns"])}
        return {
            name: (file[f"train_{names[name]}"].astype(np.float64), file[f"test_{names[name]}"].astype(np.float64))
            for name in ADULT
        }


def inputs_of(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test inputs with labels."""
    if not name.startswith("adult"):
        x, y, test, labels = mnist()
        return x.reshape(-1, 784), y, test.reshape(-1, 784), labels
    columns = adult_columns()
    with np.load(data("adult.npz"), allow_pickle=False) as file:
        y, labels = file["train_income"].astype(np.int64), file["test_income"].astype(np.int64)
    scaled = [
        np.stack([(own[part] - own[0].mean()) / own[0].std() for own in columns.values()], axis=1) for part in (0, 1)
    ]
    return scaled[0], y, scaled[1], labels


def trained(name: str, setting: Setting, folder: Path) -> nn.Module:
    """The network, trained with noise once; its weights are kept."""
    torch.manual_seed(0)
    model = setting.model()
    weights = folder / f"phoenix_{setting.weights or name}.npz"
    return once(weights, model, lambda: fit(name, setting, model))


def fit(name: str, setting: Setting, model: nn.Module) -> None:
    """Train the network in place."""
    x, y, _, _ = inputs_of(name)

    def told(stage: str, done: int, total: int) -> None:
        if done % 500 == 0:
            print(f"{name}: {stage}, step {done} of {total}", file=sys.stderr)

    train(model, x, y, setting.certificate(), epochs=setting.epochs, rate=setting.rate, progress=told)


def evaluate(folder: str, count: int, backend: str) -> dict[str, Any]:
    """Encrypt inputs, evaluate them with the noise given, and decrypt: answers, seconds, and what that took.

    The folder has `artifact.helio`, and an input and its noise in each of `0.npz` and so on.
    """
    artifact, clock = hg.Artifact.load(Path(folder, "artifact.helio")), time.perf_counter
    begun = clock()
    client = hg.Client(artifact.public())
    keys = client.evaluation_keys()
    keygen_s = clock() - begun
    decrypted, seconds = [], []
    with hg.Server(artifact, keys, backend=backend) as server:
        for number in range(count):
            with np.load(Path(folder, f"{number}.npz"), allow_pickle=False) as file:
                drawn = dict(file)
            sent = client.encrypt(drawn.pop("input"))
            begun = clock()
            output = server.run(sent, plain=drawn)
            seconds.append(clock() - begun)
            decrypted.append(np.asarray(client.decrypt(output, of=sent)))
        floor = server.floor()
        for _ in range(FLOOR_SAMPLES):
            floor.sample()
    return {
        "decrypted": decrypted,
        "seconds": seconds,
        "floor_seconds": floor.milliseconds() / 1e3,
        "keygen_seconds": keygen_s,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def measured(name: str, counts: tuple[int, int, int], place: str, backend: str) -> dict[str, Any]:
    """One setting."""
    folder = Path(place)
    torch.set_num_threads(2)
    setting, clock = SETTINGS[name], time.perf_counter
    certificate, model = setting.certificate(), trained(name, SETTINGS[name], folder)
    x, _, test, labels = inputs_of(name)
    limits = (float(min(x.min(), test.min())), float(max(x.max(), test.max())))
    program = hg.trace(
        model, torch.from_numpy(x[:1].astype(np.float32)), input_range=limits, calibration=x[:4000], name=name
    )
    clear_count, simulated_count, encrypted_count = counts
    # Test inputs that are answered: evenly spread, for the first half of MNIST's is harder. The others are held out.
    asked = np.linspace(0, len(test) - 1, clear_count).astype(int)
    others = np.setdiff1d(np.arange(len(test)), asked)
    held_out = test[others[np.linspace(0, len(others) - 1, min(setting.held_out, len(others))).astype(int)]]
    begun = clock()
    artifact = certify(program, certificate, held_out=held_out, options=setting.options)
    certify_s = clock() - begun
    known = artifact.public().certificate
    assert known is not None
    clear = Smoothed(program, certificate)
    answers = [clear(test[i]) for i in asked]
    right = [answer.label == labels[i] for answer, i in zip(answers, asked, strict=True)]
    certified = [answer.certified for answer in answers]
    radii = [
        hg.Answer(answer.label, answer.votes, answer.certified, known).widest_radius * good
        for answer, good in zip(answers, right, strict=True)
    ]
    rng, report = np.random.default_rng(1), artifact.report.to_dict()

    def noise() -> dict[str, np.ndarray]:
        return {key: draw(kind, shape, rng) for key, (kind, shape) in artifact.drawn_inputs.items()}

    def same(answer: hg.Answer, i: int, drawn: Mapping[str, np.ndarray]) -> bool:
        """Whether the answer is that of the procedure in the clear, which counts votes for the guess too."""
        expected = clear.with_noise(test[i], drawn, by_votes)
        return answer.certified == expected.certified and (not answer.certified or answer.label == expected.label)

    simulated = []
    for number, i in enumerate(asked[:: max(1, len(asked) // max(1, simulated_count))][:simulated_count]):
        drawn = noise()
        simulated.append(
            same(hg.read_answer(artifact, hg.simulate(artifact, test[i], *drawn.values(), seed=number)), i, drawn)
        )
    picked = asked[:: max(1, len(asked) // max(1, encrypted_count))][:encrypted_count]
    noises = [noise() for _ in picked]
    found = {"decrypted": [], "seconds": [], "floor_seconds": None, "keygen_seconds": None, "peak_rss_bytes": None}
    if len(picked):
        # In a process of its own, whose memory is that of a client and a server.
        with tempfile.TemporaryDirectory() as temporary:
            artifact.save(Path(temporary, "artifact.helio"))
            for number, (i, drawn) in enumerate(zip(picked, noises, strict=True)):
                np.savez(Path(temporary, f"{number}.npz"), input=test[i], **drawn)
            found = apart("phoenix:evaluate", temporary, len(picked), backend)
    encrypted = [
        same(hg.read_answer(artifact, np.array(values)), i, drawn)
        for values, i, drawn in zip(found["decrypted"], picked, noises, strict=True)
    ]
    times = found["seconds"]
    return {
        "certified_accuracy": float(np.mean([a and b for a, b in zip(certified, right, strict=True)])),
        "certified": float(np.mean(certified)),
        "accuracy": float(np.mean(right)),
        "average_radius": float(np.mean(radii)),
        "radius": known.radius,
        "images_clear": len(asked),
        "images_simulated": len(simulated),
        "images_encrypted": len(encrypted),
        "same_encrypted": sum(encrypted),
        "same_simulated": sum(simulated),
        "ring": f"2^{report['ring_dim'].bit_length() - 1}",
        "consistency": float(np.mean(encrypted)) if encrypted else None,
        "consistency_simulated": float(np.mean(simulated)) if simulated else None,
        "xi": known.xi,
        "beta_range": known.beta_range,
        "beta_difference": known.beta_difference,
        "held_out": known.held_out,
        "spread": known.spread,
        "difference": known.difference,
        "gap": known.gap,
        "error": known.error,
        "n": known.n,
        "target": known.target,
        "seconds_per_image": statistics.median(times[1:] or times) if times else None,
        "seconds_first": times[0] if times else None,
        "floor_seconds": found["floor_seconds"],
        "predicted_seconds": report["predicted_ms"] / 1e3,
        "certify_seconds": certify_s,
        "keygen_seconds": found["keygen_seconds"],
        "levels": report["levels"],
        "bootstraps": report["bootstraps"],
        "ring_dim": report["ring_dim"],
        "log_pq": report["log_pq"],
        "security_bits": report["security_bits"],
        "evaluation_key_bytes": report["evaluation_key_bytes"],
        "server_peak_bytes": report["server_peak_bytes"],
        "peak_rss_bytes": found["peak_rss_bytes"],
        "published": dict(setting.published),
    }


def picture(path: Path, folder: Path) -> None:
    """Draw certified accuracy against radius, in the clear on 1,000 test images: noise of three sizes, and many copies."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.8), layout="constrained")
    axes = figure.subplots()
    lines = (("mnist_sigma_0.25", 128), ("mnist", 128), ("mnist", 4096), ("mnist_sigma_1.0", 128))
    for name, n in lines:
        setting = SETTINGS[name]
        sigma = setting.certificate().sigma
        # A test at every radius: the widest one that the votes show.
        certificate = hg.Certificate("l2", sigma=sigma, tau=0.52, n=n, n0=32, alpha=0.001)
        x, _, test, labels = inputs_of(name)
        model = trained(name, setting, folder)
        example = torch.from_numpy(x[:1].astype(np.float32))
        clear = Smoothed(hg.trace(model, example, input_range=(0.0, 1.0), name=name), certificate)
        radii = []
        for i in np.linspace(0, len(test) - 1, 1000).astype(int):
            answer = clear(test[i])
            share = share_shown(answer.votes, n, certificate.alpha) - certificate.zeta
            radii.append(certificate.radius_of(share) if answer.label == labels[i] and share > 0.5 else 0.0)
        ends = np.sort(np.unique([radius for radius in radii if radius > 0]))
        shares = [np.mean(np.array(radii) >= end) for end in ends]
        axes.step([0, *ends], [shares[0], *shares], where="pre", label=f"sigma {sigma:g}, {n:,} copies")
    axes.set(xlabel="l2 radius", ylabel="certified accuracy", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)


@benchmark(
    option("--settings", nargs="+", choices=tuple(SETTINGS), default=list(SETTINGS)),
    option("--clear", type=int, help="test inputs answered in the clear"),
    option("--simulated", type=int, help="and on the simulator"),
    option("--encrypted", type=int, help="and encrypted"),
    option("--picture", type=Path, help="draw certified accuracy against radius into this file"),
    BACKEND,
    FOLDER,
    columns={
        "certified_accuracy": "", "certified": "", "radius": "", "accuracy": "", "average_radius": "", "xi": "",
        "seconds_per_image": "s", "floor_seconds": "s", "predicted_seconds": "s", "levels": "", "ring": "",
        "evaluation_key_bytes": "bytes", "peak_rss_bytes": "bytes", "same_encrypted": "", "images_encrypted": "",
        "same_simulated": "", "images_simulated": "",
    },
    data=("mnist.npz", "adult.npz"),
    memory_gb=10,
    minutes=45,
)  # fmt: skip
def phoenix(run: Run) -> None:
    given = run.options
    for name in given.settings:
        setting, asked = SETTINGS[name], (given.clear, given.simulated, given.encrypted)
        counts = tuple(own if one is None else one for one, own in zip(asked, setting.images, strict=True))
        make = partial(apart, "phoenix:measured", name, counts, given.folder, given.backend)
        run.row({"setting": name}, make)
    if given.picture is not None:
        picture(given.picture, given.folder)


if __name__ == "__main__":
    phoenix.main()
