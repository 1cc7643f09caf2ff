"""Two versions of the package on the same networks, in turns: how much faster, smaller and more exact one is.

    git worktree add ../before 783a41d
    python benchmarks/versions.py --before ../before
    python benchmarks/versions.py --before ../before --networks --primitives

Each version compiles a network by itself, in a process of its own, and holds client, keys and server in another one. Then
they evaluate the same encrypted samples in turns, so that a machine whose speed changes slows both; where other work takes
its share, the ratio of the processor's seconds says more. The first run of each, which encodes plaintexts, is not counted.
Floors are measured at the end, and errors are those against the float network.

Of primitives, each version holds the keys of a ring, and both make the same calls in turns, at the top, in the middle and at
the end of the chain, with one thread and with two.
"""

from __future__ import annotations

from common import hg, mnist, mnist_mlp, once  # first: it imports heliograph before torch

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import primitives
from harness import BUILD, HERE, ROOT, Run, Skip, benchmark, cores, option
from heliograph.ckks.ring import Ring
from heliograph.ir import Builder, Stage


CERTIFICATE = hg.Certificate("l2", sigma=0.5, tau=0.76, n=128, n0=32, alpha=0.001)


class Network(NamedTuple):
    """What is compared: a compiled artifact, the inputs of samples, and what the float network makes of each."""

    artifact: hg.Artifact
    samples: np.ndarray
    clear: np.ndarray


