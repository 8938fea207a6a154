"""SIGKILL while users, ACLs and quotas change: acknowledged changes survive the restart, and no others do.

At most one change is in flight when the broker dies, and that one may be stored or not.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from pybroker.client.admin import Admin
from pybroker.errors import KafkaError
from pybroker.security.acls import (
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tests.harness import BrokerProcess
from tests.marks import long

Start = Callable[..., BrokerProcess]
SETTINGS = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
LIVES = 6
NAMES = [f"n{i}" for i in range(8)]


class State(NamedTuple):
    """The stored users as (user, mechanism), ACLs, and quotas as {user: bytes/s}."""

    users: frozenset[tuple[str, str]] = frozenset()
    acls: frozenset[AclBinding] = frozenset()
    quotas: frozenset[tuple[str, float]] = frozenset()


def acl(name: str, operation: Operation) -> AclBinding:
    about = ResourcePattern(ResourceType.TOPIC, name, PatternType.LITERAL)
    return AclBinding(about, Acl("User:ann", "*", operation, Permission.ALLOW))


def change(admin: Admin, state: State, chance: random.Random) -> Iterator[State]:
    """Yield the state after a random change, then make the change."""
    name, kind = chance.choice(NAMES), chance.randrange(3)
    if kind == 0:
        mechanism = chance.choice(["SCRAM-SHA-256", "SCRAM-SHA-512"])
        had = (name, mechanism) in state.users
        yield state._replace(users=state.users ^ {(name, mechanism)})
        if had:
            admin.remove_password(name, [mechanism])
        else:
            admin.set_password(name, "secret", [mechanism])
    elif kind == 1:
        made = acl(name, chance.choice([Operation.READ, Operation.WRITE, Operation.DESCRIBE]))
        had = made in state.acls
        yield state._replace(acls=state.acls ^ {made})
        if had:
            assert admin.delete_acls(AclFilter(*made.resource, *made.acl)) == [made]
        else:
            admin.create_acls([made])
    else:
        held = dict(state.quotas)
        value = None if name in held else float(chance.randrange(1, 1000))
        held.pop(name, None)
        after = held if value is None else {**held, name: value}
        yield state._replace(quotas=frozenset(after.items()))
        admin.alter_quotas((("user", name),), {"producer_byte_rate": value})


def held(admin: Admin) -> State:
    users = {(user.name, mechanism) for user in admin.users() for mechanism in user.iterations}
    quotas = {(str(entity[0][1]), values["producer_byte_rate"]) for entity, values in admin.quotas().items()}
    return State(frozenset(users), frozenset(admin.acls()), frozenset(quotas))


@pytest.mark.parametrize("seed", [1, long(2)])
def test_what_was_acknowledged_holds_after_each_death(start_broker: Start, seed: int) -> None:
    chance = random.Random(seed)
    broker = start_broker(sets=SETTINGS)
    state, changes = State(), 0
    for _ in range(LIVES):
        possible = [state]
        died = threading.Event()

        def kill(after_s: float, died: threading.Event = died) -> None:
            time.sleep(after_s)
            died.set()
            broker.kill()

        killer = threading.Thread(target=kill, args=(chance.uniform(0.05, 0.6),))
        killer.start()
        with Admin(broker.bootstrap, timeout_s=10) as admin, contextlib.suppress(KafkaError):
            while not died.is_set():
                steps = change(admin, state, chance)
                possible = [state, next(steps)]
                for _ in steps:
                    pass
                state, possible, changes = possible[1], possible[1:], changes + 1
        killer.join()
        broker.restart()
        with Admin(broker.bootstrap) as admin:
            found = held(admin)
        assert found in possible
        state = found
    assert changes > 50 * LIVES / 10
