"""A user over TLS with quotas, by librdkafka: this process cannot load a core that has a sanitizer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from tests.harness import HOST

USER, PASSWORD, MECHANISM = "ann", "secret", "SCRAM-SHA-256"
TOPIC = "secured"
VALUE_BYTES = 5000
PAUSE_S = 0.02
END_S_MAX = 120.0


class User(threading.Thread):
    """Writes records and reads them all back, on a new connection each time; `problems` has what was wrong."""

    def __init__(self, port: int, ca: Path) -> None:
        super().__init__(name="secured user", daemon=True)
        self.login: dict[str, Any] = {
            "bootstrap.servers": f"{HOST}:{port}", "security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISM,
            "sasl.username": USER, "sasl.password": PASSWORD, "ssl.ca.location": str(ca), "log_level": 0,
        }  # fmt: skip
        self.ended = threading.Event()
        self.problems: list[str] = []
        self.read = 0

    def run(self) -> None:
        try:
            self.use()
        except Exception as problem:
            self.problems.append(repr(problem))

    def use(self) -> None:
        acked: list[int] = []
        producer = ck.Producer({**self.login, "enable.idempotence": True, "batch.size": 50_000})

        def told(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is not None:
                self.problems.append(str(error))
            acked.append(message.offset() or 0)

        sent = 0
        while not self.ended.wait(PAUSE_S):
            producer.produce(TOPIC, b"%d " % sent + bytes(VALUE_BYTES), partition=0, on_delivery=told)
            sent += 1
            producer.poll(0)
            if sent % 50 == 0:
                self.check(len(acked))
        if producer.flush(END_S_MAX):
            self.problems.append("what was sent is not acknowledged")
        if acked != list(range(sent)):
            self.problems.append(f"{sent} were sent, and acknowledged at {acked}")
        self.check(sent)

    def check(self, least: int) -> None:
        """Check that all acknowledged records are read in order."""
        found: list[int] = []
        until = time.monotonic() + END_S_MAX
        consumer = ck.Consumer({**self.login, "group.id": "nobody", "enable.auto.commit": False})
        try:
            consumer.assign([ck.TopicPartition(TOPIC, 0, ck.OFFSET_BEGINNING)])
            while len(found) < least and time.monotonic() < until:
                found += [int((each.value() or b"").partition(b" ")[0]) for each in consumer.consume(500, 0.2)]
        finally:
            consumer.close()
        if found[:least] != list(range(least)):
            self.problems.append(f"{least} were acknowledged, and {len(found)} read: {found[:least]}")
        self.read += len(found)

    def end(self) -> list[str]:
        self.ended.set()
        self.join(2 * END_S_MAX)
        return self.problems if not self.is_alive() else [f"{self.name} does not end"]
