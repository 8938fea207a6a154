"""Transactions of several libraries side by side: list-append and exact copies."""

from __future__ import annotations

from pybroker.client.producing.producer import Producer
from tests.client.kit import create
from tests.harness import Server, until
from tests.transactions.history import Outcome, TransactionHistory
from tests.transactions.workload import Workload

PARTITIONS = 3
INPUTS = 300
ENOUGH = 40


def filled(target: Server, topic: str) -> dict[int, list[bytes]]:
    """Create the three topics of a workload, and fill the input."""
    inputs = {p: [b"%d-%d" % (p, n) for n in range(INPUTS)] for p in range(PARTITIONS)}
    for name in ("lists", "inputs", "outputs"):
        create(target, f"{topic}-{name}", partitions=PARTITIONS)
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        for partition, values in inputs.items():
            for value in values:
                producer.send(f"{topic}-inputs", value, partition=partition)
    return inputs


def test_what_is_committed_is_there_whole_and_once(target: Server, topic: str) -> None:
    """Appends over partitions are atomic, and copies exact, for pybroker's clients and librdkafka's at once."""
    inputs = filled(target, topic)
    history = TransactionHistory()
    load = Workload(
        target.bootstrap, history, lists=f"{topic}-lists", inputs=f"{topic}-inputs", outputs=f"{topic}-outputs",
        partitions=PARTITIONS,
    )  # fmt: skip
    with load:
        until("all is copied", lambda: load.copied >= INPUTS * PARTITIONS, timeout_s=120)
        until("some are committed", lambda: history.count(Outcome.COMMITTED) >= ENOUGH, timeout_s=120)
        until("some are aborted", lambda: history.count(Outcome.ABORTED) >= ENOUGH // 10, timeout_s=120)
    load.judge(inputs)
