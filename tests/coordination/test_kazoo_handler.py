"""kazoo's thread waits and is woken without loss."""

from __future__ import annotations

import os
import resource
import socket
import threading

from pybroker.coordination.kazoo_handler import OneThread


def test_it_is_woken_as_often_as_one_likes() -> None:
    """Waking kazoo's thread never blocks while it is not listening, and each wake-up is received."""
    handler = OneThread()
    ours, theirs = handler.create_socket_pair()
    waker = threading.Thread(target=lambda: [theirs.send(b"\0") for _ in range(100_000)], daemon=True)
    waker.start()
    waker.join(30)
    assert not waker.is_alive()
    for _ in range(100_000):
        assert handler.select([ours], [], [], 0) == ([ours], [], [])
        ours.recv(1)
    assert handler.select([ours], [], [], 0) == ([], [], [])
    ours.close()
    theirs.close()


def test_it_waits_without_a_descriptor_of_its_own() -> None:
    handler, (here, there) = OneThread(), socket.socketpair()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    with here, there:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            assert handler.select([here], [], [], 0.01) == ([], [], [])
            assert handler.select([], [here], [], None) == ([], [here], [])
            there.send(b"x")
            assert handler.select([here, there], [], [], 1) == ([here], [], [])
            there.shutdown(socket.SHUT_RDWR)
            here.recv(1)
            assert handler.select([here], [], [], 1) == ([here], [], [])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
