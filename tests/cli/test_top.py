"""`pybroker top`: rates between two looks, what is shown of them, and that a broker that is gone ends nothing."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from pybroker.cli.top import rates, screen
from pybroker.cli.top.broker_metrics import counts
from pybroker.cli.top.reading import BrokerReading, GroupReading, Reading
from pybroker.client.admin import Admin, LogDir, Replica
from pybroker.client.admin.reassignments import PartitionReassignment
from pybroker.client.net.metadata import Node, PartitionInfo, TopicInfo
from pybroker.model import TopicPartition
from pybroker.operations.each_broker import Unanswered
from pybroker.operations.health import ClusterHealth
from pybroker.testing import ClusterHandle
from tests.cli.conftest import Command, run
from tests.cli.members import write
from tests.harness import HOST, ROOT, BrokerProcess, Server, free_port
from tests.rows import with_each

METRICS = """# HELP pybroker_requests_total x
pybroker_plane_bytes_in_total {0}
pybroker_plane_bytes_out_total {0}
pybroker_requests_total{{api="Fetch",plane="native"}} {0}
pybroker_requests_total{{api="Metadata",plane="python"}} {0}
pybroker_topic_bytes_in_total{{topic="a \\"b\\\\c"}} {0}
pybroker_plane_request_seconds_bucket{{api="Produce",le="0.001"}} {0}
pybroker_plane_request_seconds_bucket{{api="Produce",le="0.01"}} {1}
pybroker_plane_request_seconds_bucket{{api="Produce",le="+Inf"}} {1}
pybroker_request_seconds_bucket{{api="Produce",le="0.5"}} {0}
pybroker_request_seconds_bucket{{api="Produce",le="+Inf"}} {0}
pybroker_request_seconds_bucket{{api="Fetch",le="0.5"}} {0}
pybroker_request_seconds_bucket{{api="Metadata",le="0.5"}} 0
pybroker_request_seconds_bucket{{api="Metadata",le="+Inf"}} {0}
"""


def reading(at_s: float, end: int, metrics: str | None, *, gone: bool = False) -> Reading:
    """One look at two brokers, one of them perhaps gone, with a topic of one partition, led by broker 1."""
    nodes = (Node(1, "one", 9092, "r"), Node(2, "two", 9092, None))
    partition = PartitionInfo(partition=0, error=0, leader=1, leader_epoch=1, replicas=(1, 2), isr=(1,))
    topic = TopicInfo(name='a "b\\c', id=bytes(16), error=0, internal=False, partitions=(partition,))
    tp = TopicPartition(topic.name, 0)
    dirs = [LogDir(1, "/d", 0, 1000, 400, (Replica(tp, 70, 0, False),))]
    return Reading(
        at_s, ClusterHealth("c", 1, nodes, (topic,), {topic.name: 1}),
        {
            1: BrokerReading({tp: end}, dirs, None if metrics is None else counts(metrics), ()),
            2: Unanswered("no route") if gone else BrokerReading({}, None, None, ()),
        },
        [GroupReading("g", "Stable", 5), GroupReading("h", "", None)],
        {tp: PartitionReassignment((2, 1), (2,), ())}, ["broker 2 does not answer: no route"] if gone else [],
    )  # fmt: skip


def test_two_looks_make_rates() -> None:
    """Counters become rates, and the time within which 99 % of requests were answered comes from what was added."""
    before, after = reading(10, 100, METRICS.format(100, 100)), reading(12, 300, METRICS.format(200, 20100), gone=True)
    shown = rates.document(before, after)
    one, two = shown["brokers"]
    assert (one["bytes_in_per_s"], one["bytes_out_per_s"], one["requests_per_s"]) == (50, 50, 100)
    assert one["p99_ms"] == {"Produce": 500.0}, "Fetch waits by design; Metadata took longer than the last bound"
    assert (one["leaders"], one["replicas"], one["in_sync"], one["answers"]) == (1, 1, 1, True)
    assert one["log_dirs"][0] | {"path": "/d"} == {
        "path": "/d", "error": None, "total_bytes": 1000, "usable_bytes": 400, "size_bytes": 70
    }  # fmt: skip
    assert (two["answers"], two["in_sync"], two["bytes_in_per_s"], two["p99_ms"]) == (False, 0, None, None)
    (topic,) = shown["topics"]
    assert topic == {
        "topic": 'a "b\\c', "internal": False, "partitions": 1, "troubled": 1, "records_per_s": 100.0,
        "bytes_in_per_s": 50.0, "bytes_out_per_s": None, "size_bytes": 70,
    }  # fmt: skip
    assert shown["groups"] == [{"group": "g", "state": "Stable", "lag": 5}, {"group": "h", "state": "", "lag": None}]
    assert shown["reassignments"] == [
        {"topic": 'a "b\\c', "partition": 0, "replicas": [2, 1], "adding": [2], "removing": []}
    ]
    assert shown["problems"] == ["broker 2 does not answer: no route"]


@with_each(
    ("before", "after", "seconds", "rate"),
    [(0, 10, 2, 5.0), (None, 10, 2, None), (0, None, 2, None), (10, 5, 2, None), (0, 1, 0, None)],
)
def test_a_rate(before: float | None, after: float | None, seconds: float, rate: float | None) -> None:
    """A count that is lower than before is of a broker that was restarted: no rate."""
    assert rates.per_s(before, after, seconds) == rate


def test_a_screen_has_room_for_each_table() -> None:
    """Brokers are whole if there is room, and what a table does not need is left to the others."""
    assert screen.shares([3, 100, 100, 100], [0, 0.5, 0.3, 0.2], 75) == [3, 30, 18, 12]
    assert screen.shares([3, 2, 1, 100], [0, 0.5, 0.3, 0.2], 75) == [3, 2, 1, 57]
    assert screen.shares([3, 100, 2, 1], [0, 0.5, 0.3, 0.2], 75) == [3, 57, 2, 1]
    assert sum(screen.shares([50, 100], [0, 1], 20)) <= 14
    assert screen.shares([3], [0], 0) == [0]


@with_each("height", [1, 5, 10, 24, 60])
def test_a_frame_fits(height: int) -> None:
    """A frame is no higher than the terminal, and names of any content do no harm to it."""
    made = rates.document(reading(1, 1, METRICS.format(1, 1)), reading(2, 2, METRICS.format(2, 2), gone=True))
    made["topics"] = [{**made["topics"][0], "topic": f"\x1b[2J[red]{n}"} for n in range(100)]
    made["problems"] = [f"no\x1b[2J {n}" for n in range(2 if height < 24 else 9)]
    console = Console(width=100, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(screen.frame(made, "topic", "12:00:00", height))
    lines = captured.get().splitlines()
    assert "\x1b[2J" not in captured.get() and all(len(line) <= 100 for line in lines)
    if height >= 24:
        assert len(lines) <= height and "\\x1b[2J[red]0" in captured.get() and "and " in captured.get()


@pytest.fixture
def writes(target: Server, topic: str, pybroker_: Command) -> Iterator[str]:
    """A topic that is written to while the test runs, with a group that has read its first record."""
    assert pybroker_("topics", "create", topic, "-p", 2).code == 0
    over = threading.Event()

    def keep_writing() -> None:
        while not over.wait(0.02):
            write(target.bootstrap, topic, 10, partition=1)

    write(target.bootstrap, topic, 10, partition=1)
    thread = threading.Thread(target=keep_writing)
    thread.start()
    read = ("consume", topic, "--group", f"of-{topic}", "--from-beginning", "--max-messages", 1, "--timeout", 30)
    assert pybroker_(*read).code == 0
    yield topic
    over.set()
    thread.join()


def test_one_look(writes: str, pybroker_: Command, target: Server) -> None:
    """--once shows the rates of one interval, against any broker; --json as a document."""
    shown = pybroker_("top", "--once", "--json", "--interval", 1).json
    assert shown["problems"] == [] and shown["brokers"][0]["port"] == target.port
    (topic,) = [each for each in shown["topics"] if each["topic"] == writes]
    assert topic["records_per_s"] > 0 and topic["size_bytes"] > 0 and topic["partitions"] == 2
    (group,) = [each for each in shown["groups"] if each["group"] == f"of-{writes}"]
    assert group["lag"] > 0
    assert shown["brokers"][0]["log_dirs"][0]["usable_bytes"] > 0
    lines = pybroker_("top", "--once", "--interval", 0.2, "--sort", "topic").out.splitlines()
    assert lines[0].startswith(f"Cluster {shown['cluster']}  controller ")
    assert lines[0].endswith(": each replica in sync")
    assert [line.split()[0] for line in lines if line[:1].isupper()] == ["Cluster", "BROKER", "TOPIC", "GROUP"]


def test_what_metrics_add(start_broker: Callable[..., BrokerProcess]) -> None:
    """With a metrics.listener bytes and requests have rates."""
    broker = start_broker(sets={"metrics.listener": f"{HOST}:{free_port()}"})
    at = f"{HOST}:{broker.port}"
    assert run("topics", "create", "t", "-b", at).code == 0
    write(at, "t", 10)
    shown = run("top", "--once", "--json", "--interval", 0.3, "-b", at).json
    (own,) = shown["brokers"]
    assert own["requests_per_s"] > 0 and own["bytes_in_per_s"] > 0 and "ApiVersions" in own["p99_ms"]
    assert next(each for each in shown["topics"] if each["topic"] == "t")["bytes_in_per_s"] == 0


def test_wrong_uses() -> None:
    assert "add --once" in run("top", "-b", f"{HOST}:1").sentence
    assert "could not reach" in run("top", "--once", "--timeout", 1, "-b", f"{HOST}:1").sentence


class Screen:
    """`pybroker top` on a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self.terminal, other = pty.openpty()
        command = [sys.executable, "-m", "pybroker", "top", *map(str, arguments)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=subprocess.PIPE, cwd=ROOT, env=environment
        )
        os.close(other)
        self.text = ""

    def wait_for(self, pattern: str) -> None:
        """Read until what was shown since the last call matches the pattern."""
        seen, deadline_s = "", time.monotonic() + 60
        while not re.search(pattern, seen, re.DOTALL):
            assert time.monotonic() < deadline_s, seen[-3000:]
            if select.select([self.terminal], [], [], 1)[0]:
                seen += os.read(self.terminal, 1 << 16).decode(errors="replace")
        self.text += seen

    def press(self, key: str) -> None:
        os.write(self.terminal, key.encode())

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit code, and what it wrote to standard error."""
        _, said = self.process.communicate(timeout=30)
        os.close(self.terminal)
        return self.process.returncode, said.decode()


@pytest.fixture
def two() -> Iterator[ClusterHandle]:
    import pybroker.testing

    with pybroker.testing.cluster(brokers=2, mode="subprocess") as made:
        yield made


def test_a_broker_that_is_silent_holds_up_no_key(two: ClusterHandle) -> None:
    """A broker that answers nothing is named, and keys work while it is waited for. Ctrl-C ends the view, too."""
    with Admin(two.bootstrap_servers) as admin:
        first, second = admin.describe_cluster().nodes
    view = Screen("-b", f"{first.host}:{first.port}", "--interval", 0.2)
    view.wait_for("2 brokers .* UTC")
    two.pause(second.id)
    view.press("ss")
    view.wait_for("s sort: out ")
    view.wait_for(f"broker {second.id} does not answer: ")
    view.process.send_signal(signal.SIGINT)
    assert view.end() == (130, "")
    two.resume(second.id)


def test_a_broker_that_dies_is_a_line(two: ClusterHandle) -> None:
    """The view goes on when a broker dies, also the one that it began with, and says so; when all are gone, too. Keys
    sort and end it."""
    with Admin(two.bootstrap_servers) as admin:
        admin.create_topic("t", partitions=4, replication_factor=2)
        nodes = admin.describe_cluster().nodes
    first: Any = nodes[0]
    view = Screen("-b", f"{first.host}:{first.port}", "--interval", 0.2)
    view.wait_for("2 brokers .* UTC")
    view.press("s")
    view.wait_for("s sort: in ")
    two.kill(first.id)
    view.wait_for(f"broker {first.id} does not answer|under-replicated")
    view.wait_for(r"\d\d:\d\d:\d\d UTC")
    for node in nodes[1:]:
        two.kill(node.id)
    view.wait_for("no broker answers: ")
    view.press("q")
    assert view.end() == (0, "")
