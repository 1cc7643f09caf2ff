/** The script of the worker: it holds one client, and answers the calls of `WorkerClient` (worker-client.js). */

import { Client } from "./client.js";
import { HeliographError } from "./errors.js";
import { Message } from "./messages.js";
import { PublicPart } from "./public.js";

const port = globalThis.self?.postMessage ? globalThis.self : (await import("node:worker_threads")).parentPort;
const signals = new Map(), waiting = new Map();
let client = null;

const asPlain = ({ kind, artifact, client: id, request, samples, blobs }) => ({ kind, fields: { artifact, client: id, request, samples }, blobs });
const asMessage = (value) => (value?.blobs instanceof Map ? new Message(value.kind, value.fields, value.blobs) : value);

const CALLS = {
  async create({ part, fingerprint, passphrase, keyFile, ...options }) {
    const read = part && (await PublicPart.read(part, { fingerprint, insecure: options.insecure }));
    client = keyFile ? await Client.load(keyFile, { ...options, passphrase, part: read }) : await Client.create(read, options);
    return { id: client.id };
  },
  save: (options) => client.save(options),
  evaluationKey: ({ name }, signal) => client.evaluationKey(name, { signal }),
  encrypt: async ({ values }) => asPlain(await client.encrypt(...values)),
  encryptCarried: async ({ values }) => asPlain(await client.encryptCarried(values)),
  decrypt: ({ answer, of, share }, _, call) =>
    client.decrypt(asMessage(answer), { of, share: share === "stored" ? (count) => stored(call, count) : share }),
  decryptCarried: ({ values }) => client.decryptCarried(asMessage(values)),
  answer: ({ answer, of }) => client.answer(asMessage(answer), { of }),
  close: () => client?.close(),
};

/** Ends when the page has stored a count, or could not. */
const stored = (call, count) =>
  new Promise((resolve, reject) => {
    waiting.set(call, { resolve, reject });
    port.postMessage({ call, shared: count });
  });

function settle({ stored: call, failed }) {
  const { resolve, reject } = waiting.get(call);
  waiting.delete(call);
  if (failed) reject(new HeliographError("the number of shared results could not be stored"));
  else resolve();
}

async function answered({ call, name, given, cancel, ...end }) {
  if (cancel !== undefined) return void signals.get(cancel)?.abort();
  if (end.stored !== undefined) return void settle(end);
  const stop = new AbortController();
  signals.set(call, stop);
  try {
    const result = await CALLS[name](given, stop.signal, call);
    // Keys are moved, not copied.
    port.postMessage({ call, result }, result instanceof Uint8Array ? [result.buffer] : []);
  } catch (error) {
    const { name: kind, what, where, why, hint, message } = error;
    port.postMessage({ call, error: error instanceof HeliographError ? { kind, what, where, why, hint } : { kind: "InternalError", what: message } });
  } finally {
    signals.delete(call);
  }
}

if (port.on) port.on("message", answered);
else port.addEventListener("message", (event) => answered(event.data));
