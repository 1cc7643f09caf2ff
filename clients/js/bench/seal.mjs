/**
 * node-seal beside this client, in turns: `node clients/js/bench/seal.mjs FOLDER FILE`. FOLDER is one in which
 * `npm install node-seal@7` ran, and FILE a public artifact that make.py wrote. README.md says what is compared.
 */

import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { Client, PublicPart } from "../src/index.js";
import { median, middleOf, ms } from "./figures.mjs";

const ROUNDS = 40;
const [folder, file] = process.argv.slice(2), home = resolve(folder ?? ".", "node_modules/node-seal");
if (!file || !existsSync(home)) {
  console.log("node-seal is not compared with: say where it is, and an artifact (node seal.mjs FOLDER FILE)");
  process.exit(0);
}
const { version, exports } = JSON.parse(readFileSync(join(home, "package.json"), "utf8"));
const { default: initialize } = await import(pathToFileURL(join(home, exports["."].import)).href), seal = await initialize();

const part = await PublicPart.read(readFileSync(file)), { ring } = part, [spec] = part.given, level = spec.levels[0], scale = spec.log_scales[0];
const client = await Client.create(part), values = middleOf(spec);
const slots = new Float64Array(ring.slots);
slots.set(values);

// The ring, with as many primes of the same bits in a ciphertext, and a special prime, without which SEAL has no keys.
const bits = ring.primes.slice(0, level + 1).map((q) => q.toString(2).length), params = new seal.EncryptionParameters(seal.SchemeType.ckks);
params.setPolyModulusDegree(ring.n);
params.setCoeffModulus(seal.CoeffModulus.Create(ring.n, Int32Array.from([...bits, Math.max(...bits)])));
const context = new seal.SEALContext(params, true, seal.SecLevelType.tc128);
if (!context.parametersSet()) throw new Error("SEAL refuses the ring");
const keys = new seal.KeyGenerator(context), secret = keys.secretKey(), encoder = new seal.CKKSEncoder(context);
const encryptor = new seal.Encryptor(context, keys.createPublicKey(), secret), decryptor = new seal.Decryptor(context, secret);
const plain = new seal.Plaintext(), read = new seal.Ciphertext(), found = new seal.Plaintext();

/** Values to bytes, and bytes to values, by both. */
const RIVALS = {
  heliograph: {
    encrypt: async () => [...(await client.encrypt(values)).blobs.values()][0],
    decrypt: async (bytes) => (await client._open.decrypted(bytes, level, scale, "it")).slots,
  },
  seal: {
    encrypt() {
      encoder.encode(slots, 2 ** scale, plain);
      const made = encryptor.encryptSymmetricSerializable(plain), bytes = made.saveToArray(seal.ComprModeType.none);
      made.delete();
      return bytes;
    },
    decrypt(bytes) {
      read.loadFromArray(context, bytes);
      decryptor.decrypt(read, found);
      return encoder.decodeFloat64(found);
    },
  },
};
const times = { heliograph: { encrypt: [], decrypt: [] }, seal: { encrypt: [], decrypt: [] } }, sizes = {}, errors = {};
for (let round = -3; round < ROUNDS; round++)
  for (const [name, { encrypt, decrypt }] of Object.entries(RIVALS)) {
    const begun = performance.now(), bytes = await encrypt(), middle = performance.now(), back = await decrypt(bytes), end = performance.now();
    sizes[name] = bytes.length;
    errors[name] = values.reduce((most, value, i) => Math.max(most, Math.abs(value - back[i])), 0);
    // The first rounds are for the compilers.
    if (round < 0) continue;
    times[name].encrypt.push(middle - begun);
    times[name].decrypt.push(end - middle);
  }
console.log(`node-seal ${version}: N = ${ring.n}, ${bits.length} primes of ${bits.join(", ")} bits, ${ROUNDS} turns each, medians`);
for (const what of ["encrypt", "decrypt"]) {
  const [own, other] = ["heliograph", "seal"].map((name) => median(times[name][what]));
  console.log(`  ${what}: ${ms(own)}, node-seal ${ms(other)}: ratio ${(own / other).toFixed(2)}`);
}
console.log(`  bytes ${sizes.heliograph}, ${sizes.seal}; largest error ${errors.heliograph.toExponential(1)}, ${errors.seal.toExponential(1)}`);
