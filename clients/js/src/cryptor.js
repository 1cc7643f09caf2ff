/** One secret key: encryption, decryption, and evaluation keys, as the Python client makes them, to the byte. */

import { asBytes, isHex, utf8 } from "./bytes.js";
import { openContainer } from "./container.js";
import { Embedding } from "./embedding.js";
import { checkSignal, InternalError, RangeError, WireError } from "./errors.js";
import { Modulus } from "./modulus.js";
import { inverseIndex, packedBytes, SPARSE_WEIGHT } from "./ring.js";
import { secretStream, secureNormal, SEEDS } from "./streams.js";
import { THRESHOLDS } from "./thresholds.js";

const HEAD = 80, MAGIC = utf8("HGSEED2\n"), LARGEST_ERROR = 128n;
// Streams that are begun before they are needed.
const AHEAD = 6;

/** The 80 bytes before an object's polynomials. */
function headOf(kind, index, tag, seed) {
  const made = new Uint8Array(HEAD);
  made.set(MAGIC);
  made[8] = kind.charCodeAt(0);
  new DataView(made.buffer).setUint32(9, index, true);
  made.set(utf8(tag), 13);
  if (seed) made.set(seed, 45);
  return made;
}

export class Cryptor {
  /** A fresh secret key on a ring. `seeds` is for tests. */
  static async fresh(machine, ring, tag, seeds = SEEDS) {
    const made = new Cryptor(machine, ring, tag, seeds), stream = secretStream(seeds);
    for (let filled = 0; filled < ring.n; ) {
      const bytes = await stream.bytes(ring.n - filled + (ring.n >> 6) + 16), at = machine.alloc(bytes.length);
      machine.u8(at, bytes.length).set(bytes);
      filled = machine.do.ternary(made._secret, filled, ring.n, at, bytes.length);
      machine.free(at, bytes.length);
      bytes.fill(0);
    }
    return made;
  }

  /** The key whose values are in the bytes of a key file; a WireError unless they are one. */
  static stored(machine, ring, tag, data) {
    const expected = 8 * ring.n * ring.towers, { n } = ring;
    if (data.length !== expected) throw new WireError(`the secret key has ${data.length} bytes, expected ${expected}`);
    const none = new WireError("the secret key is none: it is not ternary, or not the same modulo each prime");
    const made = new Cryptor(machine, ring, tag, SEEDS), first = made._modulus(ring.primes[0]);
    // Values modulo the first prime, as they stand; those that are not below it differ from the ones that are made of them.
    const values = new BigUint64Array(asBytes(data).slice(0, 8 * n).buffer), row = first.row();
    if (first.short) machine.u32(row, n).set(Array.from(values, (value) => Number(value % first.q)));
    else for (let j = 0, to = machine.u64(row, n); j < n; j++) to[j] = values[j] % first.q;
    values.fill(0n);
    first.backward(row);
    const numbers = machine.alloc(8 * n);
    first.centred(numbers, row);
    const sound = machine.do.largest(numbers, n) <= 1n;
    if (sound) {
      const secret = machine.i32(made._secret, n), wide = machine.i32(numbers, 2 * n);
      for (let j = 0; j < n; j++) secret[j] = wide[2 * j];
    }
    first.free(row);
    machine.free(numbers, 8 * n);
    if (!sound) throw none;
    const again = made.secretBytes();
    let differences = 0;
    for (let j = 0; j < again.length; j++) differences |= again[j] ^ data[j];
    again.fill(0);
    if (differences) throw none;
    return made;
  }

  constructor(machine, ring, tag, seeds) {
    if (!isHex(tag, 32)) throw new WireError("the secret key has no valid name");
    Object.assign(this, { machine, ring, tag, _seeds: seeds });
    this._moduli = new Map();
    this._values = new Map();
    this._squares = new Map();
    this._secret = machine.alloc(4 * ring.n);
    this._thresholds = machine.alloc(16 * THRESHOLDS.length);
    const table = machine.u64(this._thresholds, 2 * THRESHOLDS.length);
    THRESHOLDS.forEach((digits, t) => {
      table[2 * t] = BigInt("0x" + digits.slice(0, 16));
      table[2 * t + 1] = BigInt("0x" + digits.slice(16));
    });
  }

