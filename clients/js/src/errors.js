/** The errors of the package: each says what is wrong, where, why, and what to try, as those of the Python client do. */

/** A text on one line, without control characters, cut to `most` characters. */
export function shown(text, most = 300) {
  const clean = String(text).replace(/[\p{C}\p{Z}]/gu, (c) => (c === " " || c === "\t" ? " " : "?"));
  return clean.length <= most ? clean : clean.slice(0, most - 3) + "...";
}

/** Whether a text has no control characters: the texts that Python calls printable. */
export function isPrintable(text) {
  return /^(?:[^\p{C}\p{Z}]| )*$/u.test(text);
}

export class HeliographError extends Error {
  constructor(what, { where = "", why = "", hint = "" } = {}) {
    const lines = [where ? `${where}: ${what}` : what];
    if (why) lines.push(`  why: ${why}`);
    if (hint) lines.push(`  try: ${hint}`);
    super(lines.map((line) => shown(line, 2000)).join("\n"));
    this.name = new.target.name;
    Object.assign(this, { what, where, why, hint });
  }
}

/** The program or the data cannot be used as they are. */
export class ProgramError extends HeliographError {}
/** A value is outside the interval that was planned for it. */
export class RangeError extends ProgramError {}
/** A file or message is not what it claims to be. */
export class WireError extends HeliographError {}
/** Going on would give up security that was asked for. */
export class SecurityError extends HeliographError {}
/** The page does not have the memory. */
export class TooLittleMemoryError extends HeliographError {}
/** The call was cancelled by its signal. */
export class CancelledError extends HeliographError {}
/** Something happened that cannot happen: a fault of ours. */
export class InternalError extends HeliographError {}

const CLASSES = {
  HeliographError, ProgramError, RangeError, WireError, SecurityError, TooLittleMemoryError, CancelledError, InternalError,
};

/** The error of a class by its name; a HeliographError for names that are not known. */
export function errorOf(kind, what, parts) {
  const found = Object.hasOwn(CLASSES, kind) ? CLASSES[kind] : HeliographError;
  return new found(what, parts);
}

/** Throw a CancelledError if the signal was given. */
export function checkSignal(signal) {
  if (signal?.aborted) throw new CancelledError("the call was cancelled");
}
