/** A client in a worker: the same calls, and the page stays alive while keys are made. */

import { CancelledError, checkSignal, errorOf, ProgramError } from "./errors.js";
import { decryptMany, encryptMany, evaluationKeys } from "./many.js";
import { Message } from "./messages.js";
import { PublicPart } from "./public.js";
import { checkShare } from "./sharing.js";

async function started() {
  const url = new URL("./worker.js", import.meta.url);
  if (globalThis.Worker) return new globalThis.Worker(url, { type: "module" });
  const { Worker } = await import("node:worker_threads"), found = new Worker(url);
  return Object.assign(found, { addEventListener: (name, call) => found.on(name, (data) => call(name === "error" ? data : { data })) });
}

const asPlain = (value) =>
  value instanceof Message
    ? { kind: value.kind, fields: { artifact: value.artifact, client: value.client, request: value.request, samples: value.samples }, blobs: value.blobs }
    : value;
const asMessage = ({ kind, fields, blobs }) => new Message(kind, fields, blobs);
const receiptOf = (of) => (of instanceof Message ? of.receipt() : of);

export class WorkerClient {
  /**
   * A client with a fresh secret key, in a worker of its own, for the bytes of a public part. Options are those of
   * `Client.create`, and `fingerprint`.
   */
  static create(bytes, options = {}) {
    return WorkerClient._with(bytes, options, { part: bytes, ...options });
  }

  /** The client in the bytes of a key file; options are those of `Client.load`, but `part` is the bytes of a public part. */
  static load(keyFile, options) {
    if (options?.part === undefined) throw new ProgramError("give the bytes of the public part: {part}");
    return WorkerClient._with(options.part, options, { keyFile, ...options });
  }

  static async _with(bytes, { fingerprint, insecure }, given) {
    const part = await PublicPart.read(bytes, { fingerprint, insecure }), made = new WorkerClient(part, await started());
    try {
      made.id = (await made._call("create", given)).id;
      return made;
    } catch (error) {
      made.close();
      throw error;
    }
  }

  constructor(part, worker) {
    this.part = part;
    this._worker = worker;
    this._calls = new Map();
    this._next = 0;
    worker.addEventListener("message", ({ data }) => this._answered(data));
    worker.addEventListener("error", (event) => this._end(errorOf("InternalError", `the worker failed: ${event.message ?? event}`)));
  }

  _answered({ call, result, error, shared }) {
    const { resolve, reject, share, failure } = this._calls.get(call) ?? {};
    if (shared !== undefined) return void this._store(call, share, shared);
    this._calls.delete(call);
    if (error) reject?.(failure ? failure.error : errorOf(error.kind, error.what, error));
    else resolve?.(result);
  }

  /** Let the page store the number of shared results; the worker waits for it. */
  async _store(call, share, count) {
    try {
      await share(count);
      this._worker?.postMessage({ stored: call });
    } catch (error) {
      // The call fails with the page's own error.
      const going = this._calls.get(call);
      if (going) going.failure = { error };
      this._worker?.postMessage({ stored: call, failed: true });
    }
  }

  _end(error) {
    for (const { reject } of this._calls.values()) reject(error);
    this._calls.clear();
    this._worker?.terminate();
    this._worker = null;
  }

  _call(name, given, { signal, share } = {}) {
    if (this._worker === null) throw new ProgramError("the client is closed");
    checkSignal(signal);
    const call = this._next++;
    return new Promise((resolve, reject) => {
      const cancel = () => this._worker?.postMessage({ cancel: call });
      const ended = (settle) => (value) => {
        signal?.removeEventListener("abort", cancel);
        settle(value);
      };
      signal?.addEventListener("abort", cancel);
      this._calls.set(call, { resolve: ended(resolve), reject: ended(reject), share });
      this._worker.postMessage({ call, name, given });
    });
  }

  get keys() {
    return this.part.evaluationKeys.map(({ name, bytes }) => ({ name, bytes }));
  }

  async save(options = {}) {
    return this._call("save", options);
  }

  async evaluationKey(name, { signal } = {}) {
    return this._call("evaluationKey", { name }, { signal });
  }

  evaluationKeys(options) {
    return evaluationKeys(this, options);
  }

  async encrypt(...values) {
    return asMessage(await this._call("encrypt", { values }));
  }

  encryptMany(...values) {
    return encryptMany(this, values);
  }

  decryptMany(answers, { of }) {
    return decryptMany(this, answers, of);
  }

  async encryptCarried(values) {
    return asMessage(await this._call("encryptCarried", { values }));
  }

  /** As of `Client`; a function `share` runs in the page. */
  async decrypt(answer, { of, share = false } = {}) {
    if (share !== false) checkShare(this.part, share);
    const stored = typeof share === "function";
    return this._call("decrypt", { answer: asPlain(answer), of: receiptOf(of), share: stored ? "stored" : share }, { share });
  }

  async decryptCarried(values) {
    return this._call("decryptCarried", { values: asPlain(values) });
  }

  async answer(answer, { of } = {}) {
    return this._call("answer", { answer: asPlain(answer), of: receiptOf(of) });
  }

  /** End the worker; with it, the secret key. */
  close() {
    this._end(new CancelledError("the client was closed"));
  }
}
