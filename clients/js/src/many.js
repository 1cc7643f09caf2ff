/** Calls for many keys and samples, of a client and of one in a worker; and the message of an answer. */

import { ProgramError, WireError } from "./errors.js";
import { samplesOf } from "./inputs.js";
import { Message } from "./messages.js";

/** The message of an answer: a Message, or its untrusted bytes. A WireError unless it is this client's, and the answer to `of`. */
export async function answerOf(client, answer, of, kind = "encrypted outputs") {
  const output = answer instanceof Message ? answer : await Message.read(kind, answer, { what: "the answer" });
  if (output.kind !== kind) throw new WireError(`decrypt takes ${kind}, not ${output.kind}`);
  output.check(client.part.fingerprint, client.id);
  if (of !== undefined) output.checkAnswers(typeof of === "string" ? of : of.request);
  return output;
}

export async function* evaluationKeys(client, { names, progress, signal } = {}) {
  const wanted = names ?? client.keys.map(({ name }) => name);
  for (const [place, name] of wanted.entries()) {
    yield { name, bytes: await client.evaluationKey(name, { signal }) };
    progress?.("evaluation keys", place + 1, wanted.length);
  }
}

export async function* encryptMany(client, values) {
  const { given: specs, samples: batch, name } = client.part;
  if (values.length !== specs.length)
    throw new ProgramError(`${name} takes ${specs.length} inputs, not ${values.length}`, { where: "encryptMany" });
  const counts = new Set(values.map((value) => value.length));
  if (counts.size > 1) throw new ProgramError(`inputs have ${[...counts].join(" and ")} samples`);
  // All samples are checked before the first one is encrypted.
  specs.forEach((spec, i) => Array.from(values[i], (value) => samplesOf(spec, value, 1)));
  for (let start = 0; start < values[0].length; start += batch)
    yield client.encrypt(...values.map((value) => (batch === 1 ? value[start] : Array.from(value).slice(start, start + batch))));
}

export async function decryptMany(client, answers, of) {
  const asked = Array.from(of, (each) => (typeof each === "string" ? { request: each } : each)), found = new Map();
  const places = new Map(asked.map(({ request }, place) => [request, place])), { samples, outputs } = client.part;
  if (!asked.length || places.size < asked.length)
    throw new WireError(asked.length ? "`of` names inputs twice" : "`of` names no inputs", { where: "decryptMany" });
  if (samples > 1 && asked.some((each) => each.samples === undefined))
    throw new ProgramError(`it is not known how many of up to ${samples} samples these inputs hold`, {
      where: "decryptMany", hint: "give the encrypted inputs, or their receipts",
    });
  for await (const answer of answers) {
    const output = await answerOf(client, answer), { request } = output;
    if (found.has(request))
      throw new WireError(`there are two answers to the inputs ${request.slice(0, 12)}`, { where: "decryptMany" });
    if (!places.has(request))
      throw new WireError(`an answer carries the request '${request.slice(0, 12)}', which none of the inputs has`, {
        where: "decryptMany", hint: "give all inputs that were evaluated",
      });
    found.set(request, await client.decrypt(output, { of: asked[places.get(request)] }));
  }
  const missing = [...places.keys()].filter((request) => !found.has(request));
  if (missing.length)
    throw new WireError(`${missing.length} of ${places.size} inputs have no answer`, {
      where: "decryptMany", why: `the first of them is ${missing[0].slice(0, 12)}`,
    });
  const parts = [...places.keys()].map((request) => found.get(request));
  return outputs.map((spec, i) => {
    const count = samples > 1 ? parts.reduce((sum, part) => sum + part[i].shape[0], 0) : parts.length;
    const data = new Float64Array(parts.reduce((sum, part) => sum + part[i].data.length, 0));
    let place = 0;
    for (const part of parts) {
      data.set(part[i].data, place);
      place += part[i].data.length;
    }
    return { name: spec.name, shape: [count, ...spec.shape], data };
  });
}
