"""TLS on a broker of one core, compared with the same broker without TLS, and Apache Kafka with TLS.

As in test_plane.py: the broker on the first core, the generator (which decrypts and encrypts, too) on the second, in
turns, best rounds. TLS 1.3 with AES-128-GCM on both. Kafka 3.9.1 takes part with PYBROKER_BENCH_KAFKA=yes. W1 and F1
are also compared with OpenSSL's encryption alone, and with a core that does that besides its work without TLS.
"""

from __future__ import annotations

import _ssl
import ctypes
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.figures import show
from bench.peers import KAFKA, OURS, READ_BYTES, THREADS, with_kafka
from pybroker.cli.bench.load import WORKLOADS, Bench, Measurement, Prepared
from pybroker.testing.certificates import Authority
from tests.harness import HOST, BrokerProcess, cpu_s, free_port
from tests.java import peers

ROUNDS, ROUND_S, FIXED_RATE_ROUND_S = 5, 0.5, 1.0
ROUND_BYTES_MAX = 640 << 20
SUITE = "TLS_AES_128_GCM_SHA256"
PLAIN = f"{OURS} without TLS"
OF_PLAIN = {"W1": 0.50, "F1": 0.35, "W4": 0.60}
OF_KAFKA = {"W1": 3.0, "F1": 3.0}
P99_OF_PLAIN_MAX = 2.0
HANDSHAKES = 300
HANDSHAKES_OF_KAFKA = 1.5
ASKED = struct.pack(">ihhih", 12, 18, 0, 7, 2) + b"me"
"""ApiVersions v0."""
IDLE, IDLE_KB_MAX = 10_000, 40


RECORD_BYTES, RECORDS = 16 << 10, 20_000


class Served(NamedTuple):
    """A broker's two listeners."""

    pid: int
    plain: str
    tls: str


Servers = tuple[dict[str, Served], dict[str, Any]]


class Kafka(peers.Kafka391):
    """Kafka with an SSL listener besides its own."""

    jvm = peers.SERVER

    def __init__(self, data_dir: Path, tls: dict[str, object]) -> None:
        super().__init__(data_dir, THREADS | tls)
        self.tls_port = free_port()

    def write_properties(self, own: Any) -> None:
        both = f"PLAINTEXT://{HOST}:{self.port},SSL://{HOST}:{self.tls_port}"
        super().write_properties({**own, "listeners": both})


@pytest.fixture(scope="module", params=["RSA"])
def servers(shared_log_dir: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    """The brokers by name, and the clients' TLS settings."""
    authority = Authority()
    own = authority.sign("localhost", kind=request.param)
    (shared_log_dir / "broker.pem").write_bytes(own.key + own.chain)
    (shared_log_dir / "ca.pem").write_bytes(authority.certificate)
    tls: dict[str, object] = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(shared_log_dir / "broker.pem"),
        "ssl.cipher.suites": SUITE, "ssl.enabled.protocols": "TLSv1.3",
    }  # fmt: skip
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        os.sched_setaffinity(0, {max(cores)})
    with ExitStack() as stack:
        port, tls_port = free_port(), free_port()
        both = {"listeners": f"PLAINTEXT://{HOST}:{port},SSL://{HOST}:{tls_port}"}
        broker = stack.enter_context(BrokerProcess(shared_log_dir / "ours", port, {**both, **tls}))
        found = {OURS: Served(broker.process.pid, f"{HOST}:{port}", f"{HOST}:{tls_port}")}
        if with_kafka():
            kafka = stack.enter_context(Kafka(shared_log_dir / "kafka", tls))
            found[KAFKA] = Served(kafka.process.pid, f"{HOST}:{kafka.port}", f"{HOST}:{kafka.tls_port}")
        if len(cores) > 1:
            for served in found.values():
                for thread in Path(f"/proc/{served.pid}/task").iterdir():
                    os.sched_setaffinity(int(thread.name), {0})
        client = {"security_protocol": "SSL", "ssl_cafile": str(shared_log_dir / "ca.pem"), "ssl_cipher_suites": SUITE,
                  "ssl_enabled_protocols": "TLSv1.3"}  # fmt: skip
        yield found, client
    os.sched_setaffinity(0, cores)


