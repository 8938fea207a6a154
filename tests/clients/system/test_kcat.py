"""kcat at a prompt, with the older librdkafka of Linux distributions."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.clients.adapters.neutral import CODECS
from tests.harness import Server

HOW = "kcat is not installed: apt-get install kcat, dnf install kcat or brew install kcat"
pytestmark = pytest.mark.skipif(not shutil.which("kcat"), reason=HOW)


def kcat(server: Server, *arguments: str, stdin: str = "") -> str:
    command = ["kcat", "-b", server.bootstrap, "-X", "broker.address.family=v4", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume(target: Server, topic: str, codec: str) -> None:
    """kcat -P produces lines with keys and a header, with any codec, to a topic that this creates; -C consumes them."""
    lines = "".join(f"k{i}:value {i}\n" for i in range(300))
    kcat(target, "-P", "-t", topic, "-K:", "-H", "origin=kcat", "-z", codec, stdin=lines)
    out = kcat(target, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%o|%k:%s|%h\n")
    assert out == "".join(f"{i}|k{i}:value {i}|origin=kcat\n" for i in range(300))


def test_start_from_an_offset_the_end_and_a_time(target: Server, topic: str) -> None:
    """kcat -o takes an absolute offset, an offset from the end, and a time."""
    kcat(target, "-P", "-t", topic, stdin="".join(f"{i}\n" for i in range(100)))
    consume = ["-C", "-t", topic, "-p", "0", "-e", "-q"]
    assert kcat(target, *consume, "-o", "97").split() == ["97", "98", "99"]
    assert kcat(target, *consume, "-o", "-2").split() == ["98", "99"]
    stamp = kcat(target, *consume, "-o", "50", "-c", "1", "-f", "%T").strip()
    first = kcat(target, *consume, "-o", f"s@{stamp}", "-c", "1", "-f", "%T %o").split()
    assert first[0] == stamp
    assert int(first[1]) <= 50
    found = json.loads(kcat(target, "-Q", "-J", "-t", f"{topic}:0:{stamp}"))
    assert found[topic]["0"]["offset"] == int(first[1])


def test_metadata(target: Server, topic: str) -> None:
    """kcat -L lists the brokers and the topic."""
    kcat(target, "-P", "-t", topic, stdin="x\n")
    told = json.loads(kcat(target, "-L", "-J", "-t", topic))
    brokers = {broker["id"]: broker["name"] for broker in told["brokers"]}
    assert sorted(brokers.values()) == sorted(target.bootstrap.split(","))
    (found,) = told["topics"]
    [partition] = found["partitions"]
    assert found["topic"] == topic and partition["leader"] in brokers
    assert sorted(replica["id"] for replica in partition["isrs"]) == sorted(brokers)
