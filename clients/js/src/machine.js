/** The WebAssembly kernels: loading, and memory. */

import { DIGESTS } from "../wasm/digests.js";
import { hex, sha256, subtle } from "./bytes.js";
import { HeliographError, TooLittleMemoryError } from "./errors.js";

// A module with one instruction of SIMD: valid only where there is SIMD.
const PROBE = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]);
const PAGE = 65536;
// What an allocation may not exceed: addresses have 32 bits.
const MOST_BYTES = 4 * 1024 ** 3 - 2 * PAGE;

export const hasSimd = () => WebAssembly.validate(PROBE);

async function fileBytes(url) {
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return new Uint8Array(await readFile(url));
  }
  const answer = await fetch(url);
  if (!answer.ok) throw new HeliographError(`${url.pathname} cannot be loaded: status ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}

const modules = new Map();

/** The compiled kernels; `simd` is for tests. Their bytes must have the digest that the package names. */
export function loaded(simd = hasSimd()) {
  const name = simd ? "simd.wasm" : "plain.wasm";
  if (!modules.has(name)) {
    const made = (async () => {
      subtle();
      const bytes = await fileBytes(new URL(`../wasm/${name}`, import.meta.url));
      if (hex(await sha256(bytes)) !== DIGESTS[name])
        throw new HeliographError(`${name} is not the file of this version`, { hint: "install the package again" });
      return WebAssembly.compile(bytes);
    })();
    modules.set(name, made);
    made.catch(() => modules.delete(name));
  }
  return modules.get(name);
}

/** One instance of the kernels, with its memory. Freed memory is cleared, and used again for the same size. */
export class Machine {
  static async open({ simd } = {}) {
    return new Machine(await WebAssembly.instantiate(await loaded(simd), {}));
  }

  constructor(instance) {
    this.do = instance.exports;
    this._memory = instance.exports.memory;
    this._end = instance.exports.__heap_base.value;
    this._free = new Map();
  }

  get size() {
    return this._memory.buffer.byteLength;
  }

  /** The address of so many bytes; all sizes are rounded up to 16. */
  alloc(bytes) {
    const size = upTo16(bytes), free = this._free.get(size);
    if (free?.length) return free.pop();
    const at = upTo16(this._end), missing = at + size - this.size;
    if (at + size > MOST_BYTES) throw tooLarge(at + size);
    if (missing > 0) {
      // A little more, so that memory is not copied for each row.
      const more = Math.min(Math.max(missing, this.size >> 3), MOST_BYTES - this.size);
      try {
        this._memory.grow(Math.ceil(more / PAGE));
      } catch {
        throw tooLarge(at + size);
      }
    }
    this._end = at + size;
    return at;
  }

  /** Give memory back, cleared. */
  free(at, bytes) {
    const size = upTo16(bytes);
    this.do.wipe(at, size / 8);
    if (!this._free.has(size)) this._free.set(size, []);
    this._free.get(size).push(at);
  }

  /** Clear all memory. */
  wipe() {
    this.do.wipe(0, this.size / 8);
  }

  u8 = (at, count) => new Uint8Array(this._memory.buffer, at, count);
  i32 = (at, count) => new Int32Array(this._memory.buffer, at, count);
  u32 = (at, count) => new Uint32Array(this._memory.buffer, at, count);
  u64 = (at, count) => new BigUint64Array(this._memory.buffer, at, count);
  i64 = (at, count) => new BigInt64Array(this._memory.buffer, at, count);
  f64 = (at, count) => new Float64Array(this._memory.buffer, at, count);
}

// Not by masks, which have 32 bits with a sign.
const upTo16 = (bytes) => Math.ceil(bytes / 16) * 16;

function tooLarge(bytes) {
  return new TooLittleMemoryError(`the page does not have the memory: ${Math.round(bytes / 1e6)} MB in WebAssembly`, {
    hint: "close other pages, or use the Python client",
  });
}
