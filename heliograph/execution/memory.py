"""Predicted bytes: keys, ciphertexts, and the peaks of the processes of client and server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.primes import WORD_BYTES
from heliograph.ckks.ring import Ring
from heliograph.execution.key_use import key_use
from heliograph.execution.keys import program_keys
from heliograph.ir import CipherType, Matrix, Node, Program
from heliograph.ir.analysis.liveness import peak_alive
from heliograph.ir.bootstraps.asked import bootstraps_by_chain, factors
from heliograph.ir.ops.slots.bootstraps import fourier_factor
from heliograph.ir.ops.slots.transforms import transform_diagonals
from heliograph.ir.ops.table import OPS

# Memory of processes, fitted to the peaks of benchmarks/bill.py (ten programs): Python with numpy, scipy, OpenFHE and
# cryptography, without torch; tables of the ring; and, besides the keys, buffers for single keys in transit.
BASE_BYTES = 80_000_000
_BYTES_PER_COEFFICIENT = 1300
# A client generates keys with the kernels of the native backend: their memory for each coefficient, and of the largest
# key.
_CLIENT_BYTES_PER_COEFFICIENT = 900
_CLIENT_KEYS = 1.1
_SERVER_KEYS = 4.6
# A client's bytes for each slot of an input while it encrypts: the number (for ids, a part of a one-hot vector), its
# place, and the packed vector.
_BYTES_PER_NUMBER = 24
# This share of the ciphertexts, plaintexts and constants is in memory while the keys are read.
_SHARE_AT_LOAD = 0.18
# Chains that bootstrap have more contexts. (Measured on rings of 2**11 and 2**12.)
_BOOTSTRAP_BYTES = 12_000_000
# The native backend's memory in addition to OpenFHE: the compiler of its kernels, and tables of each prime.
_NATIVE_BYTES = 100_000_000
_NATIVE_BYTES_PER_WORD = 17
# The default bound on the encoded plaintexts that an evaluator keeps.
PLAINTEXT_CACHE_BYTES = 1 << 30
# Keys that take more than this are predicted as a folder with one file each, otherwise as one file.
FOLDER_KEY_BYTES = 1 << 30


def memory_bytes(program: Program, ring: Ring, cache_bytes: int = PLAINTEXT_CACHE_BYTES) -> dict[str, int]:
    """Predicted bytes of evaluation keys, of all inputs and outputs, and the peaks of client and server.

    Keys are in one file, or in a folder with a file for each. For one file, the client has all bytes before it writes
    them (`client_file`), and the server has them for a while beside the keys (`server_file`). With a folder, only one
    key at a time is there as bytes, beside the keys that stay (`client_folder`, `server_folder`). `server` and `client`
    are the folder's figures if the keys take more than FOLDER_KEY_BYTES or the program's parameters bound the keys in
    memory (`resident_key_bytes`); `folder` is then 1. `sent_keys` and `sent_inputs` are the bytes of files and
    messages, in which a seed replaces half of the numbers.

    A client's peak is the generation of keys, or the encryption: the inputs in the form sent, and their numbers in
    slots.

    After loading, a server has the keys, the ciphertexts alive at once, and every encoded plaintext (they are kept
    between runs, up to the evaluator's bound, `cache_bytes`). Its peak is the larger of loading and running. `working`
    is the memory of a run beside the keys, `resident_keys` the bytes of keys that a server keeps in memory with a
    folder, `loading` the buffers while a key is read.
    """
    keys = program_keys(program)
    key_bytes, sent_bytes = sum(key.bytes for key in keys), sum(key.sent_bytes for key in keys)
    secret = [node.attrs["level"] for node in program.inputs if node.type.secret]
    resident = program.planned.resident_key_bytes
    working = working_bytes(program, ring, cache_bytes)
    tables = table_bytes(program)
    fixed = (
        BASE_BYTES
        + _BYTES_PER_COEFFICIENT * ring.ring_dim
        + _BOOTSTRAP_BYTES * sum(map(bool, bootstraps_by_chain(program)))
    )
    native = _native_bytes(program)
    buffers = _SERVER_KEYS * max((key.bytes for key in keys), default=0)
    kept = key_bytes if resident is None else min(resident, key_bytes)
    one_file = native + max(
        fixed + sent_bytes + key_bytes + buffers + _SHARE_AT_LOAD * working,
        fixed + key_bytes + working + tables,
    )
    in_folder = native + fixed + kept + buffers + working + tables
    folder = resident is not None or key_bytes > FOLDER_KEY_BYTES
    sent = sum(map(ring.sent_ciphertext_bytes, secret))
    encrypting = sent + _BYTES_PER_NUMBER * ring.slots * len(secret)
    ready = BASE_BYTES + native + _CLIENT_BYTES_PER_COEFFICIENT * ring.ring_dim
    made = {one_by_one: ready + max(key_making_bytes(keys, one_by_one), encrypting) for one_by_one in (False, True)}
    return {
        "evaluation_keys": key_bytes,
        "resident_keys": kept,
        "loading": int(buffers),
        "sent_keys": sent_bytes,
        "inputs": sum(map(ring.ciphertext_bytes, secret)),
        "sent_inputs": sent,
        "outputs": sum(ring.ciphertext_bytes(0) for _ in program.outputs),
        "working": working + tables,
        "folder": int(folder),
        "server_file": int(one_file),
        "server_folder": int(in_folder),
        "server": int(in_folder if folder else one_file),
        "client_file": made[False],
        "client_folder": made[True],
        "client": made[folder],
    }


def _native_bytes(program: Program) -> int:
    """The native backend's own bytes."""
    words = max(chain.ring.words(chain.ring.levels) + chain.ring.special_words for chain in program.planned.chains)
    return _NATIVE_BYTES + _NATIVE_BYTES_PER_WORD * words * program.planned.chains[0].ring.ring_dim


def table_bytes(program: Program) -> int:
    """The bytes on the server of the plaintexts of all bootstraps, for each factor of their transforms."""
    total = 0
    for node in factors(program).values():
        assert isinstance(node.type, CipherType)
        ring = program.planned.chains[node.type.chain].ring
        level = node.type.level
        special = WORD_BYTES * ring.ring_dim * ring.special_words if ring.hoists_twice(level) else 0
        total += fourier_factor(node.attrs).diagonals * (ring.ciphertext_bytes(level, 1) + special)
    return total


def least_server_bytes(program: Program, ring: Ring) -> int:
    """The smallest possible bound on the memory of a server of this program."""
    memory = memory_bytes(program, ring)
    return min(memory["server"], memory["server_folder"] - memory["resident_keys"] + key_use(program).least_bytes)


def working_bytes(program: Program, ring: Ring, cache_bytes: int = PLAINTEXT_CACHE_BYTES) -> int:
    """The bytes of ciphertexts alive at once, encoded plaintexts (at most `cache_bytes`) and constants of a run."""
    plaintexts = 0
    for node in program.nodes:
        if not isinstance(node.type, CipherType):
            continue
        size = ring.ciphertext_bytes(node.type.level, parts=1) + 16 * ring.slots
        if node.op == "linear_transform":
            plaintexts += sum(
                len(diagonals.offsets) * size for diagonals in transform_diagonals(node.attrs, program.linear_map)
            )
        elif OPS[node.op].plaintext:
            plaintexts += size
    plaintexts = min(plaintexts, cache_bytes)
    alive = peak_bytes(program, ring)
    # The blocks of one map share its arrays.
    arrays = {
        id(array): array.nbytes
        for c in program.constants.values()
        for array in (c.numbers if isinstance(c, Matrix) else (c,) if isinstance(c, np.ndarray) else ())
    }
    constants = sum(arrays.values())
    return alive + plaintexts + 3 * constants


def peak_bytes(program: Program, ring: Ring) -> int:
    """The largest number of bytes of ciphertexts that are alive at once."""

    def size(node: Node) -> int:
        kind = node.type
        return kind.count * ring.ciphertext_bytes(kind.level, kind.parts) if isinstance(kind, CipherType) else 0

    return peak_alive(program.nodes, program.outputs, size)


def key_making_bytes(keys: Sequence[EvaluationKey], one_by_one: bool) -> int:
    """A client's bytes for generating these keys: all of them or, if each is written before the next, only a few."""
    largest = max((key.bytes for key in keys), default=0)
    kept = 0 if one_by_one else sum(key.sent_bytes for key in keys)
    return int(_CLIENT_KEYS * largest) + kept
