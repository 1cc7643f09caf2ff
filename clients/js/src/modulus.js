/** Rows modulo one prime in a machine's memory: N residues, of 32 bits for a short prime, else of 64. */

import { bitsOf, isShort } from "./ring.js";
import { expansionKey, Stream } from "./streams.js";

export class Modulus {
  constructor(machine, n, q) {
    this.machine = machine;
    this.n = n;
    this.q = q;
    this.bits = bitsOf(q);
    this.short = isShort(q);
    this.word = this.short ? 4 : 8;
    this.rowBytes = n * this.word;
    this.packedBytes = (n * this.bits) / 8;
    this._log = Math.log2(n);
    this._q = this.short ? Number(q) : q;
    this._do = (name) => machine.do[name + (this.short ? "_s" : "_l")];
    this.reciprocal = machine.do.reciprocal(q);
  }

  /** A number of this prime's words, as the kernels take it. */
  number(value) {
    return this.short ? Number(BigInt.asIntN(32, value)) : value;
  }

  row() {
    return this.machine.alloc(this.rowBytes);
  }

  free(row) {
    this.machine.free(row, this.rowBytes);
  }

  copy(to, from) {
    this.machine.u8(to, this.rowBytes).set(this.machine.u8(from, this.rowBytes));
  }

  get root() {
    return (this._root ??= BigInt.asUintN(64, this.machine.do.smallest_root(this.n, this.q)));
  }

  _roots(root) {
    const at = this.machine.alloc(2 * this.rowBytes);
    this._do("roots")(at, this.n, this._log, this.number(root), this._q);
    return at;
  }

  inverse(value) {
    return BigInt.asUintN(64, this.machine.do.inverse(value, this.q));
  }

  forward(row) {
    this._forward ??= this._roots(this.root);
    this._do("forward")(row, this._forward, this.n, this._q);
  }

  backward(row) {
    this._backward ??= this._roots(this.inverse(this.root));
    this._do("backward")(row, this._backward, this.n, this.number(this.inverse(BigInt(this.n))), this._q);
  }

  /** The values of a polynomial with small coefficients, int32 at an address. */
  small(row, numbers) {
    this._do("small")(row, numbers, this.n, this._q);
    this.forward(row);
  }

  /** The ratios of factors, which `addProduct` takes beside them. */
  ratios(row, factors) {
    this._do("ratios")(row, factors, this.n, this._q);
  }

  addProduct(sums, values, { values: factors, ratios }, { places = 0, minus = false } = {}) {
    this._do("add_product")(sums, values, factors, ratios, places, this.n, Number(minus), this._q);
  }

  addMultiple(sums, values, factor) {
    this._do("add_multiple")(sums, values, this.number(factor), this.n, this._q);
  }

  /** Whole doubles times 2^shift, plus errors, as residues. */
  message(row, whole, errors, shift) {
    this._do("message")(row, whole, errors, shift, this.n, this.reciprocal, this.q);
  }

  centred(numbers, row) {
    this._do("centred")(numbers, row, this.n, this._q);
  }

  /** Write a row, packed, into bytes. */
  pack(bytes, row) {
    const at = this.machine.alloc(this.packedBytes);
    this._do("pack")(at, row, this.n, this.bits);
    bytes.set(this.machine.u8(at, this.packedBytes));
    this.machine.free(at, this.packedBytes);
  }

  /** Read a row from packed, untrusted bytes; false if a residue is not below the prime. */
  unpack(row, bytes) {
    const at = this.machine.alloc(this.packedBytes);
    this.machine.u8(at, this.packedBytes).set(bytes);
    const sound = this._do("unpack")(row, at, this.n, this.bits, this.q);
    this.machine.free(at, this.packedBytes);
    return sound === 1;
  }

  /** The public stream of uniform residues for a head and a place, begun: `expand` ends it. */
  uniform(head, place) {
    const context = new Uint8Array(96), view = new DataView(context.buffer);
    context.set(head);
    view.setUint32(80, this.n, true);
    view.setUint32(84, place, true);
    view.setBigUint64(88, this.q, true);
    const stream = new Stream(expansionKey(this.machine, context)), count = this._words(this.n);
    return { stream, first: stream.bytes(count * this.word), count };
  }

  async expand(row, { stream, first, count }) {
    const { machine } = this, size = BigInt(8 * this.word), times = (1n << size) / this.q;
    const limit = this.number(BigInt.asIntN(64, times * this.q));
    for (let filled = 0, words = await first; ; words = await stream.bytes((count = this._words(this.n - filled)) * this.word)) {
      const at = machine.alloc(count * this.word);
      machine.u8(at, words.length).set(words);
      filled = this._do("accept")(row, filled, this.n, at, count, limit, this.reciprocal, this._q);
      machine.free(at, count * this.word);
      if (filled === this.n) return;
    }
  }

  /** A few more words than needed on average, so that a second draw is hardly ever needed. */
  _words(count) {
    const all = 2 ** (8 * this.word), q = Number(this.q), wanted = count / ((Math.floor(all / q) * q) / all);
    return Math.ceil(wanted + 4 * Math.sqrt(wanted) + 8) & ~3;
  }
}
