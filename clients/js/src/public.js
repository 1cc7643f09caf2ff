/** The public part of an artifact: all that a client needs of a compiled program. Untrusted until its fingerprint is compared. */

import { hex, isHex, sha256, utf8 } from "./bytes.js";
import { readContainer } from "./container.js";
import { HeliographError, ProgramError, SecurityError, shown, WireError } from "./errors.js";
import { LAYOUT, Layout, MOST_ELEMENTS, product } from "./layout.js";
import { choice, flag, list, named, optional, real, record, refuse, table, text, whole } from "./records.js";
import { evaluationKeys, Ring } from "./ring.js";

export const VERSION = 11;
const MOST_BYTES = 64 * 2 ** 20, MOST_LEVELS = 100, MOST_CHAINS = 8, MOST_KEYS = 2 ** 16, MOST_TENSORS = 1024;
const PREDICTED = ["client_peak_bytes", "output_magnitude", "predicted_ms", "scheme_error"];
const NEEDED = ["output_magnitude", "scheme_error"];
const TAIL = /, "server_part": "([0-9a-f]{64})"\}$/;

const column = whole(0, MOST_ELEMENTS), columns = optional(list(column), []), numbers = optional(list(real()), []);
const ENCODING = record({
  width: whole(1, MOST_ELEMENTS),
  numbers: columns,
  centres: numbers,
  scales: optional(list(real(1e-30)), []),
  clipped: optional(flag, false),
  rounded: columns,
  compared: columns,
  edges: numbers,
  coded: columns,
  codes: numbers,
  missing: columns,
  filled: columns,
  fills: numbers,
  texts: columns,
  labels: optional(list(list(text)), []),
  known: columns,
  allowed: optional(list(list(real())), []),
});
const TENSOR = record({
  name: named,
  shape: list(whole(1, MOST_ELEMENTS), 8),
  layout: LAYOUT,
  low: optional(real(), null),
  high: optional(real(), null),
  range_source: optional(choice("proved", "observed"), null),
  classes: optional(whole(1, MOST_ELEMENTS), null),
  finish: optional(choice("softmax", "log_softmax"), null),
  finish_axis: optional(whole(0, 8), null),
  scale: optional(real(2, 2 ** 100), null),
  columns: optional(list(named), null),
  encoding: optional(ENCODING, null),
  labels: optional(choice("text", "int", "float", "bool"), null),
  unit: optional(named, null),
  levels: optional(list(whole(0, MOST_LEVELS)), []),
  log_scales: list(real(1, 240)),
  carried: optional(flag, false),
});
const RING = record({
  log_ring: whole(10, 17),
  first_mod_bits: whole(15, 60),
  scale_bits: whole(15, 60),
  levels: whole(1, MOST_LEVELS),
  digits: whole(1, MOST_LEVELS + 1),
  security_bits: choice(128, null),
  bootstrap: optional(list(whole(1, 8), 2, 2), null),
  bootstrap_babies: optional(whole(0, 64), 0),
  short_specials: optional(flag, false),
});
const share = real(0, 1), votes = whole(1, 2 ** 20), positive = real(0);
const CERTIFICATE = record({
  kind: choice("l2", "l1", "fair"),
  radius: positive,
  n: votes,
  n0: votes,
  target: votes,
  tau: share,
  zeta: share,
  alpha: share,
  distribution: choice("normal", "uniform"),
  deviation: positive,
  spread: positive,
  difference: positive,
  gap: positive,
  error: positive,
  beta_range: share,
  beta_difference: share,
  xi: positive,
  confidence: share,
  held_out: whole(0, Number.MAX_SAFE_INTEGER),
});
const rotations = list(whole(1, 2 ** 16), 2 ** 16);
const DESCRIPTION = {
  name: named,
  ring: RING,
  rotation_keys: rotations,
  relinearization_key: flag,
  chains: list(
    record({
      level: whole(1, MOST_LEVELS),
      digits: whole(1, MOST_LEVELS + 1),
      rotation_keys: rotations,
      relinearization_key: flag,
      bootstraps: optional(flag, false),
    }),
    MOST_CHAINS,
  ),
  raising_chains: optional(list(whole(0, MOST_CHAINS), MOST_CHAINS + 1), []),
  conjugation_key: flag,
  inputs: list(TENSOR, MOST_TENSORS),
  outputs: list(TENSOR, MOST_TENSORS),
  predicted: table(real(0, 1e18), 64),
  certificate: optional(CERTIFICATE, null),
};

