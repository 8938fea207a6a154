"""The cost of authentication and authorization: SCRAM logins, 1,000 ACLs and a quota that is never exceeded.

Compared with a broker without any of them, both on the first core, in turns, best rounds; the generator is on the
second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.figures import show
from bench.peers import OURS, READ_BYTES
from pybroker.cli.bench.load import WORKLOADS, Bench, Measurement, Prepared
from pybroker.client.admin import Admin
from pybroker.security.acls import Acl, AclBinding, Operation, PatternType, Permission, ResourcePattern, ResourceType
from tests.harness import HOST, BrokerProcess, free_port
from tests.wire import Wire, batch

ROUNDS, ROUND_S = 8, 0.5
ROUND_BYTES_MAX = 640 << 20
ACLS = 1000
USER, PASSWORD, MECHANISM = "ann", "secret", "SCRAM-SHA-256"
FREE = f"{OURS} without"
OF_FREE = 0.95
GREEDY_RATE, GREEDY_BYTES, GREEDY_CONNECTIONS = 10_000_000, 100_000, 4
BESIDE_MAX = 1.2


def rule(kind: ResourceType, name: str, pattern: PatternType, *operations: Operation, user: str) -> list[AclBinding]:
    about = ResourcePattern(kind, name, pattern)
    return [AclBinding(about, Acl(f"User:{user}", "*", operation, Permission.ALLOW)) for operation in operations]


def rules() -> list[AclBinding]:
    """Return the user's ACLs, among those of others."""
    own = [Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.DESCRIBE]
    made = rule(ResourceType.TOPIC, "pybroker-bench", PatternType.PREFIXED, *own, user=USER)
    for number in range(ACLS - len(made)):
        pattern = PatternType.PREFIXED if number % 2 else PatternType.LITERAL
        made += rule(ResourceType.TOPIC, f"other-{number}", pattern, Operation.READ, user=f"user-{number % 100}")
    return made


@pytest.fixture(scope="module")
def free(shared_log_dir: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(shared_log_dir / "free", free_port()) as server:
        yield server


@pytest.fixture(scope="module")
def servers(shared_log_dir: Path, free: BrokerProcess) -> Iterator[dict[str, tuple[str, dict[str, Any]]]]:
    """Yield addresses and client settings, by name."""
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        os.sched_setaffinity(0, {max(cores)})
    with ExitStack() as stack:
        port, clients = free_port(), free_port()
        secured = stack.enter_context(BrokerProcess(shared_log_dir / "secured", port, {
            "listeners": f"PLAINTEXT://{HOST}:{port},CLIENTS://{HOST}:{clients}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": MECHANISM,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
        }))  # fmt: skip
        with Admin(secured.bootstrap) as admin:
            admin.set_password(USER, PASSWORD, [MECHANISM])
            admin.create_acls(rules())
            much = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12}
            admin.alter_quotas((("user", USER),), much)
        if len(cores) > 1:
            for server in (secured, free):
                for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
                    os.sched_setaffinity(int(thread.name), {0})
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": MECHANISM, "sasl_username": USER,
                 "sasl_password": PASSWORD}  # fmt: skip
        yield {FREE: (free.bootstrap, {}), OURS: (f"{HOST}:{clients}", login)}
    os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("name", ["W1", "W4", "F1"])
