/** The client against the files of the vectors: answers, key files, and what is refused. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Client } from "../src/client.js";
import { unhex } from "../src/bytes.js";
import { packContainer } from "../src/container.js";
import { ProgramError, RangeError, SecurityError, TooLittleMemoryError, WireError } from "../src/errors.js";
import { encoded } from "../src/inputs.js";
import { readKey, writeKey } from "../src/keyfile.js";
import { Message } from "../src/messages.js";
import { readAnswer } from "../src/outputs.js";
import { PublicPart } from "../src/public.js";
import { floodingStd, SHARE_RESULTS, Shares } from "../src/sharing.js";

const FOLDER = new URL("../../../tests/vectors/", import.meta.url);
const file = (name) => new Uint8Array(readFileSync(new URL(name, FOLDER)));
const vectors = JSON.parse(readFileSync(new URL("vectors.json", FOLDER), "utf8"));
const sha = (bytes) => createHash("sha256").update(bytes).digest("hex");
const part = await PublicPart.read(file("public.bin"));
const { passphrase, salt, nonce, open_sha256: openSha } = vectors.key_file;
const loaded = () => Client.load(file("client-key.bin"), { passphrase, part, insecure: true });
const client = await loaded();

test("the key file is read, and written to the byte", async () => {
  const { secret, part: stored, client: name } = await readKey(file("client-key.bin"), passphrase);
  assert.equal(sha(secret), vectors.secret.sha256);
  assert.equal(name, vectors.secret.tag);
  const random = (count) => unhex(count === 16 ? salt : nonce);
  for (const each of [part, stored]) {
    assert.deepEqual(await writeKey(each, name, secret, 0, passphrase, random), file("client-key.bin"));
    assert.equal(sha(await writeKey(each, name, secret, 0)), openSha);
  }
  const again = await Client.load(await client.save({ passphrase: "other" }), { passphrase: "other", insecure: true });
  assert.equal(again.id, client.id);
});

test("a wrong passphrase, none, or one too many is refused", async () => {
  await assert.rejects(readKey(file("client-key.bin"), "wrong"), { name: "SecurityError", message: /does not open/ });
  await assert.rejects(readKey(file("client-key.bin")), { name: "SecurityError", message: /protected by a passphrase/ });
  await assert.rejects(readKey(await client.save(), "some"), { name: "SecurityError", message: /not protected/ });
  await assert.rejects(client.save({ passphrase: "" }), SecurityError);
});

test("a key that is not ternary is refused", async () => {
  const { secret, client: name } = await readKey(file("client-key.bin"), passphrase);
  for (const place of [0, 8 * 1024, secret.length - 1]) {
    const other = secret.slice();
    other[place] ^= 1;
    await assert.rejects(Client.load(await writeKey(part, name, other, 0), { insecure: true }), { name: "WireError", message: /secret key is none/ });
  }
});

test("an answer is decrypted, exactly before the noise", async () => {
  const { first, sha256, result, within } = vectors.decryption, answer = await Message.read("encrypted outputs", file("output.bin"));
  const numbers = await client._open.messageNumbers(answer.blobs.get("0"));
  assert.deepEqual(Array.from(numbers.subarray(0, 8), Number), first);
  assert.equal(sha(new Uint8Array(numbers.buffer)), sha256);
  const [{ name, shape, data }] = await client.decrypt(file("output.bin"), { of: vectors.request });
  assert.deepEqual([name, shape], ["y", [8]]);
  data.forEach((value, i) => assert.ok(Math.abs(value - result[i]) < within, `${value} for ${result[i]}`));
});

test("an answer to other inputs, or of another client or artifact, is refused", async () => {
  await assert.rejects(client.decrypt(file("output.bin"), { of: "0".repeat(32) }), { name: "WireError", message: /other inputs/ });
  const other = await Client.create(part, { insecure: true });
  await assert.rejects(other.decrypt(file("output.bin")), { name: "WireError", message: /another client/ });
  await assert.rejects(client.decrypt(file("input.bin")), { name: "WireError", message: /expected: encrypted outputs/ });
});

test("what is encrypted can be decrypted, at every level", async () => {
  const inputs = await client.encrypt(vectors.sample), [spec] = part.inputs;
  const { slots, error } = await client._open.decrypted(inputs.blobs.get("x/0"), spec.levels[0], spec.log_scales[0], "it");
  const [found] = spec.placed.unpack([slots]);
  found.forEach((value, i) => assert.ok(Math.abs(value - vectors.sample.flat()[i]) < 1e-3));
  assert.ok(error < 1e-3);
  const again = await Message.read("encrypted inputs", await inputs.toBytes());
  assert.deepEqual(again, inputs);
});

test("wrong inputs are refused with their place", async () => {
  const cases = [
    [[1, 2, 3], /has shape \(3,\), expected \(2, 3\)/, ProgramError],
    [[[0, 0, NaN], [0, 0, 0]], /holds nan at index \(0, 2\)/, ProgramError],
    [[[0, 0, 0], [0, 1.5, 0]], /outside its range \[-1, 1\] at index \(1, 1\)/, RangeError],
    [[["a", 0, 0], [0, 0, 0]], /not an array of real numbers/, ProgramError],
    [[[0, 0], [0, 0, 0]], /not an array of real numbers/, ProgramError],
    [Float64Array.from([0, 0, 0, 0, 0, Infinity]), /holds inf at index \(1, 2\)/, ProgramError],
  ];
  for (const [value, message, kind] of cases)
    await assert.rejects(client.encrypt(value), (error) => error instanceof kind && message.test(error.message));
  await assert.rejects(client.encrypt(), /takes 1 inputs, not 0/);
});

test("values that do not fit their level are refused", async () => {
  await assert.rejects(client._open.encrypted(new Float64Array(512).fill(1), 0, 60), { name: "RangeError", message: /too large for its level/ });
});

test("a part without security is refused, and one that is too large", async () => {
  await assert.rejects(Client.create(part), { name: "SecurityError", message: /has no security/ });
  await assert.rejects(Client.create(part, { insecure: true, mostMemory: 1e5 }), TooLittleMemoryError);
  await assert.rejects(PublicPart.read(file("public.bin"), { fingerprint: "0".repeat(64) }), SecurityError);
});

test("an overflowed answer is refused", async () => {
  const answer = await Message.read("encrypted outputs", file("output.bin")), blob = answer.blobs.get("0").slice();
  blob[2000] ^= 1;
  answer.blobs.set("0", blob);
  await assert.rejects(client.decrypt(answer), RangeError);
});

/** The client of the vectors, whose program is taken to be precise enough for noise. */
async function sharing(change = {}) {
  const own = await loaded(), { predicted } = own.part;
  own.part = Object.create(own.part, { predicted: { value: { ...predicted, output_magnitude: 1e9, ...change } } });
  return own;
}

