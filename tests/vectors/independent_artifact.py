"""The other half of a client of docs/wire.md: what it reads in a public artifact. It imports nothing of Heliograph."""

from __future__ import annotations

import itertools
import math

import independent
import numpy as np

# ------------------------------------------------------------------------- layouts


def places(layout):
    shape = layout["shape"]
    c, h, w = {3: lambda: shape, 2: lambda: (shape[0], 1, shape[1])}.get(len(shape), lambda: (1, 1, math.prod(shape)))()
    g = layout["gap"]
    width = layout["width"] or w * g
    block = layout["block"] or h * g * width
    for i, y, x in itertools.product(range(c), range(h), range(w)):
        if split := layout.get("split"):
            r, s, f, r2, s2, f2 = split
            yield i % r * s + i // r * f + x % r2 * s2 + x // r2 * f2
        else:
            yield i // g**2 * block + i % g**2 // g * width + i % g**2 % g + y * g * width + x * g


def packed(layout, samples):
    """The slots of each ciphertext; `samples` are lists of the elements in their order."""
    period, stride, where = layout["period"], layout.get("stride", 1), list(places(layout))
    count, step = layout.get("tiled", (1, 1))
    slots = layout["slots"] // stride
    run, shift = layout["run"] or slots, layout["shift"]
    found = np.zeros((max(where) // period + 1, slots, stride))
    shown = np.array([(v % run + shift * (v % run // period)) % period for v in range(slots)])
    for j, sample in enumerate(samples):
        flat = np.zeros(found.shape[0] * period)
        for tile in range(count):
            flat[np.array(where) + tile * step] = sample
        found[:, :, j] = flat.reshape(-1, period)[:, shown]
    return found.reshape(found.shape[0], -1)


# ------------------------------------------------------------------------- which rings

TABLE = {10: 26, 11: 53, 12: 106, 13: 214, 14: 430, 15: 868, 16: 1747, 17: 3523}


def sound(fields, level=None, digits=None, bootstraps=True):
    """Whether a client takes the ring, or its lower part of some level and digits; the fields are within their bounds."""
    levels, f, s = fields["levels"] if level is None else level, fields["first_mod_bits"], fields["scale_bits"]
    digits, n = digits or fields["digits"], 1 << fields["log_ring"]
    if digits > levels + 1 or -(-(levels + 1) // digits) * (digits - 1) >= levels + 1:
        return False
    if s > f or 1.4 * n * (levels + 1) * s >= 2 ** (s - 2):
        return False
    if bootstraps and "bootstrap" in fields:
        native = fields.get("bootstrap_by") == "native"
        spent = sum(fields["bootstrap"]) + (9 if native else 10 + fields.get("bootstrap_iterations", 1))
        if s == 33 or levels <= spent or fields["log_ring"] < 15:
            return False
    ring = independent.Ring(fields, level, digits)
    if any(abs(q.bit_length() - (s if i else f)) > 1 for i, q in enumerate(ring.primes)):
        return False
    nominal = f + (ring.alpha - 1) * s
    special, table = math.ceil((nominal + 5) / ring.bits) * ring.bits, TABLE[fields["log_ring"]]
    exact = sum(map(math.log2, ring.primes)) + special <= table
    return fields["security_bits"] == 128 and exact and f + levels * s + special < table


# ------------------------------------------------------------------------- which keys


def factors(slots, budget, babies, first):
    log = max(1, slots.bit_length() - 1)
    budget = min(budget, log)
    x = -(-log // budget)
    rows, rest = log // x, log % x
    if rows + (rest > 0) < budget:
        x -= 1
        rows = min(log // x, budget)
        rows -= log - rows * x != 0 and rows == budget
        rest = log - rows * x
    steps = lambda y: 2 ** (y // 2 + (2 if y > 2 else 1))  # noqa: E731
    made = [
        (2 ** (i * x + (rest if first else 0)), babies if 0 < babies < 2 ** (x + 1) else steps(x)) for i in range(rows)
    ]
    return made + ([(1 if first else 2 ** (rows * x), steps(rest))] if rest else [])


def bootstrap_rotations(ring, slots):
    (c, s), half = ring.bootstrap, ring.n // 2
    there, back = factors(slots, c, ring.babies, True), factors(slots, s, ring.babies, False)
    if len(there) == len(back) == 1:
        g = there[0][1]
        found = {*range(g), *range(g, slots, g)}
    else:
        period = min(2 * slots, half)
        found = {j * scale % period for scale, g in there + back for j in range(g + 1)} | {(1 - slots) % period}
    u = slots
    while u < half:
        h = min(4, half // u)
        found |= {i * u for i in range(1, h)}
        u *= h
    return found - {0}


def keys(fields):
    """For each key its name, ring, kind and index."""
    chains = [(independent.Ring(fields["ring"]), fields, fields["bootstrap_slots"])]
    lower = fields.get("lower_bootstrap_slots", [[]] * len(fields["chains"]))
    for part, slots in zip(fields["chains"], lower, strict=True):
        chains.append(
            (
                independent.Ring(fields["ring"], part["level"], part["digits"], part.get("bootstraps", False)),
                part,
                slots,
            )
        )
    for number, (ring, part, slots) in enumerate(chains):
        prefix, raised = f"chain{ring.levels}/" if number else "", number in fields.get("raising_chains", [])
        amounts = set(part["rotation_keys"]).union(*(bootstrap_rotations(ring, n) for n in slots))
        for r in sorted(amounts):
            yield f"{prefix}rotation/{r}", ring, b"a", pow(5, r, 2 * ring.n)
        if part["relinearization_key"] or slots:
            yield f"{prefix}relinearization", ring, b"r", 0
        if slots or raised or (not number and fields["conjugation_key"]):
            yield f"{prefix}conjugation", ring, b"a", 2 * ring.n - 1
        if slots or raised:
            yield f"{prefix}bootstrap/encapsulation", ring, b"p", 0


def key_bytes(ring, kind):
    bits = ring.digits * sum(q.bit_length() for q in ring.primes + ring.special)
    return (
        80
        + (bits + (2 * sum(q.bit_length() for q in [ring.primes[0], *ring.sparse]) if kind == b"p" else 0))
        * ring.n
        // 8
    )
