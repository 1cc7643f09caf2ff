/** Key files (docs/wire.md, "Files"): the secret key, under a passphrase where one is given. */

import { canonical, hex, isHex, joined, randomBytes, sameBytes, subtle, unhex, utf8, Verbatim } from "./bytes.js";
import { hasMembers, packContainer, readContainer } from "./container.js";
import { SecurityError, WireError } from "./errors.js";
import { Machine } from "./machine.js";
import { PublicPart } from "./public.js";

const KIND = "a client's secret key", VERSION = 3, MOST_BYTES = 512 * 2 ** 20, MOST_SHARED = 2 ** 30;
const SCRYPT = { n: 2 ** 15, r: 8, p: 3 }, MOST = { n: 2 ** 20, r: 32, p: 16 }, MOST_SCRYPT_BYTES = 2 ** 30;
const TAG = 16, OPEN = ["artifact", "client", "shared", "interface"];

/** The bytes of a key file. `random` is for tests. */
export async function writeKey(part, client, secret, shared, passphrase, random = randomBytes) {
  const fields = { artifact: part.fingerprint, client, shared, interface: new Verbatim(part.descriptionText) };
  let blob = secret;
  if (passphrase !== undefined && passphrase !== null) {
    if (typeof passphrase !== "string" || !passphrase)
      throw new SecurityError("an empty passphrase protects nothing", { hint: "give one, or none for no protection" });
    fields.scrypt = { ...SCRYPT, salt: hex(random(16)) };
    fields.nonce = hex(random(12));
    const machine = await Machine.open();
    const cipher = await cipherOf(machine, passphrase, fields.scrypt);
    blob = cipher.encrypt(unhex(fields.nonce), secret, utf8(canonical({ ...fields, kind: KIND, version: VERSION })));
    machine.wipe();
  }
  return packContainer(KIND, VERSION, fields, { secret: blob });
}

/** What is in a key file: {part, client, secret, shared}. A WireError or SecurityError if it cannot be read. */
export async function readKey(bytes, passphrase, what = "the key file") {
  const { fields, text, blobs } = await readContainer(bytes, KIND, VERSION, MOST_BYTES, what);
  const locked = Object.hasOwn(fields, "scrypt");
  const sound =
    hasMembers(fields, locked ? [...OPEN, "scrypt", "nonce"] : OPEN) && blobs.size === 1 && blobs.has("secret") &&
    isHex(fields.artifact, 64) && isHex(fields.client, 32) && text !== null;
  if (!sound) throw new WireError(`${what}: its fields are not those of ${KIND}`);
  if (!Number.isSafeInteger(fields.shared) || fields.shared < 0 || fields.shared > MOST_SHARED)
    throw new WireError(`${what}: its number of shared results is malformed`);
  const part = PublicPart.stored(fields.interface, interfaceText(text, fields.interface, what), fields.artifact);
  let secret = blobs.get("secret");
  const given = passphrase !== undefined && passphrase !== null;
  if (locked && !given) throw new SecurityError(`${what} is protected by a passphrase`, { hint: "give the passphrase" });
  if (!locked && given)
    throw new SecurityError(`${what} is not protected by a passphrase`, {
      why: "a passphrase was given for it, so perhaps it is another file than the one meant",
      hint: "give no passphrase for this file",
    });
  secret = locked ? await opened(fields, text, secret, passphrase, what) : secret.slice();
  return { part, client: fields.client, secret, shared: fields.shared };
}

/** The text of the interface in the text of the fields. */
function interfaceText(text, value, what) {
  const begin = text.indexOf(', "interface": ') + ', "interface": '.length;
  const ends = [', "nonce": ', ', "shared": '].map((each) => text.lastIndexOf(each)).filter((end) => end > begin);
  for (const end of ends) {
    const found = text.slice(begin, end);
    try {
      if (JSON.stringify(JSON.parse(found)) === JSON.stringify(value)) return found;
    } catch {
      // Another place of that name.
    }
  }
  throw new WireError(`${what} does not have the form in which key files are written`);
}

