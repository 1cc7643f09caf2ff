/** A visitor of the example page: makes keys, draws a line, asks for its class, and says what the page shows. */

const $ = (id) => document.getElementById(id);
const until = async (call) => {
  while (!call()) await new Promise((resolve) => setTimeout(resolve, 50));
};
const told = (what) => fetch("/told", { method: "POST", body: JSON.stringify(what) });
addEventListener("error", (event) => told({ fault: String(event.message) }));
document.addEventListener("securitypolicyviolation", (event) => told({ fault: event.violatedDirective }));
try {
  $("token").value = "TOKEN";
  $("start").requestSubmit();
  await until(() => !$("classify").disabled || $("state").textContent);
  const keys = $("about").textContent, canvas = $("canvas");
  canvas.setPointerCapture = () => {};
  const box = canvas.getBoundingClientRect();
  const event = (name, x, y) =>
    canvas.dispatchEvent(new PointerEvent(name, { clientX: box.x + x, clientY: box.y + y, bubbles: true }));
  event("pointerdown", 140, 40);
  for (let y = 40; y < 240; y += 10) event("pointermove", 140, y);
  event("pointerup", 140, 240);
  $("classify").click();
  await until(() => $("class").textContent || $("state").textContent);
  const rows = [...$("sent").rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  const [label, state, times] = ["class", "state", "about"].map((id) => $(id).textContent);
  await told({ keys, label, state, times, rows, isolated: crossOriginIsolated });
} catch (error) {
  await told({ fault: String(error.stack) });
}
