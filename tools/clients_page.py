"""Writes the table of clients into docs/protocol.md from a run of their tests: `make clients`.

`python tools/clients_page.py FILE` reads the JUnit report FILE of tests/clients. A client's tests are those with its
name in their parameters; its version is the one that is installed beside this program.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/protocol.md"
BEGIN: Final = "<!-- clients: written by `make clients` from a run of tests/clients -->\n"
END: Final = "<!-- /clients -->\n"
CLIENTS: Final = {
    "confluent-kafka": "confluent-kafka (librdkafka)",
    "kafka-python": "kafka-python",
    "aiokafka": "aiokafka",
    "java-3.9.1": "Kafka's Java client",
    "java-4.1.1": "Kafka's Java client",
    "kcat": "kcat",
}
"""Names in the parameters of tests, or of their files, and what the page calls them."""
_NAME: Final = re.compile("|".join(map(re.escape, CLIENTS)))


def version(name: str) -> str:
    """The version of a client that is installed here."""
    if name.startswith("java-"):
        return name.removeprefix("java-")
    if name == "kcat":
        shown = subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout
        found = re.search(r"Version ([\d.]+).*?librdkafka ([\d.]+)", shown, re.S)
        assert found is not None, shown
        return f"{found[1]} (librdkafka {found[2]})"
    return importlib.metadata.version(name)


def counts(report: Path) -> Counter[tuple[str, bool]]:
    """Count the tests of each client that passed (True) and that did not; skipped tests do not count."""
    found: Counter[tuple[str, bool]] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        name = _NAME.search(f"{case.get('name')} {case.get('classname')}".replace("confluent_kafka", "confluent-kafka"))
        if name is not None and case.find("skipped") is None:
            found[name[0], case.find("failure") is None and case.find("error") is None] += 1
    return found


def table(found: Counter[tuple[str, bool]]) -> str:
    """One row for each client that ran."""
    rows = ["| client | version | tests that passed |", "|---|---|---:|"]
    for name, title in CLIENTS.items():
        passed, failed = found[name, True], found[name, False]
        if passed + failed:
            rows.append(f"| {title} | {version(name)} | {passed} of {passed + failed} |")
    return "\n".join(rows) + "\n"


def written(text: str, rows: str) -> str:
    """The text of the page with the table in its place."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert found and ended, f"{PAGE.name} has no place for the table"
    return before + BEGIN + rows + END + after


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), table(counts(Path(sys.argv[1])))))
