"""The client beside OpenFHE, in one process and in turns: evaluation keys, encryption, decryption; and bytes and memory.

Rows are artifacts: a network on MNIST (784-512-10, degree 7) and, with `--resnet20`, the pretrained ResNet-20 (a chain that
bootstraps). The seconds of all keys are the sum over their kinds of the median of `--repeats` keys times their number, on
both sides; `written` is one run of ours into a folder, as `keygen` does it, with what the disk takes.
"""

from __future__ import annotations

from common import data, hg, machine, mnist, peak_rss_bytes, train  # first: it imports heliograph

import argparse
import functools
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heliograph.ckks.keys import EvaluationKey
from heliograph.runtime.cryptor.cryptor import Cryptor
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.openfhe.serial import residues_of
from heliograph.runtime.seeded import read_ciphertext


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """The median of some calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def mnist_network() -> hg.Artifact:
    x_train, y_train, _, _ = mnist()
    x_train = x_train.reshape(-1, 784)
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    train(module, x_train, y_train, 1)
    program = hg.trace(module, input_range=(0.0, 1.0), calibration=x_train[:512], name="mnist_mlp")
    return hg.compile(program, hg.Options(degree=7))


def resnet20() -> hg.Artifact:
    import cifar_resnet
    import deep_network

    with np.load(data("cifar10_resnet20_akamaster.npz"), allow_pickle=False) as weights:
        module = cifar_resnet.load(cifar_resnet.NETWORKS[20](), weights)
    images = deep_network.cifar10()
    program = hg.trace(
        module,
        torch.from_numpy(images.test[:1]),
        input_range=images.interval,
        calibration=images.train[: deep_network.CALIBRATION],
        name="resnet20",
    )
    options = hg.Options(
        degree=cifar_resnet.DEGREE,
        margin=cifar_resnet.MARGIN,
        spread=cifar_resnet.SPREAD,
        precision_bits=cifar_resnet.PRECISION_BITS,
    )
    return hg.compile(program, options)


def measured(artifact: hg.Artifact, repeats: int) -> dict[str, Any]:
    """One row."""
    public = artifact.public()
    ours = Cryptor(public.ring)
    theirs = OpenFHECryptor.from_secret_bytes(public.ring, ours.secret_bytes(), ours.tag)
    # Kinds of keys on one chain take the same time; automorphisms differ by their places alone.
    kinds = Counter((key.ring, key.kind if key.kind != "conjugation" else "rotation") for key in public.evaluation_keys)
    example: dict[Any, EvaluationKey] = {}
    for key in public.evaluation_keys:
        example.setdefault((key.ring, key.kind if key.kind != "conjugation" else "rotation"), key)
    totals = {"ours": 0.0, "openfhe": 0.0}
    for kind, count in kinds.items():
        key = example[kind]
        # OpenFHE makes the pair of bootstraps along with other keys, which takes a minute.
        times = 1 if key.kind == "encapsulation" else repeats
        totals["ours"] += count * seconds(functools.partial(ours.evaluation_key_bytes, key), times)
        totals["openfhe"] += count * seconds(functools.partial(theirs.evaluation_key, key), times)
    with tempfile.TemporaryDirectory() as folder:
        before, begun = peak_rss_bytes(), time.perf_counter()
        client = hg.Client(public)
        client.write_evaluation_keys(Path(folder) / "keys", check_memory=False)
        written, peak = time.perf_counter() - begun, peak_rss_bytes()
        sent = sum(file.stat().st_size for file in (Path(folder) / "keys").iterdir())
    (spec, *_) = public.inputs
    level, log_scale = spec.levels[0], spec.log_scales[0]
    values = np.random.default_rng(0).uniform(-1, 1, public.ring.slots)
    answer = read_ciphertext(ours.encrypted_bytes(values, 0, 30.0), public.ring, 0, ours.tag, "an answer")
    theirs_answer = theirs.encrypt(values, 0, 30.0)
    assert residues_of(theirs_answer, public.ring, 0).shape == answer.shape
    calls = {
        "encryption": (
            functools.partial(ours.encrypted_bytes, values, level, log_scale),
            functools.partial(theirs.encrypt, values, level, log_scale),
        ),
        "decryption": (
            functools.partial(ours.decrypted, answer, 30.0),
            functools.partial(theirs.decrypt, theirs_answer, 30.0),
        ),
    }
    row: dict[str, Any] = {
        "ring_dim": public.ring.ring_dim,
        "levels": public.ring.levels,
        "keys": len(public.evaluation_keys),
        "keys_s": totals["ours"],
        "keys_openfhe_s": totals["openfhe"],
        "keys_ratio": totals["ours"] / totals["openfhe"],
        "written_s": written,
        "sent_bytes": sent,
        "peak_before_bytes": before,
        "peak_bytes": peak,
    }
    for name, (own, other) in calls.items():
        mine, its = seconds(own, 4 * repeats), seconds(other, 4 * repeats)
        row |= {f"{name}_ms": 1e3 * mine, f"{name}_openfhe_ms": 1e3 * its, f"{name}_ratio": mine / its}
    return row


def many_images(count: int) -> dict[str, Any]:
    """Encryption of MNIST images, as many in a ciphertext as fit."""
    x_train, y_train, _, _ = mnist()
    x_train = x_train.reshape(-1, 784)
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    train(module, x_train, y_train, 1)
    program = hg.trace(module, input_range=(0.0, 1.0), calibration=x_train[:512], name="mnist_batch")
    artifact = hg.compile(program, hg.Options(degree=7, batch="max"))
    client = hg.Client(artifact.public())
    list(client.encrypt_many(x_train[:64]))
    begun = time.perf_counter()
    sent = sum(len(each.to_bytes()) for each in client.encrypt_many(x_train[:count]))
    return {
        "images": count,
        "seconds": time.perf_counter() - begun,
        "sent_bytes": sent,
        "ring_dim": artifact.ring.ring_dim,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resnet20", action="store_true", help="ResNet-20 too: some minutes, 4 GB on the disk")
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5, help="of each kind of key")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "load_average": os.getloadavg()[0], "rows": {}}
    makers = {"mnist": mnist_network} | ({"resnet20": resnet20} if options.resnet20 else {})
    for name, make in makers.items():
        result["rows"][name] = measured(make(), options.repeats)
    result["images"] = many_images(options.images)
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['machine']}; load average {result['load_average']:.1f}\n")
    print(f"{'':<10}{'keys':>6}{'ours, s':>9}{'OpenFHE, s':>12}{'ratio':>7}{'sent, MB':>10}{'peak, MB':>10}")
    for name, row in result["rows"].items():
        print(
            f"{name:<10}{row['keys']:>6}{row['keys_s']:>9.2f}{row['keys_openfhe_s']:>12.2f}{row['keys_ratio']:>7.2f}"
            f"{row['sent_bytes'] / 1e6:>10.0f}{row['peak_bytes'] / 1e6:>10.0f}"
        )
    print(f"\n{'':<10}{'':<12}{'ours, ms':>10}{'OpenFHE, ms':>13}{'ratio':>7}")
    for name, row in result["rows"].items():
        for what in ("encryption", "decryption"):
            print(
                f"{name:<10}{what:<12}{row[f'{what}_ms']:>10.2f}{row[f'{what}_openfhe_ms']:>13.2f}"
                f"{row[f'{what}_ratio']:>7.2f}"
            )
    images = result["images"]
    print(f"\n{images['images']} images encrypted in {images['seconds']:.2f} s, {images['sent_bytes'] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
