/** The client: makes and keeps the secret key, encrypts samples, decrypts results. It runs where it is called. */

import { hex, randomBytes } from "./bytes.js";
import { Cryptor } from "./cryptor.js";
import { checkSignal, ProgramError, RangeError, TooLittleMemoryError, WireError } from "./errors.js";
import { samplesOf } from "./inputs.js";
import { readKey, writeKey } from "./keyfile.js";
import { Machine } from "./machine.js";
import { answerOf, decryptMany, encryptMany, evaluationKeys } from "./many.js";
import { Message } from "./messages.js";
import { certificateOf, checkCarried, checkOutput, expectedError, finished, readAnswer } from "./outputs.js";
import { readLabels, requirePart, requireSecurity } from "./public.js";
import { checkShare, checkSharing, flooded, Shares } from "./sharing.js";

/** What a page may use unless it is told otherwise. */
export const MOST_MEMORY = 2 ** 31;

export class Client {
  /**
   * A client with a fresh secret key for a public part. A SecurityError for one without 128 bits of security, unless
   * `insecure` is given, for tests without secrets; a TooLittleMemoryError if keys would take more than `mostMemory` bytes.
   */
  static async create(part, { insecure = false, mostMemory = MOST_MEMORY } = {}) {
    return Client._with(requirePart(part), insecure, mostMemory, (machine) =>
      Cryptor.fresh(machine, part.ring, hex(randomBytes(16))));
  }

  /**
   * The client in the bytes of a key file. With `part`, the key must have been made for it. `shared` is a number of shared
   * results that was stored beside the file; the larger one counts.
   */
  static async load(bytes, { passphrase, part, shared = 0, insecure = false, mostMemory = MOST_MEMORY } = {}) {
    if (!Number.isSafeInteger(shared) || shared < 0) throw new ProgramError("shared is the number of results that were shared");
    const stored = await readKey(bytes, passphrase);
    try {
      if (part !== undefined && requirePart(part).fingerprint !== stored.part.fingerprint)
        throw new WireError("the key in the key file was made for another artifact", {
          why: `it was made for ${stored.part.fingerprint.slice(0, 12)}, this one is ${part.fingerprint.slice(0, 12)}`,
          hint: "a client's key works only with the artifact that it was made for; make a new one for this artifact",
        });
      const made = await Client._with(stored.part, insecure, mostMemory, (machine) =>
        Cryptor.stored(machine, stored.part.ring, stored.client, stored.secret));
      made._shares = new Shares(Math.max(stored.shared, shared), true);
      return made;
    } finally {
      stored.secret.fill(0);
    }
  }

  static async _with(part, insecure, mostMemory, make) {
    requireSecurity(part, insecure, "Client");
    const { memoryBytes } = part.costs;
    if (memoryBytes > mostMemory)
      throw new TooLittleMemoryError(
        `keys of '${part.name.slice(0, 80)}' take ${Math.ceil(memoryBytes / 1e6)} MB, and the page may use ${Math.floor(mostMemory / 1e6)} MB`,
        { why: "the browser would end the page half way", hint: "compile with a lower key_bytes, or use the Python client" },
      );
    const machine = await Machine.open();
    return new Client(part, await make(machine));
  }

  constructor(part, cryptor) {
    this.part = part;
    this._cryptor = cryptor;
    this._shares = new Shares();
  }

  /** The name of this client's key; evaluation keys and ciphertexts carry it. */
  get id() {
    return this._open.tag;
  }

  get _open() {
    if (this._cryptor === null) throw new ProgramError("the client is closed");
    return this._cryptor;
  }

  /** Clear the secret key. The client cannot be used any more; calls that have not ended must not be under way. */
  close() {
    this._cryptor?.wipe();
    this._cryptor = null;
  }

  /** The bytes of a key file, encrypted if a passphrase is given. The number of shared results is in it. */
  async save({ passphrase } = {}) {
    const secret = this._open.secretBytes();
    try {
      return await writeKey(this.part, this.id, secret, this._shares.save(), passphrase);
    } finally {
      secret.fill(0);
    }
  }

