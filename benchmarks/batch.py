"""MNIST for one image and for thousands at once: side by side in the slots, or one image in each slot.

    python benchmarks/batch.py
    python benchmarks/batch.py --networks square --images 10000

For each number of images the batch is planned that takes least time for all of them. What is timed is what would happen
between two machines: the client's part is encryption to bytes and decryption, the server's begins with the bytes. Where one
evaluation is enough it is timed on a server that has evaluated before.
"""

from __future__ import annotations

from common import hg, mnist, once  # first: it imports heliograph before torch

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import BACKEND, FOLDER, Run, apart, benchmark, option, threads_option
from heliograph.errors import PlanningError
from heliograph.tools.measure import FLOOR_SAMPLES, peak_rss_bytes

NETWORKS = {"square": "784-128-10, squares", "relu": "784-512-10, ReLU of degree 15"}
IMAGES = (1, 15, 1_000, 10_000)
# Images at once that are planned; "max" is one in each slot.
BATCHES: tuple[int | str, ...] = (1, 8, 32, "max")
EPOCHS = {"square": 30, "relu": 10}


class Square(torch.nn.Module):
    """The activation that costs least."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def module_of(name: str) -> torch.nn.Sequential:
    if name == "square":
        return torch.nn.Sequential(torch.nn.Linear(784, 128), Square(), torch.nn.Linear(128, 10))
    return torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))


def trained(name: str, folder: Path) -> torch.nn.Module:
    """The network, trained once on images moved by up to a pixel; its weights are kept."""
    torch.manual_seed(1)
    module = module_of(name)
    return once(folder / f"mnist_{name}.npz", module, lambda: fit(name, module))


def fit(name: str, module: torch.nn.Module) -> None:
    """Train the network in place."""
    x, y, _, _ = mnist()
    images = torch.nn.functional.pad(torch.from_numpy(x.reshape(-1, 28, 28)), (1, 1, 1, 1))
    labels, epochs = torch.from_numpy(y), EPOCHS[name]
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * (len(x) // 128))
    for epoch in range(epochs):
        print(f"training {name}: epoch {epoch + 1} of {epochs}", file=sys.stderr)
        order = torch.randperm(len(x))
        for start in range(0, len(x) - 127, 128):
            taken = order[start : start + 128]
            down, right = torch.randint(0, 3, (2,)).tolist()
            moved = images[taken, down : down + 28, right : right + 28].reshape(-1, 784)
            loss = torch.nn.functional.cross_entropy(module(moved), labels[taken], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def plans(name: str, place: str) -> list[Path]:
    """The artifact of each batch that can be planned."""
    folder = Path(place)
    module = trained(name, folder)
    x, _, test, _ = mnist()
    program = hg.trace(
        module, torch.from_numpy(test[:1].reshape(1, 784)), input_range=(0.0, 1.0),
        calibration=x[:512].reshape(-1, 784), name=f"mnist_{name}",
    )  # fmt: skip
    found = []
    for batch in BATCHES:
        try:
            artifact = hg.compile(program, hg.Options(batch=batch))
        except PlanningError as error:
            print(f"{name}, {batch} at once: {error.what}", file=sys.stderr)
            continue
        found.append(folder / f"mnist_{name}-{batch}.helio")
        artifact.save(found[-1])
        report = artifact.report.to_dict()
        print(
            f"{name}, {report['batch']} at once: {report['predicted_ms'] / 1e3:.2f} s predicted, "
            f"{report['predicted_ms'] / report['batch']:.3g} ms an image",
            file=sys.stderr,
        )
    return found


def best_for(artifacts: list[str], images: int) -> str:
    """The one that is predicted to take least time for this many images."""

    def seconds(path: str) -> float:
        report = hg.Artifact.load(path).report.to_dict()
        return float(report["predicted_ms"]) * -(-images // report["batch"])

    return min(artifacts, key=seconds)


def measured(name: str, images: int, path: str, folder: str, backend: str) -> dict[str, Any]:
    """One number of images."""
    artifact = hg.Artifact.load(path)
    _, _, test, labels = mnist()
    x = test[:images].reshape(-1, 784)
    report, clock = artifact.report.to_dict(), time.perf_counter
    begun = clock()
    client = hg.Client(artifact.public())
    keys = client.evaluation_keys().to_bytes()
    keygen = clock() - begun
    outputs, receipts, seconds, client_seconds, upload, floor_ms, first = [], [], [], [], 0, 0.0, None
    with hg.Server(artifact, hg.EvaluationKeys.from_bytes(keys), backend=backend) as server:
        sent = client.encrypt_many(x)
        while True:
            begun = clock()
            encrypted = next(sent, None)
            if encrypted is None:
                break
            bytes_up = encrypted.to_bytes()
            receipts.append(encrypted.receipt())
            client_seconds.append(clock() - begun)
            upload += len(bytes_up)
            if first is None and images <= report["batch"]:
                # Plaintexts are encoded in the first run and kept: what a server does once is timed apart.
                begun = clock()
                server.run(hg.EncryptedInput.from_bytes(bytes_up))
                first = clock() - begun
            begun = clock()
            answer = server.run(hg.EncryptedInput.from_bytes(bytes_up)).to_bytes()
            seconds.append(clock() - begun)
            begun = clock()
            outputs.append(hg.EncryptedOutput.from_bytes(answer))
            client_seconds.append(clock() - begun)
            del bytes_up
        begun = clock()
        logits = np.asarray(client.decrypt_many(outputs, of=receipts))
        client_seconds.append(clock() - begun)
        floor = server.floor()
        for _ in range(FLOOR_SAMPLES):
            floor.sample()
        floor_ms = floor.milliseconds()
    with torch.no_grad():
        clear = trained(name, Path(folder))(torch.from_numpy(test.reshape(-1, 784))).numpy()
    return {
        "batch": report["batch"],
        "accuracy_clear": float((clear.argmax(1) == labels).mean()),
        "accuracy_clear_on_images": float((clear[:images].argmax(1) == labels[:images]).mean()),
        "accuracy_encrypted": float((logits.argmax(1) == labels[:images]).mean()),
        "agreement": float((logits.argmax(1) == clear[:images].argmax(1)).mean()),
        "seconds_evaluation": sum(seconds),
        "seconds_first_evaluation": first,
        "seconds_client": sum(client_seconds),
        "seconds_key_generation": keygen,
        "floor_seconds": floor_ms / 1e3 * len(seconds),
        "predicted_seconds": report["predicted_ms"] / 1e3 * len(seconds),
        "ms_per_image": 1e3 * sum(seconds) / images,
        "key_bytes": len(keys),
        "upload_bytes_per_image": upload / images,
        "peak_rss_bytes": peak_rss_bytes(),
        "ring_dim": report["ring_dim"],
        "log_pq": report["log_pq"],
        "security_bits": report["security_bits"],
    }


@benchmark(
    option("--networks", nargs="*", choices=tuple(NETWORKS), default=list(NETWORKS)),
    option("--images", nargs="*", type=int, default=list(IMAGES)),
    threads_option("of OpenMP and of BLAS"),
    BACKEND,
    FOLDER,
    columns={
        "batch": "at once", "accuracy_clear_on_images": "", "accuracy_encrypted": "", "seconds_evaluation": "s",
        "floor_seconds": "s", "predicted_seconds": "s", "ms_per_image": "ms", "seconds_client": "s", "key_bytes": "bytes",
        "upload_bytes_per_image": "bytes", "peak_rss_bytes": "bytes",
    },
    data=("mnist.npz",),
    memory_gb=8,
    minutes=15,
)  # fmt: skip
def batch(run: Run) -> None:
    given = run.options
    for name in given.networks:
        paths: list[str] = []
        for images in given.images:

            def make(name: str = name, images: int = images, paths: list[str] = paths) -> dict[str, Any]:
                # In a process that ends, and a process for each row.
                paths[:] = paths or apart("batch:plans", name, given.folder, threads=given.threads)
                chosen = best_for(paths, images)
                row = apart("batch:measured", name, images, chosen, given.folder, given.backend, threads=given.threads)
                return dict(row)

            run.row({"network": NETWORKS[name], "images": images}, make)


if __name__ == "__main__":
    batch.main()