  /** Clear the secret, and everything that was made of it. The cryptor cannot be used any more. */
  wipe() {
    this.machine.wipe();
    this.machine = null;
  }

  get _embedding() {
    return (this._embedded ??= new Embedding(this.machine, this.ring.n));
  }

  _modulus(q) {
    if (!this._moduli.has(q)) this._moduli.set(q, new Modulus(this.machine, this.ring.n, q));
    return this._moduli.get(q);
  }

  /** A polynomial of small coefficients as factors modulo a prime: its values and their ratios. */
  _factors(modulus, numbers) {
    const values = modulus.row(), ratios = modulus.row();
    modulus.small(values, numbers);
    modulus.ratios(ratios, values);
    return { values, ratios };
  }

  _freeFactors(modulus, { values, ratios }) {
    modulus.free(values);
    modulus.free(ratios);
  }

  /** The secret modulo a prime, as factors. */
  _secretOf(modulus) {
    if (!this._values.has(modulus.q)) this._values.set(modulus.q, this._factors(modulus, this._secret));
    return this._values.get(modulus.q);
  }

  /** The values of the secret's square modulo a prime. */
  _squareOf(modulus) {
    if (!this._squares.has(modulus.q)) {
      const secret = this._secretOf(modulus), row = modulus.row();
      this.machine.u8(row, modulus.rowBytes).fill(0);
      modulus.addProduct(row, secret.values, secret);
      this._squares.set(modulus.q, row);
    }
    return this._squares.get(modulus.q);
  }

  /** A fresh error, int32 at an address. */
  async _error() {
    const { machine } = this, { n } = this.ring, sign = Math.ceil(n / 8);
    const bytes = await secretStream(this._seeds).bytes(16 * n + sign), at = machine.alloc(16 * n + sign);
    machine.u8(at, bytes.length).set(bytes);
    bytes.fill(0);
    const found = machine.alloc(4 * n);
    machine.do.gaussian(found, at, at + 8 * n, at + 16 * n, n, this._thresholds, THRESHOLDS.length);
    machine.free(at, 16 * n + sign);
    return found;
  }

  /** A fresh sparse secret, int32 at an address. A word that hits a place that is taken is skipped. */
  async _sparse() {
    const { machine } = this, { n } = this.ring, found = machine.alloc(4 * n), stream = secretStream(this._seeds);
    machine.i32(found, n).fill(0);
    for (let left = SPARSE_WEIGHT; left; ) {
      const bytes = await stream.bytes(8 * left), view = new DataView(bytes.buffer, bytes.byteOffset), to = machine.i32(found, n);
      for (let i = 0, wanted = left; i < wanted; i++) {
        const place = view.getUint32(8 * i, true) % n;
        if (to[place]) continue;
        to[place] = 1 - 2 * (bytes[8 * i + 7] >> 7);
        left--;
      }
      bytes.fill(0);
    }
    return found;
  }

  /** Slots encrypted at a level and a scale: the object's bytes. A RangeError if they do not fit. */
  async encrypted(slots, level, logScale) {
    const { machine, ring } = this, { n } = ring, primes = ring.primes.slice(0, level + 1);
    const head = headOf("c", 0, this.tag, this._seeds.sent());
    const { at, shift, bits } = this._embedding.encoded(slots, logScale);
    try {
      if (bits >= logOf(primes.reduce((a, b) => a * b, 1n)) - 1)
        throw new RangeError(`what is to be encrypted is too large for its level at scale 2^${logScale.toFixed(1)}`);
      const error = await this._error(), made = new Uint8Array(HEAD + packedBytes(n, primes));
      made.set(head);
      const moduli = primes.map((q) => this._modulus(q));
      const streams = moduli.map((modulus, place) => modulus.uniform(head, primes.length + place));
      let offset = HEAD;
      for (const [place, modulus] of moduli.entries()) {
        const row = modulus.row(), other = modulus.row();
        await modulus.expand(other, streams[place]);
        modulus.message(row, at, error, shift);
        modulus.forward(row);
        modulus.addProduct(row, other, this._secretOf(modulus), { minus: true });
        modulus.pack(made.subarray(offset, (offset += modulus.packedBytes)), row);
        modulus.free(row);
        modulus.free(other);
      }
      machine.free(error, 4 * n);
      return made;
    } finally {
      machine.free(at, 8 * n);
    }
  }

