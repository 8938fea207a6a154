"""docs/client.md: its examples run as they stand there, and its table tells what is so."""

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
ORDER = ("Send", "Send columns", "Read", "Read columns", "Read a log directory", "With asyncio", "Administer")


TOPICS = ("orders", "readings", "events")


@pytest.fixture(scope="module")
def server(shared_broker: Server) -> Iterator[Server]:
    """With the topics of the page, which other pages name as well."""
    for topic in TOPICS:
        create(shared_broker, topic)
    yield shared_broker
    with Admin(shared_broker.bootstrap) as admin:
        for topic in TOPICS:
            admin.delete_topic(topic)


def test_the_examples_run(server: Server) -> None:
    """One after the other, as somebody would try them; each says what it found."""
    assert tuple(EXAMPLES) == ORDER
    said = {}
    for name in ORDER:
        source = EXAMPLES[name].replace("localhost:9092", server.bootstrap)
        source = source.replace("data/orders-0", str(server.partition_dir("orders")))
        command = [sys.executable, "-W", "error", "-c", source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        said[name] = done.stdout
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
    """Each setting exists, with that default."""
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.MULTILINE)
    assert len(rows) >= 10
    for name, default in rows:
        assert {**CONSUMER, **PRODUCER}[name].default == default, name
