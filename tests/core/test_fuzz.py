"""The native request parser with mutants of every version and requests cut at every byte, and their cost."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.fuzz import Fuzzer, whole
from tests.core.mutants import PRODUCE, VERSIONS, a_batch, fetch, joined, produce
from tests.core.stage import TOPIC_ID, Client, Stage

MUTANTS = 1500
GROWTH_MAX_KB = 64 << 10
REQUESTS = [(api, version) for api, versions in VERSIONS.items() for version in versions]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def resident_kb() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


@pytest.mark.parametrize("seed", range(4))
def test_mutants(tmp_path: Path, seed: int) -> None:
    """Each connection of mutants ends in whole answers that agree with Python's codec, and other connections go on."""
    fuzzer = Fuzzer(tmp_path, seed)
    for _ in range(100):
        fuzzer.one()
    before_kb = resident_kb()
    for number in range(MUTANTS):
        fuzzer.one()
        if number % 100 == 0:
            fuzzer.check_others()
    fuzzer.check_others()
    fuzzer.stage.close()
    assert fuzzer.native > MUTANTS // 20, "most mutants fail at once and show nothing"
    if not os.environ.get("PYBROKER_SANITIZE"):  # a sanitizer keeps freed memory
        assert resident_kb() - before_kb < GROWTH_MAX_KB


@pytest.mark.parametrize(("api", "version"), REQUESTS)
def test_a_request_in_two_writes(stage: Stage, api: int, version: int) -> None:
    """A request cut into two writes at any byte gets the same answer as a whole one."""
    rng = random.Random(1000 * api + version)
    for partition in stage.partitions:
        partition.append(a_batch(rng, plain=True), now_ms=1)
    if api == PRODUCE:
        frame = joined(produce(rng, version, b"t", TOPIC_ID, plain=True))
    else:
        frame = joined(fetch(rng, version, b"t", TOPIC_ID, plain=True))
    sent = struct.pack(">i", len(frame)) + frame
    sizes = set()
    for cut in range(len(sent)):
        client = Client(stage)
        client.sock.sendall(sent[:cut])
        stage.step(1)
        client.sock.sendall(sent[cut:])
        stage.step(1)
        for _ in range(100):  # a Fetch may wait for max_wait_ms
            if not client.quiet():
                break
            stage.plane.step(0, 10)
        (answer,) = whole(client.sock.recv(1 << 20))
        assert answer[:4] == frame[4:8]
        sizes.add(len(answer))
        client.sock.close()
        stage.step(1)
        assert not [letter for letter in stage.plane.take() if letter[0] == "request"]
    assert len(sizes) == 1


def test_requests_cut_anywhere_in_a_stream(stage: Stage) -> None:
    """Forty requests in writes of random sizes get forty answers in order."""
    rng = random.Random(1)
    sent = b""
    for number in range(40):
        frame = joined(produce(rng, 9, b"t", TOPIC_ID, number, plain=True))
        sent += struct.pack(">i", len(frame)) + frame
    client, at, data = Client(stage), 0, bytearray()
    while at < len(sent):
        step = rng.choice([1, 3, 4, 5, 60, 700])
        client.sock.sendall(sent[at : at + step])
        at += step
        stage.step(1)
    while not client.quiet():
        data += client.sock.recv(1 << 16)
        stage.step(1)
    assert [int.from_bytes(answer[:4], "big") for answer in whole(bytes(data))] == list(range(40))
