/** The times of a client: `node clients/js/bench/bench.mjs FILE...`, public artifacts that make.py wrote. */

import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { Client, PublicPart } from "../src/index.js";
import { Machine, loaded } from "../src/machine.js";
import { Modulus } from "../src/modulus.js";

const REPEATS = 20;
const ms = (number) => `${number.toFixed(number < 10 ? 2 : 0)} ms`, mb = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

async function timed(call, repeats = REPEATS) {
  const times = [];
  for (let i = 0; i < repeats; i++) {
    const begun = performance.now();
    await call();
    times.push(performance.now() - begun);
  }
  return times.sort((a, b) => a - b)[times.length >> 1];
}

for (const simd of [true, false]) {
  const machine = new Machine(await WebAssembly.instantiate(await loaded(simd), {}));
  for (const [n, q] of [[1 << 13, 1073643521n], [1 << 13, 1152921504606830593n]]) {
    const modulus = new Modulus(machine, n, q), row = modulus.row();
    modulus.forward(row);
    console.log(`${simd ? "simd" : "plain"}: a transform of N = ${n} modulo ${q}: ${ms(await timed(() => modulus.forward(row), 200))}`);
  }
}

for (const file of process.argv.slice(2)) {
  let begun = performance.now();
  const part = await PublicPart.read(readFileSync(file)), { costs, ring } = part;
  console.log(`${basename(file)}: N = ${ring.n}, ${ring.towers} primes, read in ${ms(performance.now() - begun)}`);
  begun = performance.now();
  const client = await Client.create(part), first = performance.now() - begun;
  begun = performance.now();
  for await (const { bytes } of client.evaluationKeys()) void bytes;
  const keys = performance.now() - begun, values = part.given.map((spec) => new Float64Array(spec.shape.reduce((a, b) => a * b, 1)).fill(0.5));
  let inputs = null;
  const encrypt = await timed(async () => (inputs = await client.encrypt(...values)));
  // A fresh ciphertext at level 0 takes as long to decrypt as an answer, and expands its second half besides.
  const [output] = part.outputs, blob = await client._open.encrypted(new Float64Array(ring.slots).fill(1e-3), 0, 20);
  const decrypt = await timed(() => client._open.decrypted(blob, 0, 20, "it"));
  console.log(`  secret key ${ms(first)}; ${costs.keys} keys, ${mb(costs.keyBytes)}: ${ms(keys)}`);
  console.log(`  encryption ${ms(encrypt)}, ${mb((await inputs.toBytes()).length)}; decryption ${ms(decrypt)} (of ${output.log_scales.length})`);
  console.log(`  predicted memory ${mb(costs.memoryBytes)}, WebAssembly's ${mb(client._open.machine.size)}`);
}
