/** A server of `heliograph serve`, for a client: keys are sent once, each as it is made, then jobs. */

import { isHex, textOf } from "./bytes.js";
import { digestOf, strictJson } from "./container.js";
import { checkSignal, errorOf, HeliographError, isPrintable, ProgramError, SecurityError, shown, WireError } from "./errors.js";
import { halvesOf, Message, MOST_BYTES, stepOf } from "./messages.js";
import { PublicPart } from "./public.js";

const MOST_JSON = 2 ** 22, MOST_PUBLIC = 64 * 2 ** 20, MOST_WORDS = 2000, AGAIN = [429, 503];
const FIRST_REST_MS = 250, LONGEST_REST_MS = 15_000, WAIT_S = 20, PAUSE_MS = 100;

/** Wait, unless the signal ends it. */
function rest(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}

const isText = (value, most = MOST_WORDS) => typeof value === "string" && value.length <= most;

export class RemoteServer {
  /**
   * The server at an address (of this page without one). Addresses without TLS are taken on this machine, others only with
   * `plainHttp`. Calls are tried again for `patienceMs` where the server is busy or out of reach.
   */
  constructor(url, token, { plainHttp = false, patienceMs = 300_000, timeoutMs = 60_000, mostAnswerBytes = MOST_BYTES } = {}) {
    let parts;
    try {
      parts = new URL(url, globalThis.location?.href);
    } catch {
      throw new WireError(`'${shown(url, 100)}' is not the address of a server`, { hint: "as https://models.example.org" });
    }
    if (!["http:", "https:"].includes(parts.protocol)) throw new WireError(`'${shown(url, 100)}' is not the address of a server`);
    if (parts.protocol === "http:" && !plainHttp && !["127.0.0.1", "[::1]", "localhost"].includes(parts.hostname))
      throw new SecurityError(`${parts.origin} has no TLS: others on the way could read the token`, {
        where: "RemoteServer", hint: "use https; on a network of your own pass {plainHttp: true}",
      });
    if (typeof token !== "string" || !/^[\x21-\x7e]{1,512}$/.test(token))
      throw new ProgramError("that is not a token of a server", { hint: "give the text that `heliograph token` printed" });
    this.url = (parts.origin + parts.pathname).replace(/\/+$/, "");
    Object.assign(this, { _token: token, _patienceMs: patienceMs, _timeoutMs: timeoutMs, _mostAnswerBytes: mostAnswerBytes });
  }

  /** The bytes of an answer, at most `mostBytes`. A body is sent whole, and again with each try. */
  async _read(method, path, { body, mostBytes = MOST_JSON, signal } = {}) {
    const end = Date.now() + this._patienceMs;
    for (let pause = FIRST_REST_MS; ; pause = Math.min(2 * pause, LONGEST_REST_MS)) {
      checkSignal(signal);
      let failure, asked = 0;
      // A request may take a second more for each 32 kB.
      const time = AbortSignal.timeout(Math.ceil(this._timeoutMs + (body?.length ?? 0) / 32 + (mostBytes > MOST_JSON ? 1e6 : 0)));
      try {
        const answer = await fetch(this.url + path, {
          method,
          body,
          headers: { Authorization: `Bearer ${this._token}`, ...(body ? { "Content-Type": "application/octet-stream" } : {}) },
          signal: signal ? AbortSignal.any([signal, time]) : time,
          redirect: "manual",
          credentials: "omit",
          cache: "no-store",
        });
        if (answer.type === "opaqueredirect" || (answer.status >= 300 && answer.status < 400)) throw this._strange();
        const bytes = await bounded(answer, answer.ok ? mostBytes : MOST_JSON, this.url);
        if (answer.ok) return bytes;
        failure = refusal(answer.status, bytes, this.url);
        if (!AGAIN.includes(answer.status)) throw failure;
        const seconds = answer.headers.get("retry-after") ?? "";
        asked = /^[0-9]{1,2}$/.test(seconds) ? 1000 * Number(seconds) : 0;
      } catch (error) {
        checkSignal(signal);
        if (error instanceof HeliographError && error !== failure) throw error;
        if (error === failure) throw failure;
        failure = new HeliographError(`${this.url} does not answer`, { why: shown(`${error.name}: ${error.message}`, 300) });
      }
      const wait = Math.max(pause * (0.5 + Math.random() / 2), asked);
      if (Date.now() + wait > end) throw failure;
      await rest(wait, signal);
    }
  }

  async _json(method, path, options) {
    const bytes = await this._read(method, path, options);
    if (!bytes.length) return null;
    try {
      return strictJson(textOf(bytes));
    } catch {
      throw this._strange();
    }
  }

  _strange() {
    return new WireError(`${this.url} does not answer like a Heliograph server`, { hint: "look at the address" });
  }

  /** What is served: {artifact, name} each. */
  async artifacts({ signal } = {}) {
    const found = await this._json("GET", "/v1/artifacts", { signal });
    if (!Array.isArray(found) || !found.every((each) => isHex(each?.artifact, 64) && isText(each.name, 200) && isPrintable(each.name)))
      throw this._strange();
    return found.map(({ artifact, name }) => ({ artifact, name }));
  }

  /**
   * The public part of an artifact, by its fingerprint or name; of the only one if none is named. The server is trusted only
   * to answer: name the fingerprint that somebody you trust told you.
   */
  async public(artifact, { insecure = false, signal } = {}) {
    const { artifact: fingerprint, bytes } = await this.publicBytes(artifact, { signal });
    return PublicPart.read(bytes, { fingerprint, insecure, what: this.url });
  }

