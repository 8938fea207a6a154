"""The readers and writers of a topic: groups with their lag there, active producers, and the ACLs that apply to it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from pybroker import errors
from pybroker.client.admin import Admin
from pybroker.client.net.metadata import Node, TopicInfo
from pybroker.console.clients import ViewerClients
from pybroker.console.guard import viewer_of
from pybroker.console.lags import GROUPS_MAX, partition_ends
from pybroker.console.pages import ROWS_MAX, Pages, topic_of
from pybroker.errors import KafkaError
from pybroker.operations.acl_reasons import acl_text, applying
from pybroker.operations.each_broker import Silent, ask_each
from pybroker.protocol import messages as m
from pybroker.security.acls import ResourceType

PARTITIONS_MAX: Final = 200


class ReaderGroup(NamedTuple):
    """A group that has committed offsets of the topic, and its lag there."""

    id: str
    state: str
    partitions: int
    lag: int


class ActiveProducer(NamedTuple):
    """A producer with an id that a partition's leader knows; the time is of its last batch, in ms since the epoch."""

    partition: int
    id: int
    epoch: int
    sequence: int
    at_ms: int
    in_transaction: bool


class TopicClientsPage:
    """The page about the clients of a topic."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def show(self, request: Request) -> Response:
        name = topic_of(request)
        clients = viewer_of(request).clients
        with clients.admin() as admin:
            (topic,) = admin.topics([name])
            if topic.error:
                raise KafkaError(topic.error, f"topic {name}: {errors.lookup(topic.error).name}")
            nodes = admin.describe_cluster().nodes
            readers, more_groups = _readers(admin, name)
            try:
                acls, no_acls = [acl_text(each) for each in applying(ResourceType.TOPIC, name, admin.acls())], ""
            except KafkaError as error:
                acls, no_acls = [], error.message
        producers, silent = _producers(clients, topic, nodes)
        return self._pages.page(
            request, "topic_clients.html", name=name, readers=readers, more_groups=more_groups, acls=acls[:ROWS_MAX],
            no_acls=no_acls, producers=producers[:ROWS_MAX], more=len(producers) - ROWS_MAX, silent=silent,
        )  # fmt: skip


def _readers(admin: Admin, topic: str) -> tuple[list[ReaderGroup], int]:
    """Return the groups that read a topic, the furthest behind first, and how many groups were not looked at."""
    states = {group.id: group.state for group in sorted(admin.groups())}
    looked = list(states)[:GROUPS_MAX]
    committed = admin.group_offsets(looked) if looked else {}
    ends = partition_ends(admin, {topic})
    found = []
    for group, offsets in committed.items():
        mine = {tp: at.offset for tp, at in offsets.items() if tp.topic == topic}
        if mine:
            lag = sum(max(0, (ends.get(tp) or 0) - offset) for tp, offset in mine.items())
            found.append(ReaderGroup(group, states[group], len(mine), lag))
    return sorted(found, key=lambda each: -each.lag), len(states) - len(looked)


def _producers(
    clients: ViewerClients, topic: TopicInfo, nodes: Sequence[Node]
) -> tuple[list[ActiveProducer], list[str]]:
    """Return the producers that the leaders of a topic know, the latest first, and a sentence for each that does not
    report them."""
    led: dict[int, list[int]] = {}
    for p in topic.partitions[:PARTITIONS_MAX]:
        led.setdefault(p.leader, []).append(p.partition)

    def ask(node: Node) -> list[ActiveProducer]:
        wanted = m.DescribeProducersRequest.Topics(name=topic.name, partition_indexes=led[node.id])
        with clients.admin_at(node) as admin:
            admin.describe_cluster()
            answer = admin.cluster.node(node.id).request(m.DescribeProducersRequest(topics=[wanted]))
        return _found([p for each in answer.topics for p in each.partitions])

    found, silent = list[ActiveProducer](), list[str]()
    for node, answer in ask_each([node for node in nodes if node.id in led], ask):
        if isinstance(answer, Silent):
            silent.append(f"broker {node.id} does not report producers: {answer}")
        else:
            found += answer
    return sorted(found, key=lambda each: -each.at_ms), silent


def _found(partitions: Sequence[m.DescribeProducersResponse.Topics.Partitions]) -> list[ActiveProducer]:
    for p in partitions:
        if p.error_code:
            raise Silent(p.error_message or errors.lookup(p.error_code).name)
    return [
        ActiveProducer(
            p.partition_index, each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp,
            each.current_txn_start_offset >= 0,
        )
        for p in partitions for each in p.active_producers
    ]  # fmt: skip
