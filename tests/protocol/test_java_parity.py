"""Kafka reads what we write and writes the same bytes, also for messages between brokers and of internal topics."""

from __future__ import annotations

import random
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pybroker.core import ByteColumn, partitions_of
from pybroker.protocol import codec, messages
from tests.java import peers
from tests.protocol.values import VERSIONS, sample

PARITY = Path(__file__).with_name("Parity.java")
SAMPLES = 3

# Versions newer than either Kafka, which kafka-python's schemas have.
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
def keys() -> list[tuple[str, str]]:
    """(title, hex) of keys of every length up to 40 and some longer, each for some number of partitions."""
    rng = random.Random("keys")
    sizes = [*(size for size in range(41) for _ in range(10)), *(rng.randrange(1000) for _ in range(100))]
    counts = [1, 2, 3, 6, 100, 2**31 - 1]
    return [(f"partition {rng.choice(counts)}", rng.randbytes(size).hex()) for size in sizes]


@cache
def answers(version: str) -> list[str]:
    """The output of that Kafka for each sample, keys last."""
    try:
        libs = peers.jars(version)
    except peers.MissingJava as missing:
        pytest.skip(str(missing))
    command = ["java", "-Xmx256m", *peers.QUICK_START, "-cp", f"{libs}/*", str(PARITY)]
    lines = "".join(f"{title} {data}\n" for title, data in written() + keys())
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()


@pytest.mark.java
@pytest.mark.xdist_group("java-parity")
@pytest.mark.parametrize("version", peers.VERSIONS)
def test_kafka_writes_the_same_bytes(version: str) -> None:
    pairs = list(zip(written(), answers(version)[: -len(keys())], strict=True))
    assert [(title, data, answer) for (title, data), answer in pairs if answer not in (data, "absent")] == []
    assert sum(answer != "absent" for _, answer in pairs) > 400 * SAMPLES


@pytest.mark.java
@pytest.mark.xdist_group("java-parity")
def test_one_kafka_or_the_other_has_every_message_and_version() -> None:
    """One of two Kafkas has each message and version: 3.9 those of ZooKeeper mode, 4.1 the newest ones."""
    rows = zip(written(), *(answers(version)[: -len(keys())] for version in peers.VERSIONS), strict=True)
    assert {title for (title, _), *both in rows if set(both) == {"absent"}} == NEWER


@pytest.mark.java
@pytest.mark.xdist_group("java-parity")
@pytest.mark.parametrize("version", peers.VERSIONS)
def test_keys_go_to_the_partitions_that_kafkas_producer_chooses(version: str) -> None:
    ours = []
    for title, key in keys():
        column = ByteColumn.of_list([bytes.fromhex(key)])
        [partition] = np.frombuffer(partitions_of(column, int(title.split()[1])), np.int32)
        ours.append(str(partition))
    assert ours == answers(version)[-len(keys()) :]
