/** The client in a worker. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { WorkerClient } from "../src/index.js";

const FOLDER = new URL("../../../tests/vectors/", import.meta.url);
const file = (name) => new Uint8Array(readFileSync(new URL(name, FOLDER)));
const vectors = JSON.parse(readFileSync(new URL("vectors.json", FOLDER), "utf8"));

test("a worker does what the client does, and passes its errors on", async () => {
  const part = file("public.bin"), { passphrase } = vectors.key_file;
  await assert.rejects(WorkerClient.create(part), { name: "SecurityError" });
  const client = await WorkerClient.load(file("client-key.bin"), { passphrase, part, insecure: true });
  try {
    assert.equal(client.id, vectors.secret.tag);
    const [{ data }] = await client.decrypt(file("output.bin"), { of: vectors.request });
    data.forEach((value, i) => assert.ok(Math.abs(value - vectors.decryption.result[i]) < 1e-3));
    await assert.rejects(client.encrypt([1, 2]), { name: "ProgramError", message: /has shape \(2,\)/ });
    const inputs = await client.encrypt(vectors.sample);
    assert.equal((await inputs.toBytes()).length, file("input.bin").length);
    // The vectors' program is too coarse for noise; a count is stored in the page only for a result that can be shared.
    const stored = [], share = (count) => void stored.push(count);
    await assert.rejects(client.decrypt(file("output.bin"), { share }), { name: "ProgramError", message: /cannot be shared/ });
    await assert.rejects(client.decrypt(file("output.bin"), { share: "stored" }), { name: "ProgramError", message: /share is true/ });
    assert.deepEqual(stored, []);
    const stages = [];
    for await (const { name, bytes } of client.evaluationKeys({ progress: (...each) => stages.push(each) }))
      assert.ok(bytes.length > client.keys.find((key) => key.name === name).bytes);
    assert.equal(stages.length, 4);
    const stop = new AbortController(), going = client.evaluationKey("rotation/3", { signal: stop.signal });
    stop.abort();
    await assert.rejects(going, { name: "CancelledError" });
    const again = await WorkerClient.load(await client.save({ passphrase: "x" }), { passphrase: "x", part, insecure: true });
    assert.equal(again.id, client.id);
    again.close();
    await assert.rejects(again.save(), /closed/);
  } finally {
    client.close();
  }
});