def openssl_mb_s() -> float:
    """Return the rate at which Python's OpenSSL encrypts with AES-128-GCM, one TLS record at a time."""
    openssl = ctypes.CDLL(_ssl.__file__)
    openssl.EVP_CIPHER_CTX_new.restype = openssl.EVP_aes_128_gcm.restype = ctypes.c_void_p
    context = ctypes.c_void_p(openssl.EVP_CIPHER_CTX_new())
    nonce, plain = b"n" * 12, b"p" * RECORD_BYTES
    into, n = ctypes.create_string_buffer(RECORD_BYTES), ctypes.c_int()
    assert openssl.EVP_EncryptInit_ex(context, ctypes.c_void_p(openssl.EVP_aes_128_gcm()), None, b"k" * 16, nonce) == 1
    best_s = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(RECORDS):
            openssl.EVP_EncryptInit_ex(context, None, None, None, nonce)
            openssl.EVP_EncryptUpdate(context, into, ctypes.byref(n), plain, RECORD_BYTES)
        best_s = min(best_s, time.perf_counter() - began)
    openssl.EVP_CIPHER_CTX_free(context)
    return RECORDS * RECORD_BYTES / best_s / 1e6


@pytest.mark.parametrize("name", ["W1", "F1", "W4", "W6"])
def test_workload(benchmark: Any, servers: Servers, name: str) -> None:
    found, client = servers
    workload = WORKLOADS[name]
    with ExitStack() as stack:
        ready: dict[str, Prepared] = {}
        ways: list[tuple[str, str, dict[str, Any]]] = [(PLAIN, found[OURS].plain, {})]
        ways += [(peer, served.tls, client) for peer, served in found.items()]
        for peer, address, told in ways:
            bench = stack.enter_context(Bench(address, read_bytes=READ_BYTES, **told))
            ready[peer] = stack.enter_context(bench.prepared(workload))
        rounds: dict[str, list[Measurement]] = {peer: [] for peer in ready}

        def turn(peer: str) -> None:
            seconds = FIXED_RATE_ROUND_S if workload.rate else ROUND_S
            rounds[peer].append(ready[peer].run(seconds, bytes_max=ROUND_BYTES_MAX))

        for peer in ready:
            turn(peer)  # to warm them up; a JVM needs more
        for _ in range(6 if KAFKA in ready else 0):
            turn(KAFKA)
        rounds = {peer: [] for peer in ready}

        def others() -> None:
            for peer in ready:
                if peer != OURS:
                    turn(peer)

        benchmark.pedantic(turn, args=(OURS,), setup=others, rounds=ROUNDS)
    assert not any(o.errors for each in rounds.values() for o in each)
    if workload.rate:
        p99 = {peer: min(o.p99_us for o in each) for peer, each in rounds.items()}
        share = p99[OURS] / p99[PLAIN]
        beside = "; ".join(f"{peer} {us:.0f} us" for peer, us in p99.items() if peer != OURS)
        show(f"{name} over TLS", "p99", f"{p99[OURS]:.0f} us", beside,
             f"{share:.2f}x of plain (<= {P99_OF_PLAIN_MAX}x)", share <= P99_OF_PLAIN_MAX)  # fmt: skip
        return
    best = {peer: max(each, key=lambda o: o.requests_s) for peer, each in rounds.items()}
    told = {peer: f"{o.records_s / 1e3:,.0f} k rec/s, {o.mb_s:,.0f} MB/s" for peer, o in best.items()}
    share = best[OURS].requests_s / best[PLAIN].requests_s
    met = share >= OF_PLAIN[name]
    text = f"{share:.0%} of plain (>= {OF_PLAIN[name]:.0%})"
    if KAFKA in best:
        times = best[OURS].requests_s / best[KAFKA].requests_s
        least = OF_KAFKA.get(name, 0.0)
        text += f", {times:.1f}x Kafka" + (f" (>= {least:g}x)" if least else "")
        met = met and times >= least
    others = [f"{peer} {t}" for peer, t in told.items() if peer != OURS]
    if name in OF_KAFKA:
        alone = openssl_mb_s()
        both = 1 / (1 / alone + 1 / best[PLAIN].mb_s)
        others.append(f"OpenSSL alone {alone:,.0f} MB/s, with what {PLAIN} takes {both:,.0f} MB/s")
    show(f"{name} over TLS", workload.shows, told[OURS], "; ".join(others), text, met)


