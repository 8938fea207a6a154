"""The examples of docs/client.md run unchanged, and its table of settings is right."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pybroker.client.admin import Admin
from pybroker.client.settings import CONSUMER, PRODUCER
from tests.client.kit import create
from tests.harness import ROOT, Server

PAGE = (ROOT / "docs/client.md").read_text()
EXAMPLES = dict(re.findall(r"^## ([\w ]+)\n.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
ORDER = (
    "A first program", "The same for asyncio", "Send", "Send columns", "Read", "Keys and values as objects",
    "Read columns", "Read a log directory", "With asyncio", "Administer",
)  # fmt: skip

ENDLESS = ("Transactions",)
"""An example that runs until it is stopped; tests/client/test_transactions.py does the same."""

TOPICS = ("greetings", "orders", "numbers", "readings", "events")


@pytest.fixture(scope="module")
def server(shared_broker: Server) -> Iterator[Server]:
    """A broker with the topics of the page, which other pages use as well."""
    for topic in TOPICS:
        create(shared_broker, topic)
    yield shared_broker
    with Admin(shared_broker.bootstrap) as admin:
        for topic in TOPICS:
            admin.delete_topic(topic)


def test_the_examples_run(server: Server) -> None:
    """The page's examples run in order, as a reader would try them, and print what the page shows."""
    assert tuple(name for name in EXAMPLES if name not in ENDLESS) == ORDER
    said = {}
    for name in ORDER:
        source = EXAMPLES[name].replace("localhost:9092", server.bootstrap)
        source = source.replace("data/orders-0", str(server.partition_dir("orders")))
        command = [sys.executable, "-W", "error", "-c", source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        said[name] = done.stdout
    lines = [f"{n} b'ann' {{'n': {n % 3}}}" for n in range(6)]
    assert said["A first program"].splitlines() == lines[:3]
    assert said["The same for asyncio"].splitlines() == lines[3:]
    assert said["Keys and values as objects"] == "7 {'squared': 49}\n"
    assert "RecordMetadata(topic='orders', partition=0, offset=0" in said["Send"]
    assert "0 b'ann' b'14' [('source', b'web')]" in said["Read"]
    assert said["Read columns"].startswith("1003 ['topic', 'partition', 'offset'") and "b'21.5'" in said["Read columns"]
    rows, table = said["Read a log directory"].splitlines()
    assert rows.startswith("[{'offset': 0, 'key': b'ann', 'value': b'14'}, {'offset': 1, 'key': b'bob'")
    assert table.startswith("1 ['topic', 'partition', 'offset', 'timestamp'")
    assert said["With asyncio"].startswith("0\n[Record(topic='events'")
    topics, start = said["Administer"].splitlines()
    assert "'payments'" in topics and start == "{TopicPartition(topic='orders', partition=0): 1}"


def test_the_table_of_settings() -> None:
    """The table's settings exist and have these defaults."""
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.MULTILINE)
    assert len(rows) >= 10
    for name, default in rows:
        assert {**CONSUMER, **PRODUCER}[name].default == default, name
