"""One line for each name and word that a report prints, and for each kind of homomorphic call that it counts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from html import escape

from heliograph.errors import ProgramError
from heliograph.ir.ops.table import OPS
from heliograph.report.markup import Html, titled

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
# Words within rows.
WORDS: dict[str, str] = {
    "N": "The ring dimension: ciphertexts are polynomials with N coefficients; a larger N is safer, slower and larger.",
    "ring dimension": "N, the number of coefficients of a ciphertext's polynomials.",
    "slots": "The places of a ciphertext, each of which holds one number; there are N / 2.",
    "levels": "How many multiplications one after the other a fresh ciphertext allows.",
    "held-out samples": "Calibration samples that set no range and no polynomial, so that they stand for new inputs.",
    "confidence": "How often a bound that was made in this way from samples is true.",
    "margin": "How much wider a range is made than the values that were seen; a new input may lie a little outside them.",
    "widened": "By how much a range is wider than the values that were seen: its margin.",
    "proved": "Follows from the ranges of the inputs, for every input within them.",
    "observed": "Seen on calibration samples, with a margin; a new input may exceed it.",
    "declared": "Given by whoever wrote or compiled the program.",
    "per-unit ranges": "Each unit of a layer has a range of its own, so that small ones have small errors too.",
    "gap": "Two values that differ by less are not told apart; a smaller one takes more levels.",
    "approximation error": "The part of the error that polynomials in place of activations add.",
    "digits": "The parts into which a key switch cuts a ciphertext; fewer mean smaller keys and a larger modulus.",
    "scale": "The factor by which numbers are multiplied before they are rounded to integers; its bits are the precision.",
    "first modulus": "The prime that is left at level 0; outputs have to fit into it.",
    "special primes": "Primes beside those of the levels, in which key switches are computed to keep their noise small.",
    "log PQ": "The bits of all primes together; for each N the security table has a largest value.",
    "uniform ternary": "Each coefficient of the secret key is -1, 0 or 1, equally often.",
    "critical path": "The longest way from an input to an output, in levels; what is beside it costs no level.",
}
TERMS = {**ROWS, **CALLS, **WORDS}
# The longest first; also in the singular.
_IN_TEXT = re.compile(
    "|".join(rf"(?<![\w-]){re.escape(word)}(?![\w-])" for each in sorted(WORDS, key=len, reverse=True)
             for word in (each, *([each.removesuffix("s")] if each.endswith("s") else [])))
)  # fmt: skip


def _entry(name: str) -> str | None:
    """The line of a word in a row, whether it is there of one thing or of several."""
    return WORDS.get(name, WORDS.get(f"{name}s"))


def worded(text: str) -> Html:
    """A text for HTML whose words show their lines where the pointer rests on them."""
    parts, at = [], 0
    for found in _IN_TEXT.finditer(text):
        parts += [escape(text[at : found.start()]), titled(found[0], _entry(found[0]) or "")]
        at = found.end()
    return Html("".join([*parts, escape(text[at:])]))


def named(name: str) -> str:
    """A name for HTML that shows its line where the pointer rests on it, if it has one."""
    return titled(name, TERMS[name]) if name in TERMS else name


def hovering(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows of an HTML table whose names and words show their lines where the pointer rests on them."""
    return [(named(name), *map(worded, cells)) for name, *cells in rows]


def explained(name: str) -> str:
    """The line of a name or a word in a report, or of an op; a ProgramError names the nearest if there is none."""
    known = {spec.name: spec.doc for spec in OPS.values()} | {each.lower(): line for each, line in TERMS.items()}
    asked = name.lower()
    for each in (asked, f"{asked}s"):
        if each in known:
            return known[each]
    near = difflib.get_close_matches(asked, known, n=3)
    raise ProgramError(
        f"neither a report nor a program has the name {name[:60]!r}",
        hint=f"perhaps {' or '.join(map(repr, near))}" if near else "heliograph explain lists all names",
    )
