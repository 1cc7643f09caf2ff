"""Benchmarks keep their results one by one, go on where they stood, and print one JSON object."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import numpy as np
import pytest
import torch

from heliograph.interpret import interpret_many

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import common
import deep_network
import encrypted_images
from results import Results, write


def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path / "images.json")
    assert results.missing(3) == [0, 1, 2]
    results.add(0, {"scores": [0.1, -1e-300]})
    results.add(2, {"scores": [1.0]})
    again = Results(tmp_path / "images.json")
    assert again.missing(4) == [1, 3]
    assert again.first(1) == [{"scores": [0.1, -1e-300]}]

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    # Killed while it writes: the file is as it was.
    monkeypatch.setattr("os.fsync", stopped)
    with pytest.raises(KeyboardInterrupt):
        again.add(1, {"scores": [2.0] * 1000})
    monkeypatch.undo()
    assert Results(tmp_path / "images.json").missing(4) == [1, 3]
    write(tmp_path / "images.json", {"5": {}})
    assert Results(tmp_path / "images.json").missing(6) == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def compiled() -> tuple[hg.Artifact, hg.Program, np.ndarray]:
    """A small artifact, its polynomials, and three images."""
    text = "program net\ninput x: secret tensor[4] in [-1, 1]\noutput y = relu(x * 0.5) with degree = 3\n"
    seen: dict[str, hg.Program] = {}
    artifact = hg.compile(hg.parse(text), hg.Options(security_bits=None, log_ring=11), watch=seen.__setitem__)
    return artifact, seen["fold-scaling"], np.random.default_rng(0).uniform(-1, 1, size=(3, 4))


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The cores that processes were restricted to; this one is not."""
    found: list[list[int]] = []
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cores: found.append(list(cores)))
    return found


@pytest.fixture
def folder(compiled: tuple[hg.Artifact, hg.Program, np.ndarray], tmp_path: Path) -> Path:
    """What `encrypted_images.py` begins with."""
    artifact, _, images = compiled
    artifact.save(tmp_path / "artifact.helio")
    np.save(tmp_path / "images.npy", images)
    return tmp_path


