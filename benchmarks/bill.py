"""The bill against the run: ten programs of different size, predicted and measured time, memory and error.

Client and server are processes of their own, started for one program each, so that their peaks are theirs. Wanted: time
within a factor of 1.5, peak memory within 1.3, error within 3 bits. `--json` prints the object only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 6
FACTORS = {"evaluate_ms": 1.5, "keygen_s": 1.5, "compile_s": 1.5, "server_peak_bytes": 1.3, "client_peak_bytes": 1.3}
ERROR_BITS = 3.0


def programs() -> dict[str, tuple[Callable[[], Any], tuple[int, ...], dict[str, Any]]]:
    """Name -> (module, shape of one sample, compiler options). Weights are random: the bill does not depend on training."""
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 10)

        def forward(self, x: Any) -> Any:
            y = nn.functional.gelu(self.first(x))
            return self.last(y + nn.functional.gelu(self.second(y)))

    def mlp(*sizes: int, act: Callable[[], Any] = nn.ReLU) -> Callable[[], Any]:
        def make() -> Any:
            layers: list[Any] = []
            for a, b in itertools.pairwise(sizes):
                layers += [nn.Linear(a, b), act()]
            return nn.Sequential(*layers[:-1])

        return make

    def small_cnn() -> Any:
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))

    def lenet() -> Any:
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(400, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip

    def signal() -> Any:
        return nn.Sequential(nn.Conv1d(1, 4, 5), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 60, 3))

    return {
        "linear 16-4": (mlp(16, 4), (16,), {}),
        "logistic 30-1": (lambda: nn.Sequential(nn.Linear(30, 1), nn.Sigmoid()), (30,), {"degree": 7}),
        "mlp 64-32-10": (mlp(64, 32, 10), (64,), {"degree": 7}),
        "mlp 64-64-32-10 tanh": (mlp(64, 64, 32, 10, act=nn.Tanh), (64,), {"degree": 7}),
        "cnn 8x8": (small_cnn, (1, 8, 8), {"degree": 7}),
        "signal conv1d": (signal, (1, 64), {"degree": 15}),
        "residual gelu 48": (Residual, (48,), {"degree": 15}),
        "mlp 784-128-10": (mlp(784, 128, 10), (784,), {"degree": 15}),
        "mlp 784-512-10": (mlp(784, 512, 10), (784,), {"degree": 15}),
        "lenet 28x28": (lenet, (1, 28, 28), {"degree": 7}),
    }


# ---------------------------------------------------------------------------------- processes of client and server


def _client_encrypt(folder: Path) -> dict[str, Any]:
    from heliograph.artifact.public import PublicArtifact
    from heliograph.runtime.client.client import Client
    from heliograph.tools.measure import peak_rss_bytes

    public = PublicArtifact.load(folder / "public.helio")
    # The library makes its tables with the first context: that is not key generation.
    # Nothing here is secret, and rings without security are measured too.
    client = Client(public, allow_insecure=True)
    begun = time.perf_counter()
    keys = client.evaluation_keys()
    keygen = time.perf_counter() - begun
    keys.save(folder / "keys.helio")
    client.save(folder / "secret.key")
    times = []
    for number, sample in enumerate(np.load(folder / "samples.npy")):
        begun = time.perf_counter()
        encrypted = client.encrypt(sample)
        times.append(time.perf_counter() - begun)
        encrypted.save(folder / f"input{number}.helio")
    return {
        "keygen_s": keygen,
        "encrypt_ms": 1e3 * statistics.median(times),
        "client_peak_bytes": peak_rss_bytes(),
        "sent_key_bytes": (folder / "keys.helio").stat().st_size,
        "sent_input_bytes": (folder / "input0.helio").stat().st_size,
    }


def _server(folder: Path) -> dict[str, Any]:
    from heliograph.artifact.artifact import Artifact
    from heliograph.tools.measure import peak_rss_bytes
    from heliograph.runtime.wire.messages import EncryptedInput, EvaluationKeys
    from heliograph.runtime.server.server import Server

    server = Server(
        Artifact.load(folder / "model.helio"), EvaluationKeys.load(folder / "keys.helio"), allow_insecure=True
    )
    times = []
    for number in range(SAMPLES):
        encrypted = EncryptedInput.load(folder / f"input{number}.helio")
        begun = time.perf_counter()
        output = server.run(encrypted)
        times.append(time.perf_counter() - begun)
        output.save(folder / f"output{number}.helio")
    return {
        "evaluate_ms": 1e3 * statistics.median(times[1:]),
        "first_ms": 1e3 * times[0],
        "server_peak_bytes": peak_rss_bytes(),
        "ms_by_layer": {layer: 1e3 * seconds for layer, seconds in server.trace.by_layer.items()},
    }


def _client_decrypt(folder: Path) -> dict[str, Any]:
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.wire.messages import EncryptedOutput

    client = Client.load(folder / "secret.key", allow_insecure=True)
    times, outputs = [], []
    for number in range(SAMPLES):
        encrypted = EncryptedOutput.load(folder / f"output{number}.helio")
        begun = time.perf_counter()
        outputs.append(np.asarray(client.decrypt(encrypted)))
        times.append(time.perf_counter() - begun)
    np.save(folder / "outputs.npy", np.stack(outputs))
    return {"decrypt_ms": 1e3 * statistics.median(times)}


_ROLES = {"client-encrypt": _client_encrypt, "server": _server, "client-decrypt": _client_decrypt}


def _in_process(role: str, folder: Path) -> dict[str, Any]:
    """The result of one role in a fresh Python."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path[1:]])}
    done = subprocess.run(
        [sys.executable, __file__, "--role", role, "--folder", str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{role} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# ---------------------------------------------------------------------------------- the benchmark


def run_one(name: str, costs: Any) -> dict[str, Any]:
    """Predicted and measured figures of one program."""
    import torch

    import heliograph as hg

    make, shape, chosen = programs()[name]
    torch.manual_seed(3)
    module = make().eval()
    random = np.random.default_rng(5)
    calibration = random.uniform(0, 1, (256, *shape))
    samples = random.uniform(0, 1, (SAMPLES, *shape))
    program = hg.trace(
        module, torch.zeros((1, *shape)), input_range=(0.0, 1.0), calibration=calibration, name=name.replace(" ", "_")
    )
    load = os.getloadavg()[0]
    artifact = hg.compile(program, hg.Options(costs=costs, **chosen))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        artifact.save(folder / "model.helio")
        artifact.public().save(folder / "public.helio")
        np.save(folder / "samples.npy", samples)
        measured: dict[str, Any] = {"compile_s": artifact.compile_s}
        for role in _ROLES:
            measured.update(_in_process(role, folder))
        outputs = np.load(folder / "outputs.npy")
    with torch.no_grad():
        # In double precision: float32's own error is larger than that of encryption.
        exact = module.double()(torch.from_numpy(samples)).numpy()
    means = np.stack([np.asarray(hg.simulate(artifact, sample, noisy=False)) for sample in samples])
    measured["max_abs_error"] = float(np.abs(outputs - exact).max())
    measured["scheme_error"] = float(np.abs(outputs - means).max())
    measured["load_average"] = load
    report = artifact.report.with_measured(measured).to_dict()
    kept = ("ring_dim", "levels", "key_switches", "plaintext_products", "rotation_keys", "operations_by_kind")
    return {
        "name": name,
        **{key: report[key] for key in kept},
        "predicted": report["predicted"],
        "measured": measured,
        "verdict": verdict(report["predicted"], measured),
    }


def verdict(predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Measured over predicted for each figure, the bits between the errors, and whether all are within what is wanted."""
    ratios = {key: measured[key] / predicted[key] for key in FACTORS if predicted.get(key) and measured.get(key)}
    bits = {
        key: math.log2(max(measured[key], 1e-300) / max(predicted[key], 1e-300))
        for key in ("max_abs_error", "scheme_error")
    }
    within = {key: 1 / FACTORS[key] <= ratio <= FACTORS[key] for key, ratio in ratios.items()}
    within |= {key: abs(value) <= ERROR_BITS for key, value in bits.items()}
    return {"ratios": ratios, "error_bits": bits, "within": within}


def table(results: list[dict[str, Any]]) -> str:
    """One line for each program: predicted, measured and their ratio; a star where it is not within what is wanted."""
    lines = [
        f"{'':<22} {'N':>6} {'lev':>3} {'evaluation, ms':>22} {'key generation, s':>22} {'server, MB':>20} "
        f"{'client, MB':>20} {'error, bits':>12} {'encryption':>11}"
    ]
    for result in results:
        p, m, v = result["predicted"], result["measured"], result["verdict"]

        def cell(key: str, scale: float, digits: int, p: Any = p, m: Any = m, v: Any = v) -> str:
            star = " " if v["within"][key] else "*"
            return f"{p[key] * scale:.{digits}f} {m[key] * scale:.{digits}f} x{v['ratios'][key]:.2f}{star}"

        def bits(key: str, v: Any = v) -> str:
            return f"{v['error_bits'][key]:+.1f}{' ' if v['within'][key] else '*'}"

        lines.append(
            f"{result['name']:<22} 2^{result['ring_dim'].bit_length() - 1:<4} {result['levels']:>3} "
            f"{cell('evaluate_ms', 1, 0):>22} {cell('keygen_s', 1, 2):>22} {cell('server_peak_bytes', 1e-6, 0):>20} "
            f"{cell('client_peak_bytes', 1e-6, 0):>20} {bits('max_abs_error'):>12} {bits('scheme_error'):>11}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument("--only", default="", help="programs whose name holds this text")
    parser.add_argument("--calibrate", action="store_true", help="measure the cost table first, and predict with it")
    parser.add_argument("--role", choices=_ROLES, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        print(json.dumps(_ROLES[options.role](options.folder)))
        return
    from common import machine

    from heliograph.artifact.costs import default_costs

    costs = default_costs()
    if options.calibrate:
        from heliograph.tools.measuring.calibrate import calibrate

        found = calibrate()
        costs = (found.get("native") or found["openfhe"]).costs
    load = os.getloadavg()[0]
    results = [run_one(name, costs) for name in programs() if options.only in name]
    figures = list(results[0]["verdict"]["within"])
    summary = {key: sum(result["verdict"]["within"][key] for result in results) for key in figures}
    if not options.json:
        print(table(results))
        print(f"within what is wanted, of {len(results)}: {summary}")
        print(f"costs {costs.machine}; load average {load:.2f}" + (" (a busy machine)" if load > 0.5 else ""))
    print(
        json.dumps(
            {
                "machine": machine(),
                "load_average": load,
                "noisy_machine": load > 0.5,
                "costs": costs.machine,
                "within": summary,
                "programs": results,
            }
        )
    )


if __name__ == "__main__":
    main()