class Client:
    """Python's ssl, one ApiVersions a connection; `resumed`: each resumes the session of the one before."""

    def __init__(self, address: str, told: dict[str, Any], *, resumed: bool = False) -> None:
        host, _, port = address.rpartition(":")
        self.at = host, int(port)
        self.context = ssl.create_default_context(cafile=told["ssl_cafile"])
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.resumed = resumed
        self.session: ssl.SSLSession | None = None
        self.reused = 0

    def connect(self) -> ssl.SSLSocket:
        """Return a connection that was used once: session tickets come after the handshake."""
        raw = socket.create_connection(self.at)
        sock = self.context.wrap_socket(raw, server_hostname=self.at[0], session=self.session)
        self.reused += bool(sock.session_reused)
        sock.sendall(ASKED)
        (length,) = struct.unpack(">i", sock.recv(4))
        while length > 0:
            length -= len(sock.recv(length))
        self.session = sock.session if self.resumed else None
        return sock


@pytest.mark.parametrize("resumed", [False, True], ids=["full", "resumed"])
def test_handshakes(servers: Servers, resumed: bool) -> None:
    """A new connection each, by the broker's processor seconds for one."""
    found, told = servers
    rate = {}
    for peer, served in found.items():
        client, best = Client(served.tls, told, resumed=resumed), 0.0
        for _ in range(4):
            before, began = cpu_s(served.pid), time.monotonic()
            for _ in range(HANDSHAKES):
                client.connect().close()
            best = max(best, HANDSHAKES / max(cpu_s(served.pid) - before, 1e-9))
            assert time.monotonic() - began < 60
        assert peer != OURS or client.reused == (4 * HANDSHAKES - 1 if resumed else 0)
        if client.reused or not resumed:  # otherwise it resumes none
            rate[peer] = best
    others = "; ".join(f"{peer} {r:,.0f}" for peer, r in rate.items() if peer != OURS) or "-"
    times = rate[OURS] / rate[KAFKA] if KAFKA in rate else None
    text = "" if times is None else f"{times:.1f}x Kafka (>= {HANDSHAKES_OF_KAFKA}x)"
    met = None if times is None else times >= HANDSHAKES_OF_KAFKA
    show(f"TLS handshakes, {'resumed' if resumed else 'full'}", "RSA 2048, with an ApiVersions each",
         f"{rate[OURS]:,.0f} a core-second", others, text, met)  # fmt: skip


def test_idle_connections(servers: Servers) -> None:
    """The broker's memory for each idle connection."""
    found, told = servers
    client, pid = Client(found[OURS].tls, told), found[OURS].pid
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(client.connect())
        before = resident_kb(pid)
        for _ in range(IDLE):
            stack.enter_context(client.connect())
        assert client.reused == 0
        each_kb = (resident_kb(pid) - before) / IDLE
    show("idle TLS connections", f"{IDLE:,}", f"{each_kb:.1f} KB each", "-", f"<= {IDLE_KB_MAX} KB",
         each_kb <= IDLE_KB_MAX)  # fmt: skip


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
