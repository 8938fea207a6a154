"""One connection to a real or fake broker: the caller's result for each kind of answer, and for silence."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from pybroker import Consumer, errors
from pybroker.client.net.connection import BrokerConnection
from pybroker.client.net.metadata import ClusterConnections, parse_bootstrap
from pybroker.errors import KafkaError
from pybroker.protocol import apis, codec
from pybroker.protocol import messages as m
from pybroker.protocol.frames import FRAME_BYTES_MAX
from tests.harness import free_port
from tests.rows import with_each

Answer = Callable[[codec.RequestHeader, bytes], bytes | None]
"""A fake broker's answer to a request frame: the bytes that it sends, or None to close the connection."""

API_VERSIONS, METADATA = 18, 3


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def versions(header: codec.RequestHeader, listed: dict[int, tuple[int, int]]) -> bytes:
    """The answer to ApiVersions that lists these ranges."""
    keys = [m.ApiVersionsResponse.ApiKeys(api_key=k, min_version=v[0], max_version=v[1]) for k, v in listed.items()]
    answer = m.ApiVersionsResponse(api_keys=keys)
    return frame(codec.encode_response(API_VERSIONS, header.api_version, header.correlation_id, answer))


@pytest.fixture
def fake_broker() -> Iterator[Callable[[Answer], int]]:
    """Start a server that answers each frame with a function's result; return its port."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(listener: socket.socket, answer: Answer) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError, struct.error):
                    while True:
                        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                        request = connection.recv(size, socket.MSG_WAITALL)
                        said = answer(codec.decode_request_header(request), request)
                        if said is None:
                            break
                        connection.sendall(said)

    def start(answer: Answer) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threads.append(threading.Thread(target=serve, args=(listener, answer), daemon=True))
        threads[-1].start()
        port: int = listener.getsockname()[1]
        return port

    yield start
    for listener in listeners:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(5)


def fails(port: int, timeout_s: float = 20.0) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        BrokerConnection("127.0.0.1", port, timeout_s=timeout_s)
    assert f"127.0.0.1:{port}" in caught.value.message
    return caught.value


def test_the_highest_version_in_common(fake_broker: Callable[[Answer], int]) -> None:
    """A request has the highest version in common, and is refused if there is none."""
    asked = []

    def answer(header: codec.RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == API_VERSIONS:
            return versions(header, {API_VERSIONS: (0, 9), METADATA: (2, 5), 19: (100, 101)})
        asked.append(header.api_version)
        response = m.MetadataResponse(cluster_id="c")
        return frame(codec.encode_response(header.api_key, header.api_version, header.correlation_id, response))

    with BrokerConnection("127.0.0.1", fake_broker(answer)) as connection:
        assert connection.request(m.MetadataRequest(topics=[])).cluster_id == "c"
        assert asked == [5]
        with pytest.raises(KafkaError, match="serves CreateTopics 100 to 101, and this client knows 2 to 7") as caught:
            connection.request(m.CreateTopicsRequest())
        assert caught.value.code == errors.UNSUPPORTED_VERSION
        with pytest.raises(KafkaError, match="does not serve DescribeCluster"):
            connection.request(m.DescribeClusterRequest())
        assert connection.is_open


def test_an_older_broker_tells_its_versions_in_two_steps(fake_broker: Callable[[Answer], int]) -> None:
    """An older broker refuses a version of ApiVersions with the versions that it has, and the client asks again with
    one of them (KIP-511)."""
    asked = []

    def answer(header: codec.RequestHeader, request: bytes) -> bytes | None:
        asked.append(header.api_version)
        if header.api_version > 2:
            body = struct.pack(">ihi", header.correlation_id, errors.UNSUPPORTED_VERSION, 1)
            return frame(body + struct.pack(">hhh", API_VERSIONS, 0, 2))
        return versions(header, {API_VERSIONS: (0, 2), METADATA: (0, 1)})

    with BrokerConnection("127.0.0.1", fake_broker(answer)) as connection:
        assert connection.versions[METADATA] == (0, 1)
    assert asked == [apis.KNOWN[API_VERSIONS].max_version, 2]


def test_nobody_listens() -> None:
    """A refused connection is an error with the address and the system's reason."""
    error = fails(free_port())
    assert error.code == errors.NETWORK_EXCEPTION and "connection refused" in error.message


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(KafkaError, match=r"could not reach no-such-host\.invalid:9092: the name .* is not known"):
        BrokerConnection("no-such-host.invalid", 9092)


HOSTS = ["a" * 64 + ".example", "é" * 80, "..", ".a", "nul\0nul", "two words", "a\nb", "x" * 3000]


@with_each("host", HOSTS)
@with_each("port", [9092, 0, -1, 65536, 2**31 - 1])
def test_addresses_that_no_resolver_takes(host: str, port: int) -> None:
    """An address that no resolver accepts is an unreachable address: a broker may advertise anything."""
    with pytest.raises(KafkaError, match="could not reach") as caught:
        BrokerConnection(host, port, timeout_s=2.0)
    assert caught.value.code in (errors.NETWORK_EXCEPTION, errors.REQUEST_TIMED_OUT)


