/** Bytes, hexadecimal digits, canonical JSON, and what the platform's cryptography computes. */

import { HeliographError } from "./errors.js";

const encoder = new TextEncoder();

export const utf8 = (text) => encoder.encode(text);

/** The text of UTF-8 bytes; a TypeError if they are none. */
export const textOf = (bytes) => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);

export function hex(bytes) {
  let found = "";
  for (const byte of bytes) found += byte.toString(16).padStart(2, "0");
  return found;
}

export function unhex(digits) {
  const found = new Uint8Array(digits.length / 2);
  for (let i = 0; i < found.length; i++) found[i] = parseInt(digits.slice(2 * i, 2 * i + 2), 16);
  return found;
}

/** Whether a value is a text of so many lower-case hexadecimal digits. */
export const isHex = (value, digits) =>
  typeof value === "string" && value.length === digits && /^[0-9a-f]*$/.test(value);

export function joined(parts) {
  const found = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    found.set(part, place);
    place += part.length;
  }
  return found;
}

export function sameBytes(left, right) {
  let differences = left.length ^ right.length;
  for (let i = 0; i < left.length; i++) differences |= left[i] ^ right[i];
  return differences === 0;
}

/** Bytes of any kind as a Uint8Array; a TypeError for other values. */
export function asBytes(value) {
  if (value instanceof Uint8Array) return value;
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  throw new TypeError("expected bytes: an ArrayBuffer or a Uint8Array");
}

/** Texts compared by their code points. */
export function byCodePoints(left, right) {
  const a = [...left], b = [...right];
  for (let i = 0; i < Math.min(a.length, b.length); i++)
    if (a[i] !== b[i]) return a[i].codePointAt(0) - b[i].codePointAt(0);
  return a.length - b.length;
}

const SHORT = { '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f" };

/** A text, whole number, list or object as canonical JSON. */
export function canonical(value) {
  if (typeof value === "string") {
    const escaped = value.replace(
      /["\\]|[^ -~]/g,
      (c) => SHORT[c] ?? (c === "\x7f" ? c : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0")),
    );
    return `"${escaped}"`;
  }
  if (typeof value === "number" && Number.isSafeInteger(value)) return String(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(", ")}]`;
  if (value instanceof Verbatim) return value.text;
  if (typeof value !== "object" || value === null) throw new TypeError("no canonical JSON for this value");
  const names = Object.keys(value).sort(byCodePoints);
  return `{${names.map((name) => `${canonical(name)}: ${canonical(value[name])}`).join(", ")}}`;
}

/** A value whose canonical JSON is known. */
export class Verbatim {
  constructor(text) {
    this.text = text;
  }
}

/** The platform's cryptography; an error where a page does not have it. */
export function subtle() {
  const found = globalThis.crypto?.subtle;
  if (!found)
    throw new HeliographError("this page has no WebCrypto", {
      why: "browsers give it only to pages from https or localhost",
      hint: "serve the page over https",
    });
  return found;
}

export const sha256 = async (bytes) => new Uint8Array(await subtle().digest("SHA-256", bytes));

export const randomBytes = (count) => globalThis.crypto.getRandomValues(new Uint8Array(count));
