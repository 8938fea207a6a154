"""A lease counts while the broker knows what it leads: in a session that lives, told by the controller since."""

from __future__ import annotations

from pybroker.model import TopicPartition
from pybroker.replication.lease import NO_MEMBER_MS, Lease

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def test_another_registration_has_to_be_told() -> None:
    """Of every partition that is led, under the present epoch; what is told early counts, and what is late does not."""
    held: list[int] = []
    lease = Lease(held.append, held.append)
    lease.registered(10, [])
    lease.renew(1000)
    lease.told(10, [A, B])
    assert held[-1] == 1000, "it led nothing before"
    lease.registered(20, [A, B])
    lease.renew(2000)
    assert held[-1] == NO_MEMBER_MS
    lease.told(10, [A, B])
    assert held[-1] == NO_MEMBER_MS, "that was for the registration before"
    lease.told(20, [A])
    assert held[-1] == NO_MEMBER_MS
    lease.told(20, [B])
    assert held[-1] == 2000
    lease.told(30, [A])  # the controller knew of the next registration first
    lease.registered(30, [A, B])
    assert held[-1] == NO_MEMBER_MS
    lease.told(30, [B])
    assert held[-1] == 2000


def test_only_what_was_told_early_is_remembered() -> None:
    """Topics come and go by the thousand in one registration, which is told of none of them again."""
    held: list[int] = []
    lease = Lease(held.append, held.append)
    lease.registered(10, [])
    lease.renew(1000)
    lease.told(10, [A, B])
    lease.told(9, [A])
    lease.told(20, [A, B])
    assert lease._early == {A: 20, B: 20}
    lease.registered(20, [A, B])
    assert lease._early == {}
    assert held[-1] == 1000
    lease.registered(20, [A, B])
    assert held[-1] == 1000, "it is the same registration"
