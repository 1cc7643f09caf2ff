/** A visitor of the example page: makes keys, draws a line or fills in a form, asks for the class, and says what the page shows. */

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
  const keys = $("about").textContent, canvas = $("canvas"), fields = {};
  canvas.setPointerCapture = () => {};
  const box = canvas.getBoundingClientRect();
  const event = (name, x, y) =>
    canvas.dispatchEvent(new PointerEvent(name, { clientX: box.x + x, clientY: box.y + y, bubbles: true }));
  if (!$("digit").hidden) {
    event("pointerdown", 140, 40);
    for (let y = 40; y < 240; y += 10) event("pointermove", 140, y);
    event("pointerup", 140, 240);
  }
  for (const field of $("fields").elements)
    if (field.name) {
      if (field.options) field.selectedIndex = 1;
      fields[field.parentElement.firstChild.data.trim()] = field.options ? field.selectedOptions[0].text : field.value;
    }
  $("classify").click();
  await until(() => $("class").textContent || $("state").textContent);
  const rows = [...$("sent").rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  const [label, state, times] = ["class", "state", "times"].map((id) => $(id).textContent);
  const scores = [...$("scores").children].map((line) => line.textContent);
  await told({ keys, fields, label, scores, state, times, rows, isolated: crossOriginIsolated });
} catch (error) {
  await told({ fault: String(error.stack) });
}
