/**
 * Results that are passed on: the noise that hides their error, which depends on the key, and the number of them. The reasons
 * are in heliograph/ckks/sharing.py, the words and numbers those of the Python client.
 */

import { rounded } from "./embedding.js";
import { ProgramError, SecurityError } from "./errors.js";
import { short } from "./outputs.js";
import { secureNormal } from "./streams.js";
import { normalQuantile } from "./votes.js";

// -log2 of the statistical distance of all results from ones that reveal nothing.
const DISTANCE_BITS = 15, SHARE_MARGIN = 8, WHERE = "decrypt({share})";
/** The results that one key may share. */
export const SHARE_RESULTS = 64;

/** The bits of precision that the noise of so many values costs, as a Gaussian mechanism: 2 Phi(mu / 2) - 1 is the distance. */
function costBits(values) {
  const mu = 2 * normalQuantile((1 + 2 ** -DISTANCE_BITS) / 2);
  return Math.log2((Math.sqrt(SHARE_RESULTS * values) * SHARE_MARGIN) / mu);
}

/** The standard deviation of the noise in each of so many values. */
export const floodingStd = (schemeError, values) => schemeError * 2 ** costBits(values);

/** Throw an error unless results of a part may be shared in the way that is asked for: true, or a function. */
export function checkShare(part, share) {
  if (share !== true && typeof share !== "function")
    throw new ProgramError("share is true, or a function that stores the number of shared results", { where: WHERE });
  if (part.bootstraps)
    throw new SecurityError("results of an artifact that bootstraps cannot be shared", {
      where: WHERE,
      why: "what is known of a bootstrap's error is a fit to measurements, not a bound, and it depends on the key",
      hint: "compile with bootstrap=False if a ring is large enough, or keep the results",
    });
}

/**
 * Throw an error unless an output can be shared with noise; `values` are shared together. The error estimated from a
 * ciphertext depends on the key, so it must not affect the noise.
 */
export function checkSharing(name, values, schemeError, estimated, predicted) {
  if (estimated > SHARE_MARGIN * schemeError)
    throw new SecurityError(`output '${name}' cannot be shared: its error is larger than the noise assumes`, {
      why: `that is ${SHARE_MARGIN} times ${short(schemeError, 2)}, what the artifact and the ring let expect`,
      hint: "the error depends on the inputs; use them as they are, but do not pass this result on",
    });
  const std = floodingStd(schemeError, values), magnitude = Math.max(predicted.output_magnitude, 1e-300);
  if (std <= magnitude / 2) return;
  const needed = Math.ceil(Math.log2(std) - Math.log2(magnitude) + (predicted.precision_bits ?? 10) + 8);
  throw new ProgramError(
    `output '${name}' cannot be shared: the noise that hides the key would be ${short(std, 2)}, its values reach ${short(magnitude, 2)}`,
    {
      why: `sharing costs ${costBits(values).toFixed(1)} bits, and the error of encryption is ${short(schemeError, 2)}`,
      hint: `compile with precision_bits of about ${Math.min(needed, 40)}, so that there are bits to spend`,
    },
  );
}

/** The values with normal noise, rounded to a sixteenth of its deviation. */
export async function flooded(tensor, schemeError, values) {
  const std = floodingStd(schemeError, values), grid = 2 ** (Math.floor(Math.log2(std)) - 4), noise = await secureNormal(tensor.length);
  return Float64Array.from(tensor, (value, i) => rounded((value + std * noise[i]) / grid) * grid);
}

/** The number of results shared under one key; `kept` says that a key file holds it too. */
export class Shares {
  constructor(count = 0, kept = false) {
    Object.assign(this, { count, kept, _turn: Promise.resolve() });
  }

  /** The count for a key file, which must be stored anew from now on. */
  save() {
    this.kept = true;
    return this.count;
  }

  /** Count one more result, and wait until `share` has stored the number. Results take turns, so that the last one stored is the largest. */
  async take(share) {
    const before = this._turn;
    let done;
    this._turn = new Promise((resolve) => (done = resolve));
    await before;
    try {
      if (this.count >= SHARE_RESULTS)
        throw new SecurityError(`this key has shared ${this.count} results, and the noise is computed for ${SHARE_RESULTS}`, {
          where: WHERE,
          why: "more of them would tell more about the secret key than was promised",
          hint: "make a new client, with new keys, to share more results",
        });
      if (share === true && this.kept)
        throw new ProgramError("a result under a key that was saved or loaded is shared only with a function that stores the count", {
          where: WHERE,
          why: "the key file does not hold this result: the count in memory is lost with the page, and the key would share more than it may",
          hint: "decrypt(answer, {share: async (count) => ...}), which stores the count, or the key file again",
        });
      // A result that fails from here on is counted too.
      this.count++;
      if (share !== true) await share(this.count);
    } finally {
      done();
    }
  }
}
