"""One line for each name that a report prints, and for each kind of homomorphic call that it counts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from heliograph.errors import ProgramError
from heliograph.ir.ops.table import OPS
from heliograph.report.markup import titled

# The rows of the bill.
ROWS: dict[str, str] = {
    "security": "The bits of security, checked against the table of the Security Guidelines of 2024; 128 or refused.",
    "secret": "The distribution of the secret key, for which that table holds.",
    "ring": "The ring dimension N, the size of all ciphertexts and keys; a ciphertext holds at most N / 2 numbers.",
    "chain": "The primes whose product is the ciphertext modulus: a first one, one for each level, and special ones.",
    "depth": "The number of multiplications one after the other; each takes a level.",
    "degrees": "The degrees of the polynomials that stand for activations, where they were chosen layer by layer.",
    "certificate": "How far an input may be changed without changing the answer, and how often that is wrong.",
    "samples": "The number of samples that one run evaluates together.",
    "client sends": "What a client makes of a row of a table, in the clear, before it encrypts it.",
    "operations": "The homomorphic calls of a run, by kind; each kind has its own line here.",
    "rotations": "Moves of the slots of a ciphertext; each amount of movement needs a key.",
    "keys in memory": "The keys that are held at once, where memory was bounded.",
    "memory bound": "What a bound on memory costs in time.",
    "key switches": "Rotations and products of ciphertexts, which read a key; they take most of the time.",
    "bootstraps": "Operations that give a value fresh levels, where a program is deeper than the chain.",
    "ciphertext products": "Products of two ciphertexts.",
    "plaintext products": "Products of a ciphertext with weights.",
    "ciphertexts": "The bytes of an encrypted input and of an encrypted output.",
    "outputs": "How large the outputs are, on samples and at most, and what the client computes after decryption.",
    "model": "How the compiled program was compared with the model that it was made from.",
    "new inputs": "How often an input like the samples leaves the range of a polynomial; its result is then refused.",
    "polynomials": "How far the polynomials are off, on samples that they were not fitted to and on all.",
    "class": "How often the compiled program gives the model's own class, on samples that it was not fitted to.",
    "key generation": "The time in which a client makes its keys, once.",
    "encryption": "The time in which a client encrypts an input.",
    "evaluation": "The time of a run on the server, from measured prices of its calls, on an idle machine.",
    "evaluation per sample": "The time of a run, divided by its samples.",
    "first evaluation": "The time of the first run, which also encodes the weights.",
    "decryption": "The time in which a client decrypts an output.",
    "server's memory": "The largest amount of memory that the server's process holds.",
    "client's memory": "The largest amount of memory that the client's process holds.",
    "memory of one process": "The memory of client and server together in one process.",
    "evaluation keys": "The keys that a client sends to the server, once; they do not tell the secret key.",
    "keys as sent": "The bytes of these keys on the way: seeds stand for their random halves.",
    "encrypted input": "The bytes of an encrypted input.",
    "input as sent": "The bytes of an encrypted input on the way.",
    "input per sample": "The bytes of an encrypted input, divided by its samples.",
    "output error": "The largest difference from the model on samples: that of the polynomials and of encryption.",
    "of which encryption": "The part of the error that encryption adds.",
    "saves a level": "A change that makes the program less deep, and often faster.",
    "ranges of polynomials": "The interval on which each polynomial is good, where it comes from, and the error on it.",
    "levels, along the longest path": "Which line of the program takes which levels.",
    "assumed": "What the figures rest on.",
    "machine": "The machine on which the measured column was measured.",
    "load average": "The number of processes that wanted to run while the measured column was measured.",
}
# The kinds of homomorphic calls (execution/primitives.py).
CALLS: dict[str, str] = {
    "add": "A sum or difference of two ciphertexts.",
    "accumulate": "A ciphertext added to a sum in place.",
    "add_plain": "A plaintext, encoded beforehand, added to a ciphertext.",
    "add_pt": "Plain values, encoded in the run, added to a ciphertext.",
    "mul": "A product of two ciphertexts, before relinearization.",
    "mul_plain": "A product with an encoded plaintext.",
    "summed_product": "A sum of products of ciphertexts with encoded plaintexts, in one pass.",
    "mul_pt": "A product with plain values that are encoded in the run.",
    "mul_scalar": "A product with one number.",
    "weighted_sums": "Sums of ciphertexts with weights, several at once.",
    "rotate": "A rotation of the slots.",
    "rotate_hoisted": "A rotation that shares its decomposition with others of the same ciphertext (hoisting).",
    "rotate_wide": "A hoisted rotation whose result stays in the extended basis, before the division by special primes.",
    "wide_product": "A sum of products with plaintexts in the extended basis.",
    "step_wide": "A rotation by a giant step of a value in the extended basis.",
    "narrow": "The division by the special primes, which leads out of the extended basis.",
    "decompose": "The digits of a ciphertext in the extended basis, which rotations of it share.",
    "conjugate": "The complex conjugates of the slots.",
    "relinearize": "The return of a product of ciphertexts to two parts.",
    "relinearize_wide": "A relinearization whose result stays in the extended basis.",
    "narrow_rescale": "The division by the special primes and a rescale, in one pass.",
    "rescale": "The division by the primes of a level, after a product.",
    "switch_chain": "The passage of a ciphertext to another part of the chain, with keys of its own.",
    "raise_modulus": "The first step of a bootstrap: the residues of a small modulus under the whole one.",
}
TERMS = {**ROWS, **CALLS}


def hovering(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows of an HTML table, whose first cells show the line of their name where the pointer rests on them."""
    return [(titled(name, TERMS[name]) if name in TERMS else name, *cells) for name, *cells in rows]


def explained(name: str) -> str:
    """The line of a name in a report, or of an op; a ProgramError names the nearest if there is none."""
    known = {spec.name: spec.doc for spec in OPS.values()} | {each.lower(): line for each, line in TERMS.items()}
    if name.lower() in known:
        return known[name.lower()]
    near = difflib.get_close_matches(name.lower(), known, n=3)
    raise ProgramError(
        f"neither a report nor a program has the name {name[:60]!r}",
        hint=f"perhaps {' or '.join(map(repr, near))}" if near else "heliograph explain lists all names",
    )
