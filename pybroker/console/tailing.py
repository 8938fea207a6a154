"""The live tail: new records of a topic as server-sent events, as many as a person can see.

A step reads for a tenth of a second, and leaves out what it cannot show. A tail that falls behind goes on at the end,
and counts what it skipped: neither the broker nor the browser pays for records that are not seen.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Final

from starlette.concurrency import run_in_threadpool

from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.damaged_records import DamagedRecords
from pybroker.console.clients import ViewerClients
from pybroker.console.filters import RecordFilter
from pybroker.console.rendering import RecordView, ShownRecord, shown_record
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.operations.times import time_text

STEP_MS: Final = 100
STEP_RECORDS_MAX: Final = 1000
FETCH_BYTES_MAX: Final = 64 << 10
"""Bytes of a fetch: a tail that falls behind throws most of them away."""
SHOWN_MAX: Final = 20
"""Records in an event."""
BEHIND_MAX: Final = 5000
"""Offsets behind the end, from which on a tail skips to it."""
VALUE_MAX: Final = 2000
QUIET_STEPS_MAX: Final = 10
"""Steps after which an event is sent without records: it shows a browser that has left."""


class RecordTail:
    """The new records of a topic, or of one of its partitions."""

    def __init__(
        self, consumer: Consumer, topic: str, partition: int | None, wanted: RecordFilter, view: RecordView
    ) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._view = view
        numbers = [p for p in consumer.partitions_for(topic) if partition in (None, p)]
        self._partitions = [TopicPartition(topic, number) for number in numbers]
        self._read = self._matched = self._skipped = 0
        consumer.assign(self._partitions)
        for tp, end in consumer.end_offsets(self._partitions).items():
            consumer.seek(tp, end)

    def step(self) -> dict[str, object]:
        """Read for a tenth of a second; return the records to show, and what was read and left out until now."""
        try:
            batch = self._consumer.poll(STEP_MS, STEP_RECORDS_MAX)
        except DamagedRecords as damage:
            self._consumer.seek(damage.partition, damage.next_offset or damage.offset + 1)
            batch = []
        matching = [record for record in batch if self._wanted.matches(record)]
        self._read += len(batch)
        self._matched += len(matching)
        self._skip()
        return {
            "read": self._read, "matched": self._matched, "skipped": self._skipped,
            "records": [_row(shown_record(record, self._view, VALUE_MAX)) for record in matching[-SHOWN_MAX:]],
        }  # fmt: skip

    def _skip(self) -> None:
        """Go on at the end if more records wait than a person can see."""
        behind = {tp: lag for tp, lag in self._consumer.lag().items() if lag}
        if sum(behind.values()) > BEHIND_MAX:
            for tp, lag in behind.items():  # the ends of the last fetch: the broker is not asked for them
                self._skipped += lag
                self._consumer.seek(tp, self._consumer.position(tp) + lag)

    def close(self) -> None:
        """Close the consumer, on a thread of its own: an event loop calls this."""
        threading.Thread(target=self._consumer.close, name="end of a tail", daemon=True).start()


def _row(record: ShownRecord) -> dict[str, object]:
    return {
        "partition": record.partition, "offset": record.offset, "time": time_text(record.timestamp_ms),
        "key": record.key.text or record.key.note, "value": record.value.text or record.value.note,
        "note": record.value.note if record.value.text else "",
    }  # fmt: skip


class TailEvents:
    """The events of tails; so many at the same time."""

    def __init__(self, most: int) -> None:
        self._free = most

    @property
    def is_full(self) -> bool:
        return self._free <= 0

    async def events(
        self, clients: ViewerClients, topic: str, partition: int | None, wanted: RecordFilter, view: RecordView
    ) -> AsyncIterator[str]:
        """Yield events until the browser leaves, the viewer logs out or the cluster refuses."""
        self._free -= 1
        tail: RecordTail | None = None
        consumer: Consumer | None = None
        try:
            consumer = await run_in_threadpool(clients.consumer, FETCH_BYTES_MAX)
            tail = await run_in_threadpool(RecordTail, consumer, topic, partition, wanted, view)
            yield event("begin", {})
            quiet = 0
            loop = asyncio.get_running_loop()
            while not clients.is_closed:
                begun_s = loop.time()
                found = await run_in_threadpool(tail.step)
                quiet += 1
                if found["records"] or quiet >= QUIET_STEPS_MAX:
                    quiet = 0
                    yield event("records", found)
                await asyncio.sleep(max(0.0, begun_s + STEP_MS / 1000 - loop.time()))
        except KafkaError as error:
            yield event("problem", {"words": error.message})
        finally:
            self._free += 1
            if tail is not None:
                tail.close()
            elif consumer is not None:
                threading.Thread(target=consumer.close, name="end of a tail", daemon=True).start()


def event(name: str, document: dict[str, object]) -> str:
    """Return a server-sent event; JSON has no line end of its own."""
    return f"event: {name}\ndata: {json.dumps(document)}\n\n"