def test_topics_without_a_name_are_passed_over(fake_broker: Callable[[Answer], int]) -> None:
    """Topics without a name are skipped: from version 12 on a name may be null, for a topic that was requested by
    id."""

    def answer(header: codec.RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == API_VERSIONS:
            return versions(header, {METADATA: (0, 13)})
        kind = m.MetadataResponse.Topics
        response = m.MetadataResponse(topics=[kind(name=None), kind(name="b"), kind(name=None), kind(name="a")])
        return frame(codec.encode_response(header.api_key, header.api_version, header.correlation_id, response))

    with ClusterConnections(f"127.0.0.1:{fake_broker(answer)}") as cluster:
        assert [topic.name for topic in cluster.metadata()] == ["a", "b"]


def test_a_broker_that_closes(fake_broker: Callable[[Answer], int]) -> None:
    assert "it closed the connection" in fails(fake_broker(lambda header, request: None)).message


def test_a_broker_that_is_silent(fake_broker: Callable[[Answer], int]) -> None:
    """A silent broker times out: the timeout bounds the whole answer, however slowly it arrives."""
    error = fails(fake_broker(lambda header, request: b"\0"), timeout_s=0.2)
    assert error.code == errors.REQUEST_TIMED_OUT and "in 0.2 s" in error.message


@pytest.mark.parametrize("size", [-1, 0, 3, FRAME_BYTES_MAX + 1, 2**31 - 1, int.from_bytes(b"HTTP", "big")])
def test_no_broker_answers_with_such_a_length(fake_broker: Callable[[Answer], int], size: int) -> None:
    """An impossible length of an answer is refused before anything is read or allocated."""
    error = fails(fake_broker(lambda header, request: struct.pack(">i", size) + b"/1.1 400 Bad Request"))
    assert error.code == errors.NETWORK_EXCEPTION and "does not speak Kafka's protocol" in error.message
    assert f"an answer of {size} bytes" in error.message


def test_the_largest_length_is_read(fake_broker: Callable[[Answer], int]) -> None:
    """An answer of the largest length is read; this one is cut off."""
    sent = iter([struct.pack(">i", FRAME_BYTES_MAX)])
    error = fails(fake_broker(lambda header, request: next(sent, None)), timeout_s=0.2)
    assert error.code == errors.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\0\0\0\x09", "does not parse"),
        (b"\0\0\0\x01\0\0", "does not parse"),
        (b"\0\0\0\x01" + b"\xff" * 40, "does not parse"),
        (b"\0\0\0\x09\0\0\x01\0\0\0\0\0", "answer to request 9, where 1 was asked"),
    ],
)
def test_answers_that_make_no_sense(fake_broker: Callable[[Answer], int], body: bytes, why: str) -> None:
    """An answer with another correlation id, or one that cannot be decoded, closes the connection with a sentence."""
    assert why in fails(fake_broker(lambda header, request: frame(body))).message


def test_a_request_that_cannot_be_written(fake_broker: Callable[[Answer], int]) -> None:
    """A request that cannot be encoded is the caller's error, and the connection stays open."""
    port = fake_broker(lambda header, request: versions(header, {METADATA: (0, 13)}))
    with BrokerConnection("127.0.0.1", port) as connection:
        with pytest.raises(KafkaError, match="no such request can be written") as caught:
            connection.request(m.MetadataRequest(topics=[m.MetadataRequest.Topics(name="x" * 40_000)]))
        assert caught.value.code == errors.INVALID_REQUEST and connection.is_open


def test_the_next_bootstrap_address_is_tried(fake_broker: Callable[[Answer], int]) -> None:
    """The next bootstrap address is tried if one is dead; if all are dead, the error names each."""
    dead, gone = free_port(), free_port()
    alive = fake_broker(lambda header, request: versions(header, {}))
    with ClusterConnections(f"127.0.0.1:{dead},127.0.0.1:{alive}") as cluster:
        assert cluster.any().port == alive
    for ports in ([dead], [dead, gone]):
        addresses = [f"127.0.0.1:{port}" for port in ports]
        with ClusterConnections(",".join(addresses)) as cluster, pytest.raises(KafkaError) as caught:
            cluster.any()
        assert caught.value.message == "; ".join(f"could not reach {a}: connection refused" for a in addresses)


def test_a_consumer_names_each_dead_address() -> None:
    """A consumer that no broker answers names all addresses too, and of many the first."""
    ports = [free_port() for _ in range(7)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    settings = {"bootstrap_servers": addresses, "request_timeout_ms": 1000}
    with Consumer(**settings) as consumer, pytest.raises(KafkaError) as caught:
        consumer.partitions_for("t")
    named = [port for port in ports if f"could not reach 127.0.0.1:{port}: " in caught.value.message]
    assert len(named) == 5 and "; and 2 more addresses" in caught.value.message, caught.value.message


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [("a", 1)]),
        ("a", [("a", 9092)]),
        (" a:1 , b ,", [("a", 1), ("b", 9092)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_bootstrap_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@with_each("text", ["", ",", "a:", ":1", "a:0", "a:65536", "a:b", "a:-1", "::1", "::1:9092"])
def test_what_is_no_bootstrap_address(text: str) -> None:
    with pytest.raises(KafkaError, match="host:port is expected"):
        parse_bootstrap(text)
