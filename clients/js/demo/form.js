/** The sheet for a program that takes a row of a table: a form with a field for each column that the program reads. */

const sorted = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);
/** What an encoding says about one column: the entries of one list whose place in another is the column. */
const of = (column, places, values) => values.filter((_, i) => places[i] === column);

/**
 * The fields of an input, from the public part alone: {name, place, optional}, and `choices` of a category, or a number's range
 * `low` and `high`. The range is `strict` if other numbers are refused; otherwise it is the one of the thresholds, and `usual` is
 * the middle one.
 */
export function fieldsOf({ shape, low, high, columns, encoding: e }) {
  const name = (place) => columns?.[place] ?? `column ${place + 1}`;
  if (e === null) return Array.from({ length: shape[0] }, (_, place) => ({ name: name(place), place, optional: false, low, high, strict: low !== null }));
  const found = [];
  for (let place = 0; place < e.width; place++) {
    const edges = of(place, e.compared, e.edges), codes = of(place, e.coded, e.codes), labels = of(place, e.texts, e.labels)[0];
    const centres = of(place, e.numbers, e.centres), known = of(place, e.known, e.allowed)[0];
    if (!labels && !known && !edges.length && !codes.length && !centres.length && !e.missing.includes(place)) continue;
    const optional = e.missing.includes(place) || e.filled.includes(place), field = { name: name(place), place, optional };
    if (labels) found.push({ ...field, choices: labels.filter((_, i) => !known || known.includes(i)) });
    else if (known || (codes.length && !edges.length && !centres.length)) found.push({ ...field, choices: sorted(known ?? codes), others: !known });
    else {
      const scale = of(place, e.numbers, e.scales)[0], strict = centres.length > 0 && low !== null && !e.clipped;
      const range = strict ? [centres[0] + scale * low, centres[0] + scale * high] : edges.length ? [Math.min(...edges), Math.max(...edges)] : [null, null];
      found.push({ ...field, low: range[0], high: range[1], strict, usual: edges.sort((a, b) => a - b)[edges.length >> 1] });
    }
  }
  return found;
}

const short = (number) => String(Number(number.toPrecision(6)));

function shown(field) {
  const label = document.createElement("label"), { name, choices, low, high, optional, strict, usual = (low + high) / 2 } = field;
  label.append(`${name} `);
  const input = label.appendChild(document.createElement(choices ? "select" : "input"));
  // A bare number would be taken for a position among the fields.
  input.name = `column${field.place}`;
  input.required = !optional;
  if (choices) {
    if (optional) input.add(new Option("unknown", ""));
    choices.forEach((choice, i) => input.add(new Option(String(choice), String(i))));
    if (field.others) input.add(new Option("another", "another"));
    return label;
  }
  Object.assign(input, { type: "number", step: "any" });
  if (low === null) return label;
  input.value = optional ? "" : short(high - low > 2 ? Math.floor(usual) : usual);
  if (strict) Object.assign(input, { min: low, max: high });
  const hint = label.appendChild(document.createElement("small"));
  hint.textContent = strict ? `${short(low)} to ${short(high)}` : low === high ? `threshold ${short(low)}` : `thresholds from ${short(low)} to ${short(high)}`;
  return label;
}

let fields = [];

/** The row in the form, null in the columns that are left out. */
function value({ shape, encoding }) {
  const form = document.getElementById("fields"), row = new Array(encoding?.width ?? shape[0]).fill(null);
  for (const { name, place, choices } of fields) {
    const input = form.elements[`column${place}`], text = input.value;
    if (!input.checkValidity()) throw new Error(`${name}: ${input.validationMessage}`);
    if (text === "") continue;
    // No category has a code above all others.
    if (choices) row[place] = text === "another" ? Math.max(...choices) + 1 : choices[Number(text)];
    else row[place] = Number(text);
  }
  return row;
}

export const form = {
  id: "row",
  fits: ({ shape, encoding, columns }) => encoding !== null || (columns !== null && shape.length === 1),
  begin(spec) {
    fields = fieldsOf(spec);
    document.getElementById("fields").replaceChildren(...fields.map(shown));
    const unread = (spec.encoding?.width ?? fields.length) - fields.length;
    document.getElementById("unread").textContent = unread ? `The program does not read ${unread} other columns.` : "";
  },
  value,
};
