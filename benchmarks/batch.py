"""MNIST for one image and for thousands at once: side by side in the slots, or one image in each slot.

    python benchmarks/batch.py
    python benchmarks/batch.py --networks square --images 10000 --json

For each number of images the batch is planned that takes least time for all of them. What is timed is what would happen
between two machines: the client's part is encryption to bytes and decryption, the server's begins with the bytes. Where one
evaluation is enough it is timed on a server that has evaluated before.
"""

from __future__ import annotations

from common import ROOT, backend_argument, data, hg, machine, mnist  # first: it imports heliograph  # isort: skip

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heliograph.errors import PlanningError
from heliograph.tools.measure import FLOOR_SAMPLES, peak_rss_bytes

NETWORKS = ("square", "relu")
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


def trained(name: str, folder: Path) -> torch.nn.Sequential:
    """The network, trained once on images moved by up to a pixel; its weights are kept."""
    module, path = module_of(name), folder / f"mnist_{name}.pt"
    if path.exists():
        module.load_state_dict(torch.load(path, weights_only=True))
        return module.eval()
    x, y, _, _ = mnist()
    images = torch.nn.functional.pad(torch.from_numpy(x.reshape(-1, 28, 28)), (1, 1, 1, 1))
    labels, epochs = torch.from_numpy(y), EPOCHS[name]
    torch.manual_seed(1)
    module = module_of(name)
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
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(module.state_dict(), path)
    return module.eval()


def plans(name: str, folder: Path, threads: int) -> dict[str, bytes]:
    """The artifact of each batch that can be planned."""
    torch.set_num_threads(threads)
    module = trained(name, folder)
    x, _, test, _ = mnist()
    program = hg.trace(
        module, torch.from_numpy(test[:1].reshape(1, 784)), input_range=(0.0, 1.0),
        calibration=x[:512].reshape(-1, 784), name=f"mnist_{name}",
    )  # fmt: skip
    found = {}
    for batch in BATCHES:
        try:
            artifact = hg.compile(program, hg.Options(batch=batch))
        except PlanningError as error:
            print(f"{name}, {batch} at once: {error.what}", file=sys.stderr)
            continue
        found[str(batch)] = artifact.to_bytes()
        report = artifact.report.to_dict()
        print(
            f"{name}, {report['batch']} at once: {report['predicted_ms'] / 1e3:.2f} s predicted, "
            f"{report['predicted_ms'] / report['batch']:.3g} ms an image",
            file=sys.stderr,
        )
    return found


def best_for(artifacts: dict[str, bytes], images: int) -> hg.Artifact:
    """The one that is predicted to take least time for this many images."""
    loaded = [hg.Artifact.from_bytes(data) for data in artifacts.values()]

    def seconds(artifact: hg.Artifact) -> float:
        report = artifact.report.to_dict()
        return float(report["predicted_ms"]) * -(-images // report["batch"])

    return min(loaded, key=seconds)


def run(name: str, images: int, data_: bytes, folder: Path, backend: str) -> dict[str, Any]:
    """One number of images, in a process of its own."""
    artifact = hg.Artifact.from_bytes(data_)
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
        clear = trained(name, folder)(torch.from_numpy(test.reshape(-1, 784))).numpy()
    return {
        "network": name,
        "images": images,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--images", nargs="*", type=int, default=list(IMAGES))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of OpenMP and of BLAS")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "benchmarks", help="where weights are kept")
    backend_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    data("mnist.npz")
    context, runs = multiprocessing.get_context("spawn"), []
    for name in options.networks:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            artifacts = pool.submit(plans, name, options.folder, options.threads).result()
        for images in options.images:
            chosen = best_for(artifacts, images).to_bytes()
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                found = pool.submit(run, name, images, chosen, options.folder, options.backend).result()
            runs.append(found)
            if not options.json:
                print(
                    f"{name:7} {images:6} images, {found['batch']:5} at once: {found['seconds_evaluation']:.2f} s "
                    f"({found['ms_per_image']:.3g} ms an image, floor {found['floor_seconds']:.2f} s), client "
                    f"{found['seconds_client']:.2f} s, keys {found['key_bytes'] / 1e6:.2f} MB, up "
                    f"{found['upload_bytes_per_image'] / 1e3:.0f} kB an image, peak {found['peak_rss_bytes'] / 1e9:.2f} GB, "
                    f"accuracy {found['accuracy_encrypted']:.4f} ({found['accuracy_clear_on_images']:.4f} in the clear)",
                    flush=True,
                )
    result = {"machine": machine(), "backend": options.backend, "load_average": os.getloadavg()[0], "runs": runs}
    print(json.dumps(result) if options.json else f"{result['machine']}, load average {result['load_average']:.2f}")


if __name__ == "__main__":
    main()
