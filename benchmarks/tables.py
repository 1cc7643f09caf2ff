"""The tables of the documentation, written from the records.

`tables.md` has the form of each table. A table stands in its page between `<!-- table NAME -->` and `<!-- /table -->`. Each
figure is the newest that `records/` has for its row: a later record of the same key takes the place of an earlier one,
field by field. A table of figures that is not measured here says so in a comment before it: `<!-- figures: WHY -->`.

Each number with a unit in a paragraph has its record too, named in a comment before the paragraph,
`<!-- records: batch {"images": 1} -->`, or stands in one with its source, `<!-- figures: 86.1 %: Phoenix, table 1 -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness import HERE, RECORDS, ROOT, Records

FORMS = HERE / "tables.md"
PAGES = ("README.md", "docs/*.md")

_BEGIN, _END = "<!-- table {} -->", "<!-- /table -->"
_MARKED = re.compile(r"<!-- table (\S+) -->\n(.*?)<!-- /table -->", re.DOTALL)
# {name}, {name/1e9:.1f}, {name:,}, {name~the same}: the last is what stands where the row above has the same.
_FIELD = re.compile(r"\{(\w+)(?:/([\de.]+))?(?::([^}~]*))?(?:~([^}]*))?\}")
# A figure that a machine or a run decides: a decimal, a percentage, or a number with a unit.
_FIGURE = re.compile(r"\d\.\d|\d(?:\.\d+)? ?(?:%|ms\b|s\b|min\b|h\b|[kMG]?B\b)")
# A number with a unit in text, and the comments that say where it is from.
_CLAIM = re.compile(r"(\d[\d,]*(?:\.\d+)?) ?(?:%|(?:ms|s|seconds|min|minutes|h|hours|[kMG]B)\b)")
_RECORDS = re.compile(r"<!-- records: (\w+) (\{.*?\}) -->")
_NAMED = re.compile(r"<!-- figures: (.+?) -->")
# What a figure is told in: as it is, thousands to thousands of millions of it, hundredths, thousandths.
_SCALES = (1, 1e3, 1e6, 1e9, 1e-2, 1e-3)


class TableError(Exception):
    """A table cannot be made from the records, or a page is not as it has to be."""


@dataclass(frozen=True)
class Form:
    """A table: its page, the records that fill it, and its lines with fields in braces."""

    name: str
    page: str
    records: str
    across: bool
    """Whether a record is a column; otherwise it is a row."""
    where: Mapping[str, str]
    unless: Mapping[str, str]
    """Keys whose records are left out."""
    lines: tuple[str, ...]


def forms() -> dict[str, Form]:
    """The forms of tables.md by name."""
    found = {}
    for section in re.split(r"^## ", FORMS.read_text(), flags=re.MULTILINE)[1:]:
        name, _, rest = section.partition("\n")
        lines = [line for line in rest.splitlines() if line]
        head = re.fullmatch(r"(\S+): (a row|a column) for each record of (\w+)(?: with (.+))?", lines[0])
        if head is None or any(not line.startswith("|") for line in lines[1:]):
            raise TableError(f"{FORMS.name}, {name}: this is not the form of a table")
        wanted = [each.partition("=") for each in head[4].split(", ")] if head[4] else []
        where = {key: value for key, _, value in wanted if not key.endswith("!")}
        unless = {key[:-1]: value for key, _, value in wanted if key.endswith("!")}
        form = Form(name.strip(), head[1], head[3], head[2] == "a column", where, unless, tuple(lines[1:]))
        found[form.name] = form
    return found


def merged(form: Form) -> list[dict[str, Any]]:
    """The fields of each key of the form's records, the newest of each, in the order in which keys came."""
    found: dict[str, dict[str, Any]] = {}
    for entry in Records(RECORDS / f"{form.records}.jsonl").entries:
        key = entry["key"]
        fits = all(str(key.get(name)) == value for name, value in form.where.items())
        if fits and not any(str(key.get(name)) == value for name, value in form.unless.items()):
            found.setdefault(str(sorted(key.items())), {}).update({**entry["values"], **key})
    if not found:
        raise TableError(f"{form.name}: there are no records of {form.records} with {dict(form.where)}")
    return list(found.values())


def cell(text: str, values: Mapping[str, Any], above: Mapping[str, Any] | None) -> str:
    """A cell's form filled in: empty where there is none of its fields."""
    fields = [match[1] for match in _FIELD.finditer(text)]
    if fields and not any(values.get(name) is not None for name in fields):
        return ""

    def filled(match: re.Match[str]) -> str:
        name, factor, spec, same = match.groups()
        if name not in values:
            raise TableError(f"no record has the field {name} beside {', '.join(fields)}")
        value = values[name]
        if same is not None and above is not None and above.get(name) == value:
            return same
        return shown(value, factor, spec)

    return _FIELD.sub(filled, text)


def shown(value: Any, factor: str | None, spec: str | None) -> str:
    """A value as its field has it. What was taken over from a page is text where no number gives the same."""
    if isinstance(value, str):
        return value
    return format(value / float(factor) if factor else value, spec or "").replace("%", " %")


def row(cells: list[str]) -> str:
    return "|" + "|".join(f" {each} " if each else " " for each in cells) + "|"


