"""The README's chart: seconds of an encrypted image through ResNet-20, from the README's own table of published systems.

python docs/scripts/comparison_chart.py        # writes docs/images/resnet20.svg
"""

from __future__ import annotations

import math
import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "docs/images/resnet20.svg"
WIDTH, LEFT, RIGHT, STEP, BAR = 640.0, 288.0, 100.0, 40.0, 24.0


def rows(readme: str) -> list[tuple[str, float, str]]:
    """Name, fewest seconds and threads of each system in the table."""
    table = readme.partition("<!-- table comparison-readme -->")[2].partition("<!-- /table -->")[0]
    found = []
    for line in table.strip().splitlines()[2:]:
        name, seconds, threads = (cell.strip() for cell in line.strip("|").split("|")[:3])
        numbers = [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", seconds)]
        best = numbers.index(min(numbers))
        parts = [part.strip() for part in threads.split(";")]
        found.append((name, numbers[best], parts[best] if len(parts) == len(numbers) else parts[0]))
    return found


def chart(systems: list[tuple[str, float, str]]) -> str:
    """Bars on a logarithmic axis, one for each system."""
    top = 40.0
    least, most = 1.0, 10 ** math.ceil(math.log10(max(seconds for _, seconds, _ in systems)))
    height = top + STEP * len(systems) + 34

    def across(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log10(seconds / least) / math.log10(most / least)

    body = [f'<rect width="{WIDTH:g}" height="{height:g}" fill="#ffffff"/>']
    for exponent in range(round(math.log10(most)) + 1):
        x = across(10.0**exponent)
        body.append(f'<line x1="{x:.1f}" y1="{top - 8:g}" x2="{x:.1f}" y2="{height - 30:g}" stroke="#d8dee6"/>')
        body.append(
            f'<text x="{x:.1f}" y="{height - 12:g}" text-anchor="middle" fill="#5c6b7a">{10**exponent:,} s</text>'
        )
    for place, (name, seconds, threads) in enumerate(systems):
        y = top + STEP * place
        colour = "#2c6fbb" if place == 0 else "#9fb0c2"
        body.append(f'<text x="{LEFT - 12:g}" y="{y + 17:g}" text-anchor="end" fill="#1f2933">{escape(name)}</text>')
        body.append(
            f'<rect x="{LEFT:g}" y="{y:g}" width="{across(seconds) - LEFT:.1f}" height="{BAR:g}" fill="{colour}"/>'
        )
        label = f"{seconds:,g} s"
        if threads.split(":")[0].isdigit():
            count = threads.split(":")[0]
            label += f" ({count})"
        body.append(f'<text x="{across(seconds) + 8:.1f}" y="{y + 17:g}" fill="#1f2933">{escape(label)}</text>')
    title = "An encrypted image through ResNet-20: seconds (threads)"
    body.append(f'<text x="12" y="20" fill="#1f2933" font-weight="600">{title}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" height="{height:g}" '
        'font-family="system-ui, Segoe UI, Roboto, DejaVu Sans, sans-serif" font-size="14" role="img" '
        f'aria-label="{title}">\n' + "\n".join(body) + "\n</svg>\n"
    )


if __name__ == "__main__":
    CHART.write_text(chart(rows((ROOT / "README.md").read_text())))
    print(f"wrote {CHART.relative_to(ROOT)}")
