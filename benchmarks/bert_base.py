"""An encoder of BERT-base's shape (768 wide, 12 heads, 3,072 inside) with random weights: its bill, and a layer encrypted.

Weights are drawn as BERT's are before training (normal, 0.02). Inputs are normal vectors of mean 0 and variance 1, as the
norm behind the embedding gives them. All places hold a token: nothing is masked (with a mask of -12 no softmax of 128 scores
has a proved error of 2^-7). The output is the mean of all places.
"""

from __future__ import annotations

import deep_network  # first: it imports heliograph before torch

from common import hg

from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import BACKEND, FOLDER, Run, benchmark, option, threads_option
from heliograph.interpret import interpret_many
from heliograph.tools.measure import peak_rss_bytes
from models.sentences import BERT_BASE, Encoder

CALIBRATED, TESTED = 48, 8
COLUMNS = {
    "encrypted": "", "largest": "", "error": "", "scheme_error": "", "predicted_error": "", "predicted_scheme_error": "",
    "polynomial_error": "",
    "seconds": "s", "floor_seconds": "s", "predicted_seconds": "s", "keys_s": "s", "compile_s": "s",
    "compile_rss_bytes": "bytes", "peak_rss_bytes": "bytes", **dict.fromkeys(deep_network.REPORTED, ""),
    "evaluation_key_bytes": "bytes", "server_peak_bytes": "bytes",
}  # fmt: skip


def module(layers: int) -> Encoder:
    torch.manual_seed(0)
    made = Encoder(BERT_BASE._replace(layers=layers))
    for parameter in made.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    return made.eval()


def samples(count: int, tokens: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, tokens, BERT_BASE.width))


def compiled(given: dict[str, Any]) -> dict[str, Any]:
    """The artifact in a folder of its own, and embeddings of the test samples by the float network and by polynomials."""
    torch.set_num_threads(given["threads"])
    encoder, tokens = module(given["layers"]), given["tokens"]
    calibration, test = samples(CALIBRATED, tokens, 1), samples(TESTED, tokens, 2)
    program = hg.trace(encoder, torch.tensor(calibration[:1], dtype=torch.float32), calibration=calibration)
    options = hg.Options(
        log_ring=given["log_ring"],
        bootstrap=True,
        precision_bits=given["precision"],
        target_error=given["target_error"],
    )
    artifact, meant, place = deep_network.kept(program, f"bert-base-{given['layers']}", options, given)
    return {
        "place": str(place),
        "exact": deep_network.scores_of(encoder, test.astype(np.float32)),
        "polynomial": interpret_many(meant, [test])[0],
        "report": artifact.report.to_dict(),
        "compile_s": artifact.compile_s,
        "compile_rss_bytes": peak_rss_bytes(),
    }


@benchmark(
    option("--layers", type=int, default=1, help="layers of the encoder"),
    option("--tokens", type=int, default=128),
    option("--encrypted", type=int, default=0, metavar="N", help="encrypted samples"),
    option("--log-ring", type=int, default=16, help="logarithm of the ring dimension"),
    option("--precision", type=float, default=6.0, help="bits of the largest output that encryption may not touch"),
    option("--target-error", type=float, default=2.0**-8, help="that a softmax is proved to keep, for all scores"),
    option("--memory", type=float, default=None, metavar="GB", help="bound on the server's predicted peak"),
    threads_option(),
    BACKEND,
    FOLDER,
    columns=COLUMNS,
    memory_gb=20,
    minutes=60,
)
def bert_base(run: Run) -> None:
    run.row({"layers": run.options.layers, "tokens": run.options.tokens}, lambda: measured(run))


def measured(run: Run) -> dict[str, Any]:
    given = run.options
    found = deep_network.apart("bert_base:compiled", vars(given), threads=given.threads)
    report, exact, polynomial = found["report"], np.array(found["exact"]), np.array(found["polynomial"])
    result: dict[str, Any] = {
        **dict.fromkeys(COLUMNS),
        "encrypted": given.encrypted,
        "largest": float(np.abs(exact).max()),
        "polynomial_error": float(np.abs(polynomial - exact).max()),
        "compile_s": found["compile_s"],
        "compile_rss_bytes": found["compile_rss_bytes"],
        "predicted_error": report["predicted"]["max_abs_error"],
        "predicted_scheme_error": report["predicted"]["scheme_error"],
        "predicted_seconds": report["predicted_ms"] / 1e3,
        **{name: report[name] for name in deep_network.REPORTED},
    }
    if given.encrypted:
        some = samples(TESTED, given.tokens, 2)[: given.encrypted]
        ran = deep_network.run_encrypted(some, Path(found["place"]), given.threads, given.backend)
        made = np.array([entry["scores"] for entry in ran["images"]])
        result |= {
            "error": float(np.abs(made - exact[: len(made)]).max()),
            "scheme_error": float(np.abs(made - polynomial[: len(made)]).max()),
            "seconds": ran["seconds"],
            **{name: ran[name] for name in ("floor_seconds", "floor_by_kind", "keys_s", "peak_rss_bytes")},
        }
    return result


if __name__ == "__main__":
    bert_base.main()
