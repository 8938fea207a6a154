"""Clients in a steady state run no Python: Produce and Fetch stay in the native plane."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol.apis import KNOWN
from pybroker.server.api.dispatch import Handler
from tests.clients.adapters.neutral import Client, Record, take
from tests.harness import HOST
from tests.server.live import broker_on

PARTITIONS = 5


class Counted:
    """A broker on a thread that counts the requests of its Python handlers."""

    def __init__(self, data_dir: Path) -> None:
        self.calls: Counter[str] = Counter()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.broker = broker_on(data_dir, through=self._through)
        self._run(self.broker.start())
        self.bootstrap = f"{HOST}:{self.broker.port}"

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def _through(self, table: Mapping[int, Handler]) -> Mapping[int, Handler]:
        def counting(key: int, handler: Handler) -> Handler:
            def by(request: Any, call: Any) -> Any:
                self.calls[KNOWN[key].name] += 1
                return handler.by(request, call)

            return handler._replace(by=by)

        return {key: counting(key, handler) for key, handler in table.items()}

    def close(self) -> None:
        self._run(self.broker.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    made = Counted(tmp_path / "data")
    yield made
    made.close()


def test_a_long_consume_is_native(connect: Callable[[Any], Client], counted: Counted) -> None:
    """A long consume is native: with Produce to five partitions and reads of everything meanwhile, no Python handler
    gets a Produce or a Fetch."""
    client = connect(counted)
    client.create_topic("native", PARTITIONS)
    records = [Record(b"%d" % n, partition=n % PARTITIONS) for n in range(2000)]
    with client.consumer("native", dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=50) as consumer:
        consumer.poll(0.2)
        counted.calls.clear()
        for start in range(0, len(records), 250):
            client.send_all("native", records[start : start + 250], batch_bytes=512)
            assert len(take(consumer, 250)) == 250
            consumer.poll(0.1)  # at the end, where it waits
    seen = {name: n for name, n in counted.calls.items() if name in ("Produce", "Fetch")}
    assert seen == {}
    assert counted.broker.replicas is not None
    stats = counted.broker.replicas.plane_stats()
    assert all(sum(s[api]["requests"] for s in stats) >= 8 for api in ("Fetch", "Produce"))
