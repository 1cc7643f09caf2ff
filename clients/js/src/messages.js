/** The messages between client and server (docs/wire.md, "Messages"). Their objects are checked where they are used. */

import { isHex } from "./bytes.js";
import { hasMembers, packContainer, readContainer } from "./container.js";
import { shown, WireError } from "./errors.js";

const VERSION = 5, MOST_SAMPLES = 2 ** 17;
// A page holds no more than this of one message.
export const MOST_BYTES = 2 ** 31 - 1;

const KINDS = {
  "encrypted inputs": ["artifact", "client", "request"],
  "encrypted outputs": ["artifact", "client", "request"],
  "carried values": ["artifact", "client"],
  "inputs of a step": ["artifact", "client", "request"],
  "outputs of a step": ["artifact", "client", "request"],
};

export class Message {
  /** `blobs` is a Map of bytes by name; `samples` only where ciphertexts hold several. */
  constructor(kind, { artifact, client, request, samples }, blobs) {
    Object.assign(this, { kind, artifact, client, blobs });
    if (request !== undefined) this.request = request;
    if (samples !== undefined) this.samples = samples;
  }

  /** The message in untrusted bytes; a WireError unless it is intact. */
  static async read(kind, bytes, { mostBytes = MOST_BYTES, what = "data" } = {}) {
    const { fields, blobs } = await readContainer(bytes, kind, VERSION, mostBytes, what), named = KINDS[kind];
    const counted = kind === "encrypted inputs" && Object.hasOwn(fields, "samples");
    const sound =
      hasMembers(fields, counted ? [...named, "samples"] : named) &&
      named.every((name) => isHex(fields[name], name === "artifact" ? 64 : 32));
    if (!sound) throw new WireError(`${what}: its fields are not those of ${kind}`);
    if (counted && !(Number.isSafeInteger(fields.samples) && fields.samples > 0 && fields.samples <= MOST_SAMPLES))
      throw new WireError(`${what}: it does not hold a number of samples`);
    return new Message(kind, fields, blobs);
  }

  /** Its bytes. */
  toBytes() {
    const { artifact, client, request, samples } = this, fields = { artifact, client };
    if (request !== undefined) fields.request = request;
    if (samples !== undefined) fields.samples = samples;
    return packContainer(this.kind, VERSION, fields, this.blobs);
  }

  /** What is needed to read the answer: the message without its objects. */
  receipt() {
    const { request, samples } = this;
    return samples === undefined ? { request } : { request, samples };
  }

  /** Throw a WireError unless it belongs to this artifact and client. */
  check(artifact, client) {
    if (this.artifact !== artifact)
      throw new WireError(`these ${this.kind} belong to another artifact`, {
        why: `they carry the fingerprint ${this.artifact.slice(0, 12)}, this artifact has ${artifact.slice(0, 12)}`,
        hint: "use keys, inputs and outputs made for the very artifact that the server runs",
      });
    if (this.client !== client)
      throw new WireError(`these ${this.kind} belong to another client of the same artifact`, {
        why: `they carry the client ${this.client.slice(0, 12)}, the keys here are of ${client.slice(0, 12)}`,
        hint: "encrypt with the client whose evaluation keys the server holds",
      });
  }

  /** Throw a WireError unless it is the answer to the inputs with this request. */
  checkAnswers(request) {
    if (this.request !== request)
      throw new WireError("these encrypted outputs are the answer to other inputs", {
        why: `they carry the request ${this.request.slice(0, 12)}, the inputs have ${String(request).slice(0, 12)}`,
        hint: "files were mixed up, or the inputs were encrypted again: evaluate these inputs",
      });
  }

  /** Throw a WireError unless it holds exactly these objects. */
  checkNames(expected) {
    const known = new Set(expected), missing = expected.filter((name) => !this.blobs.has(name));
    const more = [...this.blobs.keys()].filter((name) => !known.has(name));
    if (missing.length)
      throw new WireError(`these ${this.kind} lack ${missing[0]}${missing.length > 1 ? ` and ${missing.length - 1} more` : ""}`, {
        hint: "make them again with this artifact",
      });
    if (more.length) throw new WireError(`these ${this.kind} hold ${more.length} objects too many, '${shown(more[0], 60)}' first`);
  }
}

/** Inputs and carried values as the message of one step. */
export function stepOf(inputs, carried) {
  carried.check(inputs.artifact, inputs.client);
  const blobs = new Map();
  for (const [name, blob] of inputs.blobs) blobs.set(`given/${name}`, blob);
  for (const [name, blob] of carried.blobs) blobs.set(`carried/${name}`, blob);
  return new Message("inputs of a step", inputs, blobs);
}

/** The outputs and the carried values in the outputs of a step. */
export function halvesOf(step) {
  const answer = new Map(), carried = new Map();
  for (const [name, blob] of step.blobs) {
    if (name.startsWith("answer/")) answer.set(name.slice(7), blob);
    else if (name.startsWith("carried/")) carried.set(name.slice(8), blob);
    else throw new WireError(`these ${step.kind} hold an object '${shown(name, 60)}', which is neither`);
  }
  return [new Message("encrypted outputs", step, answer), new Message("carried values", { artifact: step.artifact, client: step.client }, carried)];
}
