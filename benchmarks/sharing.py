"""How far the error of encrypted results goes beyond the predicted one: what `decrypt(share=True)` has a margin for.

Small rings without security: the errors in units of the predicted one are what matters.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from harness import Run, benchmark, option
from heliograph.ckks.sharing import SHARE_MARGIN

POWER = "program power\ninput x: secret tensor[{n}] in [-1, 1]\noutput y = x*x*x*x*x*x*x*x\n"
TOTAL = "program total\ninput x: secret tensor[64] in [-1, 1]\noutput y = sum(x*x)\n"
LAYERS = """program layers
input x: secret tensor[8] in [-1, 1]
input w: plain tensor[6, 8] in [-1, 1]
output y = relu(w @ x)
"""


def study(text: str, sample: Callable[[int], np.ndarray], runs: int, **plain: np.ndarray) -> dict[str, float]:
    """Of the largest error of each run, in units of the predicted one: the median, a high quantile, the largest."""
    artifact = hg.compile(hg.parse(text), hg.Options(security_bits=None, degree=3))
    predicted = artifact.public().predicted["scheme_error"]
    client = hg.Client(artifact.public(), allow_insecure=True)
    found = []
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        for number in range(runs):
            x = sample(number)
            exact = np.asarray(hg.simulate(artifact, x, *plain.values(), noisy=False))
            decrypted = np.asarray(client.decrypt(server.run(client.encrypt(x), plain=plain)))
            found.append(np.abs(decrypted - exact).max() / predicted)
    return {"median": np.median(found), "quantile_99": np.quantile(found, 0.99), "largest": max(found)}


def uniform(n: int) -> Callable[[int], np.ndarray]:
    return lambda seed: np.random.default_rng(seed).uniform(-1, 1, n)


def corners(n: int) -> Callable[[int], np.ndarray]:
    return lambda seed: np.sign(uniform(n)(seed))


@benchmark(
    option("--runs", type=int, default=150, help="encrypted runs of each case"),
    columns={"median": "", "quantile_99": "", "largest": "", "margin": ""},
)
def sharing(run: Run) -> None:
    warnings.simplefilter("ignore", hg.InsecureWarning)
    runs, weights = run.options.runs, np.random.default_rng(0).uniform(-0.5, 0.5, (6, 8))
    for name, measured in {
        "layer, random inputs": partial(study, LAYERS, uniform(8), runs, w=weights),
        "layer, corners": partial(study, LAYERS, corners(8), runs, w=weights),
        "x^8, random inputs": partial(study, POWER.format(n=4), uniform(4), runs),
        "x^8, corners": partial(study, POWER.format(n=4), corners(4), runs),
        "x^8, one value of 1": partial(study, POWER.format(n=1), lambda seed: np.ones(1), runs),
        "sum of squares, corners": partial(study, TOTAL, corners(64), runs),
    }.items():
        run.row({"error over predicted": name}, lambda measured=measured: {**measured(), "margin": SHARE_MARGIN})  # type: ignore[misc]


if __name__ == "__main__":
    sharing.main()
