/** The canonical embedding: between slots and the coefficients of a polynomial, in doubles. */

import { RangeError } from "./errors.js";

// A rounded coefficient of up to this many bits is exact as a double and as a whole number of 64 bits.
const EXACT_BITS = 62;

export class Embedding {
  constructor(machine, n) {
    this.machine = machine;
    this.half = n / 2;
    this._log = Math.log2(this.half);
    this._places = new Uint32Array(this.half);
    for (let j = 0, power = 1; j < this.half; j++, power = (power * 5) % (2 * n)) this._places[j] = (power - 1) / 4;
    const { half } = this;
    this._cosines = machine.alloc(8 * (half / 2));
    this._sines = machine.alloc(8 * (half / 2));
    const c = machine.f64(this._cosines, half / 2), s = machine.f64(this._sines, half / 2);
    for (let j = 0; j < half / 2; j++) [c[j], s[j]] = turn(2 * j, half);
    this._twists = new Float64Array(2 * half);
    for (let k = 0; k < half; k++) [this._twists[2 * k], this._twists[2 * k + 1]] = turn(k, n);
  }

  /**
   * The coefficients of real slots times 2^logScale, rounded to whole doubles at an address (N of them): {at, shift, bits}.
   * What is at `at` is still to be multiplied by 2^shift; `bits` is log2 of the largest coefficient. The caller frees it.
   */
  encoded(slots, logScale) {
    const { machine, half, _places: places, _twists: twists } = this, at = machine.alloc(16 * half);
    const re = machine.f64(at, half), im = machine.f64(at + 8 * half, half);
    for (let j = 0; j < half; j++) re[places[j]] = slots[j];
    im.fill(0);
    machine.do.fourier(at, at + 8 * half, this._cosines, this._sines, half, this._log, -1);
    let largest = 0;
    for (let k = 0; k < half; k++) {
      const c = twists[2 * k], s = -twists[2 * k + 1], x = re[k] / half, y = im[k] / half;
      re[k] = x * c - y * s;
      im[k] = x * s + y * c;
      largest = Math.max(largest, Math.abs(re[k]), Math.abs(im[k]));
    }
    if (!Number.isFinite(largest)) {
      machine.free(at, 16 * half);
      throw new RangeError("what is to be encrypted holds NaN or infinity");
    }
    const bits = largest ? logScale + Math.log2(largest) : 0, shift = Math.max(0, Math.ceil(bits) + 1 - EXACT_BITS);
    const factor = 2 ** (logScale - shift), both = machine.f64(at, 2 * half);
    for (let k = 0; k < 2 * half; k++) both[k] = rounded(both[k] * factor);
    return { at, shift, bits };
  }

  /** The slots of a polynomial with N coefficients, doubles at an address, which are overwritten: {real, imaginary}. */
  slots(at) {
    const { machine, half, _places: places, _twists: twists } = this;
    const re = machine.f64(at, half), im = machine.f64(at + 8 * half, half);
    for (let k = 0; k < half; k++) {
      const c = twists[2 * k], s = twists[2 * k + 1], x = re[k], y = im[k];
      re[k] = x * c - y * s;
      im[k] = x * s + y * c;
    }
    machine.do.fourier(at, at + 8 * half, this._cosines, this._sines, half, this._log, 1);
    const real = new Float64Array(half), imaginary = new Float64Array(half);
    for (let j = 0; j < half; j++) {
      real[j] = re[places[j]];
      imaginary[j] = im[places[j]];
    }
    return { real, imaginary };
  }
}

/** Cosine and sine of pi k / n. */
const turn = (k, n) => [Math.cos((Math.PI * k) / n), Math.sin((Math.PI * k) / n)];

/** The nearest whole number, halves to the even one; without a branch where numbers are below 2^51. */
export function rounded(x) {
  const big = 6755399441055744; // 1.5 * 2^52
  return Math.abs(x) < 2251799813685248 ? x + big - big : roundedLarge(x);
}

function roundedLarge(x) {
  const floor = Math.floor(x), rest = x - floor;
  return rest < 0.5 || (rest === 0.5 && floor % 2 === 0) ? floor : floor + 1;
}