export class PublicPart {
  /**
   * The public part in untrusted bytes. With `fingerprint`, which somebody you trust told you, any other one is refused.
   * `insecure` is for tests: it takes rings without security.
   */
  static async read(bytes, { fingerprint, insecure = false, what = "the public part" } = {}) {
    const found = await readContainer(bytes, "public artifact", VERSION, MOST_BYTES, what);
    if (found.blobs.size) throw new WireError(`${what} has blobs`);
    if (found.text === null || !TAIL.test(found.text))
      throw new WireError(`${what} does not have the form in which public artifacts are written`);
    const { server_part: server, ...description } = found.fields;
    if (!isHex(server, 64)) throw refuse("the digest of the server's part is malformed");
    const text = found.text.replace(TAIL, "}"), own = hex(await sha256(utf8(found.text)));
    if (fingerprint !== undefined && fingerprint !== own)
      throw new SecurityError(`${what} is another artifact than the one expected`, {
        why: `its fingerprint is ${own}, expected ${String(fingerprint).slice(0, 64)}`,
        hint: "take the artifact from somebody you trust, or compare the fingerprint again",
      });
    const made = described(description, text, own, what);
    if (Object.keys(made.predicted).sort().join() !== PREDICTED.join())
      throw refuse("its predicted figures are not those of a public artifact");
    // A ring without security is refused by the client, which may be told to take it; a false claim is refused here.
    if (!insecure && made.ring.fields.security_bits !== null && made.weakness)
      throw new WireError("the ring does not have the security that it claims", { why: made.weakness });
    return made;
  }

  /** The part in a key file, of which `fingerprint` is known. */
  static stored(description, text, fingerprint) {
    const made = described(description, text, fingerprint, "the description of the artifact in the key file");
    if (!NEEDED.every((name) => Object.hasOwn(made.predicted, name))) throw refuse("it lacks a prediction");
    return made;
  }

  constructor(description, descriptionText, fingerprint) {
    const found = record(DESCRIPTION)(description, "its description");
    this.name = found.name;
    this.fingerprint = fingerprint;
    this.descriptionText = descriptionText;
    this.predicted = found.predicted;
    this.certificate = found.certificate;
    this.chains = chainsOf(found);
    this.ring = this.chains[0].ring;
    checkRaising(found.raising_chains, this.chains);
    this.bootstraps = found.raising_chains.length > 0;
    if (found.certificate && !(found.certificate.target <= found.certificate.n && found.certificate.zeta < found.certificate.tau))
      throw refuse("its certificate asks for more votes than there are");
    this.inputs = tensors(found.inputs, this.ring, "input");
    this.outputs = tensors(found.outputs, this.ring, "output");
    this.samples = this.inputs[0].placed.batch;
    if ([...this.inputs, ...this.outputs].some((spec) => spec.placed.batch !== this.samples))
      throw refuse("its layouts hold different numbers of samples");
    this.evaluationKeys = evaluationKeys(this.chains, found.conjugation_key, found.raising_chains);
  }

  /** The inputs that a client gives for a run: all but the carried ones. */
  get given() {
    return this.inputs.filter((spec) => !spec.carried);
  }

  get carried() {
    return this.inputs.filter((spec) => spec.carried);
  }

  /** Why what is encrypted for it can be read by others; empty if it cannot. */
  get weakness() {
    for (const { ring } of this.chains) if (ring.weakness) return ring.weakness;
    return "";
  }

