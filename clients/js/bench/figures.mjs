/** What the benchmarks share: medians, texts of figures, and a value for an input. */

export const ms = (number) => `${number.toFixed(number < 10 ? 2 : 0)} ms`;
export const mb = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
export const median = (times) => times.sort((a, b) => a - b)[times.length >> 1];
/** The middle of an input's range, in each of its places. */
export const middleOf = ({ shape, low, high }) => new Float64Array(shape.reduce((a, b) => a * b, 1)).fill(((low ?? 0) + (high ?? 1)) / 2);
