/** What a client gives, as the elements of an input: shapes, ranges, one-hot vectors, and rows of tables. */

import { rounded } from "./embedding.js";
import { ProgramError, RangeError, shown } from "./errors.js";
import { product } from "./layout.js";
import { elementsOf } from "./public.js";

/** A shape as Python writes it. */
export const shapeText = (shape) => (shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`);

const isList = (value) => Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
const isTensor = (value) => typeof value === "object" && value !== null && isList(value.data) && Array.isArray(value.shape);

/** The place of a flat index in a shape. */
export function placeOf(index, shape) {
  const place = [];
  for (const size of [...shape].reverse()) {
    place.unshift(index % size);
    index = Math.floor(index / size);
  }
  return place;
}

/** Nested lists as {shape, data}; a ProgramError unless they are an array of real numbers. */
function tensorOf(name, value) {
  if (isTensor(value)) {
    if (product(value.shape) !== value.data.length) throw notNumbers(name, "got a tensor whose shape does not fit its data");
    value = value.shape.length ? { shape: [...value.shape], data: value.data } : { shape: [], data: value.data };
  } else {
    const shape = [], data = [];
    for (let first = value; isList(first); first = first[0]) {
      shape.push(first.length);
      if (!first.length) break;
    }
    const walk = (each, depth) => {
      if (depth === shape.length) return void data.push(each);
      if (!isList(each) || each.length !== shape[depth]) throw notNumbers(name, "got lists of different lengths");
      for (const next of each) walk(next, depth + 1);
    };
    walk(value, 0);
    value = { shape, data };
  }
  const found = new Float64Array(value.data.length);
  for (let i = 0; i < found.length; i++) {
    const number = value.data[i];
    if (typeof number !== "number" && typeof number !== "boolean")
      throw notNumbers(name, `got ${number === null ? "null" : typeof number}`);
    found[i] = Number(number);
  }
  return { shape: value.shape, data: found };
}

const notNumbers = (name, why) => new ProgramError(`input '${name}' is not an array of real numbers`, { why });

/**
 * The samples of an input: arrays of the elements in their order, each checked. A value may be nested lists, a flat array of
 * one sample's elements, or {shape, data}. `batch` is how many samples a ciphertext holds; above 1 there is a leading axis.
 */
export function samplesOf(spec, value, batch, { declared = true } = {}) {
  const many = batch > 1, { name, shape } = spec;
  const given = many ? splitSamples(spec, value) : [readSample(spec, value)];
  if (many && !(given.length > 0 && given.length <= batch))
    throw new ProgramError(`input '${name}' has ${given.length} samples, expected up to ${batch} samples of shape ${shapeText(shape)}`, {
      hint: "the program was compiled for several samples at once: pass them with a leading batch axis",
    });
  given.forEach((sample, j) => checkSample(spec, sample, many ? [j] : [], declared));
  return given;
}

/** A value with a leading axis of samples. */
function splitSamples(spec, value) {
  if (isTensor(value)) {
    const [count, ...rest] = value.shape, size = product(rest);
    return Array.from({ length: count ?? 0 }, (_, j) =>
      readSample(spec, { shape: rest, data: Array.from(value.data.slice(j * size, (j + 1) * size)) }));
  }
  if (!isList(value))
    throw new ProgramError(`input '${spec.name}' has a number, expected samples of shape ${shapeText(spec.shape)}`, {
      hint: "the program was compiled for several samples at once: pass them with a leading batch axis",
    });
  return Array.from(value, (each) => readSample(spec, each));
}

/** One sample as its elements. */
function readSample(spec, value) {
  const { name, shape } = spec;
  if (spec.columns !== null && typeof value === "object" && value !== null && !isList(value) && !isTensor(value))
    value = spec.columns.map((column) => {
      if (!Object.hasOwn(value, column))
        throw new ProgramError(`input '${name}' has no column '${shown(column, 60)}'`, {
          why: `it is read by the columns ${spec.columns.slice(0, 20).map((each) => `'${each}'`).join(", ")}`,
          hint: "give an object with these columns, or an array with values in that order",
        });
      return value[column];
    });
  if (spec.encoding !== null && !(isList(value) && value.length === shape[0]) && !isTensor(value)) return encoded(spec, value);
  const tensor = tensorOf(name, value), size = product(shape);
  const same = (a, b) => a.length === b.length && a.every((each, i) => each === b[i]);
  if (spec.classes !== null && !same(tensor.shape, shape) && same(tensor.shape, shape.slice(0, -1))) return oneHot(spec, tensor);
  const flat = tensor.shape.length === 1 && tensor.data.length === size && !Array.isArray(value);
  if (!flat && !same(tensor.shape, shape)) {
    if (spec.classes !== null)
      throw new ProgramError(
        `input '${name}' has shape ${shapeText(tensor.shape)}, expected ${shapeText(shape.slice(0, -1))} (or ${shapeText(shape)} with one-hot vectors)`,
        { why: "it takes whole numbers that choose rows of a table" },
      );
    throw new ProgramError(`input '${name}' has shape ${shapeText(tensor.shape)}, expected ${shapeText(shape)}`, {
      hint: same(tensor.shape.slice(1), shape) ? "pass one sample, without a batch axis" : "",
    });
  }
  return tensor.data;
}

function oneHot(spec, { data, shape }) {
  const found = new Float64Array(data.length * spec.classes);
  data.forEach((number, i) => {
    if (!Number.isInteger(number) || number < 0 || number >= spec.classes) {
      const what = Number.isInteger(number) ? `a number outside of 0 to ${spec.classes - 1}` : "something else than a whole number";
      throw new ProgramError(`input '${spec.name}' holds ${what}${shape.length ? ` at index ${shapeText(placeOf(i, shape))}` : ""}`, {
        why: `it chooses one of ${spec.classes} rows of a table`,
      });
    }
    found[i * spec.classes + number] = 1;
  });
  return found;
}

function checkSample(spec, sample, lead, declared) {
  const { name, shape, low, high } = spec, index = (i) => shapeText([...lead, ...placeOf(i, shape)]);
  const bad = sample.findIndex((number) => !Number.isFinite(number));
  if (bad >= 0)
    throw new ProgramError(`input '${name}' holds ${Number.isNaN(sample[bad]) ? "nan" : sample[bad] > 0 ? "inf" : "-inf"} at index ${index(bad)}`, {
      hint: "remove NaN and infinity",
    });
  if (!declared || low === null || high === null) return;
  // Values computed in float32 may exceed the range by their rounding error.
  const slack = 1e-6 * Math.max(Math.abs(low), Math.abs(high), high - low);
  const outside = sample.findIndex((number) => number < low - slack || number > high + slack);
  if (outside < 0) return;
  const { encoding } = spec;
  if (encoding !== null && outside < encoding.numbers.length) {
    const centre = encoding.centres[outside], scale = encoding.scales[outside];
    throw new RangeError(
      `input '${name}' is outside its range [${short(centre + low * scale)}, ${short(centre + high * scale)}] in column ` +
        columnText(spec, encoding.numbers[outside]),
      {
        why: "that is the range of the samples with which the program was made",
        hint: "make the program with samples that hold such numbers",
      },
    );
  }
  // The value is left out: errors end up in logs, and inputs are secret.
  throw new RangeError(`input '${name}' is outside its range [${short(low)}, ${short(high)}] at index ${index(outside)}`, {
    why: "the polynomials are only good for inputs in the range that was declared when the model was traced",
    hint: "scale the input, or trace again with an input_range that holds it",
  });
}

const short = (number) => String(Number(number.toPrecision(6)));

const columnText = (spec, column) => (spec.columns === null ? `number ${column}` : `'${spec.columns[column]}'`);

const isMissing = (value) => value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));

/** The elements that an encoding makes of a row (docs/wire.md, "Rows of tables"). */
export function encoded(spec, row) {
  const e = spec.encoding, { name } = spec;
  if (!isList(row) || row.length !== e.width)
    throw new ProgramError(`input '${name}' has shape ${isList(row) ? shapeText([row.length]) : "()"}, expected (${e.width},): a row of the table`);
  const read = new Set([...e.numbers, ...e.rounded, ...e.compared, ...e.coded, ...e.missing, ...e.filled, ...e.texts, ...e.known]);
  const labels = new Map(e.texts.map((column, i) => [column, new Map(e.labels[i].map((label, place) => [label, place]))]));
  const values = new Array(e.width).fill(null);
  for (const column of read) {
    const value = row[column];
    if (isMissing(value)) continue;
    if (labels.has(column)) values[column] = labels.get(column).get(String(value)) ?? -1;
    else if (typeof value === "number" || typeof value === "boolean") values[column] = Number(value);
    else throw new ProgramError(`column ${columnText(spec, column)} holds a text or another object, and the model takes a number`);
  }
  e.known.forEach((column, i) => {
    if (values[column] !== null && !e.allowed[i].includes(values[column]))
      throw new ProgramError(`input '${name}' has an unknown value in column ${columnText(spec, column)}`, {
        why: "the model refuses categories other than those of its training",
        hint: "give one of these, or train with an encoder that ignores unknown categories",
      });
  });
  const filled = [...values];
  e.filled.forEach((column, i) => (filled[column] ??= e.fills[i]));
  const numbers = new Set(e.numbers), optional = new Set(e.missing.filter((column) => !numbers.has(column)));
  for (const column of [...e.numbers, ...e.compared, ...e.coded, ...e.known].sort((a, b) => a - b))
    if (filled[column] === null && !optional.has(column))
      throw new ProgramError(`input '${name}' has no value in column ${columnText(spec, column)}`, {
        why: "the program was made with samples that have one",
        hint: "fill it in, or make the program with samples that miss some there",
      });
  for (const column of e.rounded) if (filled[column] !== null) filled[column] = rounded(filled[column]);
  const found = new Float64Array(elementsOf(e));
  let at = 0;
  e.numbers.forEach((column, i) => {
    const number = (filled[column] - e.centres[i]) / e.scales[i];
    found[at++] = e.clipped ? Math.max(-1, Math.min(1, number)) : number;
  });
  e.compared.forEach((column, i) => (found[at++] = Number(filled[column] !== null && filled[column] > e.edges[i])));
  e.coded.forEach((column, i) => (found[at++] = Number(filled[column] !== null && filled[column] === e.codes[i])));
  e.missing.forEach((column) => (found[at++] = Number(values[column] === null)));
  return found;
}
