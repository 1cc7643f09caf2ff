"""The client beside OpenFHE, in one process and in turns: evaluation keys, encryption, decryption; and bytes and memory.

Rows are artifacts: a network on MNIST (784-512-10, degree 7) and, with `--resnet20`, the pretrained ResNet-20 (a chain that
bootstraps). The seconds of all keys are the sum over their kinds of the median of `--repeats` keys times their number, on
both sides to the bytes that are sent; `written_s` is one run of ours into a folder, as `keygen` does it, with the disk's
time, in a process of its own, whose peak of memory above what it held before is `beside_bytes`. Decryption is of the slots
that the artifact's client reads, as it calls it; OpenFHE adds its noise to all slots.
"""

from __future__ import annotations

from common import hg, mnist, mnist_mlp  # first: it imports heliograph before torch

import functools
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness import Run, apart, benchmark, fresh_peak, option, peak
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.openfhe.serial import serialize
from heliograph.runtime.wire.forms import read_ciphertext
from heliograph.tools.measuring.turns import medians_ms


def mnist_network(hidden: int, **options: Any) -> hg.Artifact:
    """784-hidden-10 with a ReLU of degree 7."""
    calibration = mnist()[0][:512].reshape(-1, 784)
    program = hg.trace(mnist_mlp(hidden, 1), input_range=(0.0, 1.0), calibration=calibration, name="mnist")
    return hg.compile(program, hg.Options(degree=7, **options))


def resnet20() -> hg.Artifact:
    from models import cifar

    return cifar.compiled("resnet20")


def written(make: Callable[..., Any], *arguments: Any) -> bytes:
    """What OpenFHE makes, as the bytes that it would send; ours are made as bytes."""
    return serialize(make(*arguments))


def kind_of(key: EvaluationKey) -> tuple[Ring, str]:
    """Keys of one kind take the same time: automorphisms differ by their places alone."""
    return key.ring, "rotation" if key.kind == "conjugation" else key.kind


def keys_written(folder: str) -> dict[str, Any]:
    """Seconds, bytes and memory of all keys of the public artifact in a folder."""
    client = hg.Client(hg.PublicArtifact.load(Path(folder) / "public"))
    # Kernels are compiled or loaded, and what that took is forgotten.
    client.encrypt(np.zeros(client.public.inputs[0].shape))
    held, begun = fresh_peak(), time.perf_counter()
    client.write_evaluation_keys(Path(folder) / "keys", check_memory=False)
    seconds = time.perf_counter() - begun
    return {
        "written_s": seconds,
        "sent_bytes": sum(file.stat().st_size for file in (Path(folder) / "keys").iterdir()),
        "beside_bytes": peak() - held,
    }


def measured(artifact: hg.Artifact, repeats: int) -> dict[str, Any]:
    """One row."""
    public = artifact.public()
    ours = Cryptor(public.ring)
    theirs = OpenFHECryptor.from_secret_bytes(public.ring, ours.secret_bytes(), ours.tag)
    # OpenFHE makes the keys of the sparse secret inside its own bootstraps alone.
    both = [key for key in public.evaluation_keys if key.kind != "encapsulation"]
    counts = Counter(map(kind_of, both))
    totals, sent = {"ours": 0.0, "openfhe": 0.0}, 0
    for kind, key in {kind_of(key): key for key in both}.items():
        calls = {
            "ours": functools.partial(ours.evaluation_key_bytes, key),
            "openfhe": functools.partial(written, theirs.evaluation_key, key),
        }
        sent += counts[kind] * len(calls["openfhe"]())
        for name, milliseconds in medians_ms(calls, repeats).items():
            totals[name] += 1e-3 * counts[kind] * milliseconds
    with tempfile.TemporaryDirectory() as folder:
        public.save(Path(folder) / "public")
        in_folder = apart("keys:keys_written", folder)
    (spec, *_), (read, *_) = public.inputs, public.outputs
    level, log_scale = spec.levels[0], spec.log_scales[0]
    values = np.random.default_rng(0).uniform(-1, 1, public.ring.slots)
    answer = read_ciphertext(ours.encrypted_bytes(values, 0, 30.0), public.ring, 0, ours.tag, "an answer")
    calls = {
        "encryption_ms": functools.partial(ours.encrypted_bytes, values, level, log_scale),
        "encryption_openfhe_ms": functools.partial(written, theirs.encrypt, values, level, log_scale),
        "decryption_ms": functools.partial(ours.decrypted, answer, 30.0, read.placed.first_copy),
        "decryption_openfhe_ms": functools.partial(theirs.decrypt, theirs.encrypt(values, 0, 30.0), 30.0),
    }
    return {
        "ring_dim": public.ring.ring_dim,
        "levels": public.ring.levels,
        "keys": len(public.evaluation_keys),
        "keys_s": totals["ours"],
        "keys_openfhe_s": totals["openfhe"],
        "keys_ratio": totals["ours"] / totals["openfhe"],
        "sent_openfhe_bytes": sent,
        **in_folder,
        **(times := medians_ms(calls, 4 * repeats)),
        **{f"{what}_ratio": times[f"{what}_ms"] / times[f"{what}_openfhe_ms"] for what in ("encryption", "decryption")},
    }


def many_images(count: int) -> dict[str, float]:
    """Encryption of MNIST images, as many in a ciphertext as fit."""
    artifact = mnist_network(64, batch="max")
    images = mnist()[0].reshape(-1, 784)
    client = hg.Client(artifact.public())
    list(client.encrypt_many(images[:64]))
    begun = time.perf_counter()
    sent = sum(len(each.to_bytes()) for each in client.encrypt_many(images[:count]))
    return {"images_s": time.perf_counter() - begun, "images_bytes": sent}


@benchmark(
    option("--resnet20", action="store_true", selects=True, help="ResNet-20 too: some minutes, 4 GB on the disk"),
    option("--repeats", type=int, default=5, help="of each kind of key"),
    option(
        "--images",
        type=int,
        default=4096,
        selects=True,
        help="that are encrypted at once, for another network on MNIST",
    ),
    data=("mnist.npz",),
    packages=("openfhe",),
    memory_gb=2,
    minutes=1,
)
def keys(run: Run) -> None:
    makers: dict[str, Callable[[], hg.Artifact]] = {"mnist": functools.partial(mnist_network, 512)}
    if run.options.resnet20:
        makers["resnet20"] = resnet20
    for name, make in makers.items():
        run.row({"artifact": name}, lambda make=make: measured(make(), run.options.repeats))  # type: ignore[misc]
    run.row({"images": run.options.images}, lambda: many_images(run.options.images))


if __name__ == "__main__":
    keys.main()
