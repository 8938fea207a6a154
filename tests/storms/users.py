"""Clients of a broker in a storm: writers, readers and a group of three libraries, and the judge of their results.

    python -m tests.storms.users PORT SECONDS [PORT CA]

With a second port, a user logs in there over TLS.

They run in a separate process, so that a sanitizer of the broker's process does not slow them. The exit status is 1 if
a rule of `tests.lives.history` was broken, or if a client got nothing done.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from tests.lives.campaign import LIBRARIES
from tests.lives.clients import Reader, Worker, Writer
from tests.lives.groups import ConfluentGroup
from tests.lives.history import History
from tests.storms import secured
from tests.wire import Wire

TOPIC = "storm"
PARTITIONS = 3
CONFIG = {"segment.bytes": "100000", "index.interval.bytes": "500", "flush.messages": "1", "retention.bytes": "2000000",
          "file.delete.delay.ms": "0"}  # fmt: skip
RATE = 50.0
SEED = 1
END_S_MAX = 120.0
READ_S_MAX = 60.0


def use(port: int, seconds: float) -> History:
    """Write and read for `seconds`, then read all records."""
    with Wire(port) as wire:
        assert wire.create_topic(TOPIC, PARTITIONS, CONFIG) == 0
    history = History()
    bootstrap = f"127.0.0.1:{port}"
    clients = [library(bootstrap) for library in LIBRARIES]
    at = (history, TOPIC, PARTITIONS, SEED)
    workers: list[Worker] = [Writer(client, *at, RATE) for client in clients]
    workers += [Reader(client, *at) for client in clients]
    workers.append(ConfluentGroup(bootstrap, *at))
    for worker in workers:
        worker.start()
    time.sleep(seconds)
    for worker in workers:
        worker.ended.set()
    for worker in workers:
        worker.join(END_S_MAX)
        if worker.is_alive():
            history.accuse("client", f"{worker.name} does not end")
    for partition in range(PARTITIONS):
        start, end = clients[0].offsets(TOPIC, partition)
        found: list[tuple[int, bytes | None]] = []
        quiet_until = time.monotonic() + READ_S_MAX
        with clients[0].consumer(TOPIC, {partition: start}, out_of_range="earliest") as consumer:
            while len(found) < end - start and time.monotonic() < quiet_until:
                found += [(record.offset, record.value) for record in consumer.poll(1)]
        history.check_log(partition, found, start, end)
    for client in clients:
        client.close()
    return history


def main() -> int:
    for library in ("aiokafka", "kafka"):  # they log screens of errors about closed connections
        logging.getLogger(library).setLevel(logging.CRITICAL)
    user = None
    if len(sys.argv) > 3:
        user = secured.User(int(sys.argv[3]), Path(sys.argv[4]))
        with Wire(int(sys.argv[1])) as wire:
            assert wire.create_topic(secured.TOPIC, 1, CONFIG | {"retention.bytes": "-1"}) == 0
        user.start()
    history = use(int(sys.argv[1]), float(sys.argv[2]))
    for problem in user.end() if user is not None else ():
        history.accuse("secured", problem)
    print(*history.problems, dict(history.counts), sep="\n")
    return 1 if history.problems or not history.counts["acknowledged"] or not history.counts["read"] else 0


if __name__ == "__main__":
    sys.exit(main())
