"""TLS in the plane, with clients that use Python's ssl module and plane turns that are stepped by hand."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import core
from pybroker.testing.certificates import Authority
from tests.core.stage import FETCH, PRODUCE, Client, Stage, batch

BATCH_HEADER = 61
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="session")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """The server's TLS context."""
    return context_of(authority, tmp_path_factory.mktemp("tls"), server=True)


def context_of(authority: Authority, home: Path, *, server: bool, name: str = "localhost") -> ssl.SSLContext:
    made = authority.sign(name)
    (home / "own.pem").write_bytes(made.key + made.chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(home / "own.pem")
    context.load_verify_locations(cadata=authority.certificate.decode())
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def client_context(authority: Authority, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.minimum_version = context.maximum_version = version
    return context


class Ends:
    """A client's SSLObject and its socket, without threads: the test moves the bytes."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str = "localhost") -> None:
        self.sock = sock
        self.came, self.goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.unsent = bytearray()
        self.tls = context.wrap_bio(self.came, self.goes, server_hostname=host)

    def move(self) -> None:
        """Send outgoing bytes and take incoming ones."""
        self.unsent += self.goes.read()
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
        with contextlib.suppress(BlockingIOError):
            while data := self.sock.recv(1 << 16):
                self.came.write(data)
            self.came.write_eof()

    def work(self, what: Callable[[], Any], other: Callable[[], object]) -> Any:
        """Call `what`, stepping the other end while it waits."""
        for _ in range(100_000):
            try:
                return what()
            except ssl.SSLWantReadError:
                pass
            finally:
                self.move()
            other()
        raise AssertionError("the call never ended")


class TlsClient(Client):
    """A raw client whose connection has TLS."""

    def __init__(self, stage: Stage, server: ssl.SSLContext, client: ssl.SSLContext, **how: Any) -> None:
        self.stage = stage
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        self.ends = Ends(near, client)
        self.sock = near
        tls = core.TlsSocket(far.fileno(), server, server=True)
        self.ends.work(self.ends.tls.do_handshake, lambda: handshake(tls))
        while handshake(tls):
            self.ends.move()
        self.version, self.resumed = tls.version, tls.resumed
        self.id = stage.plane.adopt(far.detach(), tls=tls, **how)
        stage.clients.append(self)
        stage.step()

    def send(self, frame: bytes) -> None:
        self.write(struct.pack(">i", len(frame)) + frame)

    def write(self, data: bytes) -> None:
        self.ends.tls.write(data)
        self.ends.move()
        while self.ends.unsent:
            self.stage.step(1)
            self.ends.move()

    def _exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            left = n - len(data)
            piece = self.ends.work(lambda left=left: self.ends.tls.read(left), lambda: self.stage.step(1))  # type: ignore[misc]
            assert piece, "the plane closed the connection"
            data += piece
        return data


def handshake(tls: core.TlsSocket) -> str | None:
    return tls.handshake()


Sockets = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """A function that makes non-blocking socket pairs, which are closed in the end."""
    made: list[socket.socket] = []

    def make() -> tuple[socket.socket, socket.socket]:
        pair = socket.socketpair()
        for sock in pair:
            sock.setblocking(False)
        made.extend(pair)
        return pair

    yield make
    for sock in made:
        sock.close()


Pair = Callable[[ssl.SSLContext, ssl.SSLContext, str], tuple[core.TlsSocket, core.TlsSocket]]


@pytest.fixture
def pair(sockets: Sockets) -> Pair:
    """A function that makes both ends of a TLS connection with core."""

    def make(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[core.TlsSocket, core.TlsSocket]:
        near, far = sockets()
        return (
            core.TlsSocket(near.fileno(), client, server=False, host=host),
            core.TlsSocket(far.fileno(), server, server=True),
        )

    return make


@pytest.fixture
def tls_client(stage: Stage, server: ssl.SSLContext, authority: Authority) -> Iterator[TlsClient]:
    yield TlsClient(stage, server, client_context(authority))


def test_the_library_is_found() -> None:
    """OpenSSL is found in this machine's Python; without it brokers log that and use Python's ssl module."""
    assert core.tls_available()


@pytest.mark.parametrize("version", VERSIONS)
def test_records_go_in_and_come_out(
    stage: Stage, server: ssl.SSLContext, authority: Authority, version: ssl.TLSVersion
) -> None:
    """The plane executes Produce and Fetch over TLS, from one byte to batches of many TLS records."""
    client = TlsClient(stage, server, client_context(authority, version))
    values = [b"", b"x", os.urandom(100), os.urandom(16384), os.urandom(300_000)]
    for number, value in enumerate(values):
        client.produce(batch(value), number=number)
        answered, response = client.receive(PRODUCE, 9)
        part = response.responses[0].partition_responses[0]
        assert (answered, part.error_code, part.base_offset) == (number, 0, number)
    client.fetch(0)
    _, response = client.receive(FETCH, 12)
    records = bytes(response.responses[0].partitions[0].records)
    sizes = [header.size for _, header in core.iter_batches(records)]
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    assert [records[at : at + size][BATCH_HEADER:] for at, size in zip(starts, sizes, strict=True)] == [
        batch(value)[BATCH_HEADER:] for value in values
    ]
    assert not stage.plane.take()


def test_many_requests_in_one_record_and_one_in_many(stage: Stage, tls_client: TlsClient) -> None:
    """Frames are answered in order wherever TLS records cut them, in pieces of every size."""
    captured: list[bytes] = []
    real, tls_client.send = tls_client.send, captured.append  # type: ignore[method-assign]
    for number in range(40):
        tls_client.produce(batch(b"v%d" % number * (number + 1)), number=number)
    tls_client.send = real  # type: ignore[method-assign]
    whole = b"".join(struct.pack(">i", len(frame)) + frame for frame in captured)
    at = 0
    for size in [1, 2, 3, 5, 8, 13, 100, 1000, 4096, 1 << 20]:
        if at < len(whole):
            tls_client.write(whole[at : at + size])
            at += size
    for number in range(40):
        assert tls_client.receive(PRODUCE, 9)[0] == number
    assert stage.log.log_end_offset == 40


def test_a_client_that_does_not_read_holds_nobody_up(stage: Stage, tls_client: TlsClient) -> None:
    """A TLS client that does not read delays no other, and gets its encrypted answers whole when it reads."""
    for _ in range(8):
        stage.log.append(batch(os.urandom(200_000)), now_ms=1)
    for number in range(8):
        tls_client.fetch(number, number=number)
    stage.step(50)
    other = Client(stage)
    other.produce(batch(b"x"))
    stage.step()
    assert other.receive(PRODUCE, 9)[0] == 1
    for number in range(8):
        answered, response = tls_client.receive(FETCH, 12)
        assert answered == number and len(response.responses[0].partitions[0].records) > 200_000
    assert stage.plane.held_bytes == 0


def test_what_is_decrypted_already_is_executed(
    stage: Stage, server: ssl.SSLContext, authority: Authority, sockets: Sockets
) -> None:
    """A frame that was decrypted together with a login's is executed, though the socket reports no more input."""
    near, far = sockets()
    client = object.__new__(TlsClient)
    client.stage, client.sock, client.ends = stage, near, Ends(near, client_context(authority))
    tls = core.TlsSocket(far.fileno(), server, server=True)
    client.ends.work(client.ends.tls.do_handshake, lambda: handshake(tls))
    while handshake(tls):
        client.ends.move()
    sent: list[bytes] = []
    client.send = sent.append  # type: ignore[method-assign]
    client.produce(batch(b"early"))
    frame = struct.pack(">i", len(sent[0])) + sent[0]
    client.write(2 * frame)
    assert tls.recv(len(frame)) == frame and tls.pending
    stage.plane.adopt(far.detach(), tls=tls)
    stage.clients.append(client)
    stage.step()
    client.receive(PRODUCE, 9)
    assert stage.log.log_end_offset == 1


@pytest.mark.parametrize("how", ["cut", "unreadable"])
def test_what_is_gone_is_not_sent(stage: Stage, tls_client: TlsClient, tmp_path: Path, how: str) -> None:
    """A file that is cut or unreadable while it is sent ends the connection before the lost bytes."""
    stage.log.append(batch(os.urandom(900_000)), now_ms=1)
    (path,) = tmp_path.glob("t-0/*.log")
    content = path.read_bytes()
    tls_client.fetch(0)
    stage.step()
    if how == "unreadable":
        stage.broker.arm("segment.send", "errno", errno.EIO, times=1 << 30)
    else:
        os.truncate(path, 1 << 19)
    data, ends = bytearray(), tls_client.ends
    with contextlib.suppress(ssl.SSLEOFError, BrokenPipeError):
        while piece := ends.work(lambda: ends.tls.read(1 << 16), lambda: stage.step(1)):
            data += piece
    records = data[data.index(content[:BATCH_HEADER]) :]
    assert 100_000 < len(records) <= 1 << 19 and content.startswith(records)


@pytest.mark.parametrize("version", [4, 11, 12])
def test_one_who_has_read_a_file_and_leaves_is_forgotten(stage: Stage, tls_client: TlsClient, version: int) -> None:
    """A client that received a file range and disconnects is freed, with no part of the range left to send."""
    stage.log.append(batch(os.urandom(400_000)), now_ms=1)
    tls_client.fetch(0, version=version)
    tls_client.receive(FETCH, version)
    tls_client.sock.close()
    stage.step()
    assert [kind for kind, *_ in stage.plane.take()] == ["closed"]


def test_one_who_has_read_a_file_does_not_hold_up_the_end(stage: Stage, tls_client: TlsClient) -> None:
    stage.log.append(batch(os.urandom(400_000)), now_ms=1)
    tls_client.fetch(0, version=11)
    tls_client.receive(FETCH, 11)
    stage.plane.finish()
    stage.step()
    assert [kind for kind, *_ in stage.plane.take()] == ["closed"]


def test_tiny_records_have_a_share_of_a_turn(stage: Stage, tls_client: TlsClient) -> None:
    """A client that sends thousands of one-byte TLS records gets a share of each turn, and others are served."""
    records = batch(b"x" * 6000)
    sent: list[bytes] = []
    real, tls_client.send = tls_client.send, sent.append  # type: ignore[method-assign]
    tls_client.produce(records)
    tls_client.send = real  # type: ignore[method-assign]
    for byte in struct.pack(">i", len(sent[0])) + sent[0]:
        tls_client.ends.tls.write(bytes([byte]))
    tls_client.ends.move()
    other = Client(stage)
    before = stage.plane.stats()[0]["bytes_in"]
    other.produce(batch(b"y"))
    stage.step(1)
    assert other.receive(PRODUCE, 9)[0] == 1
    assert 0 < stage.plane.stats()[0]["bytes_in"] - before < 1500
    tls_client.write(b"")
    assert tls_client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
    assert stage.log.log_end_offset == 2 and stage.plane.held_bytes == 0


@pytest.mark.parametrize("garbage", [b"\x17\x03\x03\x00\x20" + b"x" * 32, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64])
def test_bytes_that_are_no_record_end_the_connection(stage: Stage, tls_client: TlsClient, garbage: bytes) -> None:
    tls_client.ends.sock.sendall(garbage)
    stage.step()
    assert [kind for kind, *_ in stage.plane.take()] == ["closed"]


def test_the_end_is_told(stage: Stage, tls_client: TlsClient) -> None:
    """A finished connection gets its answers and then TLS's own close instead of a reset."""
    tls_client.produce(batch(b"x"))
    tls_client.receive(PRODUCE, 9)
    stage.plane.finish()
    stage.step()
    assert tls_client.ends.work(lambda: tls_client.ends.tls.read(1), lambda: stage.step(1)) == b""


def test_a_session_is_resumed(
    stage: Stage, server: ssl.SSLContext, authority: Authority, sockets: Sockets
) -> None:
    context = client_context(authority)
    first = TlsClient(stage, server, context)
    first.produce(batch(b"x"))
    first.receive(PRODUCE, 9)  # the session tickets came with that answer
    near, far = sockets()
    ends = Ends(near, context)
    ends.tls = context.wrap_bio(ends.came, ends.goes, server_hostname="localhost", session=first.ends.tls.session)
    tls = core.TlsSocket(far.fileno(), server, server=True)
    ends.work(ends.tls.do_handshake, lambda: handshake(tls))
    while handshake(tls):
        ends.move()
    assert tls.resumed and ends.tls.session_reused


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_both_ends_by_core(pair: Pair, server: ssl.SSLContext, authority: Authority, host: str) -> None:
    """A client checks the name or address in the server's certificate, with core at both ends."""
    ours, theirs = pair(server, client_context(authority), host)
    while any([ours.handshake(), theirs.handshake()]):
        pass
    assert ours.version == theirs.version == "TLSv1.3" and ours.cipher
    assert ours.peer_certificate() == ssl.PEM_cert_to_DER_cert(ssl.DER_cert_to_PEM_cert(ours.peer_certificate() or b""))
    assert theirs.peer_certificate() is None
    data = os.urandom(1_000_000)
    came = bytearray()
    at = 0
    while len(came) < len(data):
        with contextlib.suppress(BlockingIOError):
            at += ours.send(memoryview(data)[at:])
        with contextlib.suppress(BlockingIOError):
            came += theirs.recv(70_000)
    assert came == data
    ours.end()
    assert theirs.recv(1) == b""


def test_another_name_is_refused(pair: Pair, server: ssl.SSLContext, authority: Authority) -> None:
    ours, theirs = pair(server, client_context(authority), "example.org")
    with pytest.raises(ConnectionAbortedError, match="certificate verify failed: hostname mismatch"):
        while any([ours.handshake(), theirs.handshake()]):
            pass
    with pytest.raises(ConnectionAbortedError, match=r"TLS handshake failed: .*alert"):
        theirs.handshake()


def test_an_unknown_authority_is_refused(pair: Pair, server: ssl.SSLContext) -> None:
    ours, theirs = pair(server, client_context(Authority("another")), "localhost")
    with pytest.raises(ConnectionAbortedError, match="certificate verify failed: "):
        while any([ours.handshake(), theirs.handshake()]):
            pass


def test_one_who_hangs_up_in_the_handshake(server: ssl.SSLContext, sockets: Sockets) -> None:
    near, far = sockets()
    tls = core.TlsSocket(far.fileno(), server, server=True)
    assert tls.handshake() == "read"
    near.close()
    with pytest.raises(ConnectionAbortedError, match="the other end closed the connection"):
        tls.handshake()


def test_what_is_no_context(sockets: Sockets) -> None:
    near, _far = sockets()
    with pytest.raises(TypeError, match=r"context must be an ssl\.SSLContext, not str"):
        core.TlsSocket(near.fileno(), "context", server=True)  # type: ignore[arg-type]


def test_a_socket_that_blocks(sockets: Sockets, server: ssl.SSLContext) -> None:
    """A blocking socket is refused, as it would wait for an answer to bytes that are not sent."""
    near, _far = sockets()
    near.setblocking(True)
    with pytest.raises(ValueError, match="the socket must be non-blocking"):
        core.TlsSocket(near.fileno(), server, server=True)


def test_a_socket_is_given_once(
    stage: Stage, server: ssl.SSLContext, authority: Authority, sockets: Sockets
) -> None:
    near, far = sockets()
    ends = Ends(near, client_context(authority))
    tls = core.TlsSocket(far.fileno(), server, server=True)
    ends.work(ends.tls.do_handshake, lambda: handshake(tls))
    stage.plane.adopt(far.detach(), tls=tls)
    for use in (tls.handshake, lambda: tls.recv(1), lambda: tls.send(b"x"), tls.end, lambda: tls.version):
        with pytest.raises(ValueError, match="the socket was handed to a data plane"):
            use()
    with pytest.raises(ValueError, match="the socket was handed to a data plane"):
        stage.plane.adopt(near.fileno(), tls=tls)
