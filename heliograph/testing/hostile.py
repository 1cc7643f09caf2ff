"""The suite of refusals: a backend must refuse values, bytes and calls that would give nonsense."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.errors import WireError
from heliograph.runtime.wire.forms import SeededForm, computed_form, key_form
from heliograph.testing.bench import Bench, Benches, Check, Maker, compare
from heliograph.testing.rings import RINGS, name_of

# A rotation amount without a key.
_UNKNOWN = 3
Operation = Callable[[Any, Any, Any], Any]


def _encoded(values: Any, log_scale: float = 20.0) -> Operation:
    """A product with a plaintext."""
    return lambda do, x, lower: do.mul_plain(x, do.encode(values, log_scale, do.describe(x)[0]))


# Arguments: primitives, x, and a ciphertext one level lower.
CALLS: dict[str, Operation] = {
    "encode NaN": _encoded(np.array([0.5, np.nan])),
    "encode infinity": _encoded(np.array([np.inf, 0.5])),
    "encode complex NaN": _encoded(np.array([0.5, 1j * np.nan])),
    "encode a number that is NaN": _encoded(np.nan),
    "encode what is too large": _encoded(np.full(4, 7.654321), 1000.0),
    "encode three values": _encoded(np.array([0.5, -0.25, 1.0])),
    "encode more values than slots": _encoded(np.linspace(-1.0, 1.0, 1 << 13)),
    "mul_scalar by NaN": lambda do, x, lower: do.mul_scalar(x, np.nan, 20.0),
    "mul_scalar by infinity": lambda do, x, lower: do.mul_scalar(x, -np.inf, 20.0),
    "rescale at level 0": lambda do, x, lower: do.rescale(do.level_drop(x, do.describe(x)[0])),
    "a sum across levels": lambda do, x, lower: do.add(x, lower),
    "a product across levels": lambda do, x, lower: do.mul(x, lower),
    "a product with a plaintext of a lower level": lambda do, x, lower: do.mul_plain(
        x, do.encode(1.0, 20.0, do.describe(lower)[0])
    ),
    "a product of three parts": lambda do, x, lower: do.mul(do.mul(x, x), x),
    "a level_drop below 0": lambda do, x, lower: do.level_drop(x, do.describe(x)[0] + 1),
    "a rotation without a key": lambda do, x, lower: do.rotate(x, _UNKNOWN),
    "a hoisted rotation without a key": lambda do, x, lower: do.rotate_hoisted(x, _UNKNOWN, do.decompose(x)),
}
# Calls that may also be computed, if the result is correct: at the lower level, or modulo all primes.
TRUE: dict[str, Operation] = {
    "encode what is too large": lambda do, x, lower: do.mul_scalar(x, 7.654321, 1000.0),
    "a sum across levels": lambda do, x, lower: do.add(do.level_drop(x, 1), lower),
    "a product across levels": lambda do, x, lower: do.mul(do.level_drop(x, 1), lower),
    "a product with a plaintext of a lower level": lambda do, x, lower: do.mul_scalar(do.level_drop(x, 1), 1.0, 20.0),
}


def _beyond(form: SeededForm, data: bytes, tag: str) -> bytes:
    """The bytes of an object in which one coefficient equals its prime."""
    rows = [np.empty(form.ring_dim, dtype=np.uint64) for _ in form.moduli]
    form.read(data, tag, "it", rows)
    rows[form.written[-1]][7] = form.moduli[form.written[-1]]
    return form.write(data[: len(form.header(bytes(32), tag))], [rows[place] for place in form.written])


Forgery = Callable[[Bench, bytes], bytes]
ANYWHERE: dict[str, Forgery] = {
    "no bytes": lambda bench, data: b"",
    "a byte less": lambda bench, data: data[:-1],
    "a byte more": lambda bench, data: data + b"\0",
    "another magic": lambda bench, data: b"\0" + data[1:],
    "another client": lambda bench, data: data.replace(bench.material.cryptor.tag.encode(), b"0" * 32, 1),
}
CIPHERTEXTS: dict[str, Forgery] = ANYWHERE | {
    "a residue that is its prime": lambda bench, data: _beyond(
        computed_form(bench.ring, bench.ring.levels), data, bench.material.cryptor.tag
    ),
    "another level": lambda bench, data: bench.material.encrypted(bench.constant(bench.ring.levels - 1, 1)),
}
# Forgeries of the key of the first rotation.
KEYS: dict[str, Forgery] = ANYWHERE | {
    "a residue that is its prime": lambda bench, data: _beyond(
        key_form(bench.material.keys[0]), data, bench.material.cryptor.tag
    ),
    "the key of another rotation": lambda bench, data: bytes(bench.material.sent.blobs[bench.material.keys[1].name]),
}


def hostile_checks(make: Maker, rings: Sequence[Ring] = RINGS[:2]) -> Iterator[Check]:
    """The checks of the refusals by the backend from `make`.

    Bytes must be refused with a WireError, calls with any of our errors or a known error of the backend's library
    (`refusal`).
    """
    benches = Benches(make)
    calls = {name: functools.partial(_call, name, call) for name, call in CALLS.items()}
    calls |= {f"ciphertext of {name}": functools.partial(_ciphertext, name, each) for name, each in CIPHERTEXTS.items()}
    calls |= {f"key of {name}": functools.partial(_key, make, name, each) for name, each in KEYS.items()}
    for ring in rings:
        yield from benches.checks(ring, calls)


def _call(name: str, call: Operation, bench: Bench) -> None:
    level, do, exact = bench.ring.levels, bench.do(0), bench.material.exact[0]
    made = bench.refusal(
        name, lambda: bench.residues(call(do, bench.operand(level, "x"), bench.operand(level - 1, "y")))
    )
    if made is not None:
        assert name in TRUE, f"{name} on {name_of(bench.ring)} is not refused"
        x, lower = (bench.material.residues(*each).astype(object) for each in ((level, "x"), (level - 1, "y")))
        compare(f"{name} on {name_of(bench.ring)}", made, TRUE[name](exact, x, lower))


def _ciphertext(name: str, forgery: Forgery, bench: Bench) -> None:
    level = bench.ring.levels
    data = bench.material.encrypted(bench.constant(level, 1))
    bench.read(data, level)
    made = bench.refusal(f"a ciphertext of {name}", lambda: bench.read(forgery(bench, data), level), WireError)
    assert made is None, f"a ciphertext of {name} on {name_of(bench.ring)} is read"


def _key(make: Maker, name: str, forgery: Forgery, bench: Bench) -> None:
    sent, first = bench.material.sent, bench.material.keys[0].name
    forged = replace(sent, blobs={**sent.blobs, first: forgery(bench, bytes(sent.blobs[first]))})
    made = bench.refusal(f"a key of {name}", lambda: make(bench.material.artifact, forged), WireError)
    assert made is None, f"a key of {name} on {name_of(bench.ring)} is read"