  /** What keys, messages and memory take, in bytes. */
  get costs() {
    const sizes = this.evaluationKeys.map((key) => key.bytes), { n } = this.ring;
    const primes = new Set(this.chains.flatMap(({ ring }) => [...ring.primes, ...(this.evaluationKeys.length ? ring.special : [])]));
    const largest = Math.max(0, ...this.evaluationKeys.map((key) => key.bytes));
    const sent = this.given.reduce((sum, spec) => sum + spec.levels.reduce((a, l) => a + this.ring.ciphertextBytes(l), 0), 0);
    return {
      keys: sizes.length,
      keyBytes: sizes.reduce((a, b) => a + b, 0),
      largestKeyBytes: largest,
      inputBytes: sent,
      // Tables of roots, the secret and its ratios, and its square for relinearization, for each prime; a key and its copy
      // for the digest; the errors of all digits, and rows in transit.
      memoryBytes:
        primes.size * n * 8 * 6 + 2 * Math.max(largest, sent) + n * (4 * Math.max(...this.chains.map((c) => c.ring.digits)) + 160),
    };
  }
}

/** A part of untrusted JSON, which may fail in ways that the checks do not foresee. */
function described(description, text, fingerprint, what) {
  try {
    return new PublicPart(description, text, fingerprint);
  } catch (error) {
    if (error instanceof HeliographError) throw error;
    throw new WireError(`${what} is not usable`, { why: `bad field: ${shown(`${error.name}: ${error.message}`)}` });
  }
}

function chainsOf(found) {
  const ring = checkedRing(found.ring), chains = [chain(ring, found)];
  let above = ring.levels;
  for (const part of found.chains) {
    if (part.level >= above) throw refuse(`the level of a lower chain is ${part.level}, not below ${above}`);
    if (part.bootstraps && ring.bootstrap === null) throw refuse("a lower chain bootstraps, and the whole one does not");
    const lower = new Ring(found.ring, { levels: part.level, digits: part.digits, bootstraps: part.bootstraps });
    if (!lower.legal) throw refuse(`the lower chain of level ${part.level} has digits that do not exist`);
    chains.push(chain(lower, part));
    above = part.level;
  }
  if (chains.reduce((sum, each) => sum + each.rotations.length, 0) > MOST_KEYS)
    throw refuse(`it has more than ${MOST_KEYS} keys`);
  return chains;
}

function chain(ring, found) {
  const amounts = found.rotation_keys;
  if (amounts.length >= ring.slots || amounts.some((amount) => amount >= ring.slots))
    throw refuse("the list of rotation keys is malformed");
  if (new Set(amounts).size !== amounts.length) throw refuse("a rotation key appears twice");
  return { ring, rotations: amounts, relinearization: found.relinearization_key };
}

function checkedRing(fields) {
  const { bootstrap, bootstrap_babies: babies } = fields;
  if (babies & (babies - 1) || (babies && (bootstrap ?? [1]).includes(1)))
    throw refuse(`bootstrap_babies is ${babies}, which its bootstraps cannot have`);
  const ring = new Ring(fields);
  if (!ring.legal) throw refuse("the ring has digits or primes that do not exist");
  return ring;
}

function checkRaising(given, chains) {
  given.forEach((number, place) => {
    if (number >= chains.length || chains[number].ring.bootstrap === null)
      throw refuse(`modulus is raised in chain ${number}, which does not bootstrap`);
    if (place && number <= given[place - 1]) throw refuse("the list of raising_chains is not in order");
  });
}

function tensors(specs, ring, direction) {
  if (!specs.length) throw refuse(`the list of ${direction}s is malformed`);
  if (new Set(specs.map((spec) => spec.name)).size !== specs.length) throw refuse(`two ${direction}s have one name`);
  return specs.map((spec) => ({ ...spec, placed: checkedSpec(spec, ring, direction) }));
}

