"""Two reactors with well-behaved and hostile clients, appends from Python, retention, truncation and deletion at once.

The state that the threads share is under load: watermarks, segment lists, the registry, fetch sessions, mailbox and
inboxes, counters. tools/sanitize.py runs this under ThreadSanitizer.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import select
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.logs import NOW
from tests.core.mutants import VERSIONS, fetch, joined, produce, spoil
from tests.core.stage import FETCH, PRODUCE, TOPIC_ID, Client, Stage, batch
from tests.core.system.test_stress import Stress, check, told

ANSWER_S_MAX = 120.0
CONFIG = {"segment.bytes": 4000, "index.interval.bytes": 100, "file.delete.delay.ms": 0, "retention.bytes": 40_000}
FETCH_ERRORS = (0, 1, 3, 6, 56, 70, 71, 75)
LOST = (AssertionError, ConnectionError)
"""Errors of a client whose connection was closed, as requests for Python are here."""


class Running(Stage):
    """A stage whose reactors run in threads; another thread answers each letter by closing the connection."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, reactors=2, partitions=3)
        for partition in self.partitions:
            partition.configure(CONFIG)
        self.home = home
        self.stopping = False
        self.lock = threading.Lock()  # plane commands come from one thread at a time, as from a broker's loop
        self.plane.start()
        self.mail = threading.Thread(target=self.answer)
        self.mail.start()

    def step(self, turns: int = 3) -> None:
        """Do nothing, as the reactors run by themselves."""

    def answer(self) -> None:
        while not self.stopping:
            select.select([self.plane.fileno()], [], [], 0.05)
            for kind, _, token, _ in self.plane.take():
                if kind == "request":
                    self.plane.reply(token, None, close=True)

    def client(self) -> Client:
        with self.lock:
            made = Client(self)
            self.clients.remove(made)
        made.sock.settimeout(ANSWER_S_MAX)
        return made

    def close(self) -> None:
        self.stopping = True
        self.mail.join()
        super().close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.close()


class Users:
    """Well-behaved clients: producers with distinct offsets, consumers with long polls, and consumers with sessions."""

    def __init__(self, stage: Running) -> None:
        self.stage = stage
        self.taken: set[int] = set()
        self.lock = threading.Lock()

    def produce(self, chance: random.Random) -> None:
        """Send several Produces; check that all are answered in order, and that no other producer got their offsets."""
        client = self.stage.client()
        with client.sock:
            for number in range(20):
                client.produce(batch(*[b"v" * chance.randrange(100)] * 2), number=number, partition=1)
            for number in range(20):
                answered, response = client.receive(PRODUCE, 9)
                part = response.responses[0].partition_responses[0]
                assert (answered, part.error_code) == (number, 0)
                with self.lock:
                    assert part.base_offset not in self.taken
                    self.taken.add(part.base_offset)

    def churn(self, chance: random.Random) -> None:
        """Produce to partitions that are truncated, deleted and created; accept any answer or a close."""
        client = self.stage.client()
        with client.sock, contextlib.suppress(*LOST):
            for number in range(10):
                client.produce(batch(b"x" * chance.randrange(200)), number=number, partition=chance.choice([0, 2]))
            for number in range(10):
                assert client.receive(PRODUCE, 9)[0] == number

    def consume(self, chance: random.Random) -> None:
        """Long-poll from a random offset; check that answers are whole batches in order."""
        client, offset = self.stage.client(), chance.randint(0, 50)
        with client.sock:
            for _ in range(10):
                client.fetch(offset, max_wait_ms=chance.choice([0, 5, 50]))
                try:
                    part = client.receive(FETCH, 12)[1].responses[0].partitions[0]
                except LOST:
                    return  # Python had the request
                assert part.error_code in FETCH_ERRORS
                if part.error_code:
                    offset = self.stage.log.log_start_offset
                elif part.records:
                    offset = check(bytes(part.records), offset)

    def sessions(self, chance: random.Random) -> None:
        """Run an incremental Fetch over three partitions, one of which is deleted and recreated."""
        client, session = self.stage.client(), 0
        with client.sock:
            for epoch in range(8):
                offsets = dict.fromkeys(range(3), 0) if not epoch else {}
                client.fetch_in((session, epoch), offsets, max_wait_ms=chance.choice([0, 10]))
                try:
                    response = client.receive(FETCH, 12)[1]
                except LOST:
                    return
                if response.error_code:
                    return
                session = response.session_id


