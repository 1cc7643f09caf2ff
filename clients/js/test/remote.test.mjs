/** A server that does not answer like ours: every call ends in an error of ours, and nothing is believed. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { Client, PublicPart, RemoteServer } from "../src/index.js";

const FOLDER = new URL("../../../tests/vectors/", import.meta.url);
const file = (name) => new Uint8Array(readFileSync(new URL(name, FOLDER)));
const vectors = JSON.parse(readFileSync(new URL("vectors.json", FOLDER), "utf8"));
const part = await PublicPart.read(file("public.bin"));
const client = await Client.load(file("client-key.bin"), { passphrase: vectors.key_file.passphrase, part, insecure: true });
const inputs = await client.encrypt(vectors.sample);

// What the server answers, by the beginnings of requests: [status, body, headers].
let answers = {}, asked = [];
const http = createServer((request, response) => {
  const line = `${request.method} ${request.url}`;
  asked.push([line, request.headers.authorization]);
  request.resume().on("end", () => {
    const key = Object.keys(answers).find((each) => line.startsWith(each)), found = answers[key] ?? [404, "{}"];
    const [status, body, headers] = Array.isArray(found[0]) ? (found.length > 1 ? found.shift() : found[0]) : found;
    response.writeHead(status, headers);
    response.end(typeof body === "string" || body instanceof Uint8Array ? body : JSON.stringify(body));
  });
});
await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
after(() => http.close());
const url = `http://127.0.0.1:${http.address().port}`, server = new RemoteServer(url, "token", { patienceMs: 1500 });
const given = (found) => {
  answers = found;
  asked = [];
};
const fingerprint = part.fingerprint, keys = `/v1/keys/${fingerprint}/${client.id}`;

test("addresses and tokens", () => {
  assert.throws(() => new RemoteServer("http://models.example.org", "token"), { name: "SecurityError" });
  assert.throws(() => new RemoteServer("ftp://models.example.org", "token"), { name: "WireError" });
  assert.throws(() => new RemoteServer("models", "token"), { name: "WireError" });
  for (const token of ["", "a b", "a\r\nX: y", null]) assert.throws(() => new RemoteServer(url, token), { name: "ProgramError" });
});

test("lists of artifacts that are none", async () => {
  for (const body of ["", "x", "[1]", "{}", '[{"artifact": "x", "name": "y"}]', [{ artifact: fingerprint, name: "a\u001bb" }], "[".repeat(1 << 20), " ".repeat(2 ** 23)]) {
    given({ "GET /v1/artifacts": [200, body] });
    await assert.rejects(server.artifacts(), { name: "WireError" });
  }
  given({ "GET /v1/artifacts": [302, "", { Location: "https://elsewhere.example.org/" }] });
  await assert.rejects(server.artifacts(), { name: "WireError", message: /does not answer like/ });
});

test("another artifact than the one that is named", async () => {
  const list = [{ artifact: fingerprint, name: "m" }];
  given({ [`GET /v1/artifacts/${fingerprint}/public`]: [200, file("bootstrapped.bin")], "GET /v1/artifacts": [200, list] });
  await assert.rejects(server.public(), { name: "SecurityError", message: /another artifact/ });
  await assert.rejects(server.public("other"), { name: "ProgramError", message: /0 artifacts of that name/ });
});

test("keys that are not ours to send", async () => {
  for (const body of [{ missing: ["secret"], complete: false }, { missing: "x", complete: false }, { complete: true }, { missing: [], complete: 1 }, []]) {
    given({ "PUT /v1/keys": [200, body] });
    await assert.rejects(server.register(client), { name: "WireError" });
  }
  given({ [`PUT ${keys}/rotation`]: [200, { missing: ["x"], complete: false }], [`PUT ${keys}`]: [200, { missing: ["rotation/3"], complete: false }] });
  await assert.rejects(server.register(client), { name: "WireError", message: /does not have all keys/ });
  assert.deepEqual(asked.map(([line]) => line), [`PUT ${keys}`, `PUT ${keys}/rotation/3`]);
});

test("answers to jobs", async () => {
  const job = (state, more = {}) => [200, { state, done: 1, total: 2, ...more }];
  const error = { kind: "RangeError", what: "too\u001b[31m large", where: "", why: "w", hint: "h" };
  given({ "PUT /v1/jobs": job("queued"), "GET /v1/jobs": job("failed", { error }), "DELETE ": [204, ""] });
  await assert.rejects(server.run(inputs), (found) => found.name === "RangeError" && found.message.startsWith(`${url}, job`) && !found.message.includes("\u001b"));
  assert.ok(asked.at(-1)[0].startsWith("DELETE "));
  for (const strange of [job("won"), [200, "[]"], [200, ""], job("failed", { error: { kind: 1 } })]) {
    given({ "PUT /v1/jobs": job("queued"), "GET /v1/jobs": strange, "DELETE ": [204, ""] });
    await assert.rejects(server.run(inputs), { name: "WireError" });
  }
  // The answer to other inputs, and bytes that are none.
  for (const result of [file("output.bin"), file("public.bin"), "x", ""]) {
    given({ "PUT /v1/jobs": job("queued"), [`GET /v1/jobs/${inputs.request}/result`]: [200, result], "GET /v1/jobs": job("done"), "DELETE ": [204, ""] });
    await assert.rejects(server.run(inputs), { name: "WireError" });
  }
});

test("refusals, and servers that are busy", async () => {
  const error = { kind: "SecurityError", what: "no" };
  given({ "GET /v1/artifacts": [403, { error }] });
  await assert.rejects(server.artifacts(), { name: "SecurityError", status: 403 });
  given({ "GET /v1/artifacts": [500, "<html>"] });
  await assert.rejects(server.artifacts(), { name: "HeliographError", status: 500 });
  given({ "GET /v1/artifacts": [[503, { error }, { "Retry-After": "1" }], [200, []]] });
  assert.deepEqual(await server.artifacts(), []);
  assert.deepEqual(asked.map(([, token]) => token), ["Bearer token", "Bearer token"]);
  given({ "GET /v1/artifacts": [503, { error }, { "Retry-After": "99" }] });
  await assert.rejects(server.artifacts(), { status: 503 });
  await assert.rejects(new RemoteServer("http://127.0.0.1:9", "t", { patienceMs: 300 }).artifacts(), { name: "HeliographError", message: /does not answer/ });
});

test("a call that is cancelled", async () => {
  const stop = new AbortController();
  given({ "PUT /v1/jobs": [200, { state: "queued" }], "GET /v1/jobs": [200, { state: "queued" }] });
  setTimeout(() => stop.abort(), 300);
  await assert.rejects(server.run(inputs, { signal: stop.signal }), { name: "CancelledError" });
});
