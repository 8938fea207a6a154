"""What it costs to know who somebody is, and what it may do: logins by SCRAM, 1,000 ACLs and a quota that never bites.

Beside a broker that has none of that, both on the first core, in turns, best rounds; the generator is on the second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.figures import show
from bench.peers import OURS, READ_BYTES
from pybroker.client.admin import Admin
from pybroker.client.load import WORKLOADS, Bench, Outcome, Prepared
from pybroker.security.acls import Acl, AclBinding, Operation, PatternType, Permission, ResourcePattern, ResourceType
from tests.harness import HOST, BrokerProcess, free_port

ROUNDS, ROUND_S = 8, 0.5
ROUND_BYTES_MAX = 640 << 20
ACLS = 1000
USER, PASSWORD, MECHANISM = "ann", "secret", "SCRAM-SHA-256"
FREE = f"{OURS} without"
OF_FREE = 0.95


def rule(kind: ResourceType, name: str, pattern: PatternType, *operations: Operation, user: str) -> list[AclBinding]:
    about = ResourcePattern(kind, name, pattern)
    return [AclBinding(about, Acl(f"User:{user}", "*", operation, Permission.ALLOW)) for operation in operations]


def rules() -> list[AclBinding]:
    """What the user needs, among those of others."""
    own = [Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.DESCRIBE]
    made = rule(ResourceType.TOPIC, "pybroker-bench", PatternType.PREFIXED, *own, user=USER)
    for number in range(ACLS - len(made)):
        pattern = PatternType.PREFIXED if number % 2 else PatternType.LITERAL
        made += rule(ResourceType.TOPIC, f"other-{number}", pattern, Operation.READ, user=f"user-{number % 100}")
    return made


@pytest.fixture(scope="module")
def servers(shared_log_dir: Path) -> Iterator[dict[str, tuple[str, dict[str, Any]]]]:
    """Addresses, and what clients are told, by name."""
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
        free = stack.enter_context(BrokerProcess(shared_log_dir / "free", free_port()))
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
        rounds: dict[str, list[Outcome]] = {peer: [] for peer in ready}

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
