/** Where a tensor's elements stand in the slots of its ciphertexts (docs/wire.md, "Layouts"). */

import { list, optional, record, refuse, whole } from "./records.js";

export const MOST_ELEMENTS = 2 ** 22;
const MOST_SLOTS = 2 ** 16, MOST_STACKED = 2 ** 13;

const digit = list(whole(0, MOST_STACKED * MOST_SLOTS), 2, 2);
export const LAYOUT = record({
  shape: list(whole(1, MOST_ELEMENTS), 8),
  slots: whole(1, MOST_SLOTS),
  period: whole(1, MOST_SLOTS),
  axes: optional(list(list(digit), 3), []),
  shift: optional(whole(0, MOST_SLOTS), 0),
  copies: optional(whole(1, MOST_SLOTS), 1),
  samples: optional(whole(1, MOST_SLOTS), 1),
  groups: optional(whole(1, 2), 1),
});

export const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

export class Layout {
  /** The layout of checked fields; a WireError unless it fits the slots. */
  constructor(fields, slots, what) {
    Object.assign(this, fields);
    this.size = product(this.shape);
    this.ownSlots = this.slots / this.samples;
    // Samples in all groups.
    this.batch = this.samples * this.groups;
    const run = this.period * this.copies;
    if (this.slots !== slots) throw refuse(`the slots of ${what} are not those of its ring`);
    if (this.size > MOST_ELEMENTS) throw refuse(`${what} has more than ${MOST_ELEMENTS} elements`);
    if (slots % this.samples || this.ownSlots % this.period)
      throw refuse(`the period of ${what} does not divide the slots`);
    if (this.ownSlots % run || this.shift >= this.period || this.copies > 1 !== this.shift > 0)
      throw refuse(`the copies of ${what} do not fit the slots`);
    const [c, h, w] = this._crw();
    this.digits = this.axes.length ? this.axes : [[[c, h * w]], [[h, w]], [[w, 1]]];
    if (this.digits.length !== 3) throw refuse(`the axes of ${what} are not those of its shape`);
    [c, h, w].forEach((size, axis) => {
      const digits = this.digits[axis];
      if (digits.length > 3 || digits.some(([radix]) => radix < 1) || product(digits.map(([radix]) => radix)) < size)
        throw refuse(`the axes of ${what} are not those of its shape`);
    });
    const largest = [c, h, w].reduce((sum, size, axis) => sum + largestPlace(size, this.digits[axis]), 0);
    // Ciphertexts of each group.
    this.chunks = Math.floor(largest / this.period) + 1;
    this.ciphertexts = this.chunks * this.groups;
    if (this.ciphertexts > MOST_STACKED) throw refuse(`${what} would take more than ${MOST_STACKED} ciphertexts`);
    if (this.chunks > this.size) throw refuse(`${what} would take more ciphertexts than it has elements`);
  }

  _crw() {
    const { shape } = this;
    if (shape.length === 3) return shape;
    return shape.length === 2 ? [shape[0], 1, shape[1]] : [1, 1, this.size];
  }

  _contributions(axis, size) {
    const found = new Float64Array(size);
    for (let i = 0; i < size; i++) {
      let rest = i;
      for (const [radix, stride] of this.digits[axis]) {
        found[i] += (rest % radix) * stride;
        rest = Math.floor(rest / radix);
      }
    }
    return found;
  }

  /** The place of each element. */
  places() {
    if (this._places) return this._places;
    const [c, h, w] = this._crw(), [cs, hs, ws] = [c, h, w].map((size, axis) => this._contributions(axis, size));
    const found = new Float64Array(this.size);
    for (let i = 0, at = 0; i < c; i++)
      for (let j = 0; j < h; j++) for (let k = 0; k < w; k++) found[at++] = cs[i] + hs[j] + ws[k];
    return (this._places = found);
  }

  /** The slots of each ciphertext, one after the other, for samples: arrays of the elements in their order. */
  *pack(samples) {
    const places = this.places(), { period, copies, shift, samples: count, ownSlots } = this, run = period * copies;
    for (let number = 0; number < this.ciphertexts; number++) {
      const first = (number % this.chunks) * period, begin = Math.floor(number / this.chunks) * count;
      const positions = new Float64Array(period * count), slots = new Float64Array(this.slots);
      for (let i = 0; i < places.length; i++) {
        const at = places[i] - first;
        if (at >= 0 && at < period)
          for (let j = 0; j < count; j++) positions[at * count + j] = samples[Math.min(begin + j, samples.length - 1)][i];
      }
      for (let v = 0; v < ownSlots; v++) {
        const part = v % run, at = (part + shift * Math.floor(part / period)) % period;
        for (let j = 0; j < count; j++) slots[v * count + j] = positions[at * count + j];
      }
      positions.fill(0);
      yield slots;
    }
  }

  /** The elements of each sample, from the slots of all ciphertexts. */
  unpack(vectors) {
    const places = this.places(), { period, samples: count } = this;
    return Array.from({ length: this.batch }, (_, sample) => {
      const found = new Float64Array(this.size), group = Math.floor(sample / count), j = sample % count;
      for (let i = 0; i < found.length; i++) {
        const chunk = Math.floor(places[i] / period);
        found[i] = vectors[group * this.chunks + chunk][(places[i] - chunk * period) * count + j];
      }
      return found;
    });
  }
}

/** The largest contribution of an index below `size`. */
function largestPlace(size, digits) {
  // Of the digits so far: of all their values, and of those up to the ones of the last index.
  let every = 0, largest = 0, last = size - 1;
  for (const [radix, stride] of digits) {
    const digit = last % radix;
    last = Math.floor(last / radix);
    largest = Math.max(digit * stride + largest, digit ? (digit - 1) * stride + every : 0);
    every += (radix - 1) * stride;
  }
  return largest;
}
