/** The package: the digests of its WebAssembly, what it imports, and its size. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import * as all from "../src/index.js";
import { DIGESTS } from "../wasm/digests.js";

const here = (path) => new URL(`../${path}`, import.meta.url);

test("the WebAssembly files are those whose digests are known, and import nothing", () => {
  for (const [name, digest] of Object.entries(DIGESTS)) {
    const bytes = readFileSync(here(`wasm/${name}`));
    assert.equal(createHash("sha256").update(bytes).digest("hex"), digest);
    assert.deepEqual(WebAssembly.Module.imports(new WebAssembly.Module(bytes)), []);
  }
});

test("no dependency at run time, and at most 150 kB compressed", () => {
  const { dependencies } = JSON.parse(readFileSync(here("package.json")));
  assert.equal(dependencies, undefined);
  let size = 0;
  for (const folder of ["src/", "wasm/"])
    for (const name of readdirSync(here(folder))) {
      const bytes = readFileSync(here(folder + name));
      size += gzipSync(bytes).length;
      if (name.endsWith(".js"))
        for (const [, from] of bytes.toString().matchAll(/(?:from|import\() ?"([^"]+)"/g)) assert.match(from, /^(\.|node:)/);
    }
  assert.ok(size < 150_000, `${size} bytes`);
});

test("the types name what the package has", () => {
  const types = readFileSync(here("src/index.d.ts"), "utf8");
  for (const name of Object.keys(all)) assert.match(types, new RegExp(`export (class|function|const) ${name}\\b`));
});