def scores(module: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(module(torch.from_numpy(x)).numpy())


def digits() -> tuple[torch.nn.Module, np.ndarray, np.ndarray]:
    """The MLP 784-512-10, trained once, and the images that calibrate and that are classified."""
    x_train, _, x_test, _ = mnist()
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    once(BUILD / "versions-mlp.npz", module, lambda: module.load_state_dict(mnist_mlp(512, 3).state_dict()))
    return module, x_train.reshape(-1, 784), x_test.reshape(-1, 784)


def traced() -> tuple[hg.Program, torch.nn.Module, np.ndarray]:
    module, x_train, x_test = digits()
    program = hg.trace(
        module, torch.from_numpy(x_test[:1]), input_range=(0.0, 1.0), calibration=x_train[:512], name="mlp"
    )
    return program, module, x_test


def mlp() -> Network:
    """The MLP 784-512-10, one image."""
    program, module, x = traced()
    return Network(hg.compile(program, hg.Options(degree=15)), x[:4], scores(module, x[:4]))


def mlp_batch() -> Network:
    """The same, one image in each slot."""
    program, module, x = traced()
    artifact = hg.compile(program, hg.Options(degree=15, batch="max"))
    together = x[: artifact.report.to_dict()["batch"]]
    return Network(artifact, together[None], scores(module, together)[None])


def lenet() -> Network:
    """LeNet on an image of MNIST, its weights drawn."""
    from small_networks import LeNet

    x_train, _, x_test, _ = mnist()
    torch.manual_seed(1)
    module, x_train, x_test = LeNet().eval(), x_train[:, None], x_test[:, None]
    program = hg.trace(
        module, torch.from_numpy(x_test[:1]), input_range=(0.0, 1.0), calibration=x_train[:512], name="lenet"
    )
    return Network(hg.compile(program, hg.Options(degree=15)), x_test[:4], scores(module, x_test[:4]))


def resnet18() -> Network:
    """ResNet-18 on an image of 64x64, its weights drawn."""
    from models.resnet18 import drawn

    module, images = drawn(64, 64, stem=False)
    program = hg.trace(module, images[:1], input_range=(-2.0, 2.0), calibration=images[:32].numpy(), name="resnet18")
    x = images[32:34].numpy()
    return Network(hg.compile(program, hg.Options(degree=15, margin=0.5)), x, scores(module, x))


def argmax() -> Network:
    """The MLP with its argmax."""
    program, module, x = traced()
    logits = scores(module, x[:512])
    artifact = hg.compile(hg.top1(program, gap=1e-3 * float(np.ptp(logits))), hg.Options(degree=15))
    return Network(artifact, x[:4], np.eye(10)[logits[:4].argmax(1)])


def softmax() -> Network:
    """Softmax of 10 columns in [-32, 32], 2,048 rows."""
    builder = Builder("softmax", Stage.TENSOR)
    x = builder.input("x", shape=(10, 2048), low=-32.0, high=32.0)
    program = builder.finish({"y": builder.op("softmax", (x,), axis=0)})
    sample = np.random.default_rng(0).uniform(-32, 32, size=(10, 2048))
    exact = np.exp(sample - sample.max(axis=0))
    artifact = hg.compile(program, hg.Options(log_ring=16, target_error=1e-3))
    return Network(artifact, sample[None], (exact / exact.sum(axis=0))[None])


def smoothed() -> torch.nn.Module:
    """The perceptron of phoenix.py, trained with noise once."""
    from heliograph.certified.train import perceptron, train

    x, y, _, _ = mnist()
    torch.manual_seed(0)
    model, x = perceptron(784, 32, 10), x.reshape(-1, 784)
    path = BUILD / "phoenix_mnist.npz"
    return once(path, model, lambda: train(model, x, y, CERTIFICATE, epochs=40, rate=0.01))


def certified() -> Network:
    """A certified answer on MNIST: 128 copies of the smoothed perceptron."""
    model, (x, _, test, _) = smoothed(), mnist()
    x, test = x.reshape(-1, 784), test.reshape(-1, 784)
    program = hg.trace(model, torch.from_numpy(x[:1]), input_range=(0.0, 1.0), calibration=x[:4000], name="mnist")
    artifact = hg.certify(program, CERTIFICATE, held_out=test[1000:])
    # Answers depend on the noise: there is no error to measure.
    return Network(artifact, test[:2], np.empty(0))


def resnet(name: str) -> Network:
    from models import cifar

    images = cifar.cifar10()
    module, x = cifar.pretrained(name), images.test[:10]
    return Network(
        hg.compile(cifar.traced(name, module, images), cifar.chosen(cifar.NETWORKS[name])), x, scores(module, x)
    )


def resnet20() -> Network:
    """ResNet-20, pretrained, one image of CIFAR-10."""
    return resnet("resnet20")


def resnet32() -> Network:
    """ResNet-32, pretrained, one image of CIFAR-10."""
    return resnet("resnet32")


def transformer() -> Network:
    """Two layers of attention on eight words of a review."""
    from encrypted_models import network

    module, images = network({"network": "transformer", "folder": BUILD})
    x = images.test[:2]
    program = hg.trace(
        module, torch.from_numpy(x[:1]), input_range=images.interval, calibration=images.train[:512], name="transformer"
    )
    return Network(hg.compile(program, hg.Options(memory_bytes=11 * 10**9)), x, scores(module, x))


NETWORKS: dict[str, Callable[[], Network]] = {
    function.__name__: function
    for function in (mlp, mlp_batch, lenet, argmax, softmax, certified, transformer, resnet20, resnet32, resnet18)
}
DATA = ("mnist.npz", "imdb_tokens_top10k.npz", "cifar10_subset.npz", "cifar10_resnet20_akamaster.npz")


# Those of primitives.py, and one that bootstraps in words.
RINGS = (*primitives.RINGS, Ring(15, 34, 30, 20, 3, None))
# Of a row; None for what it does not have.
COLUMNS = {
    "ratio": "", "processor_ratio": "", "seconds_before": "s", "seconds_after": "s", "floor_s_after": "s",
    "keys_s_before": "s", "keys_s_after": "s", "compile_s_before": "s", "compile_s_after": "s",
    "peak_rss_bytes_before": "bytes", "peak_rss_bytes_after": "bytes", "error_before": "", "error_after": "",
}  # fmt: skip


# ------------------------------------------------------------------------------------------- in the processes of a version


def build(name: str, folder: Path) -> None:
    """Compile a network into a folder."""
    begun = time.perf_counter()
    made = NETWORKS[name]()
    made.artifact.save(folder / "artifact.helio")
    np.savez(folder / "samples.npz", samples=made.samples, clear=made.clear)
    report = made.artifact.report.to_dict()
    kept = ("predicted_ms", "ring_dim", "log_pq", "levels", "bootstraps", "security_bits", "evaluation_key_bytes")
    figures = {name: report[name] for name in kept} | {"compile_s": made.artifact.compile_s}
    print(json.dumps(figures | {"build_s": time.perf_counter() - begun}))


def evaluate(folder: Path) -> None:
    """Hold client and server; for each line of the input answer with one line: a sample's run, or the floor."""
    from heliograph.tools.measure import peak_rss_bytes

    clock = time.perf_counter
    artifact = hg.Artifact.load(folder / "artifact.helio")
    with np.load(folder / "samples.npz", allow_pickle=False) as file:
        samples, clear = file["samples"], file["clear"]
    client, begun = hg.Client(artifact.public()), clock()
    keys = client.write_evaluation_keys(folder / "keys")
    print(json.dumps({"keys_s": clock() - begun}), flush=True)
    with hg.Server(artifact, keys) as server:
        for line in sys.stdin:
            if line.strip() == "floor":
                floor = server.floor()
                for _ in range(3):
                    floor.sample()
                print(
                    json.dumps({"floor_s": floor.milliseconds() / 1e3, "peak_rss_bytes": peak_rss_bytes()}), flush=True
                )
                continue
            number = int(line) % len(samples)
            begun = clock()
            sent = client.encrypt(samples[number])
            encrypted, worked = clock(), time.process_time()
            output = server.run(sent)
            run, worked = clock(), time.process_time() - worked
            values = np.asarray(client.decrypt(output))
            entry = {
                "seconds": run - encrypted,
                "processor_s": worked,
                "encrypt_s": encrypted - begun,
                "decrypt_s": clock() - run,
            }
            if len(clear):
                entry["error"] = float(np.abs(values - clear[number]).max())
                entry["same"] = float((values.argmax(-1) == clear[number].argmax(-1)).mean())
            print(json.dumps(entry), flush=True)


def call(fields: list[int | None]) -> None:
    """Hold the keys of a ring; for each line `primitive level` answer with the milliseconds of a call."""
    try:
        from heliograph.tools.measuring.beside import AMOUNT, beside, sample_values
    except ModuleNotFoundError:
        # Where it was at 783a41d.
        from heliograph.runtime.beside import AMOUNT, beside, sample_values  # type: ignore[import-not-found,no-redef]

    ring = Ring(*fields)  # type: ignore[arg-type]
    repeats, ready = primitives.REPEATS[ring.log_ring], {}
    with beside(ring) as made:
        do, encrypted = made.backends()["native"]
        values = sample_values(ring)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            name, level = line.split()[0], int(line.split()[1])
            if (name, level) not in ready:
                ready[name, level] = primitives.ready(do, name, encrypted(values, level), ring, level, AMOUNT)
                ready[name, level]()
            spent = []
            for _ in range(repeats):
                begun = time.perf_counter()
                ready[name, level]()
                spent.append(time.perf_counter() - begun)
            print(json.dumps({"ms": 1e3 * statistics.median(spent) / primitives.PRIMITIVES[name].calls}), flush=True)


class Version:
    """A checkout of the package: processes that import it."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout.resolve()
        if not (self.checkout / "heliograph" / "__init__.py").exists():
            raise Skip(f"{checkout} is not a checkout of the package")
        self._running: subprocess.Popen[str] | None = None

    def _process(self, *words: str, threads: int | None = None) -> subprocess.Popen[str]:
        path = os.pathsep.join(map(str, (self.checkout, HERE)))
        few = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
        return subprocess.Popen(
            [sys.executable, str(HERE / "versions.py"), *words], env={**os.environ, "PYTHONPATH": path, **few},
            cwd=self.checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def build(self, name: str, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        self._running = self._process("build", name, str(folder))
        answer = self.answer()
        self.close()
        return answer

    def start(self, folder: Path) -> dict[str, Any]:
        self._running = self._process("evaluate", str(folder))
        return self.answer()

    def hold(self, ring: Ring, threads: int) -> None:
        """Hold the keys of a ring."""
        fields = ring.log_ring, ring.first_mod_bits, ring.scale_bits, ring.levels, ring.digits, ring.security_bits
        self._running = self._process("call", json.dumps(fields), threads=threads)
        self.answer()

    def ask(self, line: object) -> dict[str, Any]:
        assert self._running is not None
        assert self._running.stdin is not None
        self._running.stdin.write(f"{line}\n")
        self._running.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next line of the process that is an object; other lines are what the package prints."""
        assert self._running is not None
        assert self._running.stdout is not None
        for line in self._running.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"{self.checkout}: the process ended with {self._running.wait()}")

    def close(self) -> None:
        if self._running is not None:
            assert self._running.stdin is not None
            self._running.stdin.close()
            self._running.wait()
            self._running = None


