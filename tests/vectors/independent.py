"""A client's half of docs/wire.md, written from that page alone: it imports nothing of Heliograph.

It is for reading, not for speed, and nothing here takes care of secrets. tests/formats/test_vectors.py compares what it
makes with the vectors. independent_artifact.py has the rest: layouts, and which keys a program needs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import struct

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

# ------------------------------------------------------------------------- containers


def read_container(data, kind, version):
    """Fields, their canonical text, and blobs by name."""
    assert len(data) >= 52
    assert data[:8] == b"HELIOGR1"
    total, size = struct.unpack_from("<QI", data, 8)
    assert total == len(data)
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    text = data[20 : 20 + size].decode()
    header = json.loads(text)
    assert (header["kind"], header["version"]) == (kind, version)
    tail = f', "kind": {json.dumps(kind)}, "version": {version}}}'
    begin = text.index('], "fields": ') + 13 if header["blobs"] else len('{"blobs": [], "fields": ')
    assert text.endswith(tail)
    blobs, place = {}, 20 + size
    for entry in header["blobs"]:
        assert entry["dtype"] == "raw"
        assert entry["shape"] == [entry["length"]]
        assert entry["offset"] == place - 20 - size
        blobs[entry["name"]] = data[place : place + entry["length"]]
        place += entry["length"]
    assert place == len(data) - 32
    return header["fields"], text[begin : -len(tail)], blobs


def write_container(kind, version, fields, blobs):
    index, place = [], 0
    for name in sorted(blobs):
        size = len(blobs[name])
        index.append({"name": name, "dtype": "raw", "shape": [size], "offset": place, "length": size})
        place += size
    header = {"kind": kind, "version": version, "fields": fields, "blobs": index}
    text = json.dumps(header, sort_keys=True).encode()
    start = b"HELIOGR1" + struct.pack("<QI", 20 + len(text) + place + 32, len(text)) + text
    whole = start + b"".join(blobs[name] for name in sorted(blobs))
    return whole + hashlib.sha256(whole).digest()


# ------------------------------------------------------------------------- the ring


def is_prime(n):
    """Miller and Rabin's test with these bases, exact far beyond 64 bits."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or any(n % p == 0 for p in bases):
        return n in bases
    d = (n - 1) & (1 - n)  # The power of two in n - 1.
    for a in bases:
        x, step = pow(a, (n - 1) // d, n), 1
        while 2 * step < d and x not in (1, n - 1):
            x, step = x * x % n, step * 2
        if x != n - 1 and not (x == 1 and step == 1):
            return False
    return True


def next_prime(x, step):
    return next(n for n in itertools.count(x + step, step) if is_prime(n))


class Ring:
    """The whole chain, or its lower part of some level and digits."""

    def __init__(self, fields, level=None, digits=None, bootstraps=True):
        self.n, big_l, f, s = 1 << fields["log_ring"], fields["levels"], fields["first_mod_bits"], fields["scale_bits"]
        m = 2 * self.n
        start = (1 << s) // m * m + 1
        primes = {big_l: next_prime(start - m if start > 1 << s else start, m)}
        for count, i in enumerate(range(big_l - 1, 0, -1)):
            primes[i] = next_prime(max(primes.values()), m) if count % 2 else next_prime(min(primes.values()), -m)
        top = ((1 << f) - 1) // m * m + 1
        if f == s:
            primes[0] = next_prime(max(primes.values()), m)
        else:
            primes[0] = top if top < 1 << f and is_prime(top) else next_prime(top, -m)
        self.levels = big_l if level is None else level
        self.digits = fields["digits"] if digits is None else digits
        self.bootstrap, self.babies = fields.get("bootstrap") if bootstraps else None, fields.get("bootstrap_babies", 0)
        self.primes = [primes[i] for i in range(self.levels + 1)]
        self.alpha = -(-len(self.primes) // self.digits)
        nominal, b = f + (self.alpha - 1) * s, 60
        if fields.get("short_specials"):
            least, most = (34, 49) if s > 30 else (fields["log_ring"] + 9, 30)
            b = max(least, math.ceil((nominal + 9) / math.ceil((nominal + 9) / most)))
        k = math.ceil((nominal + 5) / b)
        if (nominal + 4) % b == 0:
            k = math.ceil((max(math.prod(self.primes[d]).bit_length() for d in self.towers()) + 4) / b)
        self.bits, self.special = b, self.largest(b, k, self.primes)
        self.sparse = self.largest(33, 2, self.primes[:1])

    def largest(self, bits, count, but):
        found, number = [], (1 << bits) + 1
        while len(found) < count:
            number = next_prime(number, -2 * self.n)
            found += [number] if number not in but else []
        return found

    def towers(self):
        """The primes of each digit."""
        return [slice(i, i + self.alpha) for i in range(0, len(self.primes), self.alpha)]


ROOTS = {}


def root(n, q):
    if (n, q) not in ROOTS:
        g = next(g for a in itertools.count(2) if pow(g := pow(a, (q - 1) // (2 * n), q), n, q) == q - 1)
        powers = itertools.accumulate(range(n - 1), lambda x, _: x * g % q * g % q, initial=g)
        ROOTS[n, q] = min(powers)
    return ROOTS[n, q]


def reverse(j, n):
    return int(bin(j + n)[:2:-1], 2)


def cyclic(v, w, q):
    """The sums over k of v_k w^(i k), w of the order of their number."""
    if len(v) == 1:
        return np.array(v, dtype=object) % q
    even, odd = cyclic(v[::2], w * w % q, q), cyclic(v[1::2], w * w % q, q)
    odd = odd * powers(w, len(odd), q)
    return np.concatenate([(even + odd) % q, (even - odd) % q])


def powers(w, count, q):
    return np.array(list(itertools.accumulate(range(count - 1), lambda x, _: x * w % q, initial=1)), dtype=object)


def transform(coefficients, q):
    """The values of a polynomial of whole coefficients."""
    n, psi = len(coefficients), root(len(coefficients), q)
    natural = cyclic(np.array(coefficients, dtype=object) * powers(psi, n, q) % q, psi * psi % q, q)
    return natural[[reverse(j, n) for j in range(n)]]


def inverse(values, q):
    """The coefficients of a polynomial, centred."""
    n, psi = len(values), root(len(values), q)
    natural = values[[reverse(j, n) for j in range(n)]]
    found = cyclic(natural, pow(psi, -2, q), q) * powers(pow(psi, -1, q), n, q) * pow(n, -1, q) % q
    return np.where(found > q // 2, found - q, found)


def turned(values, t):
    """The values of m(X^t)."""
    n = len(values)
    return values[[reverse((2 * reverse(j, n) + 1) * t % (2 * n) >> 1, n) for j in range(n)]]


# ------------------------------------------------------------------------- residues, seeds, draws


def pack(values, q):
    bits, width = q.bit_length(), len(values) // 64
    columns = [sum(int(values[i * width + j]) << (i * bits) for i in range(64)) for j in range(width)]
    return b"".join(struct.pack("<Q", c >> (64 * u) & (1 << 64) - 1) for u in range(bits) for c in columns)


def unpack(data, n, q):
    bits, width = q.bit_length(), n // 64
    words = struct.unpack(f"<{bits * width}Q", data)
    columns = [sum(words[u * width + j] << (64 * u) for u in range(bits)) for j in range(width)]
    values = [columns[j] >> (i * bits) & (1 << bits) - 1 for i in range(64) for j in range(width)]
    assert max(values) < q
    return np.array(values, dtype=object)


def stream(key):
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return lambda count: encryptor.update(bytes(count))


def expanded(head, n, place, q):
    context = head + struct.pack("<IIQ", n, place, q)
    take, found = stream(hashlib.shake_256(b"heliograph uniform polynomial 2\0" + context).digest(32)), []
    while len(found) < n:
        bits = 32 if q < 1_234_803_097 else 64
        word = int.from_bytes(take(bits // 8), "little")
        found += [word % q] if word < 2**bits // q * q else []
    return np.array(found, dtype=object)


def ternary(seed, n):
    take, found = stream(seed), []
    while len(found) < n:
        (byte,) = take(1)
        found += [byte % 3 - 1] if byte < 255 else []
    return found


def sparse(seed, n, weight):
    take, found = stream(seed), [0] * n
    while weight:
        (word,) = struct.unpack("<Q", take(8))
        if not found[word % n]:
            found[word % n], weight = (-1 if word >> 63 else 1), weight - 1
    return found


def gaussian(seed, n, thresholds):
    take = stream(seed)
    high, low, signs = struct.unpack(f"<{n}Q", take(8 * n)), struct.unpack(f"<{n}Q", take(8 * n)), take(-(-n // 8))
    sizes = [sum((h << 64) + l >= t for t in thresholds) for h, l in zip(high, low, strict=True)]
    return [-size if signs[i // 8] >> (7 - i % 8) & 1 else size for i, size in enumerate(sizes)]


# ------------------------------------------------------------------------- encoding


def exponents(n):
    return np.array([pow(5, j, 2 * n) for j in range(n // 2)])


def encoded(slots, log_scale):
    n = 2 * len(slots)
    y = np.zeros(n // 2, dtype=complex)
    y[exponents(n) // 4] = slots
    c = np.fft.fft(y) * (2 / n) * np.exp(-1j * math.pi * np.arange(n // 2) / n) * 2.0**log_scale
    return [int(x) for x in np.rint(np.concatenate([c.real, c.imag]))]


def decoded(coefficients, log_scale):
    n = len(coefficients)
    c = np.array(coefficients, dtype=float)
    y = np.fft.ifft((c[: n // 2] + 1j * c[n // 2 :]) * np.exp(1j * math.pi * np.arange(n // 2) / n), norm="forward")
    return y[exponents(n) // 4] * 2.0**-log_scale


# ------------------------------------------------------------------------- ciphertexts and keys


def head(kind, index, tag, seed):
    return b"HGSEED2\n" + kind + struct.pack("<I", index) + tag.encode() + seed + bytes(3)


class Secret:
    """A secret key by its coefficients and its name."""

    def __init__(self, coefficients, tag):
        self.coefficients, self.tag, self._values = coefficients, tag, {}

    def values(self, q):
        if q not in self._values:
            self._values[q] = transform(self.coefficients, q)
        return self._values[q]

    def fresh(self, ring, level, message, seed, error):
        """The blob of a ciphertext of whole coefficients."""
        start, noisy = head(b"c", 0, self.tag, seed), [m + e for m, e in zip(message, error, strict=True)]
        made = start
        for i, q in enumerate(ring.primes[: level + 1]):
            a = expanded(start, ring.n, level + 1 + i, q)
            made += pack((transform(noisy, q) - a * self.values(q)) % q, q)
        return made

    def key(self, ring, kind, index, seed, errors, small=None, thrown=None):
        """The blob of an evaluation key; of the pair with its sparse secret and the seed for the first key's a."""
        start, n, primes = head(kind, index, self.tag, seed), ring.n, ring.primes + ring.special
        made, place = start, 0
        if small is not None:
            first, back, uniform = [ring.primes[0], *ring.sparse], small.values, head(kind, index, self.tag, thrown)
            made += b"".join(pack(expanded(uniform, n, i, q), q) for i, q in enumerate(first))
            error, errors, place = errors[0], errors[1:], 6
            for i, q in enumerate(first):
                lifted = math.prod(ring.sparse) * self.values(q) if i == 0 else 0
                b = transform(error, q) - expanded(uniform, n, i, q) * small.values(q) + lifted
                made += pack(b % q, q)
        for error, towers in zip(errors, ring.towers(), strict=True):
            for q in primes:
                target, under = self.values(q), self.values(q)
                if kind == b"r":
                    target = target * target
                elif kind == b"a":
                    under = turned(under, pow(index, -1, 2 * n))
                else:
                    target = back(q)
                b = transform(error, q) - expanded(start, n, place, q) * under
                made += pack((b + (math.prod(ring.special) * target if q in ring.primes[towers] else 0)) % q, q)
                place += 1
        return made

    def message(self, ring, data):
        """The coefficients of a computed ciphertext at level 0."""
        q, n = ring.primes[0], ring.n
        assert data[:80] == head(b"o", 0, self.tag, bytes(32))
        half = n * q.bit_length() // 8
        b, a = unpack(data[80 : 80 + half], n, q), unpack(data[80 + half :], n, q)
        return inverse((b + a * self.values(q)) % q, q)


def open_key(data, passphrase):
    """The secret of a key file, as its values, and the fields."""
    kind = "a client's secret key"
    fields, text, blobs = read_container(data, kind, 3)
    cut = text.rindex('"nonce": ')
    given = f'{text[:cut]}"kind": "{kind}", {text[cut:-1]}, "version": 3}}'.encode()
    n, r, p, salt = (fields["scrypt"][name] for name in ("n", "r", "p", "salt"))
    key = hashlib.scrypt(passphrase.encode(), salt=bytes.fromhex(salt), n=n, r=r, p=p, maxmem=1 << 30, dklen=32)
    return ChaCha20Poly1305(key).decrypt(bytes.fromhex(fields["nonce"]), blobs["secret"], given), fields