class Others:
    """Sources of trouble: mutants, clients that disconnect, appends and cuts from Python, and reads of statistics."""

    def __init__(self, stage: Running) -> None:
        self.stage = stage
        self.lives = itertools.count()

    def mutate(self, chance: random.Random) -> None:
        client = self.stage.client()
        with client.sock as sock:
            for _ in range(5):
                api = chance.choice([PRODUCE, FETCH])
                pieces = (produce if api == PRODUCE else fetch)(chance, chance.choice(VERSIONS[api]), b"t", TOPIC_ID)
                spoil(pieces, chance)
                frame = joined(pieces)
                try:
                    sock.sendall((struct.pack(">i", len(frame)) + frame)[: chance.choice([1 << 20, 1 << 20, 30])])
                except OSError:
                    return
            if chance.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def leave(self, chance: random.Random) -> None:
        """Send many Fetches, receive few bytes or none, and disconnect."""
        client = self.stage.client()
        with client.sock:
            for _ in range(chance.randint(1, 20)):
                client.fetch(self.stage.log.log_start_offset, max_wait_ms=chance.choice([0, 1000]))
            if chance.random() < 0.5:
                client.sock.recv(100)

    def append(self, chance: random.Random) -> None:
        with told():
            self.stage.log.append(batch(b"python" * chance.randrange(20)), now_ms=NOW)

    def shorten(self, chance: random.Random) -> None:
        """Run retention, DeleteRecords, rolls and flushes on the log that is read, and truncations of one that is not.

        (No leader truncates records that its consumers may see: pages of a range that is being sent would be
        rewritten.)
        """
        log = self.stage.log
        what = chance.randrange(5)
        with told():
            if what == 0:
                log.enforce_retention(NOW)
            elif what == 1:
                log.set_log_start(chance.randint(log.log_start_offset, log.high_watermark))
            elif what == 2:
                log.roll()
            elif what == 3:
                log.flush()
            else:
                with self.stage.lock:
                    other = self.stage.partitions[2]
                    other.truncate(max(other.log_start_offset, other.log_end_offset - chance.randrange(5)))

    def replace(self, _: random.Random) -> None:
        """Delete a partition while clients use it, and create it again."""
        stage = self.stage
        with stage.lock:
            old = stage.partitions[2]
            stage.plane.withdraw(old)
            stage.broker.delete(old)
            made = stage.broker.open(str(stage.home), "t", 2, topic_id=TOPIC_ID, config=CONFIG)
            made.become_leader(next(self.lives), 0)
            stage.plane.publish(made, native_append=True)
            stage.partitions[2] = made

    def look(self, _: random.Random) -> None:
        stats = self.stage.plane.stats()
        assert sum(reactor["connections"] for reactor in stats) >= 0
        assert min(self.stage.log.traffic.values()) >= 0
        assert self.stage.broker.sync_times()["sum_us"] >= 0
        with self.stage.lock:
            self.stage.plane.watch(self.stage.log)


def test_two_reactors_under_everything(stage: Running) -> None:
    """Under everything at once, no client gets a wrong answer, and both reactors go on."""
    users, others, stress = Users(stage), Others(stage), Stress()
    for work in (users.produce, users.churn, users.consume, users.consume, users.sessions, others.mutate, others.leave):
        stress.go(work)
    stress.go(others.append, pause=0.002)
    stress.go(others.shorten, pause=0.005)
    stress.go(others.replace, pause=0.02)
    stress.go(others.look, pause=0.002)
    stress.run()
    stats = stage.plane.stats()
    assert all(reactor["Produce"]["requests"] and reactor["Fetch"]["requests"] for reactor in stats)
    assert stage.partitions[1].log_end_offset > max(users.taken)