test("results are shared with noise, and counted before they are returned", async () => {
  const own = await sharing(), counts = [], noises = [], [kept] = await own.decrypt(file("output.bin"));
  const std = floodingStd(own.part.predicted.scheme_error, 8), grid = 2 ** (Math.floor(Math.log2(std)) - 4);
  let stored = false;
  const share = async (count) => {
    counts.push(count);
    await new Promise((resolve) => setTimeout(resolve, 1));
    stored = true;
  };
  for (let i = 0; i < 30; i++) {
    stored = false;
    const [{ data }] = await own.decrypt(file("output.bin"), { of: vectors.request, share });
    assert.ok(stored);
    data.forEach((value, j) => noises.push(value - kept.data[j]));
    assert.ok(data.every((value) => Number.isInteger(value / grid)));
  }
  assert.deepEqual(counts, Array.from({ length: 30 }, (_, i) => i + 1));
  const deviation = Math.sqrt(noises.reduce((sum, value) => sum + value * value, 0) / noises.length);
  assert.ok(Math.abs(deviation / std - 1) < 0.3, `${deviation} for ${std}`);
  // The count is in the key file, and goes on from the larger one.
  const bytes = await own.save(), again = (options) => Client.load(bytes, { insecure: true, ...options });
  assert.equal((await readKey(bytes)).shared, 30);
  assert.equal((await again())._shares.count, 30);
  assert.equal((await again({ shared: 7 }))._shares.count, 30);
  assert.equal((await again({ shared: 41 }))._shares.count, 41);
  await assert.rejects(again({ shared: -1 }), ProgramError);
});

