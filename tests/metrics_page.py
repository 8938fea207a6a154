"""The table of metrics in docs/metrics.md."""

from __future__ import annotations

import re

from prometheus_client.metrics_core import Metric

from tests.harness import ROOT

ROW = re.compile(r"\| `(\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \| (.+) \|")


def rows() -> dict[str, tuple[str, str, str]]:
    """The kind, labels and meaning of each metric; Kafka's name, the last cell, is a dash where Kafka has none."""
    lines = [line for line in (ROOT / "docs/metrics.md").read_text().splitlines() if line.startswith("| `p")]
    found = [ROW.fullmatch(line) for line in lines]
    assert all(found), [line for line, row in zip(lines, found, strict=True) if row is None]
    return {row[1]: (row[2], row[3].strip(), row[4]) for row in found if row is not None}


def row(family: Metric) -> tuple[str, tuple[str, str, str]]:
    """The row that the table must have for a family that was scraped."""
    labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
    names = {sample.name for sample in family.samples}
    return names.pop() if len(names) == 1 else family.name, (family.type, ", ".join(labels), family.documentation)
