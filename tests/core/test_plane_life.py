"""A connection belongs to the plane from adopt() on, and its request to Python until it is answered."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import METADATA, Client, Stage

ROOT = Path(__file__).resolve().parents[2]
FREED_IS_FILLED = {"MALLOC_PERTURB_": "85", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""Freed memory is overwritten at once, so that a use after free shows without a sanitizer."""
ALONE, ADOPTIONS = 50, 5000

ADOPT = f"""
import os
import select
import time
from pybroker import core
broker = core.LogManager()
plane = core.Plane(broker)
plane.start()
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {{min(os.sched_getaffinity(0))}})  # the reactor runs when its bell is rung
null = os.open("/dev/null", os.O_RDONLY)  # which epoll does not take: the reactor closes it at once
closed = []
for n in range(1, {ALONE} + 1):  # freed before the next is adopted, which would put the one in order behind the other
    assert plane.adopt(os.dup(null)) == n
    select.select([plane.fileno()], [], [])
    while plane.stats()[0]["connections"]:
        time.sleep(0)
    closed += plane.take()
ids = [plane.adopt(os.dup(null)) for _ in range({ADOPTIONS})]
wanted = list(range({ALONE} + 1, {ALONE} + {ADOPTIONS} + 1))
assert ids == wanted, [pair for pair in zip(ids, wanted) if len(set(pair)) > 1][:5]
while len(closed) < ids[-1] and select.select([plane.fileno()], [], [], 30)[0]:  # one that a stop finds is not told of
    closed += plane.take()
plane.stop()
broker.close()
assert sorted(key for kind, key, _, _ in closed if kind == "closed") == list(range(1, ids[-1] + 1))
"""

LITTLE_MEMORY = """
import resource
import struct
import tempfile
from pathlib import Path
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import METADATA, Client, Stage

BIG = 64 << 20
with tempfile.TemporaryDirectory() as home:
    stage = Stage(Path(home), frame_bytes_max=2 * BIG)
    small, large, last = [Client(stage) for _ in range(3)]
    request = codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None))
    small.send(request)
    stage.step()
    large.sock.setblocking(False)
    frame = memoryview(struct.pack(">i", BIG) + request + bytes(BIG - len(request)))
    while frame:
        frame = frame[large.sock.send(frame):]
        stage.step(1)
    stage.step(100)
    last.send(request)
    stage.step()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + BIG // 2, limits[1]))
    letters = stage.plane.take()
    resource.setrlimit(resource.RLIMIT_AS, limits)
    assert [(key, frame is None) for _, key, _, frame in letters] == [
        (small.id, False), (large.id, True), (last.id, False)], letters
    for _, _, token, frame in letters:
        stage.plane.reply(token, None if frame is None else [b"answer"], close=frame is None)
    stage.step()
    assert small.sock.recv(100) == last.sock.recv(100) == struct.pack(">i", 6) + b"answer"
    large.sock.setblocking(True)
    assert large.sock.recv(1) == b""
    stage.close()
"""

DROPPED = """
import os
import tempfile
from pybroker import core
from tests.core.stage import TOPIC_ID, batch

with tempfile.TemporaryDirectory() as home:
    broker = core.LogManager()
    log = broker.open(home, "t", 0, topic_id=TOPIC_ID, config={})
    log.become_leader(0, 0)
    plane = core.Plane(broker)
    plane.publish(log, native_append=True)
    log.append(batch(b"before"), now_ms=1)
    plane.watch(log)
    del plane
    log.append(batch(b"after"), now_ms=1)
    broker.close()
    del log, broker
    left = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [name for name in left if name.startswith(home)], left
"""


def run(script: str, **env: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_connection_that_ends_while_it_is_adopted() -> None:
    """adopt() returns the id of a connection that the reactor has already freed."""
    run(ADOPT, **FREED_IS_FILLED)


@pytest.mark.skipif("PYBROKER_SANITIZE" in os.environ, reason="sanitizers map more than the test's limit leaves them")
def test_a_request_that_there_is_no_memory_for_is_nobody_elses_loss() -> None:
    """A request without memory for its frame reaches Python as a letter without a frame; other letters are complete."""
    run(LITTLE_MEMORY)


def test_a_plane_that_nobody_stopped_lets_go_of_its_partitions() -> None:
    """A plane that was dropped without stop() releases its partitions: later appends notify no watcher, files close."""
    run(DROPPED, **FREED_IS_FILLED)


def test_a_request_is_answered_once(stage: Stage) -> None:
    """A second answer to a request is refused, also after its connection closed, and so is an unknown token."""
    client = Client(stage)
    client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
    stage.step()
    ((_, _, token, _),) = stage.plane.take()
    stage.plane.reply(token, [b"answer"])
    for _ in range(2):
        with pytest.raises(ValueError, match="waits for an answer"):
            stage.plane.reply(token, [b"again"])
        client.sock.close()
        stage.step()
    with pytest.raises(ValueError, match="waits for an answer"):
        stage.plane.reply(1, None)


def test_a_plane_that_stopped_has_hung_up(stage: Stage) -> None:
    """A stopped plane has closed all its connections, even if a reference keeps it alive.

    That includes a connection that was adopted but never served, and one whose request Python has.
    """
    idle, asking = Client(stage), Client(stage)
    asking.send(codec.encode_request(METADATA, 1, 1, "c", m.MetadataRequest(topics=[])))
    stage.step()
    ((_kind, _, token, _),) = stage.plane.take()
    here, there = socket.socketpair()
    here.setblocking(False)
    there.settimeout(5)
    stage.plane.adopt(here.detach())
    stage.plane.stop()
    assert [sock.recv(1) for sock in (idle.sock, asking.sock, there)] == [b"", b"", b""]
    stage.plane.reply(token, [b"late"])
    there.close()
