/**
 * The client's half of a round trip, for test_javascript.py. `make FOLDER` writes a key file, the evaluation
 * keys and the encrypted inputs of FOLDER/values.json; `read FOLDER` decrypts the answer in it. `serve FOLDER URL TOKEN` does
 * all of it over HTTP, with the client in a worker. `seeded FOLDER` makes what FOLDER/values.json lists from its seeds, and prints
 * the digests. `steps FOLDER URL TOKEN` runs steps, `answers FOLDER` reads answers of a certified program, and `certified FOLDER`
 * decrypts those in FOLDER/answers. `share FOLDER` shares an answer up to 50 times, with the client in a worker.
 */

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { hex, sha256, unhex } from "../../clients/js/src/bytes.js";
import { Cryptor } from "../../clients/js/src/cryptor.js";
import { Client, classOf, PublicPart, RemoteServer, WorkerClient } from "../../clients/js/src/index.js";
import { Machine } from "../../clients/js/src/machine.js";
import { readAnswer } from "../../clients/js/src/outputs.js";
import { EvaluationKey, Ring } from "../../clients/js/src/ring.js";

const [command, folder, ...rest] = process.argv.slice(2);
const path = (name) => join(folder, name), read = (name) => new Uint8Array(readFileSync(path(name)));
const { values, fingerprint } = JSON.parse(readFileSync(path("values.json"), "utf8"));
const passphrase = "a passphrase";

async function make() {
  const client = await Client.create(await PublicPart.read(read("public.bin"), { fingerprint }), { insecure: true });
  writeFileSync(path("client.key"), await client.save({ passphrase }));
  mkdirSync(path("keys"), { recursive: true });
  for await (const { name, bytes } of client.evaluationKeys()) writeFileSync(path(`keys/${name.replaceAll("/", "-")}.key`), bytes);
  const inputs = await client.encrypt(...values);
  writeFileSync(path("input.bin"), await inputs.toBytes());
  writeFileSync(path("receipt.json"), JSON.stringify({ client: client.id, ...inputs.receipt() }));
}

const told = (outputs) => outputs.map(({ shape, data }) => ({ shape, data: Array.from(data) }));

async function decrypt() {
  const client = await Client.load(read("client.key"), { passphrase, insecure: true });
  const of = JSON.parse(readFileSync(path("receipt.json"), "utf8"));
  console.log(JSON.stringify(told(await client.decrypt(read("output.bin"), { of }))));
}

async function serve(url, token) {
  const server = new RemoteServer(url, token), { artifact, bytes } = await server.publicBytes(fingerprint);
  const client = await WorkerClient.create(bytes, { fingerprint: artifact, insecure: true }), stages = new Set();
  const progress = (stage) => stages.add(stage);
  await server.register(client, { progress });
  await server.register(client);
  const inputs = await client.encrypt(...values), answer = await server.run(inputs, { progress });
  const outputs = await client.decrypt(answer, { of: inputs });
  // The same job again is still an answer to the same inputs, and a token that nobody knows is refused.
  const refused = await new RemoteServer(url, "nobody").artifacts().catch((error) => error);
  await server.forget(client);
  client.close();
  console.log(JSON.stringify({ outputs: told(outputs), label: outputs[0].shape.length === 1 ? classOf(outputs[0]) : null, stages: [...stages], refused: refused.status }));
}

/** Objects of a larger ring, from seeds in the order of their use. */
async function seeded() {
  const { ring: fields, tag, seeds, keys, level, scale } = values, ring = new Ring(fields);
  const next = (kind) => () => unhex(seeds[kind].shift());
  const cryptor = await Cryptor.fresh(await Machine.open(), ring, tag, { secret: next("secret"), sent: next("sent") });
  const sha = async (bytes) => hex(await sha256(bytes)), found = [await sha(cryptor.secretBytes())];
  const slots = Float64Array.from({ length: ring.slots }, (_, j) => ((j * 7919) % 1000) / 1000 - 0.5);
  found.push(await sha(await cryptor.encrypted(slots, level, scale)));
  for (const { kind, index } of keys) found.push(await sha(await cryptor.evaluationKey(new EvaluationKey("it", ring, kind, index))));
  console.log(JSON.stringify(found));
}

/** Steps of a program that carries values: values are {start, given}, the carried values and the inputs of each step. */
async function steps(url, token) {
  const server = new RemoteServer(url, token), part = await server.public(fingerprint, { insecure: true });
  const client = await Client.create(part, { insecure: true }), found = [];
  await server.register(client);
  let carried = await client.encryptCarried(values.start), output;
  for (const given of values.given) {
    const inputs = await client.encrypt(...given);
    [output, carried] = await server.step(inputs, carried);
    const [left] = await client.decryptCarried(await carried.toBytes());
    found.push([told(await client.decrypt(output, { of: inputs })), Array.from(left.data)]);
  }
  console.log(JSON.stringify(found));
}

const answered = ({ label, votes, certified, radius, widestRadius, error, withdrawn, text }) =>
  [label, votes, certified, radius, widestRadius, error, withdrawn, text];

/** What is read in decrypted numbers of a certified program. */
async function answers() {
  const part = await PublicPart.read(read("public.bin"));
  const found = values.map((data) => readAnswer(part, { shape: [data.length], data }));
  console.log(JSON.stringify(found.map(answered)));
}

async function certified() {
  const client = await Client.load(read("client.key"), { passphrase, insecure: true }), found = [];
  for (const name of readdirSync(path("answers")).sort()) found.push(answered(await client.answer(read(`answers/${name}`))));
  console.log(JSON.stringify(found));
}

async function share() {
  const client = await WorkerClient.load(read("client.key"), { passphrase, part: read("public.bin"), insecure: true });
  const answer = read("output.bin"), [kept] = await client.decrypt(answer), counts = [], noises = [];
  const refusals = [];
  for (const share of [true, () => Promise.reject(new Error("the disk is full"))])
    refusals.push(await client.decrypt(answer, { share }).catch((error) => error.message));
  do {
    const [{ data }] = await client.decrypt(answer, { share: async (count) => void counts.push(count) });
    data.forEach((value, i) => noises.push(value - kept.data[i]));
  } while (counts.at(-1) < 50);
  writeFileSync(path("client.key"), await client.save({ passphrase }));
  client.close();
  console.log(JSON.stringify({ counts, noises, refusals }));
}

await { answers, certified, share, steps, seeded, make, read: decrypt, serve }[command](...rest);
