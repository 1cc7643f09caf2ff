"""Which models are taken: small modules as people write them, and public families, compiled and compared with torch.

Each model is traced and compiled at 128 bits in a process of its own with a limit of time and memory, with 128 calibration
samples; its polynomial program is compared with torch on 64 samples that were kept apart, and the compiled program on the
simulator on two of them. Seconds are those of the processor, on one thread: other work on the machine does not count.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import resource
import time
import traceback
import warnings
from functools import partial
from typing import Any

import models.idioms
import models.sequence
import models.tabular
import models.vision  # noqa: F401  (they fill the table)
import numpy as np
import torch
from harness import Run, benchmark, limited, option
from models.entries import TABLE, TOKENS, Entry

from heliograph.interpret import interpret_batch

SECONDS, GIGABYTES = 60.0, 4.0
# Past this a model fails: a machine that others share is not to be filled.
_MOST_GIGABYTES = 8
_CALIBRATION, _APART, _SIMULATED = 128, 64, 2


def entries(run: Run) -> list[Entry]:
    try:
        import torchvision  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        run.say("torchvision and transformers are not installed: public families are left out")
        return list(TABLE)
    from models.families import FAMILIES

    return [*TABLE, *FAMILIES]


def samples(entry: Entry, count: int, seed: int) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    if entry.kind == "tokens":
        return tuple(torch.randint(0, TOKENS, (count, *shape), generator=random) for shape in entry.shapes)
    return tuple(torch.randn(count, *shape, generator=random) for shape in entry.shapes)


def tried(entry: Entry) -> dict[str, Any]:
    """What became of one model."""
    torch.manual_seed(0)
    module = entry.make().eval()
    calibration, apart = samples(entry, _CALIBRATION, 1), samples(entry, _APART, 2)
    with torch.no_grad():
        expected = [y.double().numpy() for y in _tensors(module(*apart))]
    found: dict[str, Any] = {}
    polynomial: list[Any] = []

    def watch(name: str, program: Any) -> None:
        if program.stage.value == "polynomial":
            polynomial[:] = [program]

    example = tuple(x[:1] for x in calibration)

    def traced(check: bool) -> tuple[float, Any]:
        begun = time.process_time()
        program = hg.trace(module, example, calibration=calibration, check=check)
        return time.process_time() - begun, program

    try:
        traced(False)  # what is loaded on first use is not to count
        found["trace_unchecked_seconds"] = round(traced(False)[0], 4)
    except hg.HeliographError:
        pass
    begun = time.process_time()
    try:
        took, program = traced(True)
        found["trace_seconds"] = round(took, 4)
        artifact = hg.compile(program, watch=watch)
    except hg.HeliographError as error:
        kind = "refused" if isinstance(error, hg.UnsupportedError) else "failed"
        return {**found, "outcome": kind, "why": str(error)[:600], "says_what_to_do": bool(error.hint)}
    seconds = time.process_time() - begun
    figures = artifact.report.to_dict()
    found |= {
        "outcome": "compiled",
        "seconds": round(seconds, 2),
        "compile_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **{
            name: figures.get(name)
            for name in ("levels", "bootstraps", "predicted_ms", "server_peak_bytes", "ring_dim")
        },
    }
    kept = interpret_batch(polynomial[0], *(_as_read(node, x) for node, x in zip(program.inputs, apart, strict=True)))
    specs = artifact.program.interface.outputs
    sizes = [float(np.abs(y).max()) for y in expected]
    finished = [spec.finished(out) for spec, out in zip(specs, kept, strict=True)]
    found["error_polynomial"] = _error(finished, expected, sizes)
    some = [hg.simulate(artifact, *(x[i] for x in apart)) for i in range(_SIMULATED)]
    rows = [one if isinstance(one, tuple) else (one,) for one in some]
    simulated = [np.stack(parts) for parts in zip(*rows, strict=True)]
    found["error_simulated"] = _error(simulated, [y[:_SIMULATED] for y in expected], sizes)
    return found


def _as_read(node: Any, x: torch.Tensor) -> np.ndarray:
    """Samples as the program reads them: token ids are one-hot."""
    classes = node.attrs.get("classes")
    return x.double().numpy() if classes is None else np.eye(classes)[x.numpy()]


def _tensors(out: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]


def _error(got: Any, expected: list[np.ndarray], sizes: list[float]) -> float:
    """The largest difference, as a share of the largest output of all samples that were kept apart."""
    return max(
        float(np.abs(np.asarray(a).reshape(b.shape) - b).max()) / max(1e-9, size)
        for a, b, size in zip(got, expected, sizes, strict=True)
    )


def _caught(entry: Entry) -> dict[str, Any]:
    """What became of a model, whatever is raised."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        return tried(entry)
    except MemoryError:
        return {"outcome": "failed", "why": "out of memory"}
    except BaseException:
        return {"outcome": "crashed", "why": traceback.format_exc()[-600:]}


def row(entry: Entry, limit: float) -> dict[str, Any]:
    """The same in a process of its own."""
    begun = time.perf_counter()
    found, why = limited(_caught, entry, seconds=limit, memory_bytes=_MOST_GIGABYTES * 2**30)
    if found is None:
        found = {"outcome": "timeout" if why.startswith("not within") else "crashed", "why": why}
    found["wall_seconds"] = round(time.perf_counter() - begun, 2)
    return {**dict.fromkeys(COLUMNS), "group": entry.group, **found}


def summary(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of all models: compiled, within 60 s and 4 GB, accurate; the cost of the comparison when they are traced."""
    compiled = [one for one in models if one["outcome"] == "compiled"]
    within = [one for one in compiled if one["seconds"] <= SECONDS and one["compile_bytes"] <= GIGABYTES * 2**30]
    hints = [one.get("says_what_to_do", False) for one in models if one["outcome"] == "refused"]
    count = max(1, len(models))
    ratios = [
        one["trace_seconds"] / one["trace_unchecked_seconds"] for one in compiled if one.get("trace_unchecked_seconds")
    ]
    return {
        "models_count": len(models),
        "compiled_share": len(compiled) / count,
        "within_limits_share": len(within) / count,
        "refusals_with_hint": sum(hints) / max(1, len(hints)),
        "trace_with_check_ratio": float(np.median(ratios)) if ratios else None,
        "accurate_share": sum(one["error_polynomial"] < 0.1 for one in compiled) / count,
    }


COLUMNS = {
    "outcome": "",
    "seconds": "s",
    "compile_bytes": "bytes",
    "error_polynomial": "",
    "error_simulated": "",
    "why": "",
}


@benchmark(
    option("--only", nargs="*", default=None, help="names of models"),
    option("--group", default=None, selects=True),
    option("--part", default="1/1", selects=True, help="2/5 is the second of five parts"),
    option("--limit", type=float, default=SECONDS * 1.5, help="seconds for one model, comparison included"),
    columns=COLUMNS,
    memory_gb=8,
    minutes=60,
)
def model_coverage(run: Run) -> None:
    asked = run.options
    part, parts = map(int, asked.part.split("/"))
    chosen = [
        e for e in entries(run) if asked.group in (None, e.group) and (asked.only is None or e.name in asked.only)
    ]
    rows = [run.row({"model": e.name}, partial(row, e, asked.limit)) for e in chosen[part - 1 :: parts]]
    run.say(summary(rows))


if __name__ == "__main__":
    model_coverage.main()
