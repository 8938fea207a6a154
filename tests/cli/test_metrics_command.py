"""`pybroker metrics`: boards and rules name metrics that brokers have."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pybroker.cli.metrics.alerts import ALERTS
from pybroker.cli.metrics.dashboards import BOARDS
from tests.cli.conftest import run
from tests.harness import ROOT
from tests.metrics_page import rows

NAME = re.compile(r"\b(?:pybroker|process)_\w+")
OF_HISTOGRAM = re.compile(r"_(?:bucket|sum|count)$")


def unknown(expression: str) -> set[str]:
    """The metrics of an expression that docs/metrics.md does not have, which is tested to be what /metrics has."""
    known = rows()
    names = {name if name in known else OF_HISTOGRAM.sub("", name) for name in NAME.findall(expression)}
    return names - known.keys()


def test_boards(tmp_path: Path) -> None:
    """Each board is JSON with panels side by side, and each of its expressions has metrics that exist."""
    assert run("metrics", "--dashboard", tmp_path / "boards").code == 0
    made = sorted((tmp_path / "boards").iterdir())
    assert [path.name for path in made] == sorted(f"pybroker-{name}.json" for name in BOARDS)
    for path in made:
        board = json.loads(path.read_text())
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
        assert len(places) == len(board["panels"]) >= 5
        variables = [each["query"] for each in board["templating"]["list"][1:]]
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]] + variables
        wrong = {e: unknown(e) for e in expressions if unknown(e) or not NAME.search(e)}
        assert not wrong, path.name


def test_alerts() -> None:
    """The rules are printed; their metrics exist, and docs/monitoring.md has each with its meaning and what to do."""
    done = run("metrics", "--alerts")
    assert done.code == 0
    assert re.findall(r"- alert: (\w+)", done.out) == [alert.name for alert in ALERTS]
    assert not {a.name: unknown(a.expression) for a in ALERTS if unknown(a.expression)}
    page = (ROOT / "docs/monitoring.md").read_text()
    table = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in page.splitlines() if line.startswith("| `")]
    assert [name for names in table for name in names][: len(ALERTS)] == [alert.name for alert in ALERTS]


def test_nothing_to_write(tmp_path: Path) -> None:
    assert run("metrics").sentence == "nothing to write: give --dashboard DIRECTORY, --alerts, or both"
    (tmp_path / "file").touch()
    assert "not a directory" in run("metrics", "--dashboard", tmp_path / "file" / "boards").sentence