test("the count is never lost", async () => {
  const own = await sharing(), failed = new Error("the disk is full");
  await assert.rejects(own.decrypt(file("output.bin"), { share: () => Promise.reject(failed) }), failed);
  assert.equal(own._shares.count, 1);
  await assert.rejects(own.decrypt(file("output.bin"), { share: true }), { name: "ProgramError", message: /key file does not hold this result/ });
  await assert.rejects(own.decrypt(file("output.bin"), { share: "yes" }), { name: "ProgramError", message: /share is true, or a function/ });
  assert.equal(own._shares.count, 1);
  // A key file that is written while a result is shared holds the new count.
  await own.decrypt(file("output.bin"), { share: async (count) => assert.equal((await readKey(await own.save())).shared, count) });
  // Results that are shared at the same time are counted one after the other.
  const stored = [];
  const slow = async (count) => {
    await new Promise((resolve) => setTimeout(resolve, 20 / count));
    stored.push(count);
  };
  await Promise.all([1, 2, 3].map(() => own.decrypt(file("output.bin"), { share: slow })));
  assert.deepEqual(stored, [3, 4, 5]);
  // In memory alone only as long as the key is.
  const fresh = new Shares();
  await fresh.take(true);
  assert.equal(fresh.save(), 1);
  await assert.rejects(fresh.take(true), ProgramError);
  await fresh.take(() => {});
  assert.equal(fresh.count, 2);
});

test("what cannot be shared is refused, and is not counted", async () => {
  const store = () => assert.fail("nothing is counted");
  const refused = async (own, error) => {
    await assert.rejects(own.decrypt(file("output.bin"), { share: store }), error);
    assert.equal(own._shares.count, own === last ? SHARE_RESULTS : 0);
  };
  const last = await sharing();
  last._shares = new Shares(SHARE_RESULTS, true);
  await refused(last, { name: "SecurityError", message: /has shared 64 results, and the noise is computed for 64/ });
  await refused(await sharing({ output_magnitude: 1e-9 }), { name: "ProgramError", message: /noise that hides the key would be .*precision_bits of about/s });
  const own = await sharing(), { decrypted } = own._open;
  own._open.decrypted = async (...given) => ({ ...(await decrypted.apply(own._open, given)), error: 9 * own.part.predicted.scheme_error });
  await refused(own, { name: "SecurityError", message: /error is larger than the noise assumes/ });
  const deep = await sharing();
  Object.defineProperty(deep.part, "bootstraps", { value: true });
  await refused(deep, { name: "SecurityError", message: /bootstraps cannot be shared/ });
});

test("rows of tables", async () => {
  const usual = Object.fromEntries(
    ["numbers", "centres", "scales", "rounded", "compared", "edges", "coded", "codes", "missing", "filled", "fills", "texts", "labels", "known", "allowed"]
      .map((name) => [name, []]));
  for (const { encoding, rows, elements } of vectors.rows) {
    const spec = { name: "x", columns: null, encoding: { ...usual, clipped: false, ...encoding } };
    assert.deepEqual(rows.map((row) => Array.from(encoded(spec, row), (value) => value + 0)), elements);
  }
});

test("answers of certified programs", async () => {
  const certified = await PublicPart.read(file("bootstrapped.bin")), read = (...data) => readAnswer(certified, { shape: [3], data });
  assert.deepEqual([read(0, 1.1, 0).label, read(0, 1.1, 0).certified, read(0, 1.1, 0).votes], [1, true, 80]);
  assert.equal(read(0, -3, 0.1).certified, false);
  assert.equal(read(0, -3, 0.1).widestRadius, 0);
  assert.ok(read(0, 19, 0).widestRadius > read(0, 1.1, 0).widestRadius);
  assert.ok(read(0, 1.1, 0).widestRadius >= certified.certificate.radius);
  assert.equal(read(0.1, 0, -0.1).label, null);
  assert.match(read(1, 1, 0).withdrawn, /not a single class/);
  assert.match(read(0.5, 0, 0).withdrawn, /not a single class/);
  assert.match(read(30, 0, 0).withdrawn, /counts 109 of 100/);
  assert.throws(() => readAnswer(part, { shape: [3], data: [0, 1, 0] }), /certifies nothing/);
});

test("batches and carried values", async () => {
  const several = await PublicPart.read(file("bootstrapped.bin")), own = await Client.create(several, { insecure: true });
  const inputs = await own.encrypt([[0.5, 0.25, -1], [1, 0, 0]]);
  assert.equal(inputs.samples, 2);
  await assert.rejects(own.encrypt([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]), /up to 4 samples/);
  const rest = [];
  for await (const each of own.encryptMany([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1]])) rest.push(each.samples);
  assert.deepEqual(rest, [4, 1]);
  // Columns are named, and numbers choose one of the classes.
  await own.encrypt([{ a: 0, b: 0.5, ü: 1 }]);
  const [found] = await own.decryptCarried(await own.encryptCarried({ z: [2, 0, 1, 1] }));
  assert.deepEqual(found.shape, [4, 3]);
  assert.deepEqual(Array.from(found.data, Math.round).map(Math.abs), [0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0]);
  await assert.rejects(own.encryptCarried({ z: [3] }), /outside of 0 to 2/);
});