  /** The names of the evaluation keys, with their bytes. */
  get keys() {
    return this.part.evaluationKeys.map(({ name, bytes }) => ({ name, bytes }));
  }

  /** The file of one fresh evaluation key, as a server takes it. */
  async evaluationKey(name, { signal } = {}) {
    const key = this.part.evaluationKeys.find((each) => each.name === name);
    if (key === undefined) throw new ProgramError(`there is no evaluation key '${String(name).slice(0, 60)}'`);
    checkSignal(signal);
    return this._open.keyFile(key, this.part.fingerprint, { signal });
  }

  /** One fresh key after the other, {name, bytes}: only one is in memory. `progress(stage, done, total)` after each. */
  evaluationKeys(options) {
    return evaluationKeys(this, options);
  }

  /**
   * One sample, encrypted: a value for each input, in their order, without carried ones. For an artifact that takes several
   * samples at once, each value has a leading axis of at most that many.
   */
  async encrypt(...values) {
    const specs = this.part.given;
    if (values.length !== specs.length)
      throw new ProgramError(`${this.part.name} takes ${specs.length} inputs, not ${values.length}`, { where: "encrypt" });
    return this._inputs(specs.map((spec, i) => [spec, values[i]]));
  }

  async _inputs(pairs) {
    const { blobs, counts } = await this._encrypted(pairs), several = this.part.samples > 1;
    if (new Set(counts).size > 1) throw new ProgramError(`inputs have ${[...new Set(counts)].join(" and ")} samples`);
    const fields = { artifact: this.part.fingerprint, client: this.id, request: hex(randomBytes(16)) };
    return new Message("encrypted inputs", several ? { ...fields, samples: counts[0] } : fields, blobs);
  }

  /** The carried values that the first run starts from, an object by the names of inputs. */
  async encryptCarried(values) {
    const specs = this.part.carried, names = specs.map(({ name }) => name);
    if (Object.keys(values).sort().join("\0") !== [...names].sort().join("\0"))
      throw new ProgramError(`${this.part.name} carries the inputs ${names.map((name) => `'${name}'`).join(", ") || "none"}`, {
        where: "encryptCarried",
      });
    const { blobs } = await this._encrypted(specs.map((spec) => [spec, values[spec.name]]));
    return new Message("carried values", { artifact: this.part.fingerprint, client: this.id }, blobs);
  }

  async _encrypted(pairs) {
    const checked = pairs.map(([spec, value]) => [spec, samplesOf(spec, value, this.part.samples)]);
    const blobs = new Map(), counts = checked.map(([, samples]) => samples.length);
    for (const [spec, samples] of checked) {
      let chunk = 0;
      for (const slots of spec.placed.pack(samples)) {
        blobs.set(`${spec.name}/${chunk}`, await this._open.encrypted(slots, spec.levels[chunk], spec.log_scales[chunk]));
        slots.fill(0);
        chunk++;
      }
      for (const sample of samples) sample.fill(0);
    }
    return { blobs, counts };
  }

  /** Any number of samples, encrypted in groups of as many as the artifact takes at once. */
  encryptMany(...values) {
    return encryptMany(this, values);
  }

