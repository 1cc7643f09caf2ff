"""How far the error of encrypted results goes beyond the predicted one: what `decrypt(share=True)` has a margin for.

Small rings without security: the errors in units of the predicted one are what matters.
"""

from __future__ import annotations

from common import machine  # first: it imports heliograph

import argparse
import warnings
from collections.abc import Callable

import numpy as np

import heliograph as hg
from heliograph.ckks.sharing import SHARE_MARGIN
from heliograph.errors import InsecureWarning

POWER = "program power\ninput x: secret tensor[{n}] in [-1, 1]\noutput y = x*x*x*x*x*x*x*x\n"
TOTAL = "program total\ninput x: secret tensor[64] in [-1, 1]\noutput y = sum(x*x)\n"
LAYERS = """program layers
input x: secret tensor[8] in [-1, 1]
input w: plain tensor[6, 8] in [-1, 1]
output y = relu(w @ x)
"""


def study(text: str, sample: Callable[[int], np.ndarray], runs: int, **plain: np.ndarray) -> np.ndarray:
    """The largest error of each run, in units of the predicted one."""
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
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=150, help="encrypted runs of each case")
    runs = parser.parse_args().runs
    warnings.simplefilter("ignore", InsecureWarning)
    weights = np.random.default_rng(0).uniform(-0.5, 0.5, (6, 8))

    def uniform(n: int) -> Callable[[int], np.ndarray]:
        return lambda seed: np.random.default_rng(seed).uniform(-1, 1, n)

    def corners(n: int) -> Callable[[int], np.ndarray]:
        return lambda seed: np.sign(uniform(n)(seed))

    cases = {
        "layer, random inputs": study(LAYERS, uniform(8), runs, w=weights),
        "layer, corners": study(LAYERS, corners(8), runs, w=weights),
        "x^8, random inputs": study(POWER.format(n=4), uniform(4), runs),
        "x^8, corners": study(POWER.format(n=4), corners(4), runs),
        "x^8, one value of 1": study(POWER.format(n=1), lambda seed: np.ones(1), runs),
        "sum of squares, corners": study(TOTAL, corners(64), runs),
    }
    print(f"{machine()}\n\n{'error over predicted error':<28} median   99 %    max  (margin {SHARE_MARGIN:g})")
    for name, ratios in cases.items():
        print(f"{name:<28} {np.median(ratios):6.2f} {np.quantile(ratios, 0.99):6.2f} {ratios.max():6.2f}")


if __name__ == "__main__":
    main()
