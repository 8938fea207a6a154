"""Draw docs/performance.svg from the table of figures in docs/performance.md, which shows it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pybroker.cli.bench.chart import Figure, draw

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs/performance.md", ROOT / "docs/performance.svg"
BROKERS = {"pybroker": 2, "limit of one core": 3, "Kafka 3.9.1": 4}
"""The columns of the table to draw, in the order of their bars."""
TITLE = "A broker on one core. Bars: longer is better; latencies: further to the left is better."
_ROW = re.compile(r"^\| ([WF]\d) \|.*$", re.M)


def figures(page: str) -> Iterator[Figure]:
    """Yield the table's figure for each broker and workload, without dashes."""
    for found in _ROW.finditer(page):
        cells = [cell.strip() for cell in found[0].strip("|").split("|")]
        for broker, column in BROKERS.items():
            cell = cells[column]
            records, requests = re.match(r"([\d.,]+) M rec/s", cell), re.match(r"([\d.,]+) k req/s", cell)
            times = re.match(r"([\d.,]+) / ([\d.,]+) / ([\d.,]+) us", cell)
            p50, p99, p999 = map(_number, times.groups()) if times else (0.0, 0.0, 0.0)
            rate = _number(records[1]) * 1e6 if records else _number(requests[1]) * 1e3 if requests else 0.0
            if times or rate:  # one record a request in these workloads, for which the table has requests
                yield Figure(found[1], cells[1], broker, rate, rate, p50, p99, p999, times is not None)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


if __name__ == "__main__":
    draw(PICTURE, figures(PAGE.read_text()), TITLE)
    sys.stdout.write(f"{PICTURE}\n")
