"""The topics, and one topic: partitions, offsets, sizes, settings, and the causes of its changes."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from pybroker import errors
from pybroker.client.admin import (
    EARLIEST,
    LATEST,
    Admin,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from pybroker.client.net.metadata import Node, PartitionInfo, TopicInfo
from pybroker.config import TOPIC
from pybroker.config.broker import setting_of
from pybroker.console.clients import ViewerClients
from pybroker.console.guard import viewer_of
from pybroker.console.pages import ROWS_MAX, BadRequest, Pages, topic_of
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.operations import health
from pybroker.operations.each_broker import Silent, ask_each
from pybroker.operations.health import Troubled

PAGE_TOPICS: Final = 100
Numbers = dict[TopicPartition, int | None]


class ShownPartition(NamedTuple):
    """A partition with what its leader reports; None for what is unknown."""

    info: PartitionInfo
    first: int | None
    end: int | None
    size_bytes: int | None

    @property
    def error(self) -> str:
        return errors.lookup(self.info.error).name if self.info.error else ""


class ShownConfig(NamedTuple):
    """A setting that differs from its default."""

    entry: ConfigEntry
    source: str
    text: str
    """The meaning of the setting; empty if we do not know it."""


class TopicPages:
    """The pages about topics."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def all(self, request: Request) -> Response:
        find = request.query_params.get("find", "")[:249]
        internal = request.query_params.get("internal", "") == "yes"
        with viewer_of(request).clients.admin() as admin:
            cluster = health.read(admin, settings_optional=True)
        found = sorted(t for t in cluster.topics if find in t.name and (internal or not t.internal))
        states: dict[str, list[Troubled]] = {}
        for each in cluster.troubled():
            states.setdefault(each.topic, []).append(each)
        if request.query_params.get("troubled", "") == "yes":
            found = [topic for topic in found if topic.name in states]
        at = page_of(request, len(found), PAGE_TOPICS)
        return self._pages.page(
            request, "topics.html", topics=found[at * PAGE_TOPICS : (at + 1) * PAGE_TOPICS], total=len(found),
            at=at, pages=-(-len(found) // PAGE_TOPICS), find=find, internal=internal,
            states={name: health.counted(p.state for p in its) for name, its in states.items()},
            troubled=request.query_params.get("troubled", "") == "yes",
        )  # fmt: skip

    def one(self, request: Request) -> Response:
        name = topic_of(request)
        clients = viewer_of(request).clients
        with clients.admin() as admin:
            (topic,) = admin.topics([name])
            nodes = admin.describe_cluster().nodes
            configs, refused = topic_configs(admin, name)
        shown = topic._replace(partitions=topic.partitions[:ROWS_MAX])
        partitions, silent = of_leaders(clients, shown, nodes)
        return self._pages.page(
            request, "topic.html", topic=topic, partitions=partitions, silent=silent, configs=configs,
            refused=refused, more=len(topic.partitions) - ROWS_MAX,
            records=sum((p.end or 0) - (p.first or 0) for p in partitions), size=_total(partitions),
        )  # fmt: skip


def page_of(request: Request, total: int, size: int) -> int:
    """Return the number of the page that a request asks for, from 0. BadRequest if it is no number."""
    text = request.query_params.get("page", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise BadRequest(f"page is a number, not {text[:50]!r}")
    return min(int(text), max(0, (total - 1) // size))


def topic_configs(admin: Admin, name: str) -> tuple[list[ShownConfig], str]:
    """Return the settings of a topic that differ from their default; or none, and why the viewer may not see them."""
    try:
        entries = admin.configs(ConfigResource(ResourceType.TOPIC, name))
    except KafkaError as error:
        if error.code not in (errors.TOPIC_AUTHORIZATION_FAILED, errors.CLUSTER_AUTHORIZATION_FAILED):
            raise
        return [], error.message
    return differing(entries), ""


def differing(entries: Sequence[ConfigEntry]) -> list[ShownConfig]:
    """Return the settings that differ from their default, with their source and meaning."""
    return [
        ShownConfig(entry, source_name(entry.source), text_of(entry.name))
        for entry in sorted(entries)
        if entry.source != ConfigSource.DEFAULT
    ]


def source_name(code: int) -> str:
    """Return the source of a setting's value in words; its number if unknown."""
    known = code in ConfigSource._value2member_map_
    return ConfigSource(code).name.lower().replace("_", " ") if known else str(code)


def text_of(name: str) -> str:
    """Return the meaning of a setting of a topic or broker; empty if we do not know it."""
    setting = TOPIC.get(name) or setting_of(name)
    return setting.doc if setting is not None else ""


def of_leaders(
    clients: ViewerClients, topic: TopicInfo, nodes: Sequence[Node]
) -> tuple[list[ShownPartition], list[str]]:
    """Return the partitions of a topic with their offsets and sizes, and a sentence for each leader that is silent."""

    def ask(node: Node) -> tuple[Numbers, ...]:
        led = topic._replace(partitions=tuple(p for p in topic.partitions if p.leader == node.id))
        with clients.admin_at(node) as admin:
            return admin.offsets([led], EARLIEST), admin.offsets([led], LATEST), _sizes(admin, topic.name, node.id)

    leaders = {p.leader for p in topic.partitions}
    first, end, sizes = Numbers(), Numbers(), Numbers()
    silent = []
    for node, answer in ask_each([node for node in nodes if node.id in leaders], ask):
        if isinstance(answer, Silent):
            silent.append(f"broker {node.id} does not report the partitions it leads: {answer}")
            continue
        for mine, its in zip((first, end, sizes), answer, strict=True):
            mine.update(its)
    keys = [(p, TopicPartition(topic.name, p.partition)) for p in topic.partitions]
    return [ShownPartition(p, first.get(tp), end.get(tp), sizes.get(tp)) for p, tp in keys], silent


def _sizes(admin: Admin, topic: str, broker: int) -> Numbers:
    """Return the sizes of a broker's replicas of a topic; none if the viewer may not see them."""
    try:
        dirs = admin.log_dirs([broker], [topic])
    except KafkaError:
        return {}
    return {r.partition: r.size_bytes for each in dirs for r in each.replicas if not r.future}


def _total(partitions: Sequence[ShownPartition]) -> int | None:
    sizes = [p.size_bytes for p in partitions if p.size_bytes is not None]
    return sum(sizes) if sizes else None
