"""What multiplying the first factor of SlotsToCoeffs into the linear map before it would take, for each map of an artifact.

    python benchmarks/resnet20.py
    python benchmarks/merged_transforms.py build/benchmarks/resnet20-*/artifact.helio

A product of two maps has a diagonal for each sum of two of their offsets. What it would save is a level of the bootstrap,
what it would cost are the products with these diagonals, and their plaintexts in memory; prices are the built-in table's.
Rotations are left out: of n diagonals they are about 2 sqrt(n), as many as both maps take or more.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from heliograph.ckks.costs import BUILT_IN
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.ir import CipherType, Node
from heliograph.ir.ops.slots.bootstraps import fourier_factor
from heliograph.ir.ops.slots.transforms import transform_offsets

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
        offsets = {o % slots for each in transform_offsets(node.attrs, program.linear_map, slots) for o in each}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    found = rows(hg.Artifact.load(options.artifact))
    if options.json:
        print(json.dumps({"maps": found}))
        return
    print(f"{'layer':28} {'map':>6} {'factor':>6} {'both':>6} {'a level less, ms':>17} {'products, ms':>13} {'GB':>5}")
    for row in found:
        print(
            f"{row['layer']:28} {row['diagonals_of_the_map']:6} {row['diagonals_of_the_factor']:6} "
            f"{row['diagonals_of_both']:6} {-row['saved_ms']:17.0f} {row['more_ms']:+13.0f} {row['plaintexts_gb']:5.1f}"
        )
    print(f"in all: {-sum(row['saved_ms'] for row in found):.0f} ms and {sum(row['more_ms'] for row in found):+.0f} ms")


if __name__ == "__main__":
    main()
