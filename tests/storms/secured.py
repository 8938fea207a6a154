"""A user who logs in over TLS, and is held by quotas, while a storm goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from pybroker import Consumer
from pybroker.client.admin import Admin
from pybroker.testing.certificates import Authority
from tests.harness import HOST, free_port

USER, PASSWORD, MECHANISM = "ann", "secret", "SCRAM-SHA-256"
TOPIC = "secured"
QUOTAS = {"producer_byte_rate": 200_000.0, "consumer_byte_rate": 2_000_000.0, "request_percentage": 50.0}
VALUE_BYTES = 5000
PAUSE_S = 0.02
END_S_MAX = 120.0


def listeners(home: Path, port: int) -> dict[str, object]:
    """Settings of a broker with one listener in the open, one of TLS, and one where users log in as well."""
    authority = Authority()
    own = authority.sign("localhost")
    (home / "broker.pem").write_bytes(own.key + own.chain)
    (home / "ca.pem").write_bytes(authority.certificate)
    at = {"OPEN": port, "TLS": free_port(), "USERS": free_port()}
    return {
        "listeners": ",".join(f"{name}://{HOST}:{each}" for name, each in at.items()),
        "listener.security.protocol.map": "OPEN:PLAINTEXT,TLS:SSL,USERS:SASL_SSL",
        "inter.broker.listener.name": "OPEN", "sasl.enabled.mechanisms": MECHANISM,
        "ssl.keystore.type": "PEM", "ssl.keystore.location": home / "broker.pem",
    }  # fmt: skip


def port_of(sets: dict[str, object], name: str) -> int:
    (found,) = (each for each in str(sets["listeners"]).split(",") if each.startswith(f"{name}://"))
    return int(found.rpartition(":")[2])


def prepare(port: int) -> None:
    """Make the user, whom quotas hold."""
    with Admin(f"{HOST}:{port}") as admin:
        admin.set_password(USER, PASSWORD, [MECHANISM])
        admin.alter_quotas((("user", USER),), QUOTAS)


class User(threading.Thread):
    """Writes by librdkafka, and reads all of it back with a client of ours, a new one each time; `problems` says what
    was wrong."""

    def __init__(self, port: int, ca: Path) -> None:
        super().__init__(name="secured user", daemon=True)
        self.bootstrap, self.ca = f"{HOST}:{port}", ca
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
        producer = ck.Producer({
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISM,
            "sasl.username": USER, "sasl.password": PASSWORD, "ssl.ca.location": str(self.ca),
            "enable.idempotence": True, "batch.size": 50_000, "log_level": 0,
        })  # fmt: skip

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
        """All that was acknowledged is read, in order."""
        login: dict[str, Any] = {
            "security_protocol": "SASL_SSL", "sasl_mechanism": MECHANISM, "sasl_username": USER,
            "sasl_password": PASSWORD, "ssl_cafile": str(self.ca),
        }  # fmt: skip
        found: list[int] = []
        until = time.monotonic() + END_S_MAX
        with Consumer(bootstrap_servers=self.bootstrap, **login) as consumer:
            consumer.assign([(TOPIC, 0)])
            consumer.seek_to_beginning()
            while len(found) < least and time.monotonic() < until:
                found += [int(bytes(r.value or b"").partition(b" ")[0]) for r in consumer.poll(timeout_ms=1000)]
        if found[:least] != list(range(least)):
            self.problems.append(f"{least} were acknowledged, and {len(found)} read: {found[:least]}")
        self.read += len(found)

    def end(self) -> list[str]:
        self.ended.set()
        self.join(2 * END_S_MAX)
        return self.problems if not self.is_alive() else [f"{self.name} does not end"]
