"""Mixed precision: forward and backward passes in bfloat16; norms, clipping and sums in float32 and float64.

The proof requires that a record's gradient is one vector, decided by this record alone (with the parameters and its own
coins), and that the clipped vector is no longer than the bound. It need not be near the true gradient. Here it is
computed from inputs of layers and gradients at their outputs, in bfloat16, widened to float32; norm and sum come from
the same numbers, with the round-off of float32, as everywhere. So the length is bounded as in full precision.

That no *other* record affects it is another matter. torch does not promise that a row of a product stays the same in a
batch of another size. In float32 such a row moves by 1e-7 of itself; in bfloat16 one rounding that falls the other way
is 2^-8 of a number, and a hundred rows together could move a sum by a fifth of the bound. So every physical batch has
one shape here, filled up with rows of no weight; and before training `check_rows` tries the module itself on this
machine, bit by bit: rows that change places keep their values, and an exchanged row moves no other. The order in which
kernels add depends on the shape, not on values, so one trial holds for all data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heliograph.dp.training.gradients import GradientEngine, Inputs, mapped
from heliograph.errors import UnsupportedError


def check_rows(engine: GradientEngine, inputs: Inputs, targets: Tensor) -> None:
    """Raise UnsupportedError unless each row of a whole batch is computed by itself, at any place.

    `inputs` and `targets` are of some records, and dropout is off: a mask belongs to a place.
    """
    assert engine.mixed_rows is not None
    rows = torch.arange(engine.mixed_rows, device=targets.device)

    def seen(order: Tensor) -> list[Tensor]:
        taken = order % len(targets)
        return engine.seen(mapped(inputs, lambda each: each[taken]), targets[taken])

    before, place = seen(rows), len(rows) // 2
    exchanged = torch.where(rows == place, rows + 1, rows)
    cases = [
        ("rows that change places", rows.roll(1), rows),
        ("rows in reverse", rows.flip(0), rows),
        ("rows beside one that is exchanged", exchanged, rows[rows != place]),
    ]
    for what, order, looked_at in cases:
        for was, now in zip(before, seen(order), strict=True):
            if not torch.equal(was[order][looked_at], now[looked_at]):
                raise UnsupportedError(
                    "in bfloat16 a record's values depend on where it stands in a batch, or on what stands beside it",
                    where="precision",
                    why=f"{what} are not computed as before, bit by bit, on this machine; what moves the others when a"
                    " record leaves is not bounded by clipping",
                    hint="train in full precision, or try another physical_batch_size",
                )