def split(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [each.strip() for each in line.strip().strip("|").split("|")]


def rendered(form: Form) -> str:
    """The lines of a table."""
    records, lines = merged(form), []
    for line in form.lines:
        cells = split(line)
        if not _FIELD.search(line):
            lines.append(line)
        elif form.across:
            lines.append(row([cells[0], *(cell(cells[1], values, None) for values in records)]))
        else:
            for above, values in zip([None, *records], records, strict=False):
                lines.append(row([cell(each, values, above) for each in cells]))
    widths = {len(split(line)) for line in lines}
    if len(widths) > 1:
        raise TableError(f"{form.name}: its head has another number of columns than there are records")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """The text of every page that may have figures."""
    return {path.relative_to(ROOT).as_posix(): path.read_text() for each in PAGES for path in sorted(ROOT.glob(each))}


def written(page: str, text: str, known: Mapping[str, Form]) -> str:
    """A page with its tables as the records have them."""

    def table(match: re.Match[str]) -> str:
        form = known.get(match[1])
        if form is None or form.page != page:
            raise TableError(f"{page}: {FORMS.name} has no table {match[1]} of this page")
        return f"{_BEGIN.format(match[1])}\n{rendered(form)}{_END}"

    return _MARKED.sub(table, text)


def outside(text: str) -> Iterator[tuple[int, str, str]]:
    """(number, line, the line before) of the lines that are in no marked table and in no block of code."""
    lines, code, marked = text.splitlines(), False, False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            code = not code
        marked = (marked or line.startswith("<!-- table ")) and not line.startswith(_END)
        if not code and not marked:
            yield number, line, lines[number - 2] if number > 1 else ""


def unmarked(page: str, text: str) -> list[str]:
    """Tables of figures without a marker: of at least three cells with figures behind their first column."""
    found, figures, begun, excused = [], 0, 0, False
    for number, line, before in [*outside(text + "\n"), (0, "", "")]:
        if line.startswith("|"):
            if not begun:
                begun, figures, excused = number, 0, before.startswith("<!-- figures: ")
            figures += sum(bool(_FIGURE.search(each)) for each in split(line)[1:])
        elif begun:
            if figures >= 3 and not excused:
                found.append(f"{page}:{begun}: a table of figures without a marker of its records")
            begun = 0
    return found


def leaves(value: Any) -> Iterator[Any]:
    """The numbers and texts of what a record holds."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    elif value is not None and not isinstance(value, bool):
        yield value


def recorded(number: str, name: str, key: Mapping[str, Any]) -> bool:
    """Whether a number as it is written is a value, rounded, of a record with at least this key."""
    wanted, digits = float(number.replace(",", "")), len(number.partition(".")[2])
    entries = Records(RECORDS / f"{name}.jsonl").entries
    for entry in (each for each in entries if key.items() <= {**each["key"], **each.get("settings", {})}.items()):
        for value in leaves(entry["values"]):
            if isinstance(value, str):
                if re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d.,]*\d)", value):
                    return True
            elif any(round(value / scale, digits) == wanted for scale in _SCALES):
                return True
    return False


def unnamed(page: str, text: str) -> list[str]:
    """Numbers with a unit, in paragraphs, that no record named before them has and no comment says whose they are."""
    found, sources, named, begun = [], [], "", False
    for number, line, _ in outside(text):
        if line.startswith("<!--"):
            if begun:
                sources, named, begun = [], "", False
            sources += [(each[1], json.loads(each[2])) for each in _RECORDS.finditer(line)]
            named += "".join(each[1] for each in _NAMED.finditer(line))
            continue
        if not line.strip():
            sources, named, begun = [], "", False
            continue
        begun = True
        if line.startswith("|"):
            continue
        for claim in _CLAIM.finditer(re.sub(r"`[^`]*`", "", line)):
            if claim[1] not in re.findall(r"\d[\d,]*(?:\.\d+)?", named) and not any(
                recorded(claim[1], name, key) for name, key in sources
            ):
                found.append(f"{page}:{number}: no record and no source is named for {claim[0]!r}")
    return found


def compared(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows of the comparison that are neither published, with a source, nor made of values of the records that they name."""
    found = []
    for entry in entries:
        values, what = entry["values"], f"comparison.jsonl, {entry['key']}"
        if entry.get("source") == "published":
            if not values.get("source"):
                found.append(f"{what}: no source")
            continue
        figures = " ".join(str(values[name]) for name in ("seconds", "memory", "keys", "upload") if name in values)
        for number in re.findall(r"\d[\d,]*(?:\.\d+)?", figures):
            if not any(recorded(number, name, key) for name, key in entry.get("records", ())):
                found.append(f"{what}: no record that it names has {number}")
    return found


def problems() -> list[str]:
    """What is not as the records have it."""
    known, found, used = forms(), [], set()
    for page, text in pages().items():
        used |= {match[1] for match in _MARKED.finditer(text)}
        found += unmarked(page, text)
        found += unnamed(page, text)
        try:
            wanted = written(page, text, known)
        except TableError as error:
            found.append(f"{page}: {error}")
            continue
        for number, (line, other) in enumerate(zip(text.splitlines(), wanted.splitlines(), strict=False), 1):
            if line != other:
                found.append(f"{page}:{number}: not as in the records:\n  {line}\n  {other}")
                break
        else:
            if text != wanted:
                found.append(f"{page}: rows of a table are not those of the records")
    found += compared(Records(RECORDS / "comparison.jsonl").entries)
    return found + [f"{known[name].page}: the table {name} is nowhere" for name in known if name not in used]


def main(check: bool) -> int:
    """Write or check all tables; the number of problems, at most 1 as an exit status."""
    if not check:
        known = forms()
        for page, text in pages().items():
            new = written(page, text, known)
            if new != text:
                (ROOT / page).write_text(new)
                print(f"written: {page}")
    found = problems()
    for each in found:
        print(each, file=sys.stderr)
    if found:
        print("python -m benchmarks tables writes the tables from the records", file=sys.stderr)
    return min(len(found), 1)
