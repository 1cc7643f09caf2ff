/** The times of a client: `node clients/js/bench/bench.mjs FILE...`, public artifacts. Memory is right for a single file. */

import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { Client, PublicPart } from "../src/index.js";
import { Machine, loaded } from "../src/machine.js";
import { Modulus } from "../src/modulus.js";
import { mb, median, middleOf, ms } from "./figures.mjs";

const REPEATS = 20;

async function timed(call, repeats = REPEATS) {
  const times = [];
  for (let i = 0; i < repeats; i++) {
    const begun = performance.now();
    await call();
    times.push(performance.now() - begun);
  }
  return median(times);
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
  const part = await PublicPart.read(readFileSync(file)), { costs, ring } = part, before = process.memoryUsage().rss;
  console.log(`${basename(file)}: N = ${ring.n}, ${ring.towers} primes, read in ${ms(performance.now() - begun)}`);
  begun = performance.now();
  const client = await Client.create(part), first = performance.now() - begun;
  begun = performance.now();
  // One key at a time: each is thrown away before the next is made.
  for await (const { bytes } of client.evaluationKeys()) void bytes;
  const keys = performance.now() - begun, peak = process.resourceUsage().maxRSS * 1024, values = part.given.map(middleOf);
  let inputs = null;
  const encrypt = await timed(async () => (inputs = await client.encrypt(...values)));
  // A fresh ciphertext at level 0 takes as long to decrypt as an answer, and expands its second half besides.
  const [output] = part.outputs, blob = await client._open.encrypted(new Float64Array(ring.slots).fill(1e-3), 0, 20);
  const decrypt = await timed(() => client._open.decrypted(blob, 0, 20, "it"));
  console.log(`  secret key ${ms(first)}; ${costs.keys} keys, ${mb(costs.keyBytes)}, the largest ${mb(costs.largestKeyBytes)}: ${ms(keys)}`);
  console.log(`  encryption ${ms(encrypt)}, ${mb((await inputs.toBytes()).length)}; decryption ${ms(decrypt)} (of ${output.log_scales.length})`);
  console.log(`  predicted memory ${mb(costs.memoryBytes)}, WebAssembly's ${mb(client._open.machine.size)}`);
  console.log(`  resident memory of Node: ${mb(before)} before, at most ${mb(peak)} until all keys were made`);
}