function checkedSpec(spec, ring, direction) {
  const what = `${direction} '${spec.name}'`, layout = new Layout(spec.layout, ring.slots, what), input = direction === "input";
  if (product(spec.shape) !== layout.size) throw refuse(`the layout of ${what} does not have its shape`);
  if (!input && layout.shift) throw refuse(`${what} has a layout of inputs`);
  if (spec.low !== null && spec.high !== null && spec.low > spec.high) throw refuse(`the range of ${what} is empty`);
  if (spec.classes !== null && (!input || spec.classes !== spec.shape.at(-1)))
    throw refuse(`${what} has another number of classes than places`);
  const own = spec.encoding === null ? spec.shape.at(-1) : spec.encoding.width;
  if (spec.columns !== null && new Set(spec.columns).size !== own)
    throw refuse(`${what} has another number of columns than places`);
  if ((spec.labels !== null || spec.unit !== null) && input) throw refuse(`${what} has the classes or the unit of an output`);
  if (spec.labels !== null && readLabels(spec) === null) throw refuse(`the classes of ${what} are not labels of type ${spec.labels}`);
  if (spec.encoding !== null && (!input || !consistent(spec.encoding) || spec.shape.length !== 1 || spec.shape[0] !== elementsOf(spec.encoding)))
    throw refuse(`${what} is made of a table in a way that is not understood`);
  if ((spec.finish === null) !== (spec.finish_axis === null) || (spec.finish !== null && (input || spec.finish_axis >= spec.shape.length)))
    throw refuse(`${what} is finished in a way that is not understood`);
  if (spec.scale !== null && (input || !Number.isInteger(Math.log2(spec.scale)) || 2 ** Math.round(Math.log2(spec.scale)) !== spec.scale))
    throw refuse(`the scale of ${what} is not a power of two of an output`);
  const count = layout.ciphertexts;
  if (spec.log_scales.length !== count || spec.levels.length !== (input ? count : 0))
    throw refuse(`the levels or scales of ${what} do not fit its ciphertexts`);
  if (spec.carried && !input) throw refuse(`${what} is one that comes from a run before`);
  if (spec.levels.some((level) => level > ring.levels)) throw refuse(`${what} has more levels than the ring`);
  return layout;
}

const NUMBER = /^-?\d+(\.\d+)?(e[+-]?\d+)?$/, TRUTH = { True: true, False: false };
const READ = {
  text: (label) => label,
  int: (label) => (/^(0|-?[1-9]\d*)$/.test(label) ? Number(label) : null),
  float: (label) => (NUMBER.test(label) && Number.isFinite(Number(label)) ? Number(label) : null),
  bool: (label) => TRUTH[label] ?? null,
};

/** The class labels of an output; null if it has none, or if one is not of their type. */
export function readLabels({ columns, labels }) {
  if (labels === null || columns === null) return null;
  const found = columns.map(READ[labels]);
  return found.includes(null) ? null : found;
}

function consistent(e) {
  const pairs = [
    [e.numbers, e.centres], [e.numbers, e.scales], [e.compared, e.edges], [e.coded, e.codes], [e.filled, e.fills],
    [e.texts, e.labels], [e.known, e.allowed],
  ];
  const read = [e.numbers, e.rounded, e.compared, e.coded, e.missing, e.filled, e.texts, e.known];
  return pairs.every(([a, b]) => a.length === b.length) && read.every((each) => each.every((place) => place < e.width));
}

/** The length of an encoded row. */
export function elementsOf(encoding) {
  const made = encoding.numbers.length + encoding.edges.length + encoding.codes.length + encoding.missing.length;
  return made + (made === encoding.width ? 1 : 0);
}

/** Throw a SecurityError for a part without 128 bits of security. */
export function requireSecurity(part, insecure, where) {
  if (!part.weakness || insecure) return;
  throw new SecurityError(
    `artifact '${part.name.slice(0, 80)}' has no security: anyone who sees the ciphertexts or evaluation keys can read everything`,
    { where, why: part.weakness, hint: "use one that was compiled with security; for a test without secrets, {insecure: true}" },
  );
}

/** Throw a ProgramError unless a value is a public part. */
export function requirePart(value) {
  if (!(value instanceof PublicPart)) throw new ProgramError("expected a PublicPart", { hint: "await PublicPart.read(bytes)" });
  return value;
}
