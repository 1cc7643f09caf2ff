"""Get the data of the benchmarks from their public sources, as the `.npz` files that data.md describes, and check them.

    python benchmarks/fetch.py                        # all that can be made, into HELIOGRAPH_DATA or data/
    python benchmarks/fetch.py mnist.npz --folder DIR
    python benchmarks/fetch.py --check                # only say what is there, and whether it is what it should be
    python benchmarks/fetch.py --mirror file:///DIR   # the original files (or the finished ones) from another place

A file is right if its arrays are those of data.md: it is compared by them, so that compression does not matter. What is
downloaded is never unpickled. A file that is not right is not kept.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_name("data.md")
_MOST_BYTES = 1 << 30
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Source:
    """How one file is made: the addresses of the originals, and what makes arrays of their bytes (in that order)."""

    urls: tuple[str, ...]
    make: Callable[[Sequence[bytes]], Arrays]


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of arrays by name, type, shape and content, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def expected() -> dict[str, str]:
    """File -> the digest of its arrays, from data.md."""
    section = PAGE.read_text().partition("SHA-256 of the arrays")[2]
    return {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", section, re.MULTILINE)}


def folder() -> Path:
    """Where the benchmarks look: HELIOGRAPH_DATA, or `shared/data` beside the project where that is, or `data` in it."""
    beside = ROOT.parent / "shared" / "data"
    return Path(os.environ.get("HELIOGRAPH_DATA", beside if beside.is_dir() else ROOT / "data"))


# ------------------------------------------------------------------------------------------- what is made of the originals


def idx(packed: bytes) -> np.ndarray:
    """The array of a gzipped IDX file of bytes (MNIST's format)."""
    with gzip.open(io.BytesIO(packed)) as file:
        data = file.read(_MOST_BYTES)
    axes = data[3]
    if data[:3] != b"\0\0\x08" or not 1 <= axes <= 4:
        raise ValueError("this is not an IDX file of bytes")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", axes, 4))
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def images(originals: Sequence[bytes]) -> Arrays:
    return dict(zip(("x_train", "y_train", "x_test", "y_test"), map(idx, originals), strict=True))


_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Of each of the five training files this many images, from its beginning; this many of the test images.
_TAKEN, _TESTED, _EACH = (4000, 932, 932, 932, 932), 500, 10_000


def cifar10(originals: Sequence[bytes]) -> Arrays:
    """The first test images and some training images of CIFAR-10's binary version, channels last."""
    parts = {}
    with tarfile.open(fileobj=io.BytesIO(originals[0]), mode="r:gz") as archive:
        for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
            member = archive.extractfile(f"cifar-10-batches-bin/{name}")
            if member is None:
                raise ValueError(f"the archive lacks {name}")
            rows = np.frombuffer(member.read(_MOST_BYTES), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
            parts[name] = rows[:, 0], rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    y_test, x_test = parts.pop("test_batch.bin")
    train = [(y[:count], x[:count]) for (y, x), count in zip(parts.values(), _TAKEN, strict=True)]
    index = [np.arange(i * _EACH, i * _EACH + count) for i, count in enumerate(_TAKEN)]
    return {
        "x_test": x_test[:_TESTED],
        "y_test": y_test[:_TESTED],
        "x_train": np.concatenate([x for _, x in train]),
        "y_train": np.concatenate([y for y, _ in train]),
        "train_index": np.concatenate(index).astype(np.int32),
        "class_names": np.array(_CLASSES),
        "norm_mean": np.array([0.485, 0.456, 0.406], np.float32),
        "norm_std": np.array([0.229, 0.224, 0.225], np.float32),
    }


def resnet(originals: Sequence[bytes]) -> Arrays:
    """The state dictionary of a checkpoint of weights."""
    import torch

    state = torch.load(io.BytesIO(originals[0]), map_location="cpu", weights_only=True)["state_dict"]
    found = {name.removeprefix("module."): value.numpy() for name, value in state.items()}
    return {name: value.astype(np.float32) for name, value in found.items() if not name.endswith("num_batches_tracked")}


_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race",
    "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
)  # fmt: skip
_NUMBERS = {"age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"}


def adult(originals: Sequence[bytes]) -> Arrays:
    """Adult's rows by column: numbers as they are, categories by their place among all names of the column, sorted."""
    rows = []
    for text in originals:
        split = [[cell.strip().rstrip(".") for cell in line.split(",")] for line in text.decode().splitlines()]
        rows.append([row for row in split if len(row) == len(_COLUMNS)])
    found: Arrays = {"columns": np.array(_COLUMNS)}
    for place, column in enumerate(_COLUMNS):
        cells = [[row[place] for row in part] for part in rows]
        if column in _NUMBERS:
            values = [np.array(part, dtype=np.int32) for part in cells]
        else:
            names = sorted({cell for part in cells for cell in part})
            found[f"cats_{column}"] = np.array(names)
            values = [np.array([names.index(cell) for cell in part], dtype=np.uint8) for part in cells]
        found[f"train_{column}"], found[f"test_{column}"] = values
    return found


_INTENTS = (
    "AddToPlaylist", "BookRestaurant", "GetWeather", "PlayMusic", "RateBook", "SearchCreativeWork", "SearchScreeningEvent",
)  # fmt: skip


def utterances(originals: Sequence[bytes]) -> Arrays:
    """SNIPS: the sentences of each intent's full training file, then those of each intent's validation file, as tests."""
    found: Arrays = {"label_names": np.array(_INTENTS)}
    for part, files in (("train", originals[: len(_INTENTS)]), ("test", originals[len(_INTENTS) :])):
        texts, labels = [], []
        for label, (intent, content) in enumerate(zip(_INTENTS, files, strict=True)):
            for entry in json.loads(_text(content))[intent]:
                texts.append("".join(piece["text"] for piece in entry["data"]).strip())
                labels.append(label)
        found[f"x_{part}"], found[f"y_{part}"] = np.array(texts), np.array(labels, dtype=np.uint8)
    return found


def _text(content: bytes) -> str:
    """The text of a file in UTF-8 or, as some of these are, in Latin-1."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"
_RESNETS = "https://github.com/akamaster/pytorch_resnet_cifar10/raw/d5489e8/pretrained_models"
_SNIPS = "https://github.com/snipsco/nlu-benchmark/raw/master/2017-06-custom-intent-engines"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"

SOURCES = {
    "mnist.npz": Source(tuple(f"{_MNIST}/{name}" for name in IDX), images),
    "fashion_mnist.npz": Source(tuple(f"{_FASHION}/{name}" for name in IDX), images),
    "cifar10_subset.npz": Source(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), cifar10),
    "cifar10_resnet20_akamaster.npz": Source((f"{_RESNETS}/resnet20-12fca82f.th",), resnet),
    "cifar10_resnet32_akamaster.npz": Source((f"{_RESNETS}/resnet32-d509ac18.th",), resnet),
    "snips_utterances.npz": Source(
        (
            *(f"{_SNIPS}/{intent}/train_{intent}_full.json" for intent in _INTENTS),
            *(f"{_SNIPS}/{intent}/validate_{intent}.json" for intent in _INTENTS),
        ),
        utterances,
    ),
    "adult.npz": Source((f"{_UCI}/adult.data", f"{_UCI}/adult.test"), adult),
}

# Files that are not made here, and why.
NOT_MADE = {
    "cifar10_reference_logits.npz": "it holds what the two ResNets give for the test images; only tests read it",
    "imdb_tokens_top10k.npz": "it is made of the reviews of Maas et al. (2011) by a tokenizer that is not here",
    "snips_minilm_l6_features.npz": "it is made of the SNIPS intents by the model all-MiniLM-L6-v2",
    **dict.fromkeys(
        (*(f"cifar10_resnet{depth}_ace.npz" for depth in (20, 32, 44, 56, 110)), "cifar100_resnet32_ace.npz"),
        "it is a model of the package ace-fhe 0.2.2, in a form of its own there",
    ),
}


# ------------------------------------------------------------------------------------------- fetching


class FetchError(Exception):
    """A file could not be had, or is not what it should be."""


def download(url: str) -> bytes:
    """The bytes at an address (https, http or file), at most 1 GiB."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            data: bytes = answer.read(_MOST_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise FetchError(f"{url} cannot be read: {error}") from None
    if len(data) > _MOST_BYTES:
        raise FetchError(f"{url} is larger than {_MOST_BYTES} bytes")
    return data


def fetch(name: str, target: Path, mirror: str = "") -> None:
    """Make the file `name` in the folder `target`, from its sources or from a mirror of them (or of the finished file)."""
    wanted = expected()[name]
    if mirror:
        try:
            keep(read(download(f"{mirror.rstrip('/')}/{name}")), wanted, target / name)
        except FetchError:
            if name not in SOURCES:
                raise
        else:
            return
    if name not in SOURCES:
        raise FetchError(f"{name} is not made by this script: {NOT_MADE[name]}; give a --mirror that has it")
    source = SOURCES[name]
    urls = [f"{mirror.rstrip('/')}/{url.rpartition('/')[2]}" for url in source.urls] if mirror else source.urls
    originals = [download(url) for url in urls]
    try:
        arrays = source.make(originals)
    except Exception as error:
        raise FetchError(f"{name}: the originals cannot be used: {error}") from None
    keep(arrays, wanted, target / name)


def read(data: bytes) -> Arrays:
    """The arrays of an .npz file."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:
        raise FetchError(f"this is not a file of arrays: {error}") from None


def keep(arrays: Arrays, wanted: str, path: Path) -> None:
    """Write arrays whose digest is the one that is wanted; the file is there whole or not at all."""
    found = arrays_digest(arrays)
    if found != wanted:
        raise FetchError(f"{path.name}: the arrays have the digest {found}, and {wanted} is wanted (data.md)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            np.savez_compressed(file, **arrays)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def state(path: Path) -> str:
    """ "right", "absent" or "wrong": whether a file has the arrays that it should have."""
    if not path.exists():
        return "absent"
    try:
        return "right" if arrays_digest(read(path.read_bytes())) == expected()[path.name] else "wrong"
    except FetchError:
        return "wrong"


def main(words: Sequence[str] | None = None) -> int:
    """The number of files that are not there or not right in the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME.npz", help="the files to get; all that can be made by default"
    )
    parser.add_argument("--folder", type=Path, default=folder(), help="where they go (default: %(default)s)")
    parser.add_argument("--mirror", default="", metavar="URL", help="take originals or finished files from here")
    parser.add_argument("--check", action="store_true", help="only say what is there")
    given = parser.parse_args(words)
    known = expected()
    if strange := [name for name in given.names if name not in known]:
        parser.error(f"{strange[0]} is not one of {', '.join(known)}")
    missing = 0
    for name in given.names or [name for name in known if given.check or given.mirror or name in SOURCES]:
        path = given.folder / name
        found = state(path)
        if found == "right" or given.check:
            print(f"{found:<7} {path}", flush=True)
            missing += found != "right"
            continue
        try:
            fetch(name, given.folder, given.mirror)
        except FetchError as error:
            missing += 1
            print(f"failed  {path}\n        {error}", file=sys.stderr, flush=True)
        else:
            print(f"made    {path}", flush=True)
    if given.check and missing:
        print(
            f"{missing} of {len(known)} files are missing or wrong; their benchmarks are skipped. To get them:",
            file=sys.stderr,
        )
        print("  python benchmarks/fetch.py    (benchmarks/data.md has sources and licences)", file=sys.stderr)
    return missing


if __name__ == "__main__":
    sys.exit(min(main(), 100))
