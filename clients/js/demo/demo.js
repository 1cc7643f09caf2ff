/** The example page of `heliograph serve --demo`: a digit or a row of a table is encrypted, and the server computes on it. */

import { CancelledError, classOf, RemoteServer, WorkerClient } from "../src/index.js";
import { digit } from "./digit.js";
import { form } from "./form.js";

const $ = (id) => document.getElementById(id);
const MOST_ROWS = 200, SHEETS = [form, digit];
let server = null, client = null, sheet = null, stop = null;

// What leaves the page goes through this function: the client has no other way to the server.
const send = globalThis.fetch.bind(globalThis);
globalThis.fetch = async (url, options = {}) => {
  const answer = await send(url, options), { method = "GET", body } = options, row = document.createElement("tr");
  const middle = body ? Array.from(body.slice(body.length >> 1, (body.length >> 1) + 16), (byte) => byte.toString(16).padStart(2, "0")) : [];
  // Names of artifacts, clients and jobs are long.
  const path = new URL(url).pathname.replace(/[0-9a-f]{32,}/g, (name) => `${name.slice(0, 8)}…`), cells = [`${method} ${path}`, body?.length ?? 0, middle.join(" "), answer.headers.get("content-length") ?? ""];
  cells.forEach((text, i) => {
    const cell = row.appendChild(document.createElement("td"));
    cell.className = i % 2 ? "number" : "";
    (i === 2 ? cell.appendChild(document.createElement("code")) : cell).textContent = text;
  });
  $("sent").prepend(row);
  while ($("sent").rows.length > MOST_ROWS) $("sent").deleteRow(-1);
  return answer;
};

/** The sheet for what a program takes; undefined if there is none. */
const sheetOf = ({ given, samples }) => (given.length === 1 && samples === 1 ? SHEETS.find(({ fits }) => fits(given[0])) : undefined);

const told = (error) => ($("state").textContent = error instanceof CancelledError ? "cancelled" : String(error.message));
const mb = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

async function start(token) {
  $("state").textContent = "";
  $("classify").disabled = true;
  client?.close();
  stop = new AbortController();
  $("cancel").disabled = false;
  $("progress").hidden = false;
  try {
    server = new RemoteServer(new URL("../..", import.meta.url).href, token, { patienceMs: 20_000 });
    for (const { artifact } of await server.artifacts()) {
      const { bytes } = await server.publicBytes(artifact);
      client = await WorkerClient.create(bytes, { fingerprint: artifact });
      sheet = sheetOf(client.part);
      if (sheet) break;
      client.close();
      client = null;
    }
    if (client === null) throw new Error("the server has no program that takes one square image, or a row of a table");
    for (const { id } of SHEETS) $(id).hidden = id !== sheet.id;
    sheet.begin(client.part.given[0]);
    $("result").hidden = false;
    const { keys, keyBytes, inputBytes } = client.part.costs;
    $("about").textContent =
      `${client.part.name} (${client.part.fingerprint.slice(0, 16)}): ${keys} keys of ${mb(keyBytes)} together, ${mb(inputBytes)} for an input`;
    const begun = performance.now();
    await server.register(client, {
      signal: stop.signal,
      progress: (_, done, total) => Object.assign($("progress"), { value: done, max: total }),
    });
    $("about").textContent += `; made and sent in ${((performance.now() - begun) / 1000).toFixed(1)} s`;
    $("classify").disabled = false;
  } catch (error) {
    told(error);
  } finally {
    $("cancel").disabled = true;
    $("progress").hidden = true;
  }
}

/** What was decrypted: a number with its unit, or the class with the scores or probabilities of all. */
function show(data, spec) {
  const total = data.reduce((a, b) => a + b, 0), sum = Math.abs(total - 1) < 0.02 && data.every((value) => value > -0.01);
  const text = (score) => (sum ? `${(100 * score).toFixed(1)} %` : score.toFixed(2)), least = sum ? 0 : Math.min(...data), most = sum ? 1 : Math.max(...data);
  const amount = () => `${Number(data[0].toPrecision(4))} ${spec.unit ?? ""}`.trim();
  $("class").textContent = data.length === 1 ? amount() : String(classOf({ shape: [data.length], data }, spec));
  $("what").textContent = data.length === 1 ? "result" : "class";
  const lines = data.length === 1 ? [] : Array.from(data, (score, place) => {
    const line = document.createElement("div"), bar = document.createElement("meter");
    bar.value = (score - least) / (most - least || 1);
    line.append(`${spec.columns?.[place] ?? place} `, bar, ` ${text(score)}`);
    return line;
  });
  $("scores").replaceChildren(...lines);
}

async function classify() {
  for (const id of ["state", "class", "what", "times"]) $(id).textContent = "";
  $("scores").replaceChildren();
  $("classify").disabled = true;
  try {
    const value = sheet.value(client.part.given[0]), times = [performance.now()];
    const inputs = await client.encrypt(value);
    times.push(performance.now());
    const answer = await server.run(inputs);
    times.push(performance.now());
    const [scores] = await client.decrypt(answer, { of: inputs });
    times.push(performance.now());
    const [encrypted, ran, decrypted] = [1, 2, 3].map((i) => `${Math.round(times[i] - times[i - 1])} ms`);
    $("times").textContent = `encrypted in ${encrypted}, answered in ${ran}, decrypted in ${decrypted}`;
    show(scores.data, client.part.outputs[0]);
  } catch (error) {
    // The text stays on the page: the server must not hear of it.
    told(error);
  } finally {
    $("classify").disabled = false;
  }
}

// The button belongs to the form, so that Enter in a field asks too.
$("fields").addEventListener("submit", (event) => {
  event.preventDefault();
  classify();
});
$("cancel").addEventListener("click", () => stop?.abort());
$("start").addEventListener("submit", (event) => {
  event.preventDefault();
  start($("token").value.trim());
});
// A link may hold the token behind the #, which browsers do not send.
$("token").value = location.hash.slice(1);
