"""The end of a program: unflushed records arrive, or are reported; after Ctrl-C the program may go on."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from pybroker.client.consuming.consumer import Consumer
from pybroker.client.producing import accumulator
from pybroker.client.producing.producer import Producer
from tests.client.kit import create, read_all
from tests.harness import ROOT, Server


def test_what_was_not_flushed_is_flushed(shared_broker: Server, topic: str) -> None:
    """Unflushed records are flushed when the interpreter ends without flush() or close()."""
    create(shared_broker, topic)
    program = (
        "import sys, pybroker\n"
        "producer = pybroker.Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)\n"
        "producer.send(sys.argv[2], 'kept')\n"
    )
    command = [sys.executable, "-c", program, shared_broker.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [record.value for record in read_all(shared_broker, topic, 1)] == [b"kept"]


def test_what_cannot_be_flushed_is_named(
    shared_broker: Server, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that cannot be flushed are reported with their number by partition, at the interpreter's end and by a
    close() without waiting."""
    create(shared_broker, topic, partitions=2)
    monkeypatch.setattr(accumulator, "EXIT_S", 0.0)
    producer = Producer(bootstrap_servers=shared_broker.bootstrap, linger_ms=60_000)
    monkeypatch.setattr(accumulator, "_open", {producer._accumulator})
    producer.partitions_for(topic)
    monkeypatch.setattr(producer._sender, "_send_to", lambda leader, candidates: None)
    for partition in (0, 1, 1):
        producer.send(topic, b"", partition=partition)
    sentence = f"no broker has acknowledged, and that may be lost: 1 of {topic}-0, 2 of {topic}-1"
    accumulator._flush_at_exit()
    assert sentence in caplog.text
    caplog.clear()
    producer.close(0)
    assert sentence in caplog.text
    caplog.clear()
    accumulator._flush_at_exit()
    assert not caplog.text


def test_after_ctrl_c_a_client_goes_on() -> None:
    """After Ctrl-C at any place a program may still commit, query, and close."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
            for turn in range(300):
                with pytest.raises(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, 0.0005 + turn % 50 / 1e5)
                    while True:
                        consumer.pause()
                consumer.pause()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
