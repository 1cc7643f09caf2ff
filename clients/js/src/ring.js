/** Modulus chains: primes, keys, sizes, and whether a chain is sound and secure (docs/wire.md, "The ring"). */

import { ProgramError } from "./errors.js";

// Residues modulo a prime below this take one word of 32 bits.
const WORD_LIMIT = 1_234_803_097n;
const SPARSE_BITS = 33;
const REDUCTION_LEVELS = 9;
export const SPARSE_WEIGHT = 32;
export const SIGMA = 3.19;
const TABLE = { 10: 26, 11: 53, 12: 106, 13: 214, 14: 430, 15: 868, 16: 1747, 17: 3523 };
// Below this ring the sparse secret of bootstraps has less than 128 bits.
const SPARSE_LOG_RING = 15;
const LOG_UNIT = 2 ** -45;

export const bitsOf = (q) => q.toString(2).length;
export const isShort = (q) => q < WORD_LIMIT;

export function powerMod(base, exponent, q) {
  let found = 1n;
  for (base %= q; exponent > 0n; exponent >>= 1n) {
    if (exponent & 1n) found = (found * base) % q;
    base = (base * base) % q;
  }
  return found;
}

const BASES = [2n, 3n, 5n, 7n, 11n, 13n, 17n, 19n, 23n, 29n, 31n, 37n];

/** Miller and Rabin's test with twelve bases: exact far beyond 64 bits. */
export function isPrime(n) {
  if (n < 2n) return false;
  for (const p of BASES) if (n % p === 0n) return n === p;
  let d = n - 1n, twos = 0;
  for (; d % 2n === 0n; d /= 2n) twos++;
  return BASES.every((base) => {
    let x = powerMod(base, d, n);
    if (x === 1n || x === n - 1n) return true;
    for (let i = 1; i < twos; i++) {
      x = (x * x) % n;
      if (x === n - 1n) return true;
    }
    return false;
  });
}

class NoPrime extends Error {}

function stepPrime(start, step, bits) {
  for (let n = start + step; ; n += step) {
    if (n < 2n || Math.abs(bitsOf(n) - bits) > 1) throw new NoPrime();
    if (isPrime(n)) return n;
  }
}

const chains = new Map();

/** The primes q_0, ..., q_levels; an empty list if there are not so many. */
function chainPrimes(logRing, first, scale, levels) {
  const key = [logRing, first, scale, levels].join();
  if (!chains.has(key)) {
    if (chains.size > 64) chains.clear();
    let found;
    try {
      found = madeChain(logRing, first, scale, levels);
    } catch (error) {
      if (!(error instanceof NoPrime)) throw error;
      found = [];
    }
    chains.set(key, found);
  }
  return chains.get(key);
}

function madeChain(logRing, first, scale, levels) {
  const m = 2n << BigInt(logRing), nominal = 1n << BigInt(scale), primes = new Array(levels + 1);
  const start = (nominal / m) * m + 1n;
  const top = stepPrime(start < nominal ? start : start - m, m, scale);
  primes[levels] = top;
  let below = top, above = top;
  for (let count = 0, place = levels - 1; place > 0; count++, place--)
    primes[place] = count % 2 ? (above = stepPrime(above, m, scale)) : (below = stepPrime(below, -m, scale));
  if (first === scale) primes[0] = stepPrime(above, m, scale);
  else {
    const last = (((1n << BigInt(first)) - 1n) / m) * m + 1n;
    primes[0] = last < 1n << BigInt(first) && isPrime(last) ? last : stepPrime(last, -m, first);
  }
  return primes;
}

function largestPrimes(logRing, bits, count, but) {
  const found = [];
  for (let n = (1n << BigInt(bits)) + 1n; found.length < count; ) {
    n = stepPrime(n, -(2n << BigInt(logRing)), bits);
    if (!but.includes(n)) found.push(n);
  }
  return found;
}

/** One chain: the whole one, or its lower part with levels and digits of its own. */
export class Ring {
  constructor(fields, { levels = fields.levels, digits = fields.digits, bootstraps = true } = {}) {
    this.fields = fields;
    this.logRing = fields.log_ring;
    this.n = 1 << fields.log_ring;
    this.slots = this.n / 2;
    this.levels = levels;
    this.digits = digits;
    this.bootstrap = (bootstraps && fields.bootstrap) || null;
    this.towers = levels + 1;
    this.alpha = Math.ceil(this.towers / digits);
    const first = fields.first_mod_bits, scale = fields.scale_bits;
    this.digitBits = first + (this.alpha - 1) * scale;
    this.specialBits = 60;
    if (fields.short_specials) {
      const needed = this.digitBits + 9;
      this.specialBits =
        scale <= 30
          ? Math.max(this.logRing + 9, Math.ceil(needed / Math.ceil(needed / 30)))
          : Math.max(SPARSE_BITS + 1, Math.ceil(needed / Math.ceil(needed / 49)));
    }
    this.specialForSecurity = Math.ceil((this.digitBits + 5) / this.specialBits);
  }

