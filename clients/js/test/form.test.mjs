/** The fields of the example page's form and the classes of an output, from the public part alone. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fieldsOf } from "../demo/form.js";
import { classOf } from "../src/index.js";
import { readLabels } from "../src/public.js";

const NAMES = ["numbers", "centres", "scales", "rounded", "compared", "edges", "coded", "codes", "missing", "filled", "fills", "texts", "labels", "known", "allowed"];
const specOf = (width, encoding, more) => ({
  shape: [1], low: -1, high: 1, columns: null,
  encoding: { ...Object.fromEntries(NAMES.map((name) => [name, []])), clipped: false, width, ...encoding }, ...more,
});

test("numbers have the range of the samples, or that of thresholds", () => {
  const spec = specOf(4, { numbers: [0], centres: [40], scales: [20], compared: [2, 2, 2], edges: [7.5, 1.5, 3.5], missing: [2] }, { columns: ["a", "b", "c", "d"] });
  assert.deepEqual(fieldsOf(spec), [
    { name: "a", place: 0, optional: false, low: 20, high: 60, strict: true, usual: undefined },
    { name: "c", place: 2, optional: true, low: 1.5, high: 7.5, strict: false, usual: 3.5 },
  ]);
});

test("categories are a choice, by their texts where there are any", () => {
  const spec = specOf(3, { texts: [0], labels: [["no", "maybe", "yes"]], coded: [0, 0, 1, 1], codes: [0, 2, 5, 3], known: [0, 2], allowed: [[0, 2], [7, 8]] });
  assert.deepEqual(fieldsOf(spec), [
    { name: "column 1", place: 0, optional: false, choices: ["no", "yes"] },
    { name: "column 2", place: 1, optional: false, choices: [3, 5], others: true },
    { name: "column 3", place: 2, optional: false, choices: [7, 8], others: false },
  ]);
});

test("a row of plain numbers has a field for each", () => {
  const fields = fieldsOf({ shape: [2], low: 0, high: 1, columns: ["a", "b"], encoding: null });
  assert.deepEqual(fields.map(({ name, low, high, strict }) => [name, low, high, strict]), [["a", 0, 1, true], ["b", 0, 1, true]]);
});

test("labels have their type, and a class is its label", () => {
  const cases = [
    ["text", ["a", "b"], ["a", "b"]], ["int", ["0", "-12"], [0, -12]], ["float", ["1.5", "1e-05"], [1.5, 1e-5]], ["bool", ["False", "True"], [false, true]],
  ];
  for (const [labels, columns, read] of cases) {
    assert.deepEqual(readLabels({ labels, columns }), read);
    assert.equal(classOf({ shape: [2], data: [0.1, 0.9] }, { labels, columns }), read[1]);
    assert.equal(classOf({ shape: [2], data: [0.1, 0.9] }), 1);
  }
  for (const [labels, columns] of [["int", ["1", "03"]], ["int", ["1", "x"]], ["float", ["1.0", "inf"]], ["bool", ["true"]]])
    assert.equal(readLabels({ labels, columns }), null);
  assert.equal(readLabels({ labels: null, columns: ["a"] }), null);
});
