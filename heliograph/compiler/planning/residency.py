"""The program with keys in a folder, if a bound on memory requires it."""

from __future__ import annotations

from heliograph.ckks.ring import Ring
from heliograph.compiler.pipeline import reside_pass
from heliograph.execution.key_use import key_use
from heliograph.execution.memory import memory_bytes
from heliograph.ir import Program


def within(program: Program, ring: Ring, bound: int) -> tuple[Program, float] | None:
    """The program within `bound` bytes on the server, and the milliseconds for reading keys again.

    If it does not fit with all keys in memory, its keys are in a folder: some are read again in every run, and the
    program says how many bytes stay (`Reside`). None if even that does not fit.
    """
    memory = memory_bytes(program, ring)
    if memory["server"] <= bound:
        return program, 0.0
    use = key_use(program)
    room = min(bound - (memory["server_folder"] - memory["resident_keys"]), memory["evaluation_keys"])
    if room < use.least_bytes:
        return None
    return reside_pass(program, room), use.loading_ms(room)