  /** Whether its bounds admit enough primes: checked before any is looked for. */
  get plausible() {
    const { first_mod_bits: first, scale_bits: scale } = this.fields;
    return (
      this.digits >= 1 &&
      this.digits <= this.towers &&
      this.alpha * (this.digits - 1) < this.towers &&
      scale <= first &&
      first <= 60 &&
      this.towers * 2 * this.n * 0.7 * scale < 2 ** (scale - 2) &&
      (this.bootstrap === null || this.levels > this.bootstrap[0] + this.bootstrap[1] + REDUCTION_LEVELS) &&
      (this.bootstrap === null || scale !== SPARSE_BITS)
    );
  }

  get legal() {
    if (!this.plausible || this.primes.length === 0) return false;
    try {
      return this.special.length > 0 && (this.bootstrap === null || this.sparse.length === 2);
    } catch (error) {
      if (error instanceof NoPrime) return false;
      throw error;
    }
  }

  get primes() {
    const { log_ring, first_mod_bits, scale_bits, levels } = this.fields;
    return (this._primes ??= chainPrimes(log_ring, first_mod_bits, scale_bits, levels).slice(0, this.towers));
  }

  /** The special primes of the chain's keys. */
  get special() {
    return (this._special ??= largestPrimes(this.logRing, this.specialBits, this.specialCount, this.primes));
  }

  get specialCount() {
    if ((this.digitBits + 4) % this.specialBits) return this.specialForSecurity;
    let longest = 0;
    for (let i = 0; i < this.towers; i += this.alpha)
      longest = Math.max(longest, bitsOf(this.primes.slice(i, i + this.alpha).reduce((a, b) => a * b, 1n)));
    return Math.ceil((longest + 4) / this.specialBits);
  }

  /** The special primes of the key to the sparse secret. */
  get sparse() {
    return (this._sparse ??= largestPrimes(this.logRing, SPARSE_BITS, 2, this.primes.slice(0, 1)));
  }

  get logPrimes() {
    return (this._logs ??= this.primes.map((q) => Math.round(Math.log2(Number(q)) / LOG_UNIT) * LOG_UNIT));
  }

  /** Why its keys do not have 128 bits of security; empty if they do. */
  get weakness() {
    const { first_mod_bits: first, scale_bits: scale, security_bits: bits } = this.fields;
    if (bits === null) return "it was compiled without security (security_bits=None)";
    const most = TABLE[this.logRing];
    if (this.bootstrap !== null && this.logRing < SPARSE_LOG_RING)
      return (
        `it claims ${bits} bits, but it bootstraps at ring dimension ${this.n}, where the key to the sparse secret of ` +
        `bootstraps does not have ${bits} bits`
      );
    const special = this.specialForSecurity * this.specialBits;
    const exact = this.logPrimes.reduce((a, b) => a + b, 0) + special;
    if (first + this.levels * scale + special < most && exact <= most) return "";
    return (
      `it claims ${bits} bits, but its modulus PQ has ${exact.toFixed(1)} bits, and the table has ${most} for ring ` +
      `dimension ${this.n}`
    );
  }

  /** The places of a digit's primes: begin and end. */
  digit(number) {
    return [number * this.alpha, Math.min((number + 1) * this.alpha, this.towers)];
  }

  /** The bytes of a fresh ciphertext in a message. */
  ciphertextBytes(level) {
    return 80 + packedBytes(this.n, this.primes.slice(0, level + 1));
  }
}

/** The packed bytes of one polynomial modulo each of these primes. */
export const packedBytes = (n, primes) => primes.reduce((sum, q) => sum + (n * bitsOf(q)) / 8, 0);

/** One evaluation key: its name, its chain, its kind in the wire's letter, and its automorphism. */
export class EvaluationKey {
  constructor(name, ring, kind, index = 0) {
    Object.assign(this, { name, ring, kind, index });
  }

  get pair() {
    return this.kind === "p";
  }

  /** The primes of the written polynomials, in their order. */
  get written() {
    const { ring } = this, first = this.pair ? [ring.primes[0], ...ring.sparse] : [];
    return [...first, ...first, ...Array.from({ length: ring.digits }, () => [...ring.primes, ...ring.special]).flat()];
  }

  /** Its bytes in a message. */
  get bytes() {
    return 80 + packedBytes(this.ring.n, this.written);
  }
}

export const rotationIndex = (n, amount) => Number(powerMod(5n, BigInt(amount), BigInt(2 * n)));

/** The keys of chains ({ring, rotations, relinearization}), the whole one first. */
export function evaluationKeys(chains, conjugation, raising) {
  const made = [];
  chains.forEach(({ ring, rotations, relinearization }, number) => {
    const prefix = number ? `chain${ring.levels}/` : "", raised = raising.includes(number);
    for (const amount of [...rotations].sort((a, b) => a - b))
      made.push(new EvaluationKey(`${prefix}rotation/${amount}`, ring, "a", rotationIndex(ring.n, amount)));
    if (relinearization) made.push(new EvaluationKey(`${prefix}relinearization`, ring, "r"));
    if (raised || (conjugation && number === 0))
      made.push(new EvaluationKey(`${prefix}conjugation`, ring, "a", 2 * ring.n - 1));
    if (raised) made.push(new EvaluationKey(`${prefix}bootstrap/encapsulation`, ring, "p"));
  });
  return made;
}

/** The inverse of an odd number modulo 2N. */
export function inverseIndex(n, index) {
  const found = Number(powerMod(BigInt(index), BigInt(n - 1), BigInt(2 * n)));
  if ((found * index) % (2 * n) !== 1) throw new ProgramError("an automorphism's index is odd");
  return found;
}
