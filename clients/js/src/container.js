/** Containers: the form of every file and message (docs/wire.md, "Containers"). What is read is untrusted. */

import { asBytes, byCodePoints, canonical, hex, joined, sameBytes, sha256, textOf, utf8, Verbatim } from "./bytes.js";
import { shown, WireError } from "./errors.js";

const MAGIC = utf8("HELIOGR1");
const FIXED = 20, DIGEST = 32;
const MOST_HEADER = 2 ** 24, MOST_VALUES = 2 ** 20, MOST_BLOBS = 2 ** 16, MOST_DIGITS = 40;

/** The value of untrusted JSON; a SyntaxError if it is not strict, or too large. */
export function strictJson(text) {
  let values = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 0x2c || c === 0x5b || c === 0x7b || c === 0x3a) values++;
  }
  if (values > MOST_VALUES) throw new SyntaxError("too many values");
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(error instanceof SyntaxError ? "malformed" : "too deep");
  }
  // Texts aside, long runs of digits are numbers that a double does not hold.
  if (new RegExp(`\\d{${MOST_DIGITS + 1}}`).test(text) && longNumber(text)) throw new SyntaxError("too many digits");
  const stack = [value];
  while (stack.length) {
    const found = stack.pop();
    if (typeof found === "number" && !Number.isFinite(found)) throw new SyntaxError("too large a number");
    if (typeof found === "object" && found !== null) for (const each of Object.values(found)) stack.push(each);
  }
  return value;
}

function longNumber(text) {
  let run = 0, inside = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (inside) {
      if (c === "\\") i++;
      else if (c === '"') inside = false;
    } else if (c === '"') inside = true;
    else if (c >= "0" && c <= "9") {
      if (++run > MOST_DIGITS) return true;
    } else run = 0;
  }
  return false;
}

/** An object's own members are exactly these names. */
export const hasMembers = (value, names) =>
  typeof value === "object" && value !== null && !Array.isArray(value) &&
  Object.keys(value).length === names.length && names.every((name) => Object.hasOwn(value, name));

/**
 * The container in untrusted bytes: {fields, text, blobs}, where `text` is the canonical JSON of the fields and `blobs` a Map
 * of views. A WireError unless it is intact, of this kind and version, and no larger than `mostBytes`.
 */
export async function readContainer(data, kind, version, mostBytes, what = "data") {
  const bytes = asBytes(data);
  if (bytes.length > mostBytes) throw new WireError(`${what} has ${bytes.length} bytes; at most ${mostBytes} are read here`);
  if (!sameBytes(bytes.subarray(0, 8), MAGIC)) throw new WireError(`${what} is not a Heliograph file`);
  if (bytes.length < FIXED + DIGEST) throw new WireError(`${what} is truncated: it has ${bytes.length} bytes`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length), total = view.getBigUint64(8, true);
  if (total !== BigInt(bytes.length))
    throw new WireError(
      `${what} is ${BigInt(bytes.length) < total ? "truncated" : "followed by other data"}: it should have ${total} bytes ` +
        `and has ${bytes.length}`,
    );
  const end = bytes.length - DIGEST;
  if (!sameBytes(await sha256(bytes.subarray(0, end)), bytes.subarray(end)))
    throw new WireError(`${what} is damaged: its contents do not match its checksum`, { hint: "copy or make it again" });
  const size = view.getUint32(16, true), start = FIXED + size;
  if (size > MOST_HEADER || start > end) throw new WireError(`${what}: its header does not fit in it`);
  const malformed = new WireError(`${what}: its header is malformed`);
  let text, header;
  try {
    text = textOf(bytes.subarray(FIXED, start));
    header = strictJson(text);
  } catch {
    throw malformed;
  }
  if (typeof header !== "object" || header === null || typeof header.kind !== "string") throw malformed;
  if (header.kind !== kind)
    throw new WireError(`${what} holds: ${shown(header.kind, 40)}; expected: ${kind}`, {
      hint: "give the file of the kind expected",
    });
  if (!hasMembers(header, ["blobs", "fields", "kind", "version"]) || !Number.isSafeInteger(header.version)) throw malformed;
  if (header.version !== version)
    throw new WireError(`${what} is of version ${header.version}; this program reads version ${version}`, {
      why: `it was written by ${header.version > version ? "a later" : "an earlier"} Heliograph`,
      hint: header.version > version ? "install a later version of the package" : "make it again with this version",
    });
  const { fields, blobs: index } = header;
  if (typeof fields !== "object" || fields === null || Array.isArray(fields) || !Array.isArray(index)) throw malformed;
  if (index.length > MOST_BLOBS) throw new WireError(`${what}: it has more than ${MOST_BLOBS} blobs`);
  const blobs = new Map();
  let place = start;
  for (const entry of index) {
    if (
      !hasMembers(entry, ["name", "dtype", "shape", "offset", "length"]) || typeof entry.name !== "string" ||
      !Array.isArray(entry.shape) || !Number.isSafeInteger(entry.length) || !Number.isSafeInteger(entry.offset)
    )
      throw new WireError(`${what}: its list of contents is malformed`);
    const name = shown(entry.name, 60), { length } = entry;
    if (entry.offset !== place - start || length < 0 || place + length > end)
      throw new WireError(`${what}: blob '${name}' lies outside the file, or not behind the one before it`);
    if (entry.dtype !== "raw" || entry.shape.length !== 1 || entry.shape[0] !== length)
      throw new WireError(`${what}: blob '${name}' does not have the size of its type`);
    if (blobs.has(entry.name)) throw new WireError(`${what}: blob '${name}' appears twice`);
    blobs.set(entry.name, bytes.subarray(place, place + length));
    place += length;
  }
  if (place !== end) throw new WireError(`${what}: its list of contents does not account for all of it`);
  return { fields, text: fieldsText(text, fields, index.length, kind, version), blobs };
}