def test_workload(benchmark: Any, servers: dict[str, tuple[str, dict[str, Any]]], name: str) -> None:
    workload = WORKLOADS[name]
    with ExitStack() as stack:
        ready: dict[str, Prepared] = {}
        for peer, (address, told) in servers.items():
            bench = stack.enter_context(Bench(address, read_bytes=READ_BYTES, **told))
            ready[peer] = stack.enter_context(bench.prepared(workload))
        rounds: dict[str, list[Measurement]] = {peer: [] for peer in ready}

        def turn(peer: str) -> None:
            rounds[peer].append(ready[peer].run(ROUND_S, bytes_max=ROUND_BYTES_MAX))

        for peer in ready:
            turn(peer)
        rounds = {peer: [] for peer in ready}
        benchmark.pedantic(turn, args=(OURS,), setup=lambda: turn(FREE), rounds=ROUNDS)
    assert not any(o.errors for each in rounds.values() for o in each)
    best = {peer: max(each, key=lambda o: o.requests_s) for peer, each in rounds.items()}
    share = best[OURS].requests_s / best[FREE].requests_s
    told = {peer: f"{o.requests_s / 1e3:,.1f} k req/s, {o.mb_s:,.0f} MB/s" for peer, o in best.items()}
    met = None if name == "F1" else share >= OF_FREE
    show(f"{name} with a login, {ACLS:,} ACLs and a quota", workload.shows, told[OURS], f"{FREE} {told[FREE]}",
         f"{share:.0%} of none (>= {OF_FREE:.0%})", met)  # fmt: skip


class Greedy:
    """A producer on its own connections that sends as much as allowed, or at `rate`."""

    def __init__(self, server: BrokerProcess) -> None:
        self.wires = [Wire(server.port) for _ in range(GREEDY_CONNECTIONS)]
        assert self.wires[0].create_topic("greedy") == 0
        self.frames = [wire.produce_frame("greedy", batch([b"x" * GREEDY_BYTES]), acks=1) for wire in self.wires]
        self.ended = threading.Event()
        self.sent = 0

    def send(self, wire: Wire, frame: bytes, rate: float) -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # this thread: the generator has priority
        began, sent = time.monotonic(), 0
        while not self.ended.wait(max(0.0, began + sent / rate - time.monotonic()) if rate else 0):
            wire.send(frame)
            sent += len(frame)
            self.sent += len(frame)
            assert wire.produced().error == 0

    @contextmanager
    def at_work(self, rate: float) -> Iterator[None]:
        self.ended.clear()
        with ThreadPoolExecutor(len(self.wires)) as threads:
            pairs = zip(self.wires, self.frames, strict=True)
            work = [threads.submit(self.send, *pair, rate / len(self.wires)) for pair in pairs]
            yield
            self.ended.set()
            for each in work:
                each.result()


def test_others_beside_a_throttled_client(servers: dict[str, tuple[str, dict[str, Any]]], free: BrokerProcess) -> None:
    """The p99 of W6 beside a client throttled by a quota, and beside one that sends as much by itself."""
    fixed = WORKLOADS["W6"]
    found: dict[str, list[Measurement]] = {"throttled": [], "paced": [], "alone": []}
    greedy = Greedy(free)
    with Admin(free.bootstrap) as admin:
        admin.alter_quotas((("client-id", "wire"),), {"producer_byte_rate": float(GREEDY_RATE)})
    with greedy.at_work(0):
        while greedy.sent < 11 * GREEDY_RATE:  # the initial burst that the quota allows
            time.sleep(0.1)
    before, began = greedy.sent, time.monotonic()
    with ExitStack() as stack:
        for wire in greedy.wires:
            stack.enter_context(wire)
        bench = stack.enter_context(Bench(free.bootstrap))
        run = stack.enter_context(bench.prepared(fixed))
        for _ in range(ROUNDS):
            found["alone"].append(run.run(1.0))
            with greedy.at_work(GREEDY_RATE * 0.9):
                found["paced"].append(run.run(1.0))
            with greedy.at_work(0):
                found["throttled"].append(run.run(1.0))
    rate = (greedy.sent - before) / (time.monotonic() - began)
    p99 = {how: min(o.p99_us for o in each) for how, each in found.items()}
    share = p99["throttled"] / p99["paced"]
    show(
        "W6 beside a throttled client", f"{fixed.shows}; {rate / 1e6:.1f} of {GREEDY_RATE / 1e6:.0f} MB/s",
        f"p99 {p99['throttled']:.0f} us", f"{p99['paced']:.0f} us beside one by itself, {p99['alone']:.0f} alone",
        f"{share:.2f}x (<= {BESIDE_MAX}x)", share <= BESIDE_MAX,
    )  # fmt: skip