  /**
   * The outputs in an answer, {name, shape, data} each. `of` is the encrypted inputs, their receipt or their request: the
   * answer to others is refused. For an artifact that takes several samples at once shapes have a leading axis, with as many
   * as `of` says, or with all.
   *
   * A RangeError means that a value overflowed on the way. Tell nobody who may speak with the server whether there was one.
   *
   * With `share`, noise that hides the error is added, so that the values may be passed on to people whom you do not trust. Each
   * result is counted: `share` is an async function that stores the count, and is waited for. `true` does for a client that was
   * neither loaded nor saved. A SecurityError after 64 results, for an error larger than assumed, and for artifacts that
   * bootstrap; a ProgramError if the noise would swamp the values.
   */
  async decrypt(answer, { of, share = false } = {}) {
    const output = await answerOf(this, answer, of), { outputs, samples } = this.part;
    if (share !== false) checkShare(this.part, share);
    output.checkNames(outputs.flatMap((spec) => spec.log_scales).map((_, number) => String(number)));
    const count = samples > 1 ? (of?.samples ?? samples) : null, found = [];
    if (count !== null && !(count > 0 && count <= samples)) throw new ProgramError(`these inputs do not hold up to ${samples} samples`);
    let number = 0, results = [];
    for (const spec of outputs) {
      const vectors = [], errors = [];
      for (const scale of spec.log_scales) {
        const what = `output ciphertext ${number}`, { slots, error } = await this._open.decrypted(output.blobs.get(String(number)), 0, scale, what);
        vectors.push(slots);
        errors.push(error);
        number++;
      }
      const tensors = spec.placed.unpack(vectors), expected = expectedError(spec, this.part.ring, this.part.predicted);
      checkOutput(spec, tensors, Math.max(...errors), expected);
      results.push({ spec, tensors, expected, estimated: Math.max(...errors) });
    }
    if (share !== false) results = await this._flooded(results, share);
    for (const { spec, tensors } of results) {
      const kept = tensors.slice(0, count ?? 1).map((sample) => finished(spec, sample));
      const data = new Float64Array(kept.length * kept[0].length);
      kept.forEach((sample, j) => data.set(sample, j * sample.length));
      found.push({ name: spec.name, shape: count === null ? spec.shape : [count, ...spec.shape], data });
    }
    return found;
  }

  /** Results with noise, after they have been counted. */
  async _flooded(results, share) {
    const values = results.reduce((sum, { tensors }) => sum + tensors.length * tensors[0].length, 0), found = [];
    for (const { spec, expected, estimated } of results) checkSharing(spec.name, values, expected, estimated, this.part.predicted);
    await this._shares.take(share);
    for (const result of results) {
      const tensors = [];
      for (const tensor of result.tensors) tensors.push(await flooded(tensor, result.expected, values));
      found.push({ ...result, tensors });
    }
    return found;
  }

  /** The outputs in the answers to `encryptMany`, in the order of the inputs (`of`), with a leading axis. */
  decryptMany(answers, { of }) {
    return decryptMany(this, answers, of);
  }

  /** The values that a run passed to the next, {name, shape, data} each. A RangeError if one left its range. */
  async decryptCarried(values) {
    const message = await answerOf(this, values, undefined, "carried values"), specs = this.part.carried, { samples } = this.part, found = [];
    message.checkNames(specs.flatMap((spec) => spec.levels.map((_, chunk) => `${spec.name}/${chunk}`)));
    for (const spec of specs) {
      const vectors = [];
      for (const [chunk, level] of spec.levels.entries()) {
        const blob = message.blobs.get(`${spec.name}/${chunk}`);
        vectors.push((await this._open.decrypted(blob, level, spec.log_scales[chunk], `carried value '${spec.name}'`)).slots);
      }
      const tensors = spec.placed.unpack(vectors);
      checkCarried(spec, tensors);
      const data = Float64Array.from(tensors.flatMap((tensor) => Array.from(tensor)));
      found.push({ name: spec.name, shape: samples > 1 ? [samples, ...spec.shape] : spec.shape, data });
    }
    return found;
  }

  /** The answer of a certified program: a class, and whether it is certified. */
  async answer(output, { of } = {}) {
    certificateOf(this.part);
    try {
      const [found] = await this.decrypt(output, { of });
      return readAnswer(this.part, found);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      return readAnswer(this.part, { shape: [0], data: [] }, error.what);
    }
  }
}

/**
 * The class that a classifier means, also one that reveals nothing but the class: the place of the largest number, or its label
 * if `spec`, the output's entry in `part.outputs`, has labels.
 */
export function classOf({ shape, data }, spec = null) {
  if (shape.length !== 1) throw new ProgramError(`a class is read from one number for each class, not from shape (${shape.join(", ")})`);
  const place = data.reduce((best, value, i) => (value > data[best] ? i : best), 0), labels = spec === null ? null : readLabels(spec);
  return labels === null ? place : labels[place];
}
