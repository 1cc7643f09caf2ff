/** Streams of random bytes: AES-256 in counter mode, by WebCrypto, and the keys of public ones, by SHAKE-256. */

import { joined, randomBytes, subtle, utf8 } from "./bytes.js";

const BLOCK = 16;
const DOMAIN = joined([utf8("heliograph uniform polynomial 2"), new Uint8Array(1)]);
const SHAKE_RATE = 136;
let zeros = new Uint8Array(1 << 16);

/** The stream under a key of 32 bytes, from its beginning on. */
export class Stream {
  constructor(seed) {
    this._key = subtle().importKey("raw", seed, "AES-CTR", false, ["encrypt"]);
    this._place = 0;
  }

  /** The next bytes, in a new array. */
  async bytes(count) {
    const first = Math.floor(this._place / BLOCK), skipped = this._place % BLOCK;
    const counter = new Uint8Array(BLOCK);
    new DataView(counter.buffer).setBigUint64(8, BigInt(first));
    if (zeros.length < count + skipped) zeros = new Uint8Array(2 * (count + skipped));
    this._place += count;
    const made = await subtle().encrypt(
      { name: "AES-CTR", counter, length: 64 },
      await this._key,
      zeros.subarray(0, count + skipped),
    );
    return new Uint8Array(made, skipped, count);
  }
}

/** Where secret streams and the seeds of objects come from: the platform's generator. Tests have another one. */
export const SEEDS = Object.freeze({
  secret: () => randomBytes(32),
  sent: () => randomBytes(32),
});

/** A stream under a fresh secret key, which is forgotten. */
export function secretStream(seeds = SEEDS) {
  const seed = seeds.secret(), made = new Stream(seed);
  made._key.finally(() => seed.fill(0)).catch(() => {});
  return made;
}

/** 32 bytes of SHAKE-256 of the domain and a context of less than 104 bytes. */
export function expansionKey(machine, context) {
  const at = machine.alloc(200), state = machine.u8(at, 200);
  state.fill(0);
  state.set(DOMAIN);
  state.set(context, DOMAIN.length);
  state[DOMAIN.length + context.length] ^= 0x1f;
  state[SHAKE_RATE - 1] ^= 0x80;
  machine.do.keccak(at);
  const key = machine.u8(at, 32).slice();
  machine.free(at, 200);
  return key;
}

/** Independent normal numbers of deviation one, by Box and Muller's transform. */
export async function secureNormal(count) {
  const half = Math.ceil(count / 2), bytes = await secretStream().bytes(16 * half);
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.length), found = new Float64Array(2 * half);
  for (let i = 0; i < half; i++) {
    // Numbers between 0 and 1, both left out, in steps of 2^-53.
    const up = words.getUint32(16 * i + 4, true), low = words.getUint32(16 * i, true) >>> 11;
    const unit = (up * 2 ** 21 + low + 0.5) * 2 ** -53;
    const angle = words.getInt32(16 * i + 12, true) * 2 ** 32 + words.getUint32(16 * i + 8, true);
    const tangent = Math.tan(angle * (Math.PI * 2 ** -64)), square = tangent * tangent;
    const radius = Math.sqrt(-2 * Math.log(unit)) / (1 + square);
    found[i] = radius * (1 - square);
    found[half + i] = 2 * radius * tangent;
  }
  bytes.fill(0);
  return found.subarray(0, count);
}
