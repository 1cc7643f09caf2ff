"""What multiplying the first factor of SlotsToCoeffs into the linear map before it would take, for each map of an artifact.

    python benchmarks/resnets.py
    python benchmarks/merged_transforms.py

A product of two maps has a diagonal for each sum of two of their offsets. What it would save is a level of the bootstrap,
what it would cost are the products with these diagonals, and their plaintexts in memory; prices are the built-in table's.
Rotations are left out: of n diagonals they are about 2 sqrt(n), as many as both maps take or more.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import BUILD, Run, Skip, benchmark, option

from heliograph.ckks.costs import BUILT_IN
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.ir import CipherType, Node
from heliograph.ir.ops.slots.bootstraps import fourier_factor
from heliograph.ir.ops.slots.transforms import transform_diagonals

# What stands between a map and the bootstrap of its result: sums of copies, a bias, scales.
BETWEEN = frozenset(
    {"rescale", "add_plain", "add_ct", "level_drop", "switch_chain", "reread", "lincomb", "rotate", "linear_transform"}
)


def factor_behind(node: Node, users: dict[Node, list[Node]]) -> Node | None:
    """The first factor of SlotsToCoeffs that reads what a map gives, if nothing but sums and scales is between."""
    waiting, seen = [node], {node}
    while waiting:
        for user in users[waiting.pop()]:
            if user.op == "fourier_factor" and not user.attrs["inverse"]:
                return user
            if user.op in BETWEEN and user not in seen:
                seen.add(user)
                waiting.append(user)
    return None


def rows(artifact: hg.Artifact) -> list[dict[str, Any]]:
    """One row for each map whose result is bootstrapped."""
    program = artifact.program
    users, slots, ring = program.users(), program.ring.slots, program.ring
    assert ring.bootstrap is not None
    found = []
    for node in program.nodes:
        behind = factor_behind(node, users) if node.op == "linear_transform" else None
        if behind is None:
            continue
        assert isinstance(node.type, CipherType)
        factor = fourier_factor(behind.attrs)
        offsets = {o % slots for each in transform_diagonals(node.attrs, program.linear_map) for o in each.offsets}
        own = [(place - (1 << factor.layers) + 1) * factor.scale for place in range(factor.diagonals)]
        merged = len({(offset + other) % slots for offset in offsets for other in own})
        product_ms = BUILT_IN.summed_product_ms(ring, node.type.level)
        # A level less; the other factors stay as they are.
        shorter = replace(ring, levels=ring.levels - 1)
        saved = bootstrap_ms(ring, factor.slots, BUILT_IN) - bootstrap_ms(shorter, factor.slots, BUILT_IN)
        found.append(
            {
                "layer": node.loc.layer, "diagonals_of_the_map": len(offsets), "diagonals_of_the_factor": factor.diagonals,
                "diagonals_of_both": merged, "saved_ms": saved,
                "more_ms": (merged - len(offsets) - factor.diagonals) * product_ms,
                "plaintexts_gb": merged * ring.ciphertext_bytes(node.type.level, parts=1) / 1e9,
            }
        )  # fmt: skip
    return found


@benchmark(
    option("artifact", type=Path, nargs="?", help="by default the newest of resnets.py"),
    columns={
        "diagonals_of_the_map": "", "diagonals_of_the_factor": "", "diagonals_of_both": "", "saved_ms": "ms",
        "more_ms": "ms", "plaintexts_gb": "GB",
    },
    memory_gb=2,
)  # fmt: skip
def merged_transforms(run: Run) -> None:
    made = sorted(BUILD.glob("resnet20-*/artifact.helio"), key=lambda path: path.stat().st_mtime)
    if run.options.artifact is None and not made:
        raise Skip("there is no artifact of resnets.py, and none was named")
    artifact = hg.Artifact.load(run.options.artifact or made[-1])
    found = rows(artifact)
    for number, row in enumerate(found):
        run.row({"artifact": artifact.fingerprint[:12], "map": number, "layer": row["layer"]}, lambda row=row: row)  # type: ignore[misc]
    run.say(
        f"in all: {-sum(row['saved_ms'] for row in found):.0f} ms and {sum(row['more_ms'] for row in found):+.0f} ms"
    )


if __name__ == "__main__":
    merged_transforms.main()
