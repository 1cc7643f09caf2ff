/** The sheet for a program that takes one square image: a digit is drawn on it. */

const side = (shape) => Math.sqrt(shape.reduce((a, b) => a * b, 1));
let canvas = null, pen = null;

function clear() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, canvas.width, canvas.height);
}

function begin() {
  canvas = document.getElementById("canvas");
  pen ??= canvas.getContext("2d", { willReadFrequently: true });
  let last = null;
  const at = (event) => [event.offsetX, event.offsetY];
  canvas.onpointerdown = (event) => {
    last = at(event);
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointerup = () => (last = null);
  canvas.onpointermove = (event) => {
    if (last === null) return;
    Object.assign(pen, { lineWidth: 24, lineCap: "round", strokeStyle: "#fff" });
    pen.beginPath();
    pen.moveTo(...last);
    pen.lineTo(...(last = at(event)));
    pen.stroke();
  };
  document.getElementById("clear").onclick = clear;
  clear();
}

/** The drawing with the pixels of the input, centred as in the usual data sets, within the range of the input. */
function value({ shape, low, high }) {
  const many = side(shape), all = pen.getImageData(0, 0, canvas.width, canvas.height).data, size = canvas.width;
  let box = [size, size, -1, -1];
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++)
      if (all[4 * (y * size + x)] > 32) box = [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)];
  if (box[2] < 0) throw new Error("the page is empty: draw a digit");
  const [x0, y0, x1, y1] = box, longest = Math.max(x1 - x0, y1 - y0) + 1, room = many >= 20 ? (20 / 28) * many : many;
  const small = new OffscreenCanvas(many, many).getContext("2d"), scale = room / longest;
  small.imageSmoothingQuality = "high";
  small.fillRect(0, 0, many, many);
  const [w, h] = [(x1 - x0 + 1) * scale, (y1 - y0 + 1) * scale];
  small.drawImage(canvas, x0, y0, x1 - x0 + 1, y1 - y0 + 1, (many - w) / 2, (many - h) / 2, w, h);
  const found = small.getImageData(0, 0, many, many).data, [least, most] = [low ?? 0, high ?? 1];
  return Float64Array.from({ length: many * many }, (_, i) => least + ((most - least) * found[4 * i]) / 255);
}

export const digit = {
  id: "digit",
  fits: ({ shape, encoding, columns }) => encoding === null && columns === null && Number.isInteger(side(shape)) && side(shape) >= 8,
  begin,
  value,
};
