"""What benchmarks/data.md says of the data is true of the files, it names all that are read, and fetch.py makes them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import re
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data import folder

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import fetch  # noqa: E402

TEXT = (ROOT / "benchmarks/data.md").read_text()
SUMS = {
    name: digest
    for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", TEXT.partition("SHA-256 of the arrays")[0], re.MULTILINE)
}


@pytest.mark.parametrize("name", SUMS)
def test_a_file_is_the_one_that_is_written_or_has_its_arrays(name: str, data: Callable[[str], Path]) -> None:
    content = data(name).read_bytes()
    if hashlib.sha256(content).hexdigest() != SUMS[name]:
        # Made again by fetch.py, and compressed otherwise.
        assert fetch.state(data(name)) == "right"


def test_every_file_that_is_read_has_a_source() -> None:
    files = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    known = r"(?:mnist|fashion_mnist|cifar10_\w+|adult|imdb_\w+|snips_\w+)\.npz"
    read = {name for file in files for name in re.findall(known, file.read_text())}
    assert len(read) >= 5
    assert read <= set(SUMS)
    for name in SUMS:
        assert f"`{name}`" in TEXT.partition("SHA-256")[0], f"{name} has no source"


def test_every_file_is_made_or_it_is_said_why_not() -> None:
    assert set(fetch.expected()) == set(SUMS) == set(fetch.SOURCES) | set(fetch.NOT_MADE)
    for source in fetch.SOURCES.values():
        for url in source.urls:
            assert url.startswith("https://")


def test_benchmarks_and_tests_look_in_the_same_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HELIOGRAPH_DATA", raising=False)
    assert fetch.folder() == folder()
    monkeypatch.setenv("HELIOGRAPH_DATA", str(tmp_path))
    assert fetch.folder() == folder() == tmp_path


# ------------------------------------------------------------------------------------------- fetching


def packed_idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return gzip.compress(head + array.tobytes(), compresslevel=1)


def idx_originals(arrays: fetch.Arrays, target: Path) -> None:
    for name, key in zip(fetch.IDX, ("x_train", "y_train", "x_test", "y_test"), strict=True):
        (target / name).write_bytes(packed_idx(arrays[key]))


def cifar_originals(arrays: fetch.Arrays, target: Path) -> None:
    """CIFAR-10's archive, with nothing where the subset has no image."""

    def batch(numbers: np.ndarray, x: np.ndarray, y: np.ndarray) -> bytes:
        rows = np.zeros((10_000, 3073), np.uint8)
        rows[numbers, 0] = y
        rows[numbers, 1:] = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        return rows.tobytes()

    index = arrays["train_index"]
    members = {"test_batch.bin": batch(np.arange(500), arrays["x_test"], arrays["y_test"])}
    for i in range(5):
        here = index // 10_000 == i
        members[f"data_batch_{i + 1}.bin"] = batch(
            index[here] % 10_000, arrays["x_train"][here], arrays["y_train"][here]
        )
    with tarfile.open(target / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def adult_originals(arrays: fetch.Arrays, target: Path) -> None:
    columns = [str(name) for name in arrays["columns"]]
    for part, ending in (("train", ""), ("test", ".")):
        cells = [
            [str(arrays[f"cats_{name}"][v]) if f"cats_{name}" in arrays else str(v) for v in arrays[f"{part}_{name}"]]
            for name in columns
        ]
        lines = [", ".join(row) + ending for row in zip(*cells, strict=True)]
        head = ["|1x3 Cross validator"] if part == "test" else []
        (target / f"adult.{'data' if part == 'train' else 'test'}").write_text("\n".join([*head, *lines, ""]))


def resnet_originals(arrays: fetch.Arrays, target: Path) -> None:
    import torch

    state = {f"module.{name}": torch.from_numpy(value) for name, value in arrays.items()}
    state["module.bn1.num_batches_tracked"] = torch.tensor(7)
    torch.save({"state_dict": state, "best_prec1": 91.73}, target / "resnet20-12fca82f.th")


ORIGINALS = {
    "fashion_mnist.npz": idx_originals,
    "cifar10_subset.npz": cifar_originals,
    "adult.npz": adult_originals,
    "cifar10_resnet20_akamaster.npz": resnet_originals,
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_file_is_made_of_its_originals(name: str, data: Callable[[str], Path], tmp_path: Path) -> None:
    mirror, target = tmp_path / "mirror", tmp_path / "target"
    mirror.mkdir()
    ORIGINALS[name](fetch.read(data(name).read_bytes()), mirror)
    words = [name, "--folder", str(target), "--mirror", mirror.as_uri()]
    assert fetch.main(words) == 0
    assert fetch.state(target / name) == "right"
    # What is there is not fetched again.
    for path in mirror.iterdir():
        path.unlink()
    assert fetch.main(words) == 0


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small file that data.md is made to name."""
    arrays = {"x": np.arange(6).reshape(2, 3)}
    np.savez(tmp_path / "mnist.npz", **arrays)  # type: ignore[arg-type]
    monkeypatch.setattr(fetch, "expected", lambda: {"mnist.npz": fetch.arrays_digest(arrays)})
    return tmp_path


def test_a_finished_file_comes_from_a_server(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(small))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            words = [
                "mnist.npz",
                "--folder",
                str(tmp_path / "got"),
                "--mirror",
                f"http://127.0.0.1:{server.server_port}",
            ]
            assert fetch.main(words) == 0
        finally:
            server.shutdown()
            thread.join()
    assert fetch.state(tmp_path / "got/mnist.npz") == "right"
    assert "made    " in capsys.readouterr().out


def test_what_is_wrong_is_not_kept(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(small / "mnist.npz", x=np.arange(6).reshape(3, 2))
    target = tmp_path / "got"
    assert fetch.main(["mnist.npz", "--folder", str(target), "--mirror", small.as_uri()]) == 1
    assert "failed  " in capsys.readouterr().err
    assert not target.exists() or not list(target.iterdir())
    assert fetch.state(small / "mnist.npz") == "wrong"
    (small / "mnist.npz").write_bytes(b"no archive")
    assert fetch.state(small / "mnist.npz") == "wrong"


def test_a_check_says_what_is_missing_and_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main(["--check", "--folder", str(tmp_path)]) == len(SUMS)
    printed = capsys.readouterr()
    assert printed.out.count("absent ") == len(SUMS)
    assert "python benchmarks/fetch.py" in printed.err
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main(["snips_minilm_l6_features.npz", "--folder", str(tmp_path)]) == 1
    assert "all-MiniLM-L6-v2" in capsys.readouterr().err