  /** The bytes of a public part, which a WorkerClient takes, and the fingerprint under which it is served. */
  async publicBytes(artifact, { signal } = {}) {
    const served = await this.artifacts({ signal }), found = served.filter((each) => [undefined, each.artifact, each.name].includes(artifact));
    if (found.length !== 1)
      throw new ProgramError(`the server has ${found.length} artifacts of that name`, {
        where: "RemoteServer.public", why: `it serves ${served.slice(0, 20).map(({ name }) => `'${name}'`).join(", ") || "nothing"}`,
        hint: "name one by its fingerprint",
      });
    const bytes = await this._read("GET", `/v1/artifacts/${found[0].artifact}/public`, { mostBytes: MOST_PUBLIC, signal });
    return { artifact: found[0].artifact, bytes };
  }

  /** Make and send the evaluation keys that the server does not have yet; only one is in memory. */
  async register(client, { progress, signal } = {}) {
    const path = `/v1/keys/${client.part.fingerprint}/${client.id}`, names = client.keys.map(({ name }) => name);
    let state = this._keys(await this._json("PUT", path, { signal }));
    const missing = state.missing, strange = missing.find((name) => !names.includes(name));
    if (strange !== undefined) throw new WireError(`the server asks for the key '${shown(strange, 60)}', which is not among these`);
    let done = names.length - missing.length;
    for (const name of missing) {
      progress?.("sending keys", done++, names.length);
      const body = await client.evaluationKey(name, { signal });
      state = this._keys(await this._json("PUT", `${path}/${name}`, { body, signal }));
    }
    progress?.("sending keys", names.length, names.length);
    if (!state.complete) throw new WireError("the server does not have all keys, although they were sent", { where: this.url });
  }

  _keys(found) {
    if (!Array.isArray(found?.missing) || !found.missing.every((name) => isText(name, 200)) || typeof found.complete !== "boolean")
      throw this._strange();
    return found;
  }

  /** Delete the client's evaluation keys on the server. */
  async forget(client, { signal } = {}) {
    await this._json("DELETE", `/v1/keys/${client.part.fingerprint}/${client.id}`, { signal });
  }

  /** The encrypted outputs for encrypted inputs. The same inputs again continue the same job. */
  async run(inputs, { progress, signal } = {}) {
    return this._result(await this._submit(inputs, signal), "encrypted outputs", inputs, progress, signal);
  }

  /** For a program that carries values from run to run: [outputs, carried values for the next step]. */
  async step(inputs, carried, { progress, signal } = {}) {
    const request = await this._submit(stepOf(inputs, carried), signal);
    return halvesOf(await this._result(request, "outputs of a step", inputs, progress, signal));
  }

  async _submit(message, signal) {
    const body = await message.toBytes(), { artifact, client, request } = message;
    const query = new URLSearchParams({ artifact, client, digest: digestOf(body) });
    await this._json("PUT", `/v1/jobs/${request}?${query}`, { body, signal });
    return request;
  }

  async _result(request, kind, inputs, progress, signal) {
    const path = `/v1/jobs/${request}`;
    for (;;) {
      const begun = Date.now(), job = await this._json("GET", `${path}?wait=${progress ? 1 : WAIT_S}`, { signal });
      if (!["queued", "running", "done", "failed"].includes(job?.state)) throw this._strange();
      const { done, total } = job;
      if (Number.isSafeInteger(total) && total > 0 && Number.isSafeInteger(done)) progress?.("evaluate", Math.min(done, total), total);
      if (job.state === "failed") {
        await this._forgotten(path);
        throw errorIn(job.error, `${this.url}, job ${request}`) ?? this._strange();
      }
      if (job.state === "done") break;
      if (Date.now() - begun < PAUSE_MS) await rest(PAUSE_MS, signal);
    }
    const bytes = await this._read("GET", `${path}/result`, { mostBytes: this._mostAnswerBytes, signal });
    const output = await Message.read(kind, bytes, { mostBytes: this._mostAnswerBytes, what: `the answer of ${this.url}` });
    output.check(inputs.artifact, inputs.client);
    output.checkAnswers(request);
    await this._forgotten(path);
    return output;
  }

  /** Delete a job that has ended. If that fails, it expires on the server. */
  async _forgotten(path) {
    try {
      await this._json("DELETE", path);
    } catch (error) {
      if (!(error instanceof HeliographError)) throw error;
    }
  }
}

async function bounded(answer, most, url) {
  const parts = [];
  let size = 0;
  if (answer.body)
    for (const reader = answer.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      size += value.length;
      if (size > most) {
        await reader.cancel();
        throw new WireError(`${url} answers more than the ${most} bytes that are read here`);
      }
      parts.push(value);
    }
  const found = new Uint8Array(size);
  let place = 0;
  for (const part of parts) {
    found.set(part, place);
    place += part.length;
  }
  return found;
}

/** The error in a record of a server; null if it is none. */
function errorIn(record, fallback) {
  if (!isText(record?.kind, 100) || !isText(record.what)) return null;
  const part = (name) => (isText(record[name]) ? record[name] : "");
  return errorOf(record.kind, record.what, { where: part("where") || fallback, why: part("why"), hint: part("hint") });
}

function refusal(status, bytes, url) {
  let found = null;
  try {
    found = errorIn(strictJson(textOf(bytes)).error, url);
  } catch {
    // An answer that is not from one of our servers.
  }
  found ??= new HeliographError(`the server answers with status ${status}`, { where: url });
  found.status = status;
  return found;
}
