"""Benchmarks of deep networks keep their images one by one, go on where they stood, and give rows with all columns."""

from __future__ import annotations

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
import deep_network
import encrypted_images
from harness import Benchmark, Records, Run
from models.cifar import Images


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
    np.savez(tmp_path / "images.npz", x=images)
    return tmp_path


def kept(folder: Path) -> list[object]:
    """What is there of encrypted images, in the order in which it came."""
    return [entry["image"] for entry in Records(folder / "encrypted-native-1.jsonl").entries]


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
        encrypted_images.main(str(folder), 3, 1)
    assert kept(folder) == ["keys", 0]
    summary = encrypted_images.main(str(folder), 3, 1)
    assert kept(folder) == ["keys", 0, 1, 2, "floor"]
    # The same key, and no image twice.
    assert len(done) == 4
    assert len(set(done)) == 1
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
    assert encrypted_images.main(str(folder), 3, 1) == summary


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
        encrypted_images.main(str(folder), 2, 1)
    assert kept(folder) == ["keys", 0, 1]
    images = Records(folder / "encrypted-native-1.jsonl").entries[1:]
    monkeypatch.setattr(encrypted_images, "run", None)
    summary = encrypted_images.main(str(folder), 2, 1)
    assert summary["images"] == images
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


MEASURED = set(deep_network.MEASURED) - {"images_encrypted", "same_class"}


@pytest.fixture
def benchmark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, object], list[str]]]:
    """The row of a tiny network for these options, and the lines that were said."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval()
    random = np.random.default_rng(0)
    train, test = (random.uniform(-1, 1, (count, 6)).astype(np.float32) for count in (32, 8))
    labels = random.integers(3, size=32)
    images = Images(train, labels, test, labels[:8], (-1.0, 1.0))
    chosen = hg.Options(security_bits=None, log_ring=11, degree=3)

    def work(run: Run) -> None:
        def make() -> dict[str, object]:
            made = deep_network.compiled("tiny", module, images, chosen, vars(run.options))
            return deep_network.measured(run, made, images)

        run.row({"network": "tiny"}, make)

    tiny = Benchmark("tiny", "", work, deep_network.options(3, ("tiny",)), deep_network.COLUMNS, (), (), 0, 0, ((),))

    def run(**given: object) -> tuple[dict[str, object], list[str]]:
        words = ["--threads", "1", "--folder", str(tmp_path), "--into", str(tmp_path / "records"), "--again"]
        words += [word for name, value in given.items() for word in (f"--{name}", str(value))]
        made = Run(tiny, tiny.parser().parse_args(words))
        capfd.readouterr()
        work(made)
        return made.rows[0]["values"], capfd.readouterr().err.splitlines()

    return run


def test_a_row_has_all_columns(benchmark: Callable[..., tuple[dict[str, object], list[str]]]) -> None:
    found, _ = benchmark(encrypted=1, simulated=2)
    assert set(deep_network.COLUMNS) <= set(found)
    assert {key for key in deep_network.COLUMNS if found[key] is None} == {"security_bits"}
    assert (found["images_encrypted"], found["images_simulated"], found["same_class"]) == (1, 2, 1)
    assert float(str(found["floor_seconds"])) > 0
    found, _ = benchmark()
    assert {key for key in deep_network.COLUMNS if found[key] is None} == {
        "security_bits",
        "same_class",
        "images_simulated",
        *MEASURED,
    }
    assert (found["images_encrypted"], found["images_simulated"]) == (0, None)


def test_the_text_says_what_was_not_as_predicted(
    benchmark: Callable[..., tuple[dict[str, object], list[str]]], tmp_path: Path
) -> None:
    found, lines = benchmark(encrypted=1)
    assert "calls of the encrypted images: as predicted" in lines
    (peak,) = [line for line in lines if line.startswith("peak of memory: ")]
    measured, ratio, planned = map(float, re.findall(r"\d+\.\d+", peak))
    assert measured == pytest.approx(float(str(found["peak_rss_bytes"])) / 1e6, abs=0.06)
    assert measured / planned == pytest.approx(ratio, rel=0.01)
    assert "has the client in it too" in peak
    # A run that rotated once more than it should have.
    (path,) = tmp_path.glob("tiny-*/encrypted-native-1.jsonl")
    entry = Records(path).find(image=0)
    assert entry is not None
    rotations = entry["calls"].get("rotate", 0)
    Records(path).add({**entry, "calls": {**entry["calls"], "rotate": rotations + 1}})
    said = f"calls of encrypted image 1 are NOT those predicted: rotate {rotations + 1} instead of {rotations}"
    _, lines = benchmark(encrypted=1)
    assert said in lines
    assert not any("as predicted" in line for line in lines)


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
    (first,) = Records(folder / "simulated.jsonl").entries
    scores = deep_network.simulate(folder, images, 3, print)
    assert begun == [[0, 1, 2], sorted({0, 1, 2} - {first["image"]})]
    assert scores[first["image"]].tolist() == first["scores"]
    np.testing.assert_allclose(scores, interpret_many(polynomial, [images])[0], atol=1e-3)
    # All there: no process is started.
    monkeypatch.setattr(deep_network, "simulated", None)
    assert np.array_equal(deep_network.simulate(folder, images, 3, print), scores)
