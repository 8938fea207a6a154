"""The program's own code, called by a client, may raise anything, and the client goes on."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from pybroker import errors
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.net.loop import Loop
from pybroker.client.producing.producer import Delivery, Producer
from pybroker.errors import KafkaError
from tests.client.kit import WAIT_S, create, read_all
from tests.harness import ROOT, Server, until

NO_EXCEPTIONS = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)


@pytest.mark.parametrize("kind", [ValueError, *NO_EXCEPTIONS])
def test_a_delivery_callback_may_raise_anything(
    shared_broker: Server, topic: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """A delivery callback may raise anything: other callbacks of its batch are called, later records are sent, and the
    log has the exception."""
    create(shared_broker, topic)
    called: list[int] = []

    def at(n: int) -> Callable[[Delivery], None]:
        def call(delivery: Delivery) -> None:
            called.append(n)
            if n == 3:
                raise kind("boom")

        return call

    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        for turn in (0, 10):
            for n in range(10):
                with contextlib.suppress(kind):  # of a record that is acknowledged before `send` returns
                    producer.send(topic, b"", on_delivery=at(turn + n))
            producer.flush(WAIT_S)
        assert sorted(called) == list(range(20))

        def logged() -> bool:  # the log has a line a second
            with contextlib.suppress(kind):
                producer.send(topic, b"", on_delivery=at(3))
            producer.flush(WAIT_S)
            return "a delivery callback failed" in caplog.text and kind.__name__ in caplog.text

        until("the log has it", logged)


def test_a_callback_that_is_called_at_once_raises_in_its_caller(shared_broker: Server, topic: str) -> None:
    """A callback that is called at once raises in its caller: sys.exit() in the program's own thread ends the program,
    after all waiting callbacks."""
    create(shared_broker, topic)
    called = []

    def leave(_: Delivery) -> None:
        raise SystemExit(3)

    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        delivery = producer.send(topic, b"")
        producer.flush(WAIT_S)
        with pytest.raises(SystemExit):
            delivery.add_done_callback(leave)
        delivery.add_done_callback(called.append)
    assert called == [delivery]


def test_a_flood_of_failures_is_a_line_a_second(
    shared_broker: Server, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A flood of failures is a line a second: ten thousand failing callbacks do not fill a log, and a later line counts
    the rest."""
    create(shared_broker, topic)

    def fail(_: Delivery) -> None:
        raise ValueError("boom")

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if "a delivery callback failed" in r.getMessage()]

    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        for _ in range(10_000):
            producer.send(topic, b"", on_delivery=fail)
        producer.flush(WAIT_S)
        before = len(lines())
        assert before <= 200, "a line for each of ten thousand"

        def counted() -> bool:
            producer.send(topic, b"", on_delivery=fail)
            producer.flush(WAIT_S)
            return any("more since the last such line" in line for line in lines())

        until("a line counts those that had none", counted)


def test_a_log_handler_may_raise_anything(topic: str) -> None:
    """A log handler may raise anything: the program's handlers that fail on the client's thread stop nothing."""

    class Leaving(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit

    ran = threading.Event()
    handler = Leaving()
    logger = logging.getLogger("pybroker.client")
    logger.addHandler(handler)
    loop = Loop("test")
    try:
        loop.call_soon(lambda: 1 / 0)
        loop.call_soon(ran.set)
        assert ran.wait(WAIT_S) and loop.running
    finally:
        logger.removeHandler(handler)
        loop.close()


@pytest.fixture
def threadless(shared_broker: Server, topic: str) -> Iterator[tuple[Producer, Consumer]]:
    """A producer with a lingering record, and a consumer; their threads are then ended from outside."""
    create(shared_broker, topic)
    producer = Producer(bootstrap_servers=shared_broker.bootstrap, linger_ms=60_000)
    consumer = Consumer(bootstrap_servers=shared_broker.bootstrap)
    consumer.assign([(topic, 0)])
    producer.partitions_for(topic)
    yield producer, consumer
    producer.close()
    consumer.close()


def end_thread(loop: Loop) -> None:
    """Raise SystemExit inside a loop's thread, at any place, and again if the thread goes on, but not while it ends."""

    thread = ctypes.c_ulong(loop._thread.ident or 0)

    def ended() -> bool:
        goes_on = threading.Event()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))
        loop.call_soon(goes_on.set)
        until("it ended or goes on", lambda: goes_on.is_set() or not loop.running)
        return not loop.running

    until("the thread has ended", ended)
    loop._thread.join(WAIT_S)


def test_a_thread_that_ends_all_the_same_is_no_secret(
    threadless: tuple[Producer, Consumer], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that ends unexpectedly is reported: every delivery fails at once, and each later call raises with the
    reason."""
    producer, consumer = threadless
    called = threading.Event()
    delivery = producer.send(topic, b"", on_delivery=lambda _: called.set())
    end_thread(producer._network.loop)
    end_thread(consumer._network.loop)
    with pytest.raises(KafkaError, match="the thread of this producer ended") as caught:
        delivery.result(WAIT_S)
    assert caught.value.code == errors.UNKNOWN_SERVER_ERROR and called.wait(WAIT_S)
    for call in (lambda: producer.send(topic, b""), producer.flush, lambda: producer.partitions_for(topic)):
        with pytest.raises(KafkaError, match="the thread of this producer ended"):
            call()
    for call in (lambda: consumer.poll(60_000), lambda: consumer.end_offsets([(topic, 0)])):
        with pytest.raises(KafkaError, match="the thread of this consumer ended"):
            call()
    assert f"1 of {topic}-0" in caplog.text


WORKER = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import pybroker

where, topic = {"bootstrap_servers": sys.argv[1]}, sys.argv[2]


def work():
    producer = pybroker.Producer(**where, linger_ms=60_000)
    for n in range(1000):
        producer.send(topic, b"%d" % n, partition=0)


if __name__ == "__main__":
    with pybroker.Producer(**where) as parent:  # which the workers inherit, and do not touch
        parent.send(topic, b"parent", partition=0).result(30)
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=work)
        process.start()
        process.join()
        with ProcessPoolExecutor(1, mp_context=fork) as pool:
            pool.submit(work).result()
        assert process.exitcode == 0
"""


def test_a_worker_that_ends_flushes_what_it_sent(shared_broker: Server, topic: str) -> None:
    """A worker of multiprocessing or a ProcessPoolExecutor, which ends by os._exit() without atexit, flushes its
    records."""
    create(shared_broker, topic)
    command = [sys.executable, "-W", "error", "-c", WORKER, shared_broker.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    values = [record.value for record in read_all(shared_broker, topic, 2001)]
    assert values == [b"parent", *[b"%d" % n for n in range(1000)] * 2]
