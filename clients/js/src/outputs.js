/** Checks of decrypted numbers, what a client computes of them, and answers of certified programs. */

import { rounded } from "./embedding.js";
import { ProgramError, RangeError } from "./errors.js";
import { placeOf } from "./inputs.js";
import { product } from "./layout.js";
import { SIGMA } from "./ring.js";
import { widestRadius } from "./votes.js";

// The estimate of the error may exceed the prediction by this much; more is a sign of an overflow.
const SLACK = 2 ** 10;
const NEAR_WHOLE = 0.4;
const UNITS = { l2: "in l2", l1: "in l1", fair: "in features divided by theta" };

/** The predicted error of an output, but at least the ring's smallest error by the client's own model. */
export function expectedError(spec, ring, predicted) {
  const { n } = ring, encryption = SIGMA * Math.sqrt(n / 2), rescale = Math.sqrt((1 + (2 * n) / 3) / 12) * Math.sqrt(n / 2);
  const least = Math.max(...spec.log_scales.map((scale) => 2 * Math.hypot(encryption, rescale) * 2 ** -scale));
  return Math.max(predicted.scheme_error, least);
}

const indexText = (i, shape) => `[${placeOf(i, shape).join(", ")}]`;
export const short = (number, digits = 6) => String(Number(number.toPrecision(digits)));

/** Throw a RangeError if decrypted samples of an output show that a value overflowed. The text leaves out the values. */
export function checkOutput(spec, samples, estimated, expected) {
  const { name, low, high } = spec, shape = samples.length > 1 ? [samples.length, ...spec.shape] : spec.shape;
  const hint = "simulate the artifact on this input with check_ranges=True to see which layer's interval was left";
  const size = product(spec.shape);
  for (const sample of samples)
    if (!sample.every(Number.isFinite))
      throw new RangeError(`output '${name}' holds NaN or infinity: a value overflowed on the way`, { hint });
  if (low !== null && high !== null) {
    const slack = 16 * expected + 1e-3 * (high - low);
    samples.forEach((sample, j) => {
      const bad = sample.findIndex((value) => value < low - slack || value > high + slack);
      if (bad < 0) return;
      const proved = spec.range_source === "proved", scale = spec.scale ?? 1;
      throw new RangeError(
        `output '${name}' has a value at index ${indexText(j * size + bad, shape)} ` +
          (proved ? "that no input in its range can give" : "far beyond all that calibration showed"),
        {
          why:
            `it lies within [${short(scale * low)}, ${short(scale * high)}] ` +
            (proved ? "as long as every polynomial's input stays in its interval" : "on the samples, with room") +
            ": a value overflowed on the way",
          hint,
        },
      );
    });
  }
  if (estimated > expected * SLACK)
    throw new RangeError(`output '${name}' has an error of more than ${SLACK} times the one expected, ${short(expected, 2)}`, {
      why: "it is estimated from the imaginary parts, which a sound result leaves empty: a value overflowed",
      hint,
    });
}

/** Throw a RangeError if a value carried from run to run left its range. */
export function checkCarried(spec, samples) {
  const { name, low, high } = spec, bounded = low !== null && high !== null, slack = bounded ? 1e-3 * (high - low) : 0;
  const shape = samples.length > 1 ? [samples.length, ...spec.shape] : spec.shape, size = product(spec.shape);
  samples.forEach((sample, j) => {
    const bad = sample.findIndex((value) => !Number.isFinite(value) || (bounded && (value < low - slack || value > high + slack)));
    if (bad >= 0)
      throw new RangeError(`carried value '${name}' left its range at index ${indexText(j * size + bad, shape)}`, {
        why: `it was declared to stay within [${low}, ${high}]: a bootstrap gives nonsense for larger ones`,
        hint: "go back to a round before, and compile the program with a wider range",
      });
  });
}

/** A sample of an output as the program gives it: scaled, and finished by a softmax or its logarithm. */
export function finished(spec, sample) {
  const found = Float64Array.from(sample, (value) => value * (spec.scale ?? 1));
  if (spec.finish === null) return found;
  const axis = spec.finish_axis, length = spec.shape[axis], step = product(spec.shape.slice(axis + 1));
  for (let start = 0; start < found.length; start++) {
    if (Math.floor(start / step) % length) continue;
    let most = -Infinity, total = 0;
    for (let i = 0; i < length; i++) most = Math.max(most, found[start + i * step]);
    for (let i = 0; i < length; i++) total += Math.exp((found[start + i * step] -= most));
    for (let i = 0; i < length; i++) {
      const at = start + i * step;
      found[at] = spec.finish === "softmax" ? Math.exp(found[at]) / total : found[at] - Math.log(total);
    }
  }
  return found;
}

/** The certificate of a part's answers; a ProgramError if it has none. */
export function certificateOf(part) {
  if (part.certificate === null)
    throw new ProgramError(`'${part.name}' certifies nothing`, { hint: "compile it with heliograph certify" });
  return part.certificate;
}

const withdrawn = (known, why) => ({
  label: null, votes: null, certified: false, radius: 0, widestRadius: 0, error: known.xi, withdrawn: why, text: `no answer: ${why}`,
});

/** The answer in the decrypted output of a certified program, a number for each class. */
export function readAnswer(part, { shape, data }, failure = "") {
  const known = certificateOf(part);
  if (failure) return withdrawn(known, failure);
  if (shape.length !== 1) throw new ProgramError(`an answer has one number for each class, not shape (${shape.join(", ")})`);
  if (!data.every(Number.isFinite)) return withdrawn(known, "a value overflowed on the way: the input left the ranges of the program");
  const whole = Array.from(data, rounded), used = whole.filter((value) => value !== 0);
  if (data.some((value, i) => Math.abs(value - whole[i]) > NEAR_WHOLE) || used.length > 1)
    return withdrawn(known, "the guess is not a single class, or the input left the ranges of the program");
  const votes = (used[0] ?? 0) + known.target - 1;
  if (votes < 0 || votes > known.n)
    return withdrawn(known, `it counts ${votes} of ${known.n} votes: the input left the ranges of the program`);
  // Of all zeros, the count is one below the target, and nothing says which class the votes are for.
  const label = used.length ? whole.findIndex((value) => value !== 0) : null, certified = label !== null && votes >= known.target;
  return {
    label, votes, certified, radius: certified ? known.radius : 0, widestRadius: certified ? widestRadius(known, votes) : 0, error: known.xi, withdrawn: "",
    text: certified
      ? `class ${label}, certified within ${short(known.radius, 3)} ${UNITS[known.kind]} (error at most ${short(known.xi, 2)})`
      : `abstained: ${votes} of ${known.n} votes${label === null ? "" : ` for class ${label}`}`,
  };
}