  /**
   * The residues of a ciphertext in untrusted bytes, rows at addresses: [b, a], each a list by primes. A WireError unless it
   * has the form that is expected.
   */
  async _read(data, level, what) {
    const { n } = this.ring, moduli = this.ring.primes.slice(0, level + 1).map((q) => this._modulus(q));
    const computed = data[8] === "o".charCodeAt(0);
    const expected = HEAD + (computed ? 2 : 1) * packedBytes(n, moduli.map(({ q }) => q));
    if (data.length !== expected) throw new WireError(`${what} has ${data.length} bytes, expected ${expected}`);
    const head = data.slice(0, HEAD), tag = String.fromCharCode(...head.subarray(13, 45));
    if (tag !== this.tag)
      throw new WireError(`${what} is under another key than the one expected`, {
        why: `it carries the key ${tag.slice(0, 12)}, expected ${this.tag.slice(0, 12)}`,
        hint: "use keys and ciphertexts of one client",
      });
    const wanted = headOf(computed ? "o" : "c", 0, this.tag, computed ? null : head.subarray(45, 77));
    if (head.some((byte, i) => byte !== wanted[i]))
      throw new WireError(`${what} does not have the expected form`, {
        why: "its kind, or what is fixed in its head, is another",
        hint: "make it again with the same artifact and the same version",
      });
    const parts = [[], []];
    let offset = HEAD;
    try {
      for (const [part, rows] of parts.entries())
        for (const [place, modulus] of moduli.entries()) {
          const row = modulus.row();
          rows.push(row);
          if (part && !computed) await modulus.expand(row, modulus.uniform(head, level + 1 + place));
          else if (!modulus.unpack(row, data.subarray(offset, (offset += modulus.packedBytes))))
            throw new WireError(`${what} holds a coefficient that is not below its prime`);
        }
      return { moduli, parts };
    } catch (error) {
      for (const rows of parts) rows.forEach((row, place) => moduli[place].free(row));
      throw error;
    }
  }

  /** The message of a ciphertext in untrusted bytes: its N coefficients as doubles at an address. */
  async _message(data, level, what) {
    const { machine } = this, { n } = this.ring, { moduli, parts } = await this._read(data, level, what);
    const digits = [];
    moduli.forEach((modulus, place) => {
      const [row, other] = [parts[0][place], parts[1][place]];
      modulus.addProduct(row, other, this._secretOf(modulus));
      modulus.free(other);
      modulus.backward(row);
      // The digits in mixed radix: at most half a prime in size each.
      let wide = row;
      if (place > 0) {
        wide = machine.alloc(8 * n);
        if (modulus.short) machine.do.widened(wide, row, n);
        else modulus.copy(wide, row);
        for (let earlier = 0; earlier < place; earlier++) {
          const inverse = modulus.inverse(moduli[earlier].q % modulus.q);
          machine.do.next_digit(wide, digits[earlier], inverse, n, modulus.reciprocal, modulus.q);
        }
      }
      const digit = machine.alloc(8 * n);
      if (place > 0) machine.do.centred_l(digit, wide, n, modulus.q);
      else modulus.centred(digit, row);
      digits.push(digit);
      modulus.free(row);
      if (wide !== row) machine.free(wide, 8 * n);
    });
    return { moduli, digits };
  }

