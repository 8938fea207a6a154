"""Draws docs/glance.svg, the picture at the top of README.md, from figures in docs/performance.md and docs/spark.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs/glance.svg"
WIDTH, PANEL, BAR = 560, 84, 300
NAMES: Final = ("pybroker", "Kafka 3.9.1")
SPARK: Final = ("pybroker", "Spark's connector")
DARK, MIDDLE, LIGHT = "rgb(38,50,56)", "rgb(69,90,100)", "rgb(120,144,156)"
OURS, OTHERS = "rgb(0,121,107)", "rgb(176,190,197)"
NUMBER: Final = r"([\d.,]+)"


class Panel(NamedTuple):
    """A title, the unit, the names of the two bars and their values; `less` if a shorter bar is better."""

    title: str
    unit: str
    names: tuple[str, str]
    values: tuple[float, float]
    less: bool


def _found(page: str, pattern: str) -> tuple[float, ...]:
    """The numbers of the row that a pattern finds on a page. Raises ValueError if it is not there once."""
    text = (ROOT / "docs" / page).read_text()
    rows = re.findall(pattern, text, re.M)
    if len(rows) != 1:
        raise ValueError(f"{page} has {len(rows)} rows like {pattern!r}")
    return tuple(float(number.replace(",", "")) for number in rows[0])


def panels() -> list[Panel]:
    """The four comparisons, as the pages have them; of a range the slower end of ours."""
    cpu = _found("performance.md", rf"^\| A1 \|.*?; {NUMBER} cpu-s/GB of all brokers \|.*?; {NUMBER} cpu-s/GB \|")
    lost = _found("performance.md", rf"^\| \| `kill -9` of a leader, .*? \| [\d.]+ to {NUMBER} s \| {NUMBER} s \|")
    start = _found("performance.md", rf"^\| a broker in a test, until .*? \| {NUMBER} s \| {NUMBER} s \|")
    rows = _found("spark.md", rf"^\| batch read \| {NUMBER} M rows/s \|.*?\| {NUMBER} M \(")
    return [
        Panel("A broker in a test, until its first record is stored", "s", NAMES, (start[0], start[1]), True),
        Panel("Three brokers, acks=all: cpu for a gigabyte", "s", NAMES, (cpu[0], cpu[1]), True),
        Panel("kill -9 of a leader, until writes go on", "s", NAMES, (lost[0], lost[1]), True),
        Panel("A topic read in Spark", "M rows/s", SPARK, (rows[0], rows[1]), False),
    ]


def _shown(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def draw(found: list[Panel]) -> str:
    """The picture: two bars for each panel, which are as long as their values are to each other."""
    height = PANEL * len(found) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" style="font-family: system-ui, sans-serif; font-size: 14px">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="white"/>',
    ]
    for number, panel in enumerate(found):
        top, longest = 26 + number * PANEL, max(panel.values)
        better = "shorter is better" if panel.less else "longer is better"
        note = f'<tspan font-weight="400" font-size="12" fill="{LIGHT}">({better})</tspan>'
        parts.append(f'<text x="16" y="{top}" font-weight="600" fill="{DARK}">{panel.title} {note}</text>')
        for row, (name, value) in enumerate(zip(panel.names, panel.values, strict=True)):
            y, width, shown = top + 9 + row * 23, max(2.0, BAR * value / longest), f"{_shown(value)} {panel.unit}"
            colour = OTHERS if row else OURS
            parts.append(f'<text x="16" y="{y + 14}" fill="{MIDDLE}">{name}</text>')
            parts.append(f'<rect x="150" y="{y}" width="{width:.1f}" height="18" rx="3" fill="{colour}"/>')
            parts.append(f'<text x="{158 + width:.1f}" y="{y + 14}" fill="{DARK}">{shown}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(panels()))
    sys.stdout.write(f"{PICTURE}\n")