async function opened(fields, text, blob, passphrase, what) {
  const malformed = new WireError(`${what}: the parameters of its protection are malformed`);
  const { scrypt, nonce } = fields;
  const sound =
    hasMembers(scrypt, ["n", "r", "p", "salt"]) && isHex(scrypt.salt, 32) && isHex(nonce, 24) && blob.length >= TAG &&
    ["n", "r", "p"].every((name) => Number.isSafeInteger(scrypt[name]) && scrypt[name] >= 1 && scrypt[name] <= MOST[name]) &&
    scrypt.n >= 2 && Number.isInteger(Math.log2(scrypt.n)) && 128 * scrypt.r * (scrypt.n + scrypt.p) <= MOST_SCRYPT_BYTES;
  const cut = text.lastIndexOf('"nonce": ');
  if (!sound || cut < 0) throw malformed;
  const authenticated = `${text.slice(0, cut)}"kind": "${KIND}", ${text.slice(cut, -1)}, "version": ${VERSION}}`;
  const machine = await Machine.open(), cipher = await cipherOf(machine, passphrase, scrypt);
  const found = cipher.decrypt(unhex(nonce), blob, utf8(authenticated));
  machine.wipe();
  if (found === null)
    throw new SecurityError(`the passphrase does not open ${what}`, { why: "it is another one, or the file was altered" });
  return found;
}

/** ChaCha20-Poly1305 (RFC 8439) under the key that scrypt (RFC 7914) makes of a passphrase. */
async function cipherOf(machine, passphrase, { n, r, p, salt }) {
  const password = await subtle().importKey("raw", utf8(passphrase), "PBKDF2", false, ["deriveBits"]);
  const derived = async (salted, bytes) =>
    new Uint8Array(await subtle().deriveBits({ name: "PBKDF2", hash: "SHA-256", salt: salted, iterations: 1 }, password, 8 * bytes));
  const size = 128 * r, blocks = await derived(unhex(salt), size * p);
  const block = machine.alloc(size), table = machine.alloc(size * n), spare = machine.alloc(size);
  for (let i = 0; i < p; i++) {
    machine.u8(block, size).set(blocks.subarray(size * i, size * (i + 1)));
    machine.do.scrypt_mix(block, table, spare, n, r);
    blocks.set(machine.u8(block, size), size * i);
  }
  machine.free(table, size * n);
  return new Cipher(machine, await derived(blocks, 32));
}

export class Cipher {
  constructor(machine, key) {
    this.machine = machine;
    this._key = machine.alloc(32);
    this._nonce = machine.alloc(16);
    machine.u8(this._key, 32).set(key);
    key.fill(0);
  }

  _streamed(nonce, bytes, block) {
    const { machine } = this, at = machine.alloc(bytes.length);
    machine.u8(this._nonce, 12).set(nonce);
    machine.u8(at, bytes.length).set(bytes);
    machine.do.chacha(at, bytes.length, this._key, this._nonce, block);
    const found = machine.u8(at, bytes.length).slice();
    machine.free(at, bytes.length);
    return found;
  }

  _tag(nonce, cipher, authenticated) {
    const { machine } = this, one = this._streamed(nonce, new Uint8Array(32), 0), up = (length) => (length + 15) & ~15;
    const size = up(authenticated.length) + up(cipher.length) + 16, at = machine.alloc(size), key = machine.alloc(32), tag = machine.alloc(16);
    const text = machine.u8(at, size), lengths = new DataView(new ArrayBuffer(16));
    text.fill(0);
    text.set(authenticated);
    text.set(cipher, up(authenticated.length));
    lengths.setBigUint64(0, BigInt(authenticated.length), true);
    lengths.setBigUint64(8, BigInt(cipher.length), true);
    text.set(new Uint8Array(lengths.buffer), size - 16);
    machine.u8(key, 32).set(one);
    machine.do.poly1305(tag, at, size / 16, key);
    const found = machine.u8(tag, 16).slice();
    machine.free(at, size);
    machine.free(key, 32);
    return found;
  }

  encrypt(nonce, bytes, authenticated) {
    const cipher = this._streamed(nonce, bytes, 1);
    return joined([cipher, this._tag(nonce, cipher, authenticated)]);
  }

  /** The bytes, or null if they or what is authenticated were altered. */
  decrypt(nonce, bytes, authenticated) {
    const cipher = bytes.subarray(0, bytes.length - TAG);
    if (!sameBytes(this._tag(nonce, cipher, authenticated), bytes.subarray(bytes.length - TAG))) return null;
    return this._streamed(nonce, cipher, 1);
  }
}
