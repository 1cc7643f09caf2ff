"""The comparison figures of the paper on numerical composition, drawn with our accountants.

`epsilon_steps.png`: epsilon against steps of DP-SGD (p = 0.01, noise 0.8, delta 1e-6), the proved bracket beside the
Renyi bound, the paper's accountant and the central-limit estimate. `error_mesh.png`: the error of delta at epsilon
against the mesh for one law, first-order rounding up and down beside the second-order discretizations.

They are drawn into `--out`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from central_limit import CentralLimit
from harness import ROOT, Run, benchmark, option
from heliograph.dp.accounting import Tolerance, delta_at, epsilon_at
from heliograph.dp.accounting.convolve import compose
from heliograph.dp.accounting.discretize import Mesh, merging_offset, offset_for, optimistic, pessimistic
from heliograph.dp.accounting.pld import saddle_for_epsilon
from heliograph.dp.mechanisms import SampledGaussian
from published_accountants import PrivacyRandomVariables


def steps_figure(path: Path) -> dict[str, Any]:
    step, at = SampledGaussian(0.01, 0.8), 1e-6
    counts = [10, 30, 100, 300, 1000, 2000, 4000, 7000, 10_000]
    brackets = [epsilon_at(step * k, at) for k in counts]
    renyi = [epsilon_at(step * k, at, method="rdp").upper for k in counts]
    central = [epsilon_at(step * k, at, method=CentralLimit()).estimate for k in counts]
    published = [epsilon_at(step * k, at, method=PrivacyRandomVariables(eps_error=0.1)) for k in counts]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(counts, renyi, label="Renyi (upper bound)")
    axes.fill_between(
        counts, [p.lower for p in published], [p.upper for p in published], alpha=0.3, label="paper's bounds"
    )
    axes.plot(counts, [b.upper for b in brackets], "k", linewidth=1, label="proved bracket (upper)")
    axes.plot(counts, [b.lower for b in brackets], "k--", linewidth=1, label="proved bracket (lower)")
    axes.plot(counts, central, ":", label="central limit (no bound)")
    axes.set_xlabel("steps")
    axes.set_ylabel("epsilon")
    axes.set_title("DP-SGD, p = 0.01, noise multiplier 0.8, delta = 1e-6", fontsize=9)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    ends = {"proved": brackets, "paper": published}
    return {
        "steps": counts, "renyi": renyi, "central_limit": central,
        **{f"{name}_lower": [each.lower for each in found] for name, found in ends.items()},
        **{f"{name}_upper": [each.upper for each in found] for name, found in ends.items()},
    }  # fmt: skip


def mesh_figure(path: Path) -> dict[str, Any]:
    mechanism, steps, at = SampledGaussian(0.01, 0.8), 1000, 1.5
    pair = mechanism.pair("remove")
    true = delta_at(mechanism * steps, at, tolerance=Tolerance(delta_share=2e-5)).directions["remove"].estimate
    meshes = [2e-2, 1e-2, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4]
    rows: dict[str, list[float]] = {
        "second order, above": [],
        "second order, below": [],
        "rounding up": [],
        "rounding down": [],
    }
    for mesh in meshes:
        above = pessimistic(pair, Mesh(mesh), offset_for(pair, mesh), -60.0)
        below = optimistic(pair, Mesh(mesh), merging_offset(pair, mesh), -60.0, 1e-12)
        theta = saddle_for_epsilon([(above, steps)], at, 5.0)
        rows["second order, above"].append(compose([(above, steps)], theta, at, np.log(true)).delta_at(at)[1] - true)
        rows["second order, below"].append(true - compose([(below, steps)], theta, at, np.log(true)).delta_at(at)[0])
        # Rounding: each outcome to the next node above or below; by plain cell masses of the same pair.
        assert pair.part is not None
        cells = pair.part.cells(pair.part.edge(np.append(above.losses(), np.inf)))
        for name, moved in (("rounding up", 1), ("rounding down", 0)):
            rounded = type(above)(above.index + moved, cells.a, mesh, above.offset, 0.0, 0.0)
            value = compose([(rounded, steps)], theta, at, np.log(true)).delta_at(at)
            rows[name].append(abs(value[1] - true))
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, values in rows.items():
        axes.loglog(meshes, np.maximum(values, 1e-18), "o-", markersize=3, label=name)
    axes.axhline(true, color="grey", linewidth=0.8, label="delta itself")
    axes.set_xlabel("mesh")
    axes.set_ylabel("error of delta")
    axes.set_title("1,000 steps, p = 0.01, noise 0.8, epsilon = 1.5", fontsize=9)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    return {"mesh": meshes, **rows}


@benchmark(
    option("--out", type=Path, default=ROOT / "build" / "figures"),
    packages=("matplotlib",),
    minutes=2,
)
def accounting_figures(run: Run) -> None:
    """The points of the lines are in the records."""
    out = run.options.out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in (("epsilon_steps.png", steps_figure), ("error_mesh.png", mesh_figure)):
        # A picture that is gone is drawn again.
        run.options.again |= not (out / name).exists()
        run.row({"picture": name}, partial(draw, out / name))


if __name__ == "__main__":
    accounting_figures.main()
