"""In a process that forks, the plane and its connections stay the parent's, and the child disturbs nothing."""

from __future__ import annotations

import pytest

from tests.core.test_plane_life import FREED_IS_FILLED, run

PRELUDE = """
import ctypes, gc, os, socket, struct, sys, tempfile, time
from pathlib import Path
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import METADATA, PRODUCE, Client, Stage, batch


FORK = os.fork


def sockets():
    return {name for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
            for name in [os.readlink(f"/proc/self/fd/{fd}")] if name.startswith("socket:")}


def inodes(*fds):
    return {f"socket:[{os.fstat(fd).st_ino}]" for fd in fds}


def fork(child):
    ready, say = os.pipe()
    end, hold = os.pipe()
    pid = FORK()
    if pid == 0:
        os.close(hold)
        try:
            child()
            os.write(say, b"y")
        except BaseException as problem:
            print(repr(problem), file=sys.stderr, flush=True)
            os.write(say, b"n")
        os.read(end, 1)
        os._exit(0)
    assert os.read(ready, 1) == b"y"
    return pid, hold


def join(pid, hold):
    os.close(hold)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


home = tempfile.TemporaryDirectory()
stage = Stage(Path(home.name))
"""

UNTOLD = """
FORK = ctypes.PyDLL(None).fork  # as a library does: Python is not told
"""

CLOSED = """
clients = [Client(stage, "127.0.0.1") for _ in range(20)]
child = fork(lambda: None)
for client in clients:
    client.sock.sendall(struct.pack(">i", -5))  # no frame has such a size: the plane closes
stage.step()
for client in clients:
    assert client.sock.recv(1) == b""
others = [Client(stage, "127.0.0.1") for _ in range(20)]  # in the memory of those
for _ in range(5):
    for client in clients:
        try:
            client.sock.sendall(b"x" * 10)
        except OSError:
            pass
    stage.step()
assert stage.plane.stats()[0]["connections"] == 20
others[0].produce(batch(b"a"))
stage.step()
assert others[0].receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
ids = {client.id for client in clients}
assert {key for kind, key, _, _ in stage.plane.take() if kind == "closed"} == ids
stage.close()
join(*child)
"""

INHERITED = """
client, gone = Client(stage, "127.0.0.1"), Client(stage, "127.0.0.1")
gone.sock.close()
stage.step()
asked = Client(stage)
asked.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))
stage.step()
(token,) = [token for kind, _, token, _ in stage.plane.take() if kind == "request"]
of_clients = inodes(client.sock.fileno(), asked.sock.fileno())


def child():
    assert sockets() == of_clients, (sockets(), of_clients)
    for call in (stage.plane.take, stage.plane.step, stage.plane.start, lambda: stage.plane.adopt(0),
                 lambda: stage.plane.reply(token, None)):
        try:
            call()
        except RuntimeError as problem:
            assert "parent process" in str(problem)
        else:
            raise AssertionError("it did something")
    stage.plane.finish()
    stage.plane.cut()
    stage.plane.stop()
    stage.broker.close()
    stage.plane = stage.broker = stage.partitions = stage.log = None
    gc.collect()


child = fork(child)
client.produce(batch(b"a"))
stage.plane.reply(token, [b"answer"])
stage.step()
assert client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
assert asked.sock.recv(100)[4:] == b"answer"
stage.close()
join(*child)
"""


@pytest.mark.parametrize("how", [pytest.param("", id="by Python"), pytest.param(UNTOLD, id="by a library")])
def test_a_connection_of_before_a_fork_ends_for_its_client_and_for_epoll(how: str) -> None:
    """A connection from before a fork ends at once for its client, and later bytes reach no freed connection.

    The child may still hold the socket and the epoll instance.
    """
    run(PRELUDE + how + CLOSED, **FREED_IS_FILLED)


def test_the_child_holds_nothing_of_the_plane_and_touches_nothing() -> None:
    """The child's copies of the sockets are closed, and its use of the plane ends no connection of the parent."""
    run(PRELUDE + INHERITED, **FREED_IS_FILLED)