/** The text of the fields, if the header has the form in which it is written; else null. */
function fieldsText(text, fields, blobs, kind, version) {
  const tail = `, "kind": ${canonical(kind)}, "version": ${version}}`;
  const begin = blobs ? text.indexOf('], "fields": {') + 13 : '{"blobs": [], "fields": '.length;
  if (!text.startsWith(blobs ? '{"blobs": [{' : '{"blobs": [], "fields": {') || !text.endsWith(tail)) return null;
  const found = text.slice(begin, text.length - tail.length);
  try {
    return JSON.stringify(JSON.parse(found)) === JSON.stringify(fields) ? found : null;
  } catch {
    return null;
  }
}

/** The parts of a container before its blobs, whose sizes are given as pairs [name, size] in any order. */
function head(kind, version, fields, sizes) {
  const index = [];
  let offset = 0;
  for (const [name, length] of [...sizes].sort((a, b) => byCodePoints(a[0], b[0]))) {
    index.push({ name, dtype: "raw", shape: [length], offset, length });
    offset += length;
  }
  const header = utf8(canonical({ kind, version, fields, blobs: index }));
  const start = new Uint8Array(FIXED + header.length), view = new DataView(start.buffer);
  start.set(MAGIC);
  view.setBigUint64(8, BigInt(FIXED + header.length + offset + DIGEST), true);
  view.setUint32(16, header.length, true);
  start.set(header, FIXED);
  return start;
}

/** The bytes of a container. `fields` may be a Verbatim; `blobs` is a Map, or an object, of bytes. */
export async function packContainer(kind, version, fields, blobs) {
  const entries = (blobs instanceof Map ? [...blobs] : Object.entries(blobs)).sort((a, b) => byCodePoints(a[0], b[0]));
  const start = head(kind, version, fields, entries.map(([name, blob]) => [name, blob.length]));
  const whole = joined([start, ...entries.map((entry) => entry[1]), new Uint8Array(DIGEST)]);
  whole.set(await sha256(whole.subarray(0, whole.length - DIGEST)), whole.length - DIGEST);
  return whole;
}

/** A container with one blob, whose bytes are still to be written into `blob`; `close` adds the digest and gives the whole. */
export function openContainer(kind, version, fields, name, size) {
  const start = head(kind, version, fields, [[name, size]]), whole = new Uint8Array(start.length + size + DIGEST);
  whole.set(start);
  return {
    blob: whole.subarray(start.length, start.length + size),
    async close() {
      whole.set(await sha256(whole.subarray(0, whole.length - DIGEST)), whole.length - DIGEST);
      return whole;
    },
  };
}

/** The digest at the end of a container, as hexadecimal digits. */
export const digestOf = (bytes) => hex(bytes.subarray(bytes.length - DIGEST));

export { Verbatim };
