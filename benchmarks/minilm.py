"""The sentence encoder all-MiniLM-L6-v2, encrypted: embeddings of SNIPS utterances, beside those of the float network.

Of the test utterances: cosines of the polynomials' embeddings with the float network's, the nearest of 1,000 training
utterances, and the intent by a linear head that was trained on float embeddings. Then some on the simulator and some
encrypted.
"""

from __future__ import annotations

import deep_network  # first: it imports heliograph before torch

from common import hg

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import BACKEND, FOLDER, Run, benchmark, option, threads_option
from heliograph.interpret import interpret_many
from models.sentences import Sentences, embedded, encoder, ranges, sentences, utterances

# Calibration sentences, and sentences of the index, evenly spaced among the training ones, which stand by intent.
CALIBRATED, INDEXED = 500, 1000
# GELU's inputs reach far in the first four layers (at the first token): degrees for all six.
DEGREES = (127, 127, 127, 127, 63, 63)
# Encryption may add an error of 2^-PRECISION times the largest output: a cosine of 0.99 is far coarser.
PRECISION = 6
FIGURES = ("cosine_median", "cosine_worst", "nearest", "intent_float", "intent")
COLUMNS = {
    **dict.fromkeys(FIGURES, ""), **{f"{name}_simulated": "" for name in FIGURES}, "simulated": "", "encrypted": "",
    "cosine_encrypted_worst": "", "seconds": "s", "seconds_first": "s", "floor_seconds": "s", "predicted_seconds": "s",
    "keys_s": "s", "compile_s": "s", "peak_rss_bytes": "bytes", **dict.fromkeys(deep_network.REPORTED, ""),
    "evaluation_key_bytes": "bytes", "server_peak_bytes": "bytes",
}  # fmt: skip


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def head(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The weights of ridge regression on one-hot labels, with a last row of offsets."""
    features = np.hstack([unit(rows), np.ones((len(rows), 1))])
    return np.asarray(
        np.linalg.solve(features.T @ features + np.eye(features.shape[1]), features.T @ np.eye(7)[labels])
    )


def beside(rows: Sequence[Sequence[float]] | np.ndarray, float_: Mapping[str, Any]) -> dict[str, float]:
    """The first embeddings beside the float network's: their cosines, the nearest of the index, the intents by the head."""
    made, exact = unit(np.asarray(rows)), unit(np.asarray(float_["exact"])[: len(rows)])
    index, weights, labels = (np.asarray(float_[name]) for name in ("index", "head", "labels"))
    intents = [(each @ weights[:-1] + weights[-1]).argmax(1) == labels[: len(rows)] for each in (exact, made)]
    near = (made * exact).sum(1)
    return {
        "cosine_median": float(np.median(near)),
        "cosine_worst": float(near.min()),
        "nearest": float(((made @ index.T).argmax(1) == (exact @ index.T).argmax(1)).mean()),
        "intent_float": float(intents[0].mean()),
        "intent": float(intents[1].mean()),
    }


def spaced(count: int, of: int) -> np.ndarray:
    return np.linspace(0, of - 1, count).astype(int)


def compiled(given: dict[str, Any]) -> dict[str, Any]:
    """The artifact in a folder of its own, and the figures of the float network and of the polynomials."""
    torch.set_num_threads(given["threads"])
    texts, labels, asked, wanted = utterances()
    order = np.random.default_rng(0).permutation(len(asked))  # they stand by intent
    asked, wanted = [asked[number] for number in order], wanted[order]
    module = encoder(given["layers"])
    train, test = sentences(texts, given["tokens"]), sentences(asked, given["tokens"])
    example = tuple(torch.tensor(array[:1], dtype=torch.float32) for array in train)
    calibration = tuple(train.part(spaced(CALIBRATED, len(texts))))
    program = hg.trace(module, example, calibration=calibration, input_range=ranges(given["tokens"]))
    degrees = {f"layers.{number}.gelu": degree for number, degree in enumerate(DEGREES[: given["layers"]])}
    options = hg.Options(degrees=degrees, log_ring=given["log_ring"], bootstrap=True, precision_bits=PRECISION)
    artifact, meant, place = deep_network.kept(program, f"minilm-{given['tokens']}", options, given)
    parts = [test.part(slice(start, start + 50)) for start in range(0, given["queries"], 50)]
    made = np.concatenate([interpret_many(meant, list(part))[0] for part in parts])
    known = embedded(module, train)
    np.savez(place / "test.npz", **test.part(slice(None))._asdict())
    float_ = {
        "exact": embedded(module, test),
        "index": unit(known[spaced(INDEXED, len(texts))]),
        "head": head(known, labels),
        "labels": wanted,
    }
    return {
        "place": str(place),
        "float": float_,
        "report": artifact.report.to_dict(),
        "compile_s": artifact.compile_s,
        "polynomials": beside(made, float_),
    }


@benchmark(
    option("--tokens", type=int, default=16, help="the longest sentence"),
    option("--layers", type=int, default=6, help="layers of the encoder, from the first"),
    option("--queries", type=int, default=700, help="test utterances with polynomials in the clear"),
    option("--simulated", type=int, default=0, metavar="M", help="simulated test utterances"),
    option("--encrypted", type=int, default=0, metavar="N", help="encrypted test utterances"),
    option("--log-ring", type=int, default=16, help="logarithm of the ring dimension"),
    option("--memory", type=float, default=None, metavar="GB", help="bound on the server's predicted peak"),
    threads_option(),
    BACKEND,
    FOLDER,
    columns=COLUMNS,
    data=("snips_utterances.npz",),
    memory_gb=20,
    minutes=60,
)
def minilm(run: Run) -> None:
    given = run.options
    run.row({"tokens": given.tokens, "layers": given.layers}, lambda: measured(run))


def measured(run: Run) -> dict[str, Any]:
    given = run.options
    found = deep_network.apart("minilm:compiled", vars(given), threads=given.threads)
    place, report, polynomials = Path(found["place"]), found["report"], found["polynomials"]
    run.say(f"polynomials: {polynomials}")
    result: dict[str, Any] = {
        **dict.fromkeys(COLUMNS),
        **polynomials,
        "compile_s": found["compile_s"],
        "predicted_seconds": report["predicted_ms"] / 1e3,
        **{name: report[name] for name in deep_network.REPORTED},
        "simulated": 0,
        "encrypted": 0,
    }
    with np.load(place / "test.npz", allow_pickle=False) as file:
        test = Sentences(**{name: file[name] for name in file.files})
    if given.encrypted:
        some = test.part(slice(given.encrypted))._asdict()
        ran = deep_network.run_encrypted(some, place, given.threads, given.backend)
        scores = [entry["scores"] for entry in ran["images"]]
        result |= {
            "encrypted": given.encrypted,
            "cosine_encrypted_worst": beside(scores, found["float"])["cosine_worst"],
            "seconds": ran["seconds"],
            "seconds_first": ran["images"][0]["seconds"],
            **{name: ran[name] for name in ("floor_seconds", "floor_by_kind", "keys_s", "peak_rss_bytes")},
        }
    if given.simulated:
        rows = deep_network.simulate(place, list(zip(*test, strict=True)), given.simulated, run.say)
        figures = beside(rows, found["float"])
        run.say(f"simulated: {figures}")
        result |= {"simulated": len(rows), **{f"{name}_simulated": value for name, value in figures.items()}}
    return result


if __name__ == "__main__":
    minilm.main()