  /** The coefficients of a message at level 0, whole numbers: for tests. */
  async messageNumbers(data) {
    const { digits } = await this._message(data, 0, "it"), { n } = this.ring, found = this.machine.i64(digits[0], n).slice();
    this.machine.free(digits[0], 8 * n);
    return found;
  }

  /** The slots of a ciphertext in untrusted bytes, with noise, and an estimate of their error: {slots, error}. */
  async decrypted(data, level, logScale, what) {
    const { machine, ring } = this, { n } = ring, { moduli, digits } = await this._message(data, level, what);
    const found = machine.alloc(8 * n);
    machine.f64(found, n).fill(0);
    for (let place = digits.length - 1; place >= 0; place--)
      machine.do.horner(found, digits[place], place === digits.length - 1 ? 0 : Number(moduli[place].q), n);
    for (const digit of digits) machine.free(digit, 8 * n);
    const { real, imaginary } = this._embedding.slots(found);
    machine.free(found, 8 * n);
    let squares = 0, largest = 0;
    for (let j = 0; j < real.length; j++) {
      squares += imaginary[j] * imaginary[j];
      largest = Math.max(largest, Math.abs(real[j]));
    }
    imaginary.fill(0);
    const error = Math.sqrt(squares / real.length);
    const destroyed = error > 2 ** (logScale - 5) * (Math.sqrt(n / 2) / Math.sqrt(2));
    const room = ring.logPrimes.slice(0, level + 1).reduce((a, b) => a + b, 0) - 1;
    if (destroyed || (largest > 0 && Math.log2(largest) > room)) {
      real.fill(0);
      throw new RangeError(
        destroyed
          ? "the result cannot be decrypted: its error is larger than its message"
          : "the result does not fit the modulus: it is not what was computed",
        {
          why: "a value left the range that it was planned for",
          hint: "run heliograph.simulate on this input: it names the layer that overflows",
        },
      );
    }
    const noise = await secureNormal(real.length), std = Math.max(error, n / 8), scale = 2 ** -logScale;
    for (let j = 0; j < real.length; j++) real[j] = (noise[j] * std + real[j]) * scale;
    return { slots: real, error: Math.SQRT2 * error * scale };
  }

  /** A fresh evaluation key, in the bytes of an object, or in the container that `place(size)` opens. */
  async evaluationKey(key, { signal, into } = {}) {
    const { machine } = this, { ring } = key, { n } = ring, made = into ?? new Uint8Array(key.bytes);
    const head = headOf(key.kind, key.index, this.tag, this._seeds.sent());
    made.set(head);
    let offset = HEAD, begin = 0, sparse = null, errors = [];
    const places = key.kind === "a" ? machine.alloc(4 * n) : 0;
    const target = {
      r: (modulus) => this._squareOf(modulus),
      a: (modulus) => this._secretOf(modulus).values,
      p: (modulus) => {
        const row = modulus.row();
        modulus.small(row, sparse);
        return row;
      },
    }[key.kind];
    try {
      if (places) machine.do.automorphism(places, n, ring.logRing, inverseIndex(n, key.index));
      if (key.pair) {
        sparse = await this._sparse();
        offset = await this._pair(ring, made, offset, sparse);
        begin = 6;
      }
      for (let digit = 0; digit < ring.digits; digit++) errors.push(await this._error());
      const moduli = [...ring.primes, ...ring.special].map((q) => this._modulus(q)), last = moduli.length - 1;
      const product = ring.special.reduce((a, b) => a * b, 1n), count = moduli.length * ring.digits, streams = [];
      for (let number = 0; number < count; number++) {
        while (streams.length < count && streams.length < number + AHEAD) {
          const next = streams.length;
          streams.push(moduli[next % moduli.length].uniform(head, begin + next));
        }
        const place = number % moduli.length, digit = Math.floor(number / moduli.length), modulus = moduli[place];
        const uniform = modulus.row(), row = modulus.row();
        await modulus.expand(uniform, streams[number]);
        streams[number] = null;
        checkSignal(signal);
        const [low, high] = ring.digit(digit), secret = this._secretOf(modulus);
        modulus.small(row, errors[digit]);
        if (place >= low && place < high) {
          const values = target(modulus);
          modulus.addMultiple(row, values, product % modulus.q);
          if (key.pair) modulus.free(values);
        }
        modulus.addProduct(row, uniform, secret, { places, minus: true });
        modulus.pack(made.subarray(offset, (offset += modulus.packedBytes)), row);
        if (place === last) {
          // An error, or a fault of ours, is seen modulo the last special prime: b + a s must be small.
          modulus.addProduct(row, uniform, secret, { places });
          this._checkSmall(modulus, row);
        }
        modulus.free(uniform);
        modulus.free(row);
      }
      if (offset !== key.bytes) throw new InternalError(`a key has ${offset} bytes, not ${key.bytes}`);
      return made;
    } finally {
      for (const error of errors) machine.free(error, 4 * n);
      if (sparse) machine.free(sparse, 4 * n);
      if (places) machine.free(places, 4 * n);
    }
  }

