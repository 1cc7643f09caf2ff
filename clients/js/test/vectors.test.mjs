/** The client's arithmetic against the vectors of docs/wire.md. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { hex, unhex } from "../src/bytes.js";
import { Cryptor } from "../src/cryptor.js";
import { Embedding } from "../src/embedding.js";
import { Layout } from "../src/layout.js";
import { Machine } from "../src/machine.js";
import { Modulus } from "../src/modulus.js";
import { PublicPart } from "../src/public.js";
import { EvaluationKey, isPrime, powerMod, Ring } from "../src/ring.js";
import { expansionKey, Stream } from "../src/streams.js";
import { THRESHOLDS } from "../src/thresholds.js";

export const FOLDER = new URL("../../../tests/vectors/", import.meta.url);
export const file = (name) => new Uint8Array(readFileSync(new URL(name, FOLDER)));
const vectors = JSON.parse(readFileSync(new URL("vectors.json", FOLDER), "utf8"));
const sha = (bytes) => createHash("sha256").update(bytes).digest("hex");
const machines = [["simd", await Machine.open({ simd: true })], ["plain", await Machine.open({ simd: false })]];

/** Seeds in the order of their use, as the vectors have them. */
export const seedsOf = ({ sent_seeds: sent = [], secret_seeds: secret = [] }) => {
  const left = { sent: [...sent], secret: [...secret] };
  return { sent: () => unhex(left.sent.shift()), secret: () => unhex(left.secret.shift()), left };
};

test("public parts, fingerprints, and names of keys", async () => {
  for (const [name, fingerprint] of Object.entries(vectors.fingerprints)) {
    const part = await PublicPart.read(file(name), { fingerprint });
    const keys = part.evaluationKeys.map((key) => ({
      name: key.name, levels: key.ring.levels, bytes: key.bytes, ...(key.kind === "a" ? { index: key.index } : {}),
    }));
    assert.deepEqual(keys, vectors.keys[name]);
  }
});

test("primes", () => {
  for (const { ring, chain, special, sparse } of vectors.primes) {
    const { chain_levels: levels, ...fields } = ring;
    const found = new Ring({ ...fields, levels }, { levels: ring.levels, digits: ring.digits });
    assert.deepEqual([found.primes, found.special, found.sparse].map((list) => list.map(String)), [chain, special, sparse]);
  }
});

