"""Workloads: requests sent to a broker again and again, and how fast it answers them.

The frames are Produce v7 and Fetch v11, which every broker since Kafka 2.3 speaks; core.LoadGenerator sends them. Each
workload creates a topic, and deletes it afterwards.
"""

import contextlib
import functools
import random
import secrets
import select
import socket
import string
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.client.admin import Admin
from pybroker.client.net.connection import CLIENT_ID, connection_lost
from pybroker.client.net.metadata import TopicInfo
from pybroker.client.security.settings import security_of
from pybroker.client.security.tls import ClientTls
from pybroker.clock import wall_ms
from pybroker.core import LoadGenerator, TlsSocket, build_batch
from pybroker.errors import KafkaError
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.compression import compress
from pybroker.protocol.message import Message, Request
from pybroker.security.login import AUTHENTICATE_VERSION, HANDSHAKE_VERSION, Account, Login

Security = tuple[Account | None, ClientTls | None]

PRODUCE: Final = (0, 7)
"""API key and version."""
FETCH: Final = (1, 11)
READ_BATCH_RECORDS: Final = 16
"""Records of 1 KiB in each batch that the reading workloads read."""
READ_MIB: Final = 512
"""MiB written for them: more than any processor's cache, less than a small machine's memory."""
PRODUCE_BYTES_MAX: Final = 2 << 30
"""The bytes after which a producing run ends: beyond the kernel's dirty limit it would measure the disk."""
POLL_S: Final = 0.1
FETCH_WAIT_MS: Final = 0
"""No waiting at the end of the log: the reader starts again at the log's start."""
WORDS: Final = 1500
"""Words in the text of compressed batches."""
TIMEOUT_S: Final = 30.0
CONFIGS: Final = {"segment.bytes": str(1 << 30)}


class Workload(NamedTuple):
    """The requests: `records` of `record_bytes` each, or reads of `fetch_bytes`; rate 0 is as fast as possible."""

    name: str
    shows: str
    partitions: int
    connections: int
    depth: int = 1
    records: int = 0
    record_bytes: int = 100
    rate: int = 0
    fetch_bytes: int = 0
    codec: int = 0
    """The compression codec's number; the records are then text, which gzip and zstd halve."""
    acks: int = 1


WORKLOADS: Final = {
    w.name: w
    for w in (
        Workload("W1", "100 B x 150 a request", 4, 4, 5, 150),
        Workload("W2", "1 KiB x 1,000 a request", 2, 2, 2, 1000, 1024),
        Workload("W3", "one record a request, 1 connection", 1, 1, 1, 1),
        Workload("W4", "one record a request, 16 connections", 4, 16, 1, 1),
        Workload("W5", "one record a request, 16 connections, 5 deep", 4, 16, 5, 1),
        Workload("W6", "2,000 requests/s of 10 x 100 B", 4, 8, 5, 10, rate=2_000),
        Workload("W7", "10,000 requests/s of 1 x 100 B", 4, 16, 5, 1, rate=10_000),
        Workload("W8", "as W1, 1,000 partitions", 1000, 4, 5, 150),
        Workload("F1", "read 1 MiB a request, 1 connection", 2, 1, fetch_bytes=1 << 20),
        Workload("F2", "read 1 MiB a request, 4 connections", 2, 4, fetch_bytes=1 << 20),
        Workload("F3", "read 64 KiB a request, 4 connections", 2, 4, fetch_bytes=1 << 16),
    )
}


class Measurement(NamedTuple):
    """The results of a broker in `seconds`; bytes are those of batches, times are in microseconds."""

    workload: str
    seconds: float
    requests: int
    records: int
    bytes: int
    errors: int
    p50_us: float
    p99_us: float
    p999_us: float

    @property
    def requests_s(self) -> float:
        return self.requests / self.seconds

    @property
    def records_s(self) -> float:
        return self.records / self.seconds

    @property
    def mb_s(self) -> float:
        return self.bytes / self.seconds / 1e6


def batch(records: int, record_bytes: int, codec: int = 0) -> bytes:
    """Return a batch of values without keys, as a producer without idempotence sends it."""
    now_ms = wall_ms()
    if not codec:
        return build_batch([(now_ms, None, b"x" * record_bytes, ())] * records)
    values = text(records * record_bytes)
    parts = [values[at : at + record_bytes] for at in range(0, len(values), record_bytes)]
    lines = [(now_ms, None, part, ()) for part in parts]
    return build_batch(lines, attributes=codec, compress=functools.partial(compress, codec))