test("many samples are answered in the order of the inputs", async () => {
  const receipt = { request: vectors.request }, [found] = await client.decryptMany([file("output.bin")], { of: [receipt] });
  assert.deepEqual(found.shape, [1, 8]);
  await assert.rejects(client.decryptMany([], { of: [receipt] }), /1 of 1 inputs have no answer/);
  await assert.rejects(client.decryptMany([file("output.bin"), file("output.bin")], { of: [receipt] }), /two answers/);
  await assert.rejects(client.decryptMany([file("output.bin")], { of: ["0".repeat(32)] }), /none of the inputs has/);
});

test("reading takes little time whatever sizes are named", async () => {
  const whole = file("public.bin"), size = new DataView(whole.buffer).getUint32(16, true), text = new TextDecoder().decode(whole.subarray(20, 20 + size));
  const ring = /"ring": \{[^}]*\}/, tensor = '{"layout": {"period": 512, "shape": [4194304], "slots": 512}, "log_scales": [24], "name": "NAME", "shape": [4194304]}';
  const many = Array.from({ length: 1024 }, (_, i) => tensor.replace("NAME", `y${i}`)).join(", ");
  const cases = [[/"outputs": \[.*?\], "predicted"/, `"outputs": [${many}], "predicted"`]];
  for (const [log, first, scale, levels] of [[17, 60, 60, 100], [17, 60, 31, 100], [10, 60, 59, 100], [17, 45, 45, 60]])
    cases.push([ring, `"ring": {"digits": ${levels + 1}, "first_mod_bits": ${first}, "levels": ${levels}, "log_ring": ${log}, "scale_bits": ${scale}, "security_bits": 128}`]);
  for (const [old, value] of cases) {
    assert.match(text, old);
    const begun = Date.now();
    await assert.rejects(PublicPart.read(sealed(text.replace(old, value), new Uint8Array(0))), WireError);
    assert.ok(Date.now() - begun < 5000, `${value.slice(0, 100)}: ${Date.now() - begun} ms`);
  }
});

test("progress, cancellation, and a client that is closed", async () => {
  const stages = [], names = [], own = await loaded();
  for await (const { name } of own.evaluationKeys({ progress: (...each) => stages.push(each) })) names.push(name);
  assert.deepEqual(names, part.evaluationKeys.map(({ name }) => name));
  assert.deepEqual(stages.at(-1), ["evaluation keys", 4, 4]);
  const stop = new AbortController(), going = own.evaluationKey(names[0], { signal: stop.signal });
  stop.abort();
  await assert.rejects(going, { name: "CancelledError" });
  own.close();
  await assert.rejects(own.encrypt(vectors.sample), /is closed/);
});

const STRANGE = [
  null, -1, 0, 1, 2, 3, 1.5, 17, 60, 100, 1e300, 2 ** 53, -0.5, "", "x", "\u0000", "x".repeat(5000), true, false, [], [[]], {}, [0], [1, 1], { a: 1 },
];
const OTHER = { "public.bin": ["public artifact", 11], "bootstrapped.bin": ["public artifact", 11], "client-key.bin": ["a client's secret key", 3] };

/** A container whose header is a text, with the blobs of another one, and a right digest. */
function sealed(header, blobs) {
  const text = new TextEncoder().encode(header), bytes = new Uint8Array(20 + text.length + blobs.length + 32), view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode("HELIOGR1"));
  view.setBigUint64(8, BigInt(bytes.length), true);
  view.setUint32(16, text.length, true);
  bytes.set(text, 20);
  bytes.set(blobs, 20 + text.length);
  bytes.set(createHash("sha256").update(bytes.subarray(0, -32)).digest(), bytes.length - 32);
  return bytes;
}

