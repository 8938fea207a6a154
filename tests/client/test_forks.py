"""Clients in a forked process: each call fails at once, as the client is the parent's, and the parent's clients go
on."""

from __future__ import annotations

import subprocess
import sys

from tests.client.kit import create, fill, read_all
from tests.harness import ROOT, Server

CHILD = """
import asyncio, os, sys, threading
import pybroker

bootstrap, topic = sys.argv[1:]
where = {"bootstrap_servers": bootstrap}
producer = pybroker.Producer(**where, linger_ms=60_000)
consumer, admin = pybroker.Consumer(**where), pybroker.Admin(bootstrap)
producer.partitions_for(topic)
consumer.assign([(topic, 0)])
consumer.seek_to_beginning()
consumer.position((topic, 0))
admin.topics()
connection = admin.cluster.any()


async def twins():
    return pybroker.AsyncProducer(**where), pybroker.AsyncConsumer(**where)


async_producer, async_consumer = asyncio.run(twins())
asyncio.run(async_producer.partitions_for(topic))
called = []
delivery = producer.send(topic, "parent", on_delivery=called.append)
held, go = threading.Event(), threading.Event()


def hold():  # a thread that has the producer's lock while the process forks
    with producer._accumulator._changed:
        held.set()
        go.wait()


holder = threading.Thread(target=hold)
holder.start()
held.wait()
member = pybroker.Consumer(**where, group_id=topic)
member.commit({(topic, 0): 0})
member._network.loop.call_soon(go.wait)  # so the next commit is under way while the process forks
commit = member.commit_async({(topic, 0): 1})
pid = os.fork()
if pid:
    go.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    admin.topics()
    producer.close()
    asyncio.run(async_producer.close())
    asyncio.run(async_consumer.close())
    assert commit.result(30) is None
    member.close()
    assert delivery.result(0).offset == 1 and called == [delivery]
    assert [next(consumer).value for _ in range(2)] == [b"child", b"parent"]
    consumer.close()
    sys.exit()

for name, call in {
    "send": lambda: producer.send(topic, "child"),
    "send_columns": lambda: producer.send_columns(topic, ["child"]),
    "partitions_for": lambda: producer.partitions_for(topic),
    "flush": producer.flush,
    "result": delivery.result,
    "result of a commit": commit.result,
    "exception of a commit": commit.exception,
    "poll": lambda: consumer.poll(1000),
    "next": lambda: next(consumer),
    "assign": lambda: consumer.assign([(topic, 0)]),
    "position": lambda: consumer.position((topic, 0)),
    "end_offsets": lambda: consumer.end_offsets([(topic, 0)]),
    "topics": admin.topics,
    "request": lambda: connection.request(pybroker.client.net.metadata.m.MetadataRequest(topics=[])),
    "async send": lambda: async_producer.send(topic, "child").send(None),
    "async flush": lambda: async_producer.flush().send(None),
    "async poll": lambda: async_consumer.poll(1000).send(None),
    "async seek": lambda: async_consumer.seek((topic, 0), 1).send(None),
}.items():
    try:
        found = call()
    except pybroker.KafkaError as error:
        found = error.message
    print(f"{name}: {found}")
producer.close()
consumer.close()
with pybroker.Producer(**where) as its_own:
    its_own.send(topic, "child").result(30)
print("called:", called)
"""


def test_a_forked_child_is_told_at_once(shared_broker: Server, topic: str) -> None:
    """A forked child's call of its parent's client is refused in one sentence. A client of its own works, and the
    parent's pending records arrive once."""
    create(shared_broker, topic)
    command = [sys.executable, "-c", CHILD, shared_broker.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    *refused, called = done.stdout.splitlines()
    assert len(refused) == 18 and called == "called: []"
    for line in refused:
        assert "was made before a fork and works in the parent process only: make one in the child" in line
    assert [record.value for record in read_all(shared_broker, topic, 2)] == [b"child", b"parent"]


ITERATING = """
import os, sys
import pybroker

bootstrap, topic = sys.argv[1:]
with pybroker.Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
    loop = iter(consumer)
    assert [next(loop).offset for _ in range(3)] == [0, 1, 2]
    pid = os.fork()
    if not pid:
        try:
            found = next(loop)
        except pybroker.KafkaError as error:
            os._exit(7 if "was made before a fork" in error.message else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert [next(loop).offset for _ in range(3)] == [3, 4, 5]
"""


def test_a_loop_ends_in_a_forked_child(shared_broker: Server, topic: str) -> None:
    """A loop over records ends in a forked child, although records are buffered: they are the parent's, whose loop goes
    on."""
    create(shared_broker, topic)
    fill(shared_broker, topic, 0, [b"x"] * 10)
    command = [sys.executable, "-c", ITERATING, shared_broker.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
