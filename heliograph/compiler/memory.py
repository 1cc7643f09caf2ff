"""Predicted bytes: keys, ciphertexts, and the peaks of the processes of client and server."""

from __future__ import annotations

from heliograph.bootstrap_keys import bootstrap_table_bytes
from heliograph.chains import key_chains
from heliograph.evaluation_keys import evaluation_keys
from heliograph.ir import CipherType, Program, SparseMatrix
from heliograph.ir.slot_ops import transform_diagonals
from heliograph.passes.schedule import peak_towers
from heliograph.target import Ring

# What processes take, fitted to the peaks of benchmarks/bill.py (ten programs, within 2 %): Python with numpy, scipy and
# OpenFHE, without torch; tables of the ring; and, beside the keys twice, the buffers of single keys on their way.
BASE_BYTES = 72_000_000
_BYTES_PER_COEFFICIENT = 1300
_CLIENT_KEYS = 1.9
_SERVER_KEYS = 4.6
# Of ciphertexts, plaintexts and constants so much is there while the keys are read.
_SHARE_AT_LOAD = 0.18
# The evaluator's bound on the encoded plaintexts that it keeps.
PLAINTEXT_CACHE_BYTES = 1 << 30


def memory_bytes(program: Program, ring: Ring) -> dict[str, int]:
    """Predicted bytes of evaluation keys, of all inputs and outputs, and the peaks of client and server.

    A server that reads its keys from a file has them twice for a while; after that it has the keys, the ciphertexts alive
    at once, and every encoded plaintext (they are kept between runs, up to the evaluator's bound). The larger of the two
    moments is its peak. A client has the keys twice while they are written out. `working` is what a run takes beside the
    keys.
    """
    slot_counts = program.metadata.get("bootstrap_slots", ())
    key_bytes = sum(key.bytes for key in evaluation_keys(key_chains(program.metadata), slot_counts))
    tables = sum(bootstrap_table_bytes(ring, slots) for slots in slot_counts)
    plaintexts = 0
    for node in program.nodes:
        if not isinstance(node.type, CipherType):
            continue
        size = ring.ciphertext_bytes(node.type.level, parts=1) + 16 * ring.slots
        if node.op == "linear_transform":
            plaintexts += sum(
                len(diagonals.offsets) * size
                for diagonals in transform_diagonals(node.attrs, program.matrix, ring.slots)
            )
        elif node.op in ("mul_plain", "add_plain", "add_scalar", "lincomb"):
            plaintexts += size
    plaintexts = min(plaintexts, PLAINTEXT_CACHE_BYTES)
    alive = peak_towers(program.nodes, program.outputs) * ring.ring_dim * 8
    constants = sum(
        c.data.nbytes + c.indices.nbytes if isinstance(c, SparseMatrix) else getattr(c, "nbytes", 0)
        for c in program.constants.values()
    )
    working = alive + plaintexts + 3 * constants
    fixed = BASE_BYTES + _BYTES_PER_COEFFICIENT * ring.ring_dim
    loading = fixed + 2 * key_bytes + _SERVER_KEYS * ring.rotation_key_bytes + _SHARE_AT_LOAD * working
    return {
        "evaluation_keys": key_bytes,
        "inputs": sum(ring.ciphertext_bytes(node.attrs["level"]) for node in program.inputs if node.type.secret),
        "outputs": sum(ring.ciphertext_bytes(0) for _ in program.outputs),
        "working": working + tables,
        "server": int(max(loading, fixed + key_bytes + working + tables)),
        "client": int(fixed + 2 * key_bytes + _CLIENT_KEYS * ring.rotation_key_bytes),
    }