def compiled(name: str, before: Version, after: Version, say: Any) -> dict[str, Any]:
    """The figures of both versions on compiling one network."""
    result: dict[str, Any] = dict.fromkeys(COLUMNS)
    for which, version in (("before", before), ("after", after)):
        with tempfile.TemporaryDirectory(dir=BUILD) as temporary:
            result[which] = version.build(name, Path(temporary, which))
        result[f"compile_s_{which}"] = result[which]["compile_s"]
        say(f"{name}, {which}: {result[which]}")
    return result


def compared(name: str, before: Version, after: Version, rounds: int, say: Any) -> dict[str, Any]:
    """The figures of both versions on one network."""
    versions = {"before": before, "after": after}
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=BUILD) as temporary:
        try:
            for which, version in versions.items():
                folder = Path(temporary, which)
                result[which] = version.build(name, folder)
                result[which] |= version.start(folder)
                result[which]["first_s"] = version.ask(0)["seconds"]
                say(f"{name}, {which}: {result[which]}")
            runs: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
            for number in range(rounds):
                for which, version in versions.items():
                    runs[which].append(version.ask(number))
                say(f"{name}: " + ", ".join(f"{which} {runs[which][-1]['seconds']:.3g} s" for which in versions))
            for which, version in versions.items():
                for figure in runs[which][0]:
                    best = max if figure == "error" else min if figure == "same" else statistics.median
                    result[which][figure] = best(run[figure] for run in runs[which])
                result[which] |= version.ask("floor")
        finally:
            for version in versions.values():
                version.close()
    for ratio, figure in (("ratio", "seconds"), ("processor_ratio", "processor_s")):
        pairs = zip(runs["before"], runs["after"], strict=True)
        result[ratio] = statistics.median(after[figure] / before[figure] for before, after in pairs)
    for column in (
        "seconds",
        "floor_s",
        "keys_s",
        "compile_s",
        "peak_rss_bytes",
        "evaluation_key_bytes",
        "error",
        "same",
    ):
        for which in versions:
            result[f"{column}_{which}"] = result[which].get(column)
    return result