def text(size: int) -> bytes:
    """Return words, a few of them frequent and most rare, as in natural text and code; always the same."""
    chance = random.Random(1)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(WORDS)]
    often = [(n + 1) ** -0.8 for n in range(WORDS)]
    return " ".join(chance.choices(words, often, k=size // 2)).encode()[:size]


class Bench:
    """Runs workloads against one cluster, each on a topic of its own. KafkaError if it cannot be reached or refuses."""

    def __init__(
        self, bootstrap: str, *, timeout_s: float = TIMEOUT_S, read_bytes: int = READ_MIB << 20, **security: Any
    ) -> None:
        """`security`: as Admin takes it. TLS needs core.tls_available()."""
        self.admin = Admin(bootstrap, timeout_s=timeout_s, **security)
        self.security = security_of(security)
        self.timeout_s = timeout_s
        self.read_bytes = read_bytes

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.close()

    @contextlib.contextmanager
    def prepared(self, workload: Workload, configs: Mapping[str, str] = MappingProxyType({})) -> Iterator["Prepared"]:
        """Yield a topic for the workload, filled if the workload reads, and connections to its leaders."""
        name = f"pybroker-bench-{workload.name.lower()}-{secrets.token_hex(4)}"
        settings = CONFIGS | dict(configs)
        self.admin.create_topic(name, partitions=workload.partitions, replication_factor=1, configs=settings)
        try:
            with contextlib.ExitStack() as stack:
                topic = self._led(name, workload.partitions)
                self._settle(topic)
                if workload.fetch_bytes:
                    fill = Workload("fill", "", workload.partitions, 2, 4, READ_BATCH_RECORDS, 1024)
                    self._once(fill, topic, self.read_bytes)
                yield self._prepare(workload, topic, stack)
        finally:
            with contextlib.suppress(KafkaError):
                self.admin.delete_topic(name)

    def _led(self, name: str, partitions: int) -> TopicInfo:
        """Return the topic once each partition has a leader."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            (topic,) = self.admin.topics([name])
            if len(topic.partitions) == partitions and all(p.leader >= 0 for p in topic.partitions):
                return topic
            if time.monotonic() > deadline:
                raise KafkaError(errors.LEADER_NOT_AVAILABLE, f"topic {name} has partitions without a leader")
            time.sleep(POLL_S)

    def _settle(self, topic: TopicInfo) -> None:
        """Wait until each leader knows that it is one: a KRaft broker's metadata names it earlier."""
        probe = Workload("probe", "", len(topic.partitions), 1, records=1)
        deadline = time.monotonic() + self.timeout_s
        for partition in topic.partitions:
            alone = topic._replace(partitions=(partition,))
            while True:
                try:
                    self._once(probe, alone, 1)
                    break
                except KafkaError as error:
                    if not error.retriable or time.monotonic() > deadline:
                        raise
                time.sleep(POLL_S)

    def _once(self, workload: Workload, topic: TopicInfo, bytes_max: int) -> None:
        with contextlib.ExitStack() as stack:
            self._prepare(workload, topic, stack).run(self.timeout_s, bytes_max=bytes_max)

    def _prepare(self, workload: Workload, topic: TopicInfo, stack: contextlib.ExitStack) -> "Prepared":
        leaders: dict[tuple[str, int], list[int]] = {}
        for partition in topic.partitions:
            node = self.admin.cluster.nodes[partition.leader]
            leaders.setdefault((node.host, node.port), []).append(partition.partition)
        return prepare(workload, topic.name, leaders, stack, timeout_s=self.timeout_s, security=self.security)


def prepare(
    workload: Workload,
    topic: str,
    leaders: Mapping[tuple[str, int], list[int]],
    stack: contextlib.ExitStack,
    *,
    timeout_s: float = TIMEOUT_S,
    security: Security = (None, None),
) -> "Prepared":
    """Connect to the leaders (address to the partitions it leads) in turn; `stack` closes the connections."""
    addresses = sorted(leaders)
    fds: list[int] = []
    tls: list[TlsSocket] = []
    asked = []
    for i in range(workload.connections):
        address = addresses[i % len(addresses)]
        own = leaders[address]
        at = (i // len(addresses)) % len(own)
        asked.append([own[at]] if workload.fetch_bytes else own[at:] + own[:at])
        sock, encrypted = _connect(*address, timeout_s, security)
        fds.append(stack.enter_context(sock).fileno())
        tls += [] if encrypted is None else [encrypted]
    frame, layout = _fetch(topic, workload) if workload.fetch_bytes else _produce(topic, workload)
    return Prepared(workload, LoadGenerator(fds, [frame] * len(fds), asked, depth=workload.depth, tls=tls, **layout))


class Prepared:
    """A workload that is ready to run, as often as wanted."""

    def __init__(self, workload: Workload, load: LoadGenerator) -> None:
        self.workload = workload
        self.load = load

    def run(self, seconds: float, *, bytes_max: int = PRODUCE_BYTES_MAX) -> Measurement:
        """Run for this many seconds. KafkaError with the last error code if every request failed."""
        bound = 0 if self.workload.fetch_bytes else bytes_max
        self.load.run(seconds, rate=self.workload.rate, bytes_max=bound)
        tally = self.load.tally
        if tally["errors"] >= tally["requests"]:
            raise _failed(self.workload, tally["last_error"])
        p50, p99, p999 = (self.load.percentile_ns(p) / 1000 for p in (50, 99, 99.9))
        counts = (tally["requests"], tally["records"], tally["bytes"], tally["errors"])
        return Measurement(self.workload.name, tally["elapsed_ns"] / 1e9, *counts, p50, p99, p999)


def _failed(workload: Workload, code: int) -> KafkaError:
    if code == -1:
        return KafkaError(errors.NETWORK_EXCEPTION, f"{workload.name}: the broker closed the connections")
    if code == -2:
        return KafkaError(errors.REQUEST_TIMED_OUT, f"{workload.name}: the broker did not answer")
    return KafkaError(code, f"{workload.name}: the broker answered {errors.lookup(code).name}")


def _connect(
    host: str, port: int, timeout_s: float, security: Security
) -> tuple[socket.socket, TlsSocket | None]:
    """Return a connected socket, with TLS and a login if these are configured."""
    account, tls = security
    try:
        s = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        raise connection_lost(error, "reach", host, port, timeout_s) from error
    try:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        encrypted = None
        if tls is not None:
            s.setblocking(False)
            encrypted = TlsSocket(s.fileno(), tls.context(), server=False, host=host)
            while (wanted := encrypted.handshake()) is not None:
                _wait(s, wanted == "write", timeout_s)
        if account is not None:
            _log_in(s, encrypted or s, Login(account, f"{host}:{port}"), timeout_s)
    except OSError as error:
        s.close()
        raise connection_lost(error, "reach", host, port, timeout_s) from error
    except BaseException:
        s.close()
        raise
    s.setblocking(False)
    return s, encrypted


def _wait(sock: socket.socket, write: bool, timeout_s: float) -> None:
    if not any(select.select([] if write else [sock], [sock] if write else [], [], timeout_s)):
        raise TimeoutError


def _log_in(sock: socket.socket, wire: socket.socket | TlsSocket, login: Login, timeout_s: float) -> None:
    """Log in on a socket, through its TLS if any."""
    message: Request[Message] | None = login.start()
    version = HANDSHAKE_VERSION
    while message is not None:
        key = type(message).SCHEMA.key
        left = _framed((key, version), message)
        while left:
            try:
                left = left[wire.send(left) :]
            except BlockingIOError:
                _wait(sock, True, timeout_s)
        answer = bytearray()
        while len(answer) < 4 or len(answer) - 4 < int.from_bytes(answer[:4], "big"):
            try:
                piece = wire.recv(1 << 16)  # only one request is in flight, so nothing follows its answer
            except BlockingIOError:
                _wait(sock, False, timeout_s)
                continue
            if not piece:
                raise ConnectionResetError
            answer += piece
        message, version = login.step(codec.decode_response(key, version, bytes(answer[4:]))[1]), AUTHENTICATE_VERSION


# -- frames ------------------------------------------------------------------------------------------------------------


def _framed(api: tuple[int, int], message: Message) -> bytes:
    body = codec.encode_request(*api, 0, CLIENT_ID, message)
    return len(body).to_bytes(4, "big") + body


def _differ(make: Callable[[int], bytes]) -> int:
    """Return the position of a field in what `make(value of the field)` encodes."""
    one, other = make(0), make(-1)
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


def _produce(topic: str, workload: Workload) -> tuple[bytes, dict[str, int]]:
    records = batch(workload.records, workload.record_bytes, workload.codec)

    def request(index: int) -> bytes:
        data = m.ProduceRequest.TopicData.PartitionData(index=index, records=records)
        topics = [m.ProduceRequest.TopicData(name=topic, partition_data=[data])]
        timeout_ms = int(TIMEOUT_S * 1000)
        return _framed(PRODUCE, m.ProduceRequest(acks=workload.acks, timeout_ms=timeout_ms, topic_data=topics))

    def answer(error: int) -> bytes:
        done = m.ProduceResponse.Responses.PartitionResponses(error_code=error)
        topics = [m.ProduceResponse.Responses(name=topic, partition_responses=[done])]
        return codec.encode_response(*PRODUCE, 0, m.ProduceResponse(responses=topics))

    layout = {"index_at": _differ(request), "error_at": _differ(answer)}
    return request(0), layout | {"batch_records": workload.records, "batch_bytes": len(records)}


def _fetch(topic: str, workload: Workload) -> tuple[bytes, dict[str, int]]:
    def request(index: int, offset: int = 0) -> bytes:
        wanted = m.FetchRequest.Topics.Partitions(
            partition=index, fetch_offset=offset, partition_max_bytes=workload.fetch_bytes
        )
        topics = [m.FetchRequest.Topics(topic=topic, partitions=[wanted])]
        asked = m.FetchRequest(
            topics=topics, session_epoch=-1, min_bytes=1, max_bytes=workload.fetch_bytes, max_wait_ms=FETCH_WAIT_MS
        )
        return _framed(FETCH, asked)

    def answer(error: int = 0, records: bytes | None = b"") -> bytes:
        found = m.FetchResponse.Responses.Partitions(error_code=error, records=records, aborted_transactions=None)
        topics = [m.FetchResponse.Responses(topic=topic, partitions=[found])]
        return codec.encode_response(*FETCH, 0, m.FetchResponse(responses=topics))

    layout = {"index_at": _differ(request), "error_at": _differ(lambda e: answer(e))}
    layout["offset_at"] = _differ(lambda offset: request(0, offset))
    layout["records_at"] = _differ(lambda n: answer(0, None if n else b""))
    return request(0), layout
