"""Assignors: the group leader's decision, pure functions of the members and the numbers of partitions.

Names and rules are Java's, so that any mix of clients agrees. `range` and `roundrobin` give the same shares as in Java.
`sticky` and `cooperative-sticky` keep the same promises (balanced as far as subscriptions allow, with the fewest moves)
and read and write the same user data.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Final, NamedTuple

from pybroker.client.consuming import subscriptions
from pybroker.client.consuming.subscriptions import GENERATION_NONE, Assignments, SubscribedMember, partitions_of
from pybroker.model import TopicPartition

Topics = Mapping[str, int]
"""Topic to its number of partitions."""


def assign_range(topics: Topics, members: Sequence[SubscribedMember]) -> Assignments:
    """For each topic, a run of partitions for each member; the first members get one more if there is a remainder."""
    shares: Assignments = {member.id: [] for member in members}
    for topic in sorted({topic for member in members for topic in member.topics}):
        readers = sorted((member for member in members if topic in member.topics), key=lambda member: member.order)
        each, more = divmod(topics.get(topic, 0), len(readers))
        start = 0
        for index, member in enumerate(readers):
            end = start + each + (index < more)
            shares[member.id] += [TopicPartition(topic, p) for p in range(start, end)]
            start = end
    return shares


def assign_roundrobin(topics: Topics, members: Sequence[SubscribedMember]) -> Assignments:
    """All partitions of all topics in turn, each to the next member that subscribes to its topic."""
    shares: Assignments = {member.id: [] for member in members}
    wanted = {topic for member in members for topic in member.topics}
    around = cycle(sorted(members, key=lambda member: member.order))
    for tp in partitions_of(topics, wanted):
        member = next(around)
        while tp.topic not in member.topics:
            member = next(around)
        shares[member.id].append(tp)
    return shares


def assign_sticky(topics: Topics, members: Sequence[SubscribedMember]) -> Assignments:
    """Balanced as far as subscriptions allow, with as few partitions as possible going to another member."""
    readers: dict[str, list[str]] = {}
    for member in sorted(members, key=lambda member: member.order):
        for topic in member.topics:
            readers.setdefault(topic, []).append(member.id)
    shares = {member.id: set(partitions) for member, partitions in _kept(topics, members).items()}
    taken = set().union(*shares.values()) if shares else set()
    free = [tp for tp in partitions_of(topics, readers) if tp not in taken]
    for tp in sorted(free, key=lambda tp: (len(readers[tp.topic]), tp)):  # partitions with few possible readers first
        shares[min(readers[tp.topic], key=lambda reader: len(shares[reader]))].add(tp)
    _balance(shares, readers)
    return {member: sorted(partitions) for member, partitions in shares.items()}


def _kept(topics: Topics, members: Sequence[SubscribedMember]) -> dict[SubscribedMember, list[TopicPartition]]:
    """The partitions each member keeps: it alone owned them in the latest generation, and still subscribes to them."""
    claims: dict[TopicPartition, list[SubscribedMember]] = {}
    for member in members:
        for tp in member.owned:
            if tp.topic in member.topics and tp.partition < topics.get(tp.topic, 0):
                claims.setdefault(tp, []).append(member)
    kept: dict[SubscribedMember, list[TopicPartition]] = {member: [] for member in members}
    for tp, claimants in sorted(claims.items()):
        latest = max(member.generation for member in claimants)
        owners = [member for member in claimants if member.generation == latest]
        if len(owners) == 1:
            kept[owners[0]].append(tp)
    return kept


def _balance(shares: dict[str, set[TopicPartition]], readers: Mapping[str, Sequence[str]]) -> None:
    """Move partitions to members that have at least two less. Each move makes the shares more even, so it ends."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(shares, key=lambda member: -len(shares[member])):
            for tp in sorted(shares[giver], reverse=True):
                taker = min(readers[tp.topic], key=lambda reader: len(shares[reader]))
                if len(shares[taker]) + 1 < len(shares[giver]):
                    shares[giver].remove(tp)
                    shares[taker].add(tp)
                    moved = True


def assign_cooperative(topics: Topics, members: Sequence[SubscribedMember]) -> Assignments:
    """The sticky shares without partitions that another member still owns: it revokes them, then rejoins (KIP-429)."""
    owner = {tp: member.id for member, kept in _kept(topics, members).items() for tp in kept}
    shares = assign_sticky(topics, members)
    return {
        member: [tp for tp in partitions if owner.get(tp, member) == member] for member, partitions in shares.items()
    }


class Assignor(NamedTuple):
    """An assignor by its name on the wire. `cooperative`: members keep what they own while they join."""

    name: str
    assign: Callable[[Topics, Sequence[SubscribedMember]], Assignments]
    cooperative: bool = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        """The user data of a member's subscription; `owned` are its partitions before it joined."""
        if self.assign is assign_sticky:
            return subscriptions.write_sticky(owned, generation)
        return subscriptions.write_cooperative(generation) if self.cooperative else None

    def member(self, member_id: str, instance_id: str | None, metadata: bytes) -> SubscribedMember:
        """A member from its metadata. KafkaError(INCONSISTENT_GROUP_PROTOCOL) if that does not parse."""
        topics, owned, generation, user_data = subscriptions.read_subscription(metadata)
        if self.assign is assign_sticky:
            owned, generation = subscriptions.read_sticky(user_data)
        elif self.cooperative and generation == GENERATION_NONE:
            generation = subscriptions.read_cooperative(user_data)
        return SubscribedMember(member_id, instance_id, topics, owned, generation)


ASSIGNORS: Final = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", assign_range),
        Assignor("roundrobin", assign_roundrobin),
        Assignor("sticky", assign_sticky),
        Assignor("cooperative-sticky", assign_cooperative, cooperative=True),
    )
}