for (const [kind, machine] of machines) {
  test(`${kind}: roots`, () => {
    for (const { ring, roots } of vectors.primes)
      for (const [q, root] of Object.entries(roots))
        assert.equal(String(new Modulus(machine, 1 << ring.log_ring, BigInt(q)).root), root);
  });

  test(`${kind}: transforms of every size of prime, by their definition`, () => {
    const n = 64;
    for (const bits of [13, 20, 25, 29, 30, 31, 33, 40, 49, 60]) {
      let q = (1n << BigInt(bits)) - (1n << BigInt(bits)) % 128n + 1n;
      for (;;) {
        q -= 128n;
        if (isPrime(q)) break;
      }
      const modulus = new Modulus(machine, n, q), row = modulus.row();
      const numbers = Array.from({ length: n }, (_, i) => (i % 3 ? q - 1n - BigInt(i) : BigInt(i * i)) % q);
      const view = () => (modulus.short ? machine.u32(row, n) : machine.u64(row, n));
      view().set(modulus.short ? numbers.map(Number) : numbers);
      modulus.forward(row);
      const reverse = (j) => parseInt(j.toString(2).padStart(6, "0").split("").reverse().join(""), 2);
      const expected = Array.from({ length: n }, (_, j) => {
        const x = powerMod(modulus.root, BigInt(2 * reverse(j) + 1), q);
        return numbers.reduceRight((sum, m) => (sum * x + m) % q, 0n);
      });
      assert.deepEqual(Array.from(view(), BigInt), expected, `q = ${q}`);
      modulus.backward(row);
      assert.deepEqual(Array.from(view(), BigInt), numbers, `q = ${q}`);
    }
  });

  test(`${kind}: expansion of seeds`, async () => {
    for (const each of vectors.expansion) {
      const modulus = new Modulus(machine, each.ring_dim, BigInt(each.prime)), row = modulus.row();
      const key = expansionKey(machine, unhex(each.context));
      assert.equal(hex(key), each.aes_key);
      assert.equal(hex(await new Stream(key).bytes(64)), each.stream);
      await modulus.expand(row, modulus.uniform(unhex(each.header), each.place));
      const wide = modulus.short ? BigUint64Array.from(machine.u32(row, modulus.n), BigInt) : machine.u64(row, modulus.n).slice();
      assert.deepEqual(Array.from(wide.subarray(0, 8), String), each.first);
      assert.equal(sha(new Uint8Array(wide.buffer)), each.sha256);
    }
  });

  test(`${kind}: packed residues`, () => {
    for (const { prime, values, bytes } of vectors.packing) {
      const modulus = new Modulus(machine, values.length, BigInt(prime)), row = modulus.row();
      const view = () => (modulus.short ? machine.u32(row, modulus.n) : machine.u64(row, modulus.n));
      view().set(modulus.short ? values.map(Number) : values.map(BigInt));
      const packed = new Uint8Array(modulus.packedBytes);
      modulus.pack(packed, row);
      assert.equal(hex(packed), bytes);
      view().fill(modulus.short ? 0 : 0n);
      assert.ok(modulus.unpack(row, packed));
      assert.deepEqual(Array.from(view(), String), values.map(String));
      assert.ok(!modulus.unpack(row, packed.fill(255)));
    }
  });

  test(`${kind}: draws`, async () => {
    const { seed, count, ternary, gaussian, sparse, thresholds } = vectors.draws;
    assert.deepEqual(THRESHOLDS, thresholds);
    const ring = { n: count, towers: 1, primes: [] }, seeds = seedsOf({ secret_seeds: [seed, seed] });
    const bytes = (at) => new Uint8Array(Int8Array.from(machine.i32(at, count)).buffer);
    const cryptor = await Cryptor.fresh(machine, ring, "0".repeat(32), seeds);
    assert.equal(sha(bytes(cryptor._secret)), ternary.sha256);
    const error = await cryptor._error();
    assert.deepEqual(Array.from(machine.i32(error, 32)), gaussian.first);
    assert.equal(sha(bytes(error)), gaussian.sha256);
    const small = new Cryptor(machine, { n: sparse.size, towers: 1, primes: [] }, "0".repeat(32), seedsOf({ secret_seeds: [seed] }));
    const found = machine.i32(await small._sparse(), sparse.size);
    const nonzero = Array.from(found, (value, place) => [place, value]).filter(([, value]) => value);
    assert.deepEqual(nonzero, sparse.nonzero);
  });

  test(`${kind}: encoding`, () => {
    const { log_scale: scale, first, sha256 } = vectors.encoding, n = 1024;
    const { at, shift } = new Embedding(machine, n).encoded(Float64Array.from({ length: n / 2 }, (_, j) => Math.sin(j)), scale);
    const numbers = BigInt64Array.from(machine.f64(at, n), BigInt);
    assert.equal(shift, 0);
    assert.deepEqual(Array.from(numbers.subarray(0, 8), Number), first);
    assert.equal(sha(new Uint8Array(numbers.buffer)), sha256);
  });

  test(`${kind}: the secret, ciphertexts and keys, to the byte`, async () => {
    const part = await PublicPart.read(file("public.bin"));
    const { tag, secret_seed: seed, sha256 } = vectors.secret;
    const own = await Machine.open({ simd: kind === "simd" });
    const cryptor = await Cryptor.fresh(own, part.ring, tag, seedsOf({ secret_seeds: [seed] }));
    assert.equal(sha(cryptor.secretBytes()), sha256);
    assert.equal(sha(Cryptor.stored(await Machine.open(), part.ring, tag, cryptor.secretBytes()).secretBytes()), sha256);
    const check = (data, told, seeds) => {
      assert.equal(data.length, told.bytes);
      assert.equal(sha(data), told.sha256);
      assert.deepEqual(seeds.left, { sent: [], secret: [] });
    };
    const [spec] = part.inputs, told = vectors.objects["x/0"];
    const [slots] = spec.placed.pack([vectors.sample.flat()]);
    cryptor._seeds = seedsOf(told);
    check(await cryptor.encrypted(slots, 2, spec.log_scales[0]), told, cryptor._seeds);
    for (const key of [...part.evaluationKeys, new EvaluationKey("pair", part.ring, "p")]) {
      cryptor._seeds = seedsOf(vectors.objects[key.name]);
      check(await cryptor.evaluationKey(key), vectors.objects[key.name], cryptor._seeds);
    }
    const relinearization = part.evaluationKeys.find((key) => key.kind === "r");
    cryptor._seeds = seedsOf(vectors.objects.relinearization);
    assert.deepEqual(await cryptor.keyFile(relinearization, part.fingerprint), file("relinearization.bin"));
  });
}

test("layouts", () => {
  for (const { layout, ciphertexts } of vectors.layouts) {
    const usual = { axes: [], shift: 0, copies: 1, samples: 1, groups: 1 };
    const placed = new Layout({ ...usual, ...layout }, layout.slots, "it");
    const samples = Array.from({ length: placed.batch }, (_, j) =>
      Float64Array.from({ length: placed.size }, (_, i) => 1 + i + j * placed.size));
    const made = [...placed.pack(samples)];
    assert.deepEqual(made.map((slots) => Array.from(slots)), ciphertexts);
    assert.deepEqual(placed.unpack(made), samples);
  }
});
