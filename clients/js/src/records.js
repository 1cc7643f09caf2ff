/** Untrusted JSON values checked against the fields that are expected: types and bounds. */

import { isPrintable, WireError } from "./errors.js";

const LARGEST = 1e30, MOST_CHARACTERS = 4096, MOST_NAME = 200, MOST_ENTRIES = 2 ** 16;

/** The error for a field out of bounds. */
export const refuse = (what) =>
  new WireError(`the artifact is not usable: ${what}`, { hint: "make it again with `heliograph compile`" });

function short(value) {
  return typeof value === "object" && value !== null ? (Array.isArray(value) ? "a list" : "an object")
    : JSON.stringify(value)?.slice(0, 60) ?? String(value);
}

export const whole = (low, high) => (value, what) => {
  if (!Number.isSafeInteger(value) || value < low || value > high)
    throw refuse(`${what} is ${short(value)}, not a whole number from ${low} to ${high}`);
  return value;
};

export const real = (low = -LARGEST, high = LARGEST) => (value, what) => {
  if (typeof value !== "number" || !(value >= low && value <= high))
    throw refuse(`${what} is ${short(value)}, not a number from ${low} to ${high}`);
  return value;
};

export const flag = (value, what) => {
  if (typeof value !== "boolean") throw refuse(`${what} is ${short(value)}, neither true nor false`);
  return value;
};

export const text = (value, what) => {
  if (typeof value !== "string" || value.length > MOST_CHARACTERS)
    throw refuse(`${what} is ${short(value)}, not a text of at most ${MOST_CHARACTERS} characters`);
  if (!isPrintable(value)) throw refuse(`${what} has control characters`);
  return value;
};

export const named = (value, what) => {
  if (typeof value !== "string" || value === "" || [...value].length > MOST_NAME || !isPrintable(value))
    throw refuse(`${what} is ${short(value)}, not a name`);
  return value;
};

export const choice = (...choices) => (value, what) => {
  if (!choices.includes(value)) throw refuse(`${what} is ${short(value)}, not one of ${choices.join(", ")}`);
  return value;
};

export const list = (of, most = MOST_ENTRIES, count = null) => (value, what) => {
  if (!Array.isArray(value) || value.length > most || (count !== null && value.length !== count))
    throw refuse(`${what} is ${short(value)}, not a list of ${count ?? `at most ${most}`} entries`);
  return value.map((each) => of(each, what));
};

/** An optional field: left out where it has this value, which it has when it is left out. */
export const optional = (of, usual) => Object.assign((value, what) => {
  if (JSON.stringify(value) === JSON.stringify(usual)) throw refuse(`${what} has its usual value`);
  return of(value, what);
}, { usual });

/** An object with exactly these fields. */
export const record = (fields) => (value, what) => {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw refuse(`${what} is ${short(value)}, not a record`);
  for (const name of Object.keys(value))
    if (!Object.hasOwn(fields, name)) throw refuse(`${what} has no field ${short(name)}`);
  const found = {};
  for (const [name, of] of Object.entries(fields)) {
    if (Object.hasOwn(value, name)) found[name] = of(value[name], `${name} of ${what}`);
    else if (Object.hasOwn(of, "usual")) found[name] = of.usual;
    else throw refuse(`${what} lacks its ${name}`);
  }
  return found;
};

/** An object of numbers by name. */
export const table = (of, most) => (value, what) => {
  if (typeof value !== "object" || value === null || Array.isArray(value) || Object.keys(value).length > most)
    throw refuse(`${what} is malformed`);
  for (const name of Object.keys(value)) text(name, what);
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, of(each, `${what}, ${name.slice(0, 60)}`)]));
};
