"""Kafka itself reads what we write and writes the same: the messages between brokers and of internal topics too."""

from __future__ import annotations

import random
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol import codec, messages
from tests.java import peers
from tests.protocol.values import VERSIONS, sample

PARITY = Path(__file__).with_name("Parity.java")
SAMPLES = 3

# Versions of definitions newer than either Kafka; kafka-python's schemas have them.
NEWER = {
    *("DescribeLogDirsRequest 5", "DescribeLogDirsResponse 5"),
    *("ListOffsetsRequest 11", "ListOffsetsResponse 11"),
    *("WriteTxnMarkersRequest 2", "WriteTxnMarkersResponse 2"),
}


@cache
def written() -> list[tuple[str, str]]:
    """(title, hex) of samples of every message at every version."""
    made = []
    for name, version in VERSIONS:
        kind: Any = messages.message(name)
        for seed in range(SAMPLES):
            message = sample(kind, version, random.Random(f"{name} {version} {seed}"))
            made.append((f"{name} {version}", codec.encode(message, version).hex()))
    return made


@cache
def answers(version: str) -> list[str]:
    """What that Kafka makes of each of them."""
    try:
        libs = peers.jars(version)
    except peers.MissingJava as missing:
        pytest.skip(str(missing))
    command = ["java", "-Xmx256m", *peers.QUICK_START, "-cp", f"{libs}/*", str(PARITY)]
    lines = "".join(f"{title} {data}\n" for title, data in written())
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()


@pytest.mark.java
@pytest.mark.xdist_group("java-parity")
@pytest.mark.parametrize("version", peers.VERSIONS)
def test_kafka_writes_the_same_bytes(version: str) -> None:
    pairs = list(zip(written(), answers(version), strict=True))
    assert [(title, data, answer) for (title, data), answer in pairs if answer not in (data, "absent")] == []
    assert sum(answer != "absent" for _, answer in pairs) > 400 * SAMPLES


@pytest.mark.java
@pytest.mark.xdist_group("java-parity")
def test_one_kafka_or_the_other_has_every_message_and_version() -> None:
    """3.9 the messages between brokers in ZooKeeper mode, 4.1 the newest versions."""
    rows = zip(written(), *(answers(version) for version in peers.VERSIONS), strict=True)
    assert {title for (title, _), *both in rows if set(both) == {"absent"}} == NEWER
