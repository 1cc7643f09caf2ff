/** The example page of `heliograph serve --demo`: a digit is drawn, encrypted, and classified by the server. */

import { CancelledError, classOf, RemoteServer, WorkerClient } from "../src/index.js";

const $ = (id) => document.getElementById(id);
const canvas = $("canvas"), pen = canvas.getContext("2d", { willReadFrequently: true });
const MOST_ROWS = 200;
let server = null, client = null, stop = null;

// What leaves the page goes through this function: the client has no other way to the server.
const send = globalThis.fetch.bind(globalThis);
globalThis.fetch = async (url, options = {}) => {
  const answer = await send(url, options), { method = "GET", body } = options, row = document.createElement("tr");
  const middle = body ? Array.from(body.slice(body.length >> 1, (body.length >> 1) + 16), (byte) => byte.toString(16).padStart(2, "0")) : [];
  const path = new URL(url).pathname, cells = [`${method} ${path}`, body?.length ?? 0, middle.join(" "), answer.headers.get("content-length") ?? ""];
  cells.forEach((text, i) => {
    const cell = row.appendChild(document.createElement("td"));
    cell.className = i % 2 ? "number" : "";
    (i === 2 ? cell.appendChild(document.createElement("code")) : cell).textContent = text;
  });
  $("sent").prepend(row);
  while ($("sent").rows.length > MOST_ROWS) $("sent").deleteRow(-1);
  return answer;
};

function clear() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  $("class").textContent = "";
  $("scores").replaceChildren();
}

let last = null;
const at = (event) => [event.offsetX, event.offsetY];
canvas.addEventListener("pointerdown", (event) => {
  last = at(event);
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => (last = null));
canvas.addEventListener("pointermove", (event) => {
  if (last === null) return;
  Object.assign(pen, { lineWidth: 24, lineCap: "round", strokeStyle: "#fff" });
  pen.beginPath();
  pen.moveTo(...last);
  pen.lineTo(...(last = at(event)));
  pen.stroke();
});

/** The side of the square image that an artifact takes; 0 if it takes something else. */
function sideOf(part) {
  const side = Math.sqrt(part.given[0].shape.reduce((a, b) => a * b, 1));
  return part.given.length === 1 && part.samples === 1 && Number.isInteger(side) && side >= 8 ? side : 0;
}

/** The drawing with so many pixels a side, centred as in the usual data sets, within the range of the input. */
function pixels(side, { low, high }) {
  const all = pen.getImageData(0, 0, canvas.width, canvas.height).data, size = canvas.width;
  let box = [size, size, -1, -1];
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++)
      if (all[4 * (y * size + x)] > 32) box = [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)];
  if (box[2] < 0) throw new Error("the page is empty: draw a digit");
  const [x0, y0, x1, y1] = box, longest = Math.max(x1 - x0, y1 - y0) + 1, room = side >= 20 ? (20 / 28) * side : side;
  const small = new OffscreenCanvas(side, side).getContext("2d"), scale = room / longest;
  small.imageSmoothingQuality = "high";
  small.fillRect(0, 0, side, side);
  const [w, h] = [(x1 - x0 + 1) * scale, (y1 - y0 + 1) * scale];
  small.drawImage(canvas, x0, y0, x1 - x0 + 1, y1 - y0 + 1, (side - w) / 2, (side - h) / 2, w, h);
  const found = small.getImageData(0, 0, side, side).data, [least, most] = [low ?? 0, high ?? 1];
  return Float64Array.from({ length: side * side }, (_, i) => least + ((most - least) * found[4 * i]) / 255);
}

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
      if (sideOf(client.part)) break;
      client.close();
      client = null;
    }
    if (client === null) throw new Error("the server has no program that takes one square image");
    const { keys, keyBytes, inputBytes } = client.part.costs;
    $("about").textContent =
      `${client.part.name} (${client.part.fingerprint.slice(0, 16)}): ${keys} keys of ${mb(keyBytes)} together, ${mb(inputBytes)} for a digit`;
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

async function classify() {
  $("state").textContent = "";
  $("classify").disabled = true;
  try {
    const image = pixels(sideOf(client.part), client.part.given[0]), times = [performance.now()];
    const inputs = await client.encrypt(image);
    times.push(performance.now());
    const answer = await server.run(inputs);
    times.push(performance.now());
    const [scores] = await client.decrypt(answer, { of: inputs });
    times.push(performance.now());
    const [encrypted, ran, decrypted] = [1, 2, 3].map((i) => `${Math.round(times[i] - times[i - 1])} ms`);
    $("class").textContent = classOf(scores);
    $("about").textContent = `encrypted in ${encrypted}, answered in ${ran}, decrypted in ${decrypted}`;
    const least = Math.min(...scores.data), most = Math.max(...scores.data);
    $("scores").replaceChildren(
      ...Array.from(scores.data, (score, label) => {
        const line = document.createElement("div"), bar = document.createElement("meter");
        bar.value = (score - least) / (most - least || 1);
        line.append(`${label} `, bar, ` ${score.toFixed(2)}`);
        return line;
      }),
    );
  } catch (error) {
    // The text stays on the page: the server must not hear of it.
    told(error);
  } finally {
    $("classify").disabled = false;
  }
}

$("clear").addEventListener("click", clear);
$("classify").addEventListener("click", classify);
$("cancel").addEventListener("click", () => stop?.abort());
$("start").addEventListener("submit", (event) => {
  event.preventDefault();
  start($("token").value.trim());
});
clear();
// A link may hold the token behind the #, which browsers do not send.
$("token").value = location.hash.slice(1);