  /** The key to the sparse secret, written in full: six polynomials. Its seed is thrown away. */
  async _pair(ring, made, offset, sparse) {
    const unkept = headOf("p", 0, this.tag, this._seeds.sent()), error = await this._error();
    const moduli = [ring.primes[0], ...ring.sparse].map((q) => this._modulus(q));
    const product = ring.sparse.reduce((a, b) => a * b, 1n), rows = [], uniforms = [];
    for (const [place, modulus] of moduli.entries()) {
      const uniform = modulus.row(), row = modulus.row(), factors = this._factors(modulus, sparse);
      await modulus.expand(uniform, modulus.uniform(unkept, place));
      modulus.small(row, error);
      if (place === 0) modulus.addMultiple(row, this._secretOf(modulus).values, product % modulus.q);
      modulus.addProduct(row, uniform, factors, { minus: true });
      this._freeFactors(modulus, factors);
      uniforms.push(uniform);
      rows.push(row);
    }
    for (const each of [uniforms, rows])
      moduli.forEach((modulus, place) => {
        modulus.pack(made.subarray(offset, (offset += modulus.packedBytes)), each[place]);
        modulus.free(each[place]);
      });
    this.machine.free(error, 4 * ring.n);
    return offset;
  }

  _checkSmall(modulus, row) {
    const { machine } = this, { n } = this.ring, numbers = machine.alloc(8 * n);
    modulus.backward(row);
    modulus.centred(numbers, row);
    const sound = machine.do.largest(numbers, n) <= LARGEST_ERROR;
    machine.free(numbers, 8 * n);
    if (!sound) throw new InternalError("with the secret key an evaluation key does not decrypt to a small error");
  }

  /** The file of a fresh evaluation key, as servers take it. */
  async keyFile(key, artifact, { signal } = {}) {
    const fields = { artifact, client: this.tag, name: key.name };
    const { blob, close } = openContainer("an evaluation key", 2, fields, "key", key.bytes);
    await this.evaluationKey(key, { signal, into: blob });
    return close();
  }

  /** The secret for a key file: its values modulo each prime of the whole chain. */
  secretBytes() {
    const { machine, ring } = this, { n } = ring, found = new Uint8Array(8 * n * ring.towers);
    ring.primes.forEach((q, place) => {
      const modulus = this._modulus(q), { values } = this._secretOf(modulus), to = found.subarray(8 * n * place, 8 * n * (place + 1));
      if (!modulus.short) to.set(machine.u8(values, 8 * n));
      else {
        const wide = machine.alloc(8 * n);
        machine.do.widened(wide, values, n);
        to.set(machine.u8(wide, 8 * n));
        machine.free(wide, 8 * n);
      }
    });
    return found;
  }
}

/** log2 of a large whole number. */
export function logOf(number) {
  const bits = number.toString(2).length, shift = Math.max(0, bits - 60);
  return Math.log2(Number(number >> BigInt(shift))) + shift;
}
