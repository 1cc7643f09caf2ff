"""The lower parts of a chain that a bound on the keys in memory asks for."""

from __future__ import annotations

from heliograph.ckks.ring import Ring
from heliograph.compiler.pipeline import reside_pass
from heliograph.execution.key_use import key_use
from heliograph.execution.memory import memory_bytes
from heliograph.ir import Program


def within(program: Program, ring: Ring, bound: int) -> tuple[Program, float] | None:
    """The program as it keeps within `bound` bytes on the server, and the milliseconds that reading keys again takes.

    Where it does not keep within them as it is, its keys come in a folder; where they do not all fit, some are read anew in
    every run, and the program says how many bytes stay (`Reside`). None where even that does not do.
    """
    memory = memory_bytes(program, ring)
    if memory["server"] <= bound:
        return program, 0.0
    use = key_use(program)
    room = min(bound - (memory["server_folder"] - memory["resident_keys"]), memory["evaluation_keys"])
    if room < use.least_bytes:
        return None
    return reside_pass(program, room), use.loading_ms(room)
