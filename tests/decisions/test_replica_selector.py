"""The replica that a consumer is sent to (KIP-392)."""


from pybroker.decisions.replica_selector import ReplicaView, preferred_read_replica
from tests.rows import with_each

LEADER = ReplicaView(1, "a", 100)
BEHIND, NEAR = ReplicaView(2, "b", 40), ReplicaView(3, "b", 90)


@with_each(
    ("rack", "offset", "chosen"),
    [("a", 0, 1), ("b", 0, 3), ("b", 41, 3), ("b", 90, 3), ("b", 91, 1), ("c", 0, 1)],
)
def test_the_replica_in_the_rack_that_has_the_most(rack: str, offset: int, chosen: int) -> None:
    """The chosen replica is the one in the consumer's rack with the most records, or the leader if none there has the
    offset."""
    assert preferred_read_replica(rack, offset, LEADER, [BEHIND, NEAR]) == chosen