def test_encrypted_images_go_on_after_being_stopped(
    compiled: tuple[hg.Artifact, hg.Program, np.ndarray],
    folder: Path,
    cores: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, polynomial, images = compiled
    done = []
    run = encrypted_images.run

    def stopped(client: hg.Client, server: hg.Server, image: np.ndarray) -> object:
        done.append(client.id)
        if len(done) == 2:
            raise KeyboardInterrupt
        return run(client, server, image)

    monkeypatch.setattr(encrypted_images, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        encrypted_images.main(folder, 3, 1)
    assert Results(folder / "encrypted-native-1.json").missing(3) == [1, 2]
    encrypted_images.main(folder, 3, 1)
    # The same key, and no image twice.
    assert len(done) == 4
    assert len(set(done)) == 1
    summary = json.loads((folder / "encrypted-native-1.summary.json").read_text())
    (expected,) = interpret_many(polynomial, [images])
    np.testing.assert_allclose([entry["scores"] for entry in summary["images"]], expected, atol=1e-3)
    assert summary["floor_seconds"] == pytest.approx(sum(summary["floor_by_kind"].values()))
    assert summary["floor_seconds"] > 0
    assert [entry["first"] for entry in summary["images"]] == [True, True, False]
    assert summary["seconds"] == summary["images"][2]["seconds"]
    # One thread is one core: a thread encodes ahead beside those of OpenMP.
    assert cores == [[min(os.sched_getaffinity(0))]] * 2
    # Nothing is left to do: no key is made, no server started.
    monkeypatch.setattr(encrypted_images, "the_client", None)
    encrypted_images.main(folder, 3, 1)


def test_the_floor_is_measured_after_a_stop_behind_the_last_image(
    compiled: tuple[hg.Artifact, hg.Program, np.ndarray],
    folder: Path,
    cores: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    floor, measured = encrypted_images.floor, []

    def stopped(server: hg.Server, encrypted: object) -> object:
        measured.append(server.trace.calls)
        if len(measured) == 1:
            raise KeyboardInterrupt
        return floor(server, encrypted)

    monkeypatch.setattr(encrypted_images, "floor", stopped)
    with pytest.raises(KeyboardInterrupt):
        encrypted_images.main(folder, 2, 1)
    entries = Results(folder / "encrypted-native-1.json").entries
    assert sorted(entries) == [0, 1]
    monkeypatch.setattr(encrypted_images, "run", None)
    encrypted_images.main(folder, 2, 1)
    summary = json.loads((folder / "encrypted-native-1.summary.json").read_text())
    assert summary["images"] == [entries[0], entries[1]]
    assert summary["floor_seconds"] > 0
    # No image was run again: the calls are those that the simulator made, level by level.
    assert not measured[1]
    assert encrypted_images.simulated_calls(compiled[0]) == measured[0]
    assert set(summary["floor_by_kind"]) == {call.primitive for call in measured[0]}


def test_the_kinds_of_work_add_up_to_the_prediction() -> None:
    text = (
        "program low\ninput x: secret slots[16] in [-1, 1]\ny = bootstrap(3 * x * x)\noutput z = y * y - rotate(y, 1)\n"
    )
    options = hg.Options(security_bits=None, log_ring=11)
    artifact = hg.compile(hg.parse(text), options)
    report = artifact.report.to_dict()
    seconds = deep_network.predicted_seconds(artifact, options)
    assert set(seconds) == set(report["operations_by_kind"])
    assert sum(seconds.values()) == pytest.approx(report["predicted_ms"] / 1e3, rel=1e-12)


KEYS = [
    "backend", "accuracy_float", "accuracy_polynomial", "accuracy_simulated", "agreement_simulated", "images_simulated",
    "images_encrypted", "agreement", "max_abs_error", "security_bits", "ring_dim", "log_pq", "bootstraps", "rotations",
    "key_switches", "plaintext_products", "seconds_per_image", "predicted_seconds", "floor_seconds", "peak_rss_bytes",
    "evaluation_key_bytes", "compile_s", "threads",
]  # fmt: skip
MEASURED = {
    "accuracy_simulated", "agreement_simulated", "agreement", "max_abs_error", "seconds_per_image", "floor_seconds",
    "peak_rss_bytes",
}  # fmt: skip


@pytest.fixture
def benchmark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[str], str]]:
    """What the benchmark of a tiny network prints, its lines and its errors, for these arguments of its command line."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval()
    random = np.random.default_rng(0)
    train, test = (random.uniform(-1, 1, (count, 6)).astype(np.float32) for count in (32, 8))
    labels = random.integers(3, size=32)
    images = deep_network.Images(train, labels, test, labels[:8], (-1.0, 1.0))
    chosen = hg.Options(security_bits=None, log_ring=11, degree=3)

    def run(**options: object) -> tuple[list[str], str]:
        given = {
            "encrypted": 0,
            "simulated": 0,
            "json": True,
            "threads": 1,
            "backend": "native",
            "memory": None,
            "folder": tmp_path,
            **options,
        }
        capfd.readouterr()
        deep_network.benchmark("tiny", module, images, chosen, argparse.Namespace(**given))
        printed = capfd.readouterr()
        return printed.out.splitlines(), printed.err

    return run


def test_a_benchmark_prints_one_object_with_its_keys(benchmark: Callable[..., tuple[list[str], str]]) -> None:
    assert list(deep_network.KEYS) == KEYS
    (line,), _ = benchmark(encrypted=1, simulated=2)
    found = json.loads(line)
    assert list(found) == KEYS
    assert {key for key, value in found.items() if value is None} == {"security_bits"}
    assert (found["images_encrypted"], found["images_simulated"], found["threads"]) == (1, 2, 1)
    assert found["floor_seconds"] > 0
    (line,), _ = benchmark()
    found = json.loads(line)
    assert list(found) == KEYS
    assert {key for key, value in found.items() if value is None} == {"security_bits", *MEASURED}
    assert (found["images_encrypted"], found["images_simulated"]) == (0, 0)


def test_the_text_says_what_was_not_as_predicted(
    benchmark: Callable[..., tuple[list[str], str]], tmp_path: Path
) -> None:
    lines, _ = benchmark(encrypted=1, json=False)
    assert list(json.loads(lines[-1])) == KEYS
    assert "calls of the encrypted images: as predicted" in lines
    (peak,) = [line for line in lines if line.startswith("peak of memory: ")]
    measured, ratio, planned = map(float, re.findall(r"\d+\.\d+", peak))
    assert measured == pytest.approx(json.loads(lines[-1])["peak_rss_bytes"] / 1e6, abs=0.06)
    assert measured / planned == pytest.approx(ratio, rel=0.01)
    assert "has the client in it too" in peak
    # A run that rotated once more than it should have.
    (path,) = tmp_path.glob("tiny-*/encrypted-native-1.json")
    results = Results(path)
    entry = results.entries[0]
    rotations = entry["calls"].get("rotate", 0)
    results.add(0, {**entry, "calls": {**entry["calls"], "rotate": rotations + 1}})
    said = f"calls of encrypted image 1 are NOT those predicted: rotate {rotations + 1} instead of {rotations}"
    lines, _ = benchmark(encrypted=1, json=False)
    assert said in lines
    assert not any("as predicted" in line for line in lines)
    (_,), errors = benchmark(encrypted=1)
    assert said in errors.splitlines()


def test_a_stopped_simulation_goes_on(
    compiled: tuple[hg.Artifact, hg.Program, np.ndarray], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, polynomial, images = compiled
    begun: list[list[int]] = []
    simulated = deep_network.simulated

    def counted(artifact: Path, images: np.ndarray, numbers: Iterable[int]) -> object:
        begun.append(list(numbers))
        return simulated(artifact, images, begun[-1])

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deep_network, "simulated", counted)
    with pytest.raises(KeyboardInterrupt):
        deep_network.simulate(folder, images, 3, stopped)
    # Its processes are gone, and nothing waits for those that had not begun.
    assert not multiprocessing.active_children()
    kept = Results(folder / "simulated.json").entries
    assert len(kept) == 1
    scores = deep_network.simulate(folder, images, 3, print)
    assert begun == [[0, 1, 2], sorted({0, 1, 2} - set(kept))]
    assert {number: {"scores": scores[number].tolist()} for number in kept} == kept
    np.testing.assert_allclose(scores, interpret_many(polynomial, [images])[0], atol=1e-3)
    # All there: no process is started.
    monkeypatch.setattr(deep_network, "simulated", None)
    assert np.array_equal(deep_network.simulate(folder, images, 3, print), scores)


@pytest.mark.parametrize(("words", "status"), [(["--degree", "7"], 0), (["--json"], 1)])
def test_absent_data_are_said_on_stderr(
    words: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELIOGRAPH_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["resnet20.py", *words])
    with pytest.raises(SystemExit) as ended:
        common.data("cifar10_subset.npz")
    printed = capsys.readouterr()
    assert ended.value.code == status
    assert printed.out == ""
    assert "skipped: " in printed.err
    assert "cifar10_subset.npz" in printed.err