/** JSON as our writers put it. */
const spaced = (value) =>
  Array.isArray(value) ? `[${value.map(spaced).join(", ")}]`
    : typeof value === "object" && value !== null
      ? `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}: ${spaced(value[name])}`).join(", ")}}`
      : JSON.stringify(value);

/** Changes that an attacker could make: the container's digest is right. */
test("hostile messages end in an error of ours", async () => {
  const count = Number(process.env.HELIOGRAPH_HOSTILE ?? 400), told = new Map();
  let state = 12345;
  const random = (below) => ((state = (Math.imul(state, 1103515245) + 12345) >>> 0), Math.floor((state / 2 ** 32) * below));
  const readers = {
    "public.bin": (bytes) => PublicPart.read(bytes),
    "bootstrapped.bin": (bytes) => PublicPart.read(bytes),
    "output.bin": (bytes) => client.decrypt(bytes),
    "client-key.bin": (bytes) => Client.load(bytes, { insecure: true }),
  };
  const flipped = (original) => {
    const body = original.subarray(0, original.length - 32).slice(), header = new DataView(body.buffer).getUint32(16, true);
    for (let changes = 1 + random(3); changes; changes--) {
      const at = random(4) ? 20 + random(header) : random(body.length);
      body[at] = random(2) ? body[at] ^ (1 << random(8)) : 48 + random(10);
    }
    const bytes = new Uint8Array(body.length + 32);
    bytes.set(body);
    bytes.set(createHash("sha256").update(body).digest(), body.length);
    return bytes;
  };
  const replaced = (original, [kind, version]) => {
    const size = new DataView(original.buffer, original.byteOffset).getUint32(16, true);
    const header = JSON.parse(new TextDecoder().decode(original.subarray(20, 20 + size)));
    for (let changes = 1 + random(2); changes; changes--) {
      const nodes = [];
      const walk = (value) => {
        for (const name of Object.keys(value)) {
          nodes.push([value, name]);
          if (typeof value[name] === "object" && value[name] !== null) walk(value[name]);
        }
      };
      walk(header.fields);
      const [node, name] = nodes[random(nodes.length)];
      if (random(8)) node[name] = structuredClone(STRANGE[random(STRANGE.length)]);
      else delete node[name];
    }
    return sealed(`{"blobs": ${spaced(header.blobs)}, "fields": ${spaced(header.fields)}, "kind": "${kind}", "version": ${version}}`, original.subarray(20 + size, -32));
  };
  for (let i = 0; i < count; i++) {
    const name = Object.keys(readers)[i % 4], original = file(name), other = OTHER[name], begun = Date.now();
    const bytes = other && random(2) ? replaced(original, other) : flipped(original);
    try {
      await readers[name](bytes);
      told.set("taken", (told.get("taken") ?? 0) + 1);
    } catch (error) {
      const ours = error instanceof WireError || error instanceof SecurityError || error instanceof ProgramError;
      assert.ok(ours, `${name}, case ${i}: ${error.stack}`);
      told.set(error.name, (told.get(error.name) ?? 0) + 1);
    }
    assert.ok(Date.now() - begun < 5000, `${name}, case ${i} took ${Date.now() - begun} ms`);
  }
  assert.ok(told.get("WireError") > count / 4, JSON.stringify([...told]));
});

test("deep and long JSON", async () => {
  const whole = file("public.bin"), size = new DataView(whole.buffer).getUint32(16, true), text = new TextDecoder().decode(whole.subarray(20, 20 + size));
  const deep = "[".repeat(200_000) + "]".repeat(200_000);
  for (const [old, value] of [
    ['"inputs": [', `"inputs": [${deep}, `], ['"axes": [', `"axes": [${deep}, `], ['"name": "x"', `"name": ${deep}`], ['"log_ring": 10', `"log_ring": ${"1".repeat(60)}`],
    ['"log_ring": 10', '"log_ring": 1e999'], ['"log_ring": 10', '"log_ring": NaN'], ['"log_ring": 10', '"__proto__": {"log_ring": 10}'], ['"chains": [', `"chains": [${"0,".repeat(1 << 20)}`],
  ]) {
    assert.ok(text.includes(old), old);
    await assert.rejects(PublicPart.read(sealed(text.replace(old, value), new Uint8Array(0))), WireError, old);
  }
});

test("truncated, oversized and strange containers", async () => {
  const whole = file("public.bin");
  for (const size of [0, 7, 19, 51, whole.length - 1]) await assert.rejects(PublicPart.read(whole.subarray(0, size)), WireError);
  const pack = (text) => packContainer("public artifact", 11, JSON.parse(text), {});
  await assert.rejects(pack("{}").then((bytes) => PublicPart.read(bytes)), WireError);
  await assert.rejects(PublicPart.read(await packContainer("public artifact", 10, {}, {})), /version 10/);
  await assert.rejects(PublicPart.read(await packContainer("other", 11, {}, {})), /expected: public artifact/);
});