def compared_calls(ring: Ring, threads: int, before: Version, after: Version, rounds: int) -> dict[str, Any]:
    """The times of both versions' primitives, over each other."""
    levels = sorted({ring.levels, ring.levels // 2, 1}, reverse=True)
    calls, both = [f"{name} {level}" for level in levels for name in primitives.NAMES], (before, after)
    try:
        for version in both:
            version.hold(ring, threads)
        times: dict[str, tuple[list[float], list[float]]] = {each: ([], []) for each in calls}
        for _ in range(rounds):
            for each in calls:
                for version, found in zip(both, times[each], strict=True):
                    found.append(version.ask(each)["ms"])
    finally:
        for version in both:
            version.close()
    ratios = {each: statistics.median(new) / statistics.median(old) for each, (old, new) in times.items()}
    by_name = {
        name: statistics.geometric_mean(ratio for each, ratio in ratios.items() if each.split()[0] == name)
        for name in primitives.NAMES
    }
    return {"ratio": statistics.geometric_mean(ratios.values()), **by_name, "times_ms": times}


@benchmark(
    option("--before", type=Path, help="a checkout of the version to compare with"),
    option("--primitives", action="store_true", selects=True, help="compare primitives too"),
    option("--networks", nargs="*", choices=tuple(NETWORKS), default=list(NETWORKS), selects=True),
    option("--rounds", type=int, default=5, help="0: only compile"),
    columns=COLUMNS,
    data=DATA,
    memory_gb=20,
    minutes=60,
    runs=(),
)  # fmt: skip
def versions(run: Run) -> None:
    given = run.options
    if given.before is None:
        raise Skip("--before names the checkout of another version")
    BUILD.mkdir(parents=True, exist_ok=True)
    before, after = Version(given.before), Version(ROOT)
    for threads in sorted({1, cores()}) if given.primitives else ():
        for ring in RINGS:
            run.row(
                {"log_ring": ring.log_ring, "scale_bits": ring.scale_bits, "threads": threads},
                lambda ring=ring, threads=threads: {  # type: ignore[misc]
                    **dict.fromkeys(COLUMNS), **compared_calls(ring, threads, before, after, given.rounds)
                },
            )  # fmt: skip
    if given.networks:
        # Trained here, once, for both.
        digits()
        smoothed()
    for name in given.networks:
        if given.rounds:
            run.row({"network": name}, lambda name=name: compared(name, before, after, given.rounds, run.say))  # type: ignore[misc]
        else:
            run.row(
                {"network": name, "part": "compiled"}, lambda name=name: compiled(name, before, after, run.say)  # type: ignore[misc]
            )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        build(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["evaluate"]:
        evaluate(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["call"]:
        call(json.loads(sys.argv[2]))
    else:
        versions.main()
