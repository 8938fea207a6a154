"""A leader's lease counts in a live session in which the controller has sent all led partitions."""

from __future__ import annotations

from pybroker.model import TopicPartition
from pybroker.replication.lease import NO_MEMBER_MS, Lease

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def test_another_registration_has_to_be_told() -> None:
    """After a new registration the lease waits until the controller has sent every led partition, for that broker
    epoch.

    A role sent before the registration was known counts, and one of an earlier registration does not.
    """
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
    assert held[-1] == NO_MEMBER_MS, "of the previous registration"
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
    """Only roles that were sent early are kept, as topics come and go by the thousand in one registration."""
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
    assert held[-1] == 1000, "the same registration"
