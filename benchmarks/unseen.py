"""Eight small networks on thousands of samples that neither training nor calibration saw: how many results are garbage.

Each network is compiled as far as its polynomials, once as earlier releases did by default (degree 15, ranges of the samples
widened by a tenth) and once at the defaults, and evaluated in the clear on every held-out sample. A result is garbage where
an output is further from the network's than the outputs' whole span. With `--plan` both are planned at 128 bits.
"""

from __future__ import annotations

from models.unseen import NETWORKS, Network, hg, trained  # first: it imports heliograph before torch

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import BUILD, Run, benchmark, option
from heliograph.compiler.pipeline import linear_passes, polynomial_passes
from heliograph.compiler.reporting.held_out import observe
from heliograph.errors import RangeError
from heliograph.execution.interface import check_range
from heliograph.interpret import interpret_many
from heliograph.ir.analysis.depth import program_depth
from heliograph.passes.base import apply
from heliograph.passes.ranges.output_ranges import OutputRanges
from heliograph.runtime.client.outputs import check_output

BEFORE = hg.Options(degree=15, margin=0.1)
# The bound on the rate of leaving is the worth of a calibration set; errors are measured on all that is held out.
_PART = 400


def evaluated(polynomial: hg.Program, samples: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        parts = [interpret_many(polynomial, [samples[i : i + _PART]])[0] for i in range(0, len(samples), _PART)]
    return np.concatenate(parts)


def refuses(check: Callable[..., None], *given: Any) -> bool:
    try:
        check(*given)
    except RangeError:
        return True
    return False


def caught(polynomial: hg.Program, outputs: np.ndarray) -> int:
    """How many of these outputs a client would refuse by their range alone."""
    (spec,) = polynomial.interface.outputs
    return sum(refuses(check_output, spec, output, 0.0, 0.0) for output in outputs)


def figures(
    program: hg.Program, fused: hg.Program, options: hg.Options, unseen: np.ndarray, exact: np.ndarray, plan: bool
) -> dict[str, Any]:
    """Garbage, agreement, depth and what the bill says, of one program under one set of options."""
    seen = observe(fused, options)
    polynomial = polynomial_passes(seen.known)[-1].program
    shown = interpret_many(fused, [part[:64] for part in seen.unseen.samples])
    polynomial = apply(OutputRanges(polynomial.stage, shown, len(program.calibration[0])), polynomial)
    outputs = evaluated(polynomial, unseen)
    with np.errstate(all="ignore"):
        errors = np.abs(outputs - exact).max(axis=1)
        garbage = ~(errors <= exact.max() - exact.min())
    (node,) = program.inputs
    bounds = {name: node.attrs.get(name) for name in ("low", "high")}
    refused = np.array([refuses(check_range, "x", bounds["low"], bounds["high"], sample) for sample in unseen])
    result = {
        "garbage": int(garbage.sum()),
        "refused_inputs": int(refused.sum()),
        "garbage_of_accepted_inputs": int((garbage & ~refused).sum()),
        "caught": caught(polynomial, outputs[garbage]),
        "refused_in_vain": caught(polynomial, outputs[~garbage]),
        "agreement": float((np.nan_to_num(outputs).argmax(1) == exact.argmax(1)).mean()),
        "largest_other_error": float(errors[~garbage].max()),
        "depth": program_depth(polynomial),
        "degrees": [entry.degree for entry in polynomial.ranges],
        "unseen": seen.unseen.to_dict(),
    }
    if plan:
        report = hg.compile(program, options).report.to_dict()
        result |= {name: report[name] for name in ("levels", "ring_dim", "bootstraps", "predicted_ms")}
    return result


def measured(network: Network, folder: Path, plan: bool, seed: int) -> dict[str, Any]:
    split = network.load()
    module = trained(network, split, folder, seed)
    given = {} if split.input_range is None else {"input_range": split.input_range}
    chosen = np.random.default_rng(seed).permutation(len(split.train)) if seed else np.arange(len(split.train))
    calibration = split.train[np.sort(chosen[: network.calibration])]
    program = hg.trace(module, torch.from_numpy(split.train[:1]), calibration=calibration, name="net", **given)
    fused = linear_passes(program)[-1].program
    with torch.no_grad():
        exact = module(torch.from_numpy(split.unseen)).numpy().astype(np.float64)
    before, now = (figures(program, fused, options, split.unseen, exact, plan) for options in (BEFORE, hg.Options()))
    return {
        "calibration": network.calibration,
        "held_out": len(split.unseen),
        **now,
        "rate_bound": now["unseen"]["rate_bound"],
        **{f"{name}_before": value for name, value in before.items()},
    }


@benchmark(
    option("--weights", type=Path, default=BUILD / "unseen", help="where they are kept"),
    option("--seed", type=int, default=0, help="other networks, calibrated on other samples"),
    option("--only", default="", selects=True, help="networks whose names hold this text"),
    option("--plan", action="store_true", help="plan both at 128 bits: levels and predicted seconds"),
    columns={
        "held_out": "", "refused_inputs": "", "garbage_before": "", "garbage": "", "caught_before": "",
        "agreement_before": "", "agreement": "", "depth_before": "levels", "depth": "levels", "rate_bound": "",
    },
    data=("cifar10_subset.npz", "fashion_mnist.npz", "mnist.npz", "adult.npz"),
    memory_gb=4,
    minutes=15,
)  # fmt: skip
def unseen(run: Run) -> None:
    """Refused inputs lie outside the range that tracing took from the samples or was given: no client encrypts them. Caught
    is garbage that a client's check of the outputs' range finds."""
    given = run.options
    torch.set_num_threads(1)
    for network in NETWORKS:
        if given.only in network.name:
            run.row({"network": network.name}, partial(measured, network, given.weights, given.plan, given.seed))


if __name__ == "__main__":
    unseen.main()
