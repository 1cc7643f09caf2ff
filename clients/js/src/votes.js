/** The radius that the votes of a certified answer show (Cohen et al. 2019, section 3.2.2). */

const HALVINGS = 80;

/** The largest number between two that a condition holds for; it holds below that number and not above. */
function largest(low, high, holds) {
  for (let i = 0; i < HALVINGS; i++) {
    const middle = (low + high) / 2;
    if (holds(middle)) low = middle;
    else high = middle;
  }
  return low;
}

/** log of the number of ways to choose `count` of n. */
function logChoices(n, count) {
  let sum = 0;
  for (let i = 1; i <= Math.min(count, n - count); i++) sum += Math.log((n + 1 - i) / i);
  return sum;
}

/** The share of all noise that this many votes of n show, with an error of alpha (Clopper and Pearson). */
export function shareShown(votes, n, alpha) {
  if (votes === 0) return 0;
  const choices = logChoices(n, votes);
  // The probability of at least this many votes, if each has the probability p.
  const tail = (p) => {
    const odds = p / (1 - p);
    let term = 1, sum = 1;
    for (let k = votes; k < n; k++) {
      const ratio = ((n - k) / (k + 1)) * odds;
      sum += term *= ratio;
      // Ratios fall: the rest is less than a geometric series.
      if (ratio < 1 && term * ratio < 1e-18 * sum * (1 - ratio)) break;
    }
    return Math.exp(choices + votes * Math.log(p) + (n - votes) * Math.log1p(-p) + Math.log(sum));
  };
  return largest(0, 1, (p) => tail(p) <= alpha);
}

/** The number that a normal one is below with this probability, between 1/2 and 1. */
export function normalQuantile(probability) {
  // Positive terms only, so that rounding does not add up.
  const below = (x) => {
    let term = x, sum = x;
    for (let k = 3; term > 1e-18 * sum; k += 2) sum += term *= (x * x) / k;
    return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
  };
  return largest(0, 9, (x) => below(x) <= probability);
}

/** The radius that so many votes show under a certificate: at least its own. */
export function widestRadius({ kind, n, alpha, zeta, deviation, radius }, votes) {
  const share = shareShown(votes, n, alpha) - zeta;
  // At a half and below, nothing is shown.
  if (share <= 0.5) return radius;
  return Math.max(radius, kind === "l1" ? 2 * deviation * (share - 0.5) : deviation * normalQuantile(share));
}
