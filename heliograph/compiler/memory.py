"""Predicted bytes: keys, ciphertexts, and the peaks of the processes of client and server."""

from __future__ import annotations

from heliograph.ir import CipherType, Program, SparseMatrix
from heliograph.ir.diagonals import diagonal_map
from heliograph.passes.schedule import peak_towers
from heliograph.target import Ring

# What a process takes before any key or ciphertext: Python with numpy, scipy and OpenFHE, without torch.
BASE_BYTES = 150 * 1024 * 1024
# The evaluator's bound on the encoded plaintexts that it keeps.
PLAINTEXT_CACHE_BYTES = 1 << 30


def memory_bytes(program: Program, ring: Ring) -> dict[str, int]:
    """Predicted bytes of evaluation keys, of all inputs and outputs, and the peaks of client and server.

    The server's peak has the keys, the ciphertexts alive at once, and every encoded plaintext (they are kept between
    runs, up to the evaluator's bound). The client's has the keys twice while they are written out.
    """
    keys = len(program.metadata["rotation_keys"]) + int(program.metadata["relinearization_key"])
    evaluation_keys = keys * ring.rotation_key_bytes
    plaintexts = 0
    for node in program.nodes:
        assert isinstance(node.type, CipherType)
        size = ring.ciphertext_bytes(node.type.level, parts=1) + 16 * ring.slots
        if node.op == "linear_transform":
            a = node.attrs
            matrix = program.matrix(a["matrix"])
            diagonals = diagonal_map(matrix, ring.slots, a["in_period"], a["out_period"], a["in_shift"])
            plaintexts += len(diagonals.offsets) * size
        elif node.op in ("mul_plain", "add_plain", "add_scalar", "lincomb"):
            plaintexts += size
    plaintexts = min(plaintexts, PLAINTEXT_CACHE_BYTES)
    alive = peak_towers(program.nodes, program.outputs) * ring.ring_dim * 8
    constants = sum(
        c.data.nbytes + c.indices.nbytes if isinstance(c, SparseMatrix) else getattr(c, "nbytes", 0)
        for c in program.constants.values()
    )
    return {
        "evaluation_keys": evaluation_keys,
        "inputs": sum(ring.ciphertext_bytes(node.attrs["level"]) for node in program.inputs),
        "outputs": sum(ring.ciphertext_bytes(0) for _ in program.outputs),
        "server": BASE_BYTES + evaluation_keys + alive + plaintexts + 3 * constants,
        "client": BASE_BYTES + 2 * evaluation_keys,
    }
