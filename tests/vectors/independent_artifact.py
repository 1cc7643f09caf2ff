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
    axes = layout.get("axes", [[[c, h * w]], [[h, w]], [[w, 1]]])
    for indices in itertools.product(range(c), range(h), range(w)):
        place = 0
        for index, digits in zip(indices, axes, strict=True):
            for radix, stride in digits:
                place, index = place + index % radix * stride, index // radix
        yield place


def packed(layout, samples):
    """The slots of each ciphertext; `samples` are lists of the elements in their order."""
    groups = layout.get("groups", 1)
    if groups > 1:
        one, each = {**layout, "groups": 1}, len(samples) // groups
        return np.concatenate([packed(one, samples[g * each : (g + 1) * each]) for g in range(groups)])
    period, count, where = layout["period"], layout.get("samples", 1), list(places(layout))
    slots = layout["slots"] // count
    run, shift = period * layout.get("copies", 1), layout.get("shift", 0)
    found = np.zeros((max(where) // period + 1, slots, count))
    shown = np.array([(v % run + shift * (v % run // period)) % period for v in range(slots)])
    for j, sample in enumerate(samples):
        flat = np.zeros(found.shape[0] * period)
        flat[where] = sample
        found[:, :, j] = flat.reshape(-1, period)[:, shown]
    return found.reshape(found.shape[0], -1)


# ------------------------------------------------------------------------- which rings

TABLE = {10: 26, 11: 53, 12: 106, 13: 214, 14: 430, 15: 868, 16: 1747, 17: 3523}


def elements(encoding, row):
    """The elements of a row (a list of numbers, texts and None), as "Rows of tables" says."""

    def fields(*names):
        return zip(*(encoding.get(name, []) for name in names), strict=True)

    texts = dict(fields("texts", "labels"))
    values = [
        v if v is None or column not in texts else texts[column].index(v) if v in texts[column] else -1
        for column, v in enumerate(row)
    ]
    for column, allowed in fields("known", "allowed"):
        if values[column] is not None and values[column] not in allowed:
            raise ValueError(f"column {column} has an unknown value")
    filled = list(values)
    for column, fill in fields("filled", "fills"):
        filled[column] = fill if values[column] is None else values[column]
    for column in encoding.get("rounded", []):
        filled[column] = filled[column] if filled[column] is None else round(filled[column])
    made = []
    for column, centre, scale in fields("numbers", "centres", "scales"):
        number = (filled[column] - centre) / scale
        made.append(max(-1.0, min(1.0, number)) if encoding.get("clipped") else number)
    for column, edge in fields("compared", "edges"):
        made.append(float(filled[column] is not None and filled[column] > edge))
    for column, code in fields("coded", "codes"):
        made.append(float(filled[column] is not None and filled[column] == code))
    made += [float(values[column] is None) for column in encoding.get("missing", [])]
    return made + [0.0] if len(made) == encoding["width"] else made


def sound(fields, level=None, digits=None, bootstraps=True):
    """Whether a client takes the ring, or its lower part of some level and digits; the fields are within their bounds."""
    levels, f, s = fields["levels"] if level is None else level, fields["first_mod_bits"], fields["scale_bits"]
    digits, n = digits or fields["digits"], 1 << fields["log_ring"]
    if digits > levels + 1 or -(-(levels + 1) // digits) * (digits - 1) >= levels + 1:
        return False
    if s > f or 1.4 * n * (levels + 1) * s >= 2 ** (s - 2):
        return False
    spent = sum(fields["bootstrap"]) + 9 if bootstraps and "bootstrap" in fields else 0
    if spent and (s == 33 or levels <= spent or fields["log_ring"] < 15):
        return False
    ring = independent.Ring(fields, level, digits)
    if any(abs(q.bit_length() - (s if i else f)) > 1 for i, q in enumerate(ring.primes)):
        return False
    nominal = f + (ring.alpha - 1) * s
    special, table = math.ceil((nominal + 5) / ring.bits) * ring.bits, TABLE[fields["log_ring"]]
    exact = sum(map(math.log2, ring.primes)) + special <= table
    return fields["security_bits"] == 128 and exact and f + levels * s + special < table


# ------------------------------------------------------------------------- which keys


def keys(fields):
    """For each key its name, ring, kind and index."""
    chains = [(independent.Ring(fields["ring"]), fields)]
    for part in fields["chains"]:
        ring = independent.Ring(fields["ring"], part["level"], part["digits"], part.get("bootstraps", False))
        chains.append((ring, part))
    for number, (ring, part) in enumerate(chains):
        prefix, raised = f"chain{ring.levels}/" if number else "", number in fields.get("raising_chains", [])
        for r in sorted(part["rotation_keys"]):
            yield f"{prefix}rotation/{r}", ring, b"a", pow(5, r, 2 * ring.n)
        if part["relinearization_key"]:
            yield f"{prefix}relinearization", ring, b"r", 0
        if raised or (not number and fields["conjugation_key"]):
            yield f"{prefix}conjugation", ring, b"a", 2 * ring.n - 1
        if raised:
            yield f"{prefix}bootstrap/encapsulation", ring, b"p", 0


def key_bytes(ring, kind):
    bits = ring.digits * sum(q.bit_length() for q in ring.primes + ring.special)
    return (
        80
        + (bits + (2 * sum(q.bit_length() for q in [ring.primes[0], *ring.sparse]) if kind == b"p" else 0))
        * ring.n
        // 8
    )
