"""The brokers as a producer or consumer reaches them: channels by broker, and metadata that is kept fresh.

Metadata is requested for the wanted topics, when it grows old, and when an answer shows that it is stale. It is kept in
a `ClusterView`, replaced as a whole, so that any thread may read it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from pybroker import errors, fork_safety
from pybroker.client.net.channel import ClientChannel
from pybroker.client.net.loop import Loop, Timer
from pybroker.client.net.metadata import (
    PATIENCE_S,
    Node,
    PartitionInfo,
    TopicInfo,
    none_answers,
    parse_bootstrap,
    topic_info,
)
from pybroker.client.net.promise import Promise
from pybroker.client.net.requests import PLAIN, Answered, RequestOptions, RetryBackoff, complete
from pybroker.client.settings import Settings
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import HostPort, TopicPartition
from pybroker.patience import patiently
from pybroker.protocol import messages as m
from pybroker.protocol.message import R, Request

_log = unfailing(__name__)

Found = TypeVar("Found")

LOOK_S: Final = 0.1
"""Seconds between two checks whether the caller that waits for an answer has given up."""

SHOWN_MAX: Final = 5
ANY: Final = None
"""A node for requests that any broker can answer."""

STALE: Final = frozenset(
    {
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.LEADER_NOT_AVAILABLE,
        errors.NOT_LEADER_OR_FOLLOWER,
        errors.REPLICA_NOT_AVAILABLE,
        errors.NETWORK_EXCEPTION,
        errors.REQUEST_TIMED_OUT,
        errors.KAFKA_STORAGE_ERROR,
        errors.LISTENER_NOT_FOUND,
        errors.FENCED_LEADER_EPOCH,
        errors.UNKNOWN_LEADER_EPOCH,
        errors.UNKNOWN_TOPIC_ID,
        errors.INCONSISTENT_TOPIC_ID,
        errors.BROKER_NOT_AVAILABLE,
    }
)
"""Errors of requests whose sender has stale metadata."""

REFUSED: Final = frozenset(
    {errors.SASL_AUTHENTICATION_FAILED, errors.UNSUPPORTED_SASL_MECHANISM, errors.ILLEGAL_SASL_STATE}
)
"""Errors of logins that are refused."""


if TYPE_CHECKING:
    Leader = (
        m.ProduceResponse.Responses.PartitionResponses.CurrentLeader
        | m.FetchResponse.Responses.Partitions.CurrentLeader
    )
    Endpoint = m.ProduceResponse.NodeEndpoints | m.FetchResponse.NodeEndpoints


@dataclass(frozen=True)
class ClusterView:
    """The last known metadata. A topic that does not exist is in `topics` with its error."""

    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    """Topics by id."""
    controller_id: int = -1
    version: int = 0

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition; -1 if none is known."""
        known = self._partition(topic, partition)
        return known.leader if known is not None and known.leader in self.nodes else -1

    def leader_epoch(self, topic: str, partition: int) -> int:
        known = self._partition(topic, partition)
        return -1 if known is None else known.leader_epoch

    def _partition(self, topic: str, partition: int) -> PartitionInfo | None:
        known = self.topics.get(topic)
        return known.partitions[partition] if known is not None and 0 <= partition < len(known.partitions) else None


class NetworkClient:
    """A client's loop, channels and view. Methods are for the loop's thread, except in the first section."""

    def __init__(self, kind: str, settings: Settings, *, create_topics: bool) -> None:
        """`kind` is what the client is: producer or consumer."""
        self.settings = settings
        self.was_forked = False
        """True in a child of the process that made the client."""
        self.given_up: Callable[[], bool] = lambda: False
        """True once the call that a thread waits in has been cancelled."""
        self._kind = kind
        self.view = ClusterView()
        self.failure: KafkaError | None = None
        """The last failure to get metadata, None since the last success."""
        self.pauses = RetryBackoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000)
        self._bootstrap = parse_bootstrap(settings.bootstrap_servers)
        self._create_topics = create_topics
        self._channels: dict[tuple[str, int, str], ClientChannel] = {}
        self._told_of: set[tuple[str, int]] = set()
        """Brokers named by other answers than metadata, until metadata names them."""
        self._wanted: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._asking = False
        self._turn = 0
        self._unanswered = 0
        """Requests for metadata of the present turn that have no answer yet."""
        self._beside: Timer | None = None
        self._again = False
        self._failures = 0
        self._next_bootstrap = 0
        self._refresh_timer: Timer | None = None
        self._listeners: list[Callable[[], object]] = []
        self._closed = False
        self._after_death: list[Callable[[KafkaError], object]] = []
        self.died: KafkaError | None = None
        """The error to raise once the client's thread ended without close(); None while it runs."""
        self.loop = Loop(f"pybroker-{kind}", self._loop_died)
        fork_safety.tell(self)

    # -- from any thread -----------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise KafkaError in a child of the process that made the client, because thread and sockets are the parent's;
        and once the client's thread has ended by itself."""
        if self.was_forked:
            raise fork_safety.refusal(self._kind)
        if self.died is not None:
            raise KafkaError(self.died.code, self.died.message)

    def on_death(self, call: Callable[[KafkaError], object]) -> None:
        """Call `call` if the client's thread ends without close(), so that no caller waits for ever."""
        self._after_death.append(call)

    def _loop_died(self) -> None:
        error = self.died = KafkaError(
            errors.UNKNOWN_SERVER_ERROR,
            f"the thread of this {self._kind} ended, as the log says: close it, and make another one",
        )
        self._closed = True
        closing: list[Callable[[KafkaError], object]] = [channel.close for channel in self._channels.values()]
        for call in closing + self._after_death:
            with contextlib.suppress(BaseException):  # call the other listeners too
                call(error)

    def forked(self) -> None:
        self.was_forked = True
        self.loop.forked()
        for channel in self._channels.values():
            channel.forked()

    def call(self, node: int | None, message: Request[R], *, lane: str = "", how: RequestOptions = PLAIN) -> Future[R]:
        """Send a request from another thread; a future of its answer, or of KafkaError."""
        promise: Promise[R] = Promise()
        if not self.loop.running:
            promise.settle(None, self.died or _closed())
        else:
            self.loop.call_surely(partial(self.send, node, message, promise.settle, lane=lane, how=how))
        return promise

    def retried(
        self, ask: Callable[[], Future[Found]], what: str, deadline_s: float, *, again_s: float | None = None
    ) -> Found:
        """The answer to `ask`, retried after retriable errors. Blocks, so not for the loop's thread.

        KafkaError: that of the answer, or `timed_out(what)`."""
        try:
            return patiently(
                lambda: self.outcome(ask(), deadline_s),
                deadline_s - time.monotonic(),
                again_s=self.pauses.first_s if again_s is None else again_s,
            )
        except TimeoutError:
            raise self.timed_out(what) from None

    def outcome(self, future: Future[Found], deadline_s: float) -> Found:
        """Block until a future has its outcome. TimeoutError after the deadline, KafkaError if the call is given up."""
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                return future.result(min(left_s, LOOK_S))
            except TimeoutError:
                if left_s <= LOOK_S:
                    raise
            self.check_wanted()

    def check_wanted(self) -> None:
        """Raise KafkaError once the calling thread's call is given up."""
        if self.given_up():
            raise KafkaError(errors.INVALID_REQUEST, f"the {self._kind} is closed, or the call was cancelled")

    def timed_out(self, what: str, partitions: Collection[TopicPartition] = (), reason: str = "") -> KafkaError:
        """The error for `what` out of time, with the reason: no broker answers, or partitions have no leader."""
        leaderless = [str(tp) for tp in partitions if self.view.leader(*tp) < 0]
        if self.failure is not None:
            reason = self.failure.message
        elif not reason and leaderless:
            more = f", nor {len(leaderless) - SHOWN_MAX} more" if len(leaderless) > SHOWN_MAX else ""
            reason = f"no broker leads {', '.join(leaderless[:SHOWN_MAX])}{more}"
        return KafkaError(errors.REQUEST_TIMED_OUT, f"{what} in time{reason and ': '}{reason}")

    def check_login(self) -> None:
        """Raise KafkaError if the brokers refuse this client's login: only the caller can fix that."""
        failure = self.failure
        if failure is not None and failure.code in REFUSED:
            raise KafkaError(failure.code, failure.message)

    def want(self, topics: Collection[str]) -> None:
        """Keep the metadata of these topics too, and request what is missing. TypeError if a name is no str."""
        for topic in topics:
            if not isinstance(topic, str):
                raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
        new = set(topics) - self._wanted
        if new:
            self._wanted = self._wanted | new  # a new set: the loop may be reading the old one
            self.refresh_soon()

    def want_pattern(self, pattern: re.Pattern[str] | None) -> None:
        """Keep the metadata of every topic: which of them match can change."""
        self._pattern = pattern
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Request metadata, now or after the pause that follows failures."""
        self.loop.call_soon(self.refresh)

    def close(self) -> None:
        """End the thread; requests under way fail."""
        if self.loop.running:
            self.loop.call_soon(self._close_channels)
            self.loop.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` on the loop's thread after every change of the view."""
        self._listeners.append(listener)

    def tell_of(self, node: Node) -> None:
        """Keep the channel to a broker that an answer other than metadata names."""
        self._told_of.add((node.host, node.port))

    def knows(self, node: Node) -> bool:
        """True if metadata, or another answer since, names a broker at this address."""
        address = node.host, node.port
        return address in self._told_of or any((n.host, n.port) == address for n in self.view.nodes.values())

    def channel(self, node: int | Node | None, lane: str = "") -> ClientChannel:
        """The channel to a broker. KafkaError(BROKER_NOT_AVAILABLE) if the cluster has no such broker.

        Requests that wait at the broker (a fetch, a join) hold up those behind them: they get a lane of their own."""
        if node is ANY:
            host, port = self._any_address() or self._bootstrap[0]
        elif isinstance(node, Node):
            host, port = node.host, node.port
        elif node in self.view.nodes:
            host, port = self.view.nodes[node].host, self.view.nodes[node].port
        else:
            raise KafkaError(errors.BROKER_NOT_AVAILABLE, f"the cluster has no broker {node}")
        return self._channel_to(host, port, lane)

    def _channel_to(self, host: str, port: int, lane: str = "") -> ClientChannel:
        if self._closed:
            raise self.died or _closed()
        found = self._channels.get((host, port, lane))
        if found is None:
            found = self._channels[host, port, lane] = ClientChannel(
                self.loop,
                host,
                port,
                client_id=self.settings.client_id,
                timeout_s=self.settings.request_timeout_ms / 1000,
                pauses=RetryBackoff(
                    self.settings.reconnect_backoff_ms / 1000, self.settings.reconnect_backoff_max_ms / 1000
                ),
                account=self.settings.account,
                tls=self.settings.tls,
            )
        return found

    def send(
        self,
        node: int | Node | None,
        message: Request[R],
        done: Answered[R],
        *,
        lane: str = "",
        how: RequestOptions = PLAIN,
    ) -> None:
        """Send a request; `done` gets BROKER_NOT_AVAILABLE if there is no such broker."""
        try:
            channel = self.channel(node, lane)
        except KafkaError as error:
            complete(done, None, error)
            return
        channel.send(message, done, how)

    def _any_address(self, but: Collection[tuple[str, int]] = ()) -> tuple[str, int] | None:
        """The connected broker with the least load, else the next address that is not failing; none of `but`."""
        ready = [c for c in self._channels.values() if c.ready and (c.host, c.port) not in but]
        if ready:
            least = min(ready, key=lambda channel: channel.load)
            return least.host, least.port
        known = [(node.host, node.port) for node in self.view.nodes.values()]
        addresses = [a for a in dict.fromkeys([*known, *self._bootstrap]) if a not in but]
        if not addresses:
            return None
        for _ in addresses:
            address = addresses[self._next_bootstrap % len(addresses)]
            self._next_bootstrap += 1
            channel = self._channels.get((*address, ""))
            if channel is None or not channel.failing:
                return address
        return addresses[self._next_bootstrap % len(addresses)]

    def _close_channels(self) -> None:
        self._closed = True
        for channel in self._channels.values():
            channel.close(_closed())

    # -- metadata ------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Request metadata; if a request is under way, once more after its answer."""
        if self._asking or self._closed:
            self._again = True
            return
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        self._asking, self._again = True, False
        wanted = sorted(self._wanted)
        asked = None if self._pattern is not None else [m.MetadataRequest.Topics(name=name) for name in wanted]
        request = m.MetadataRequest(topics=asked, allow_auto_topic_creation=self._create_topics)
        self._turn += 1
        self._unanswered = 0
        self._ask_one_more(self._turn, wanted, request, [], [])

    def _ask_one_more(
        self, turn: int, wanted: list[str], request: m.MetadataRequest, tried: list[tuple[str, int]],
        failures: list[KafkaError],
    ) -> None:  # fmt: skip
        """Ask another broker for metadata, and one more after PATIENCE_S, as the first may be frozen."""
        address = self._any_address(tried) if turn == self._turn and self._asking else None
        if address is None:
            return
        tried.append(address)
        self._unanswered += 1
        more = partial(self._ask_one_more, turn, wanted, request, tried, failures)
        self._beside = self.loop.call_by(self._beside, time.monotonic() + PATIENCE_S, more)
        done = partial(self._told, turn, wanted, more, failures)
        try:
            self._channel_to(*address).send(request, done)
        except KafkaError as error:
            done(None, error)

    def _told(
        self, turn: int, wanted: list[str], more: Callable[[], None], failures: list[KafkaError],
        answer: m.MetadataResponse | None, error: KafkaError | None,
    ) -> None:  # fmt: skip
        """Take one broker's answer: the first success counts, or a failure once no broker is left to ask."""
        if turn != self._turn or not self._asking:
            return
        self._unanswered -= 1
        if error is not None and not self._closed:
            failures.append(error)
            more()
            if self._unanswered:
                return
            error = none_answers(failures)
        self._learn(wanted, answer, error)

    def _learn(self, wanted: list[str], answer: m.MetadataResponse | None, error: KafkaError | None) -> None:
        self._asking = False
        if self._beside is not None:
            self._beside.cancel()
            self._beside = None
        if error is None and answer is not None and answer.error_code:
            error = KafkaError(answer.error_code)
        if error is not None:
            if self.failure is None and not self._closed:
                _log.warning("no broker answers, and the client tries again: %s", error.message)
            self.failure = error
            self._failures += 1
            self._refresh_in(self.pauses.after(self._failures))
            self._tell()
            return
        assert answer is not None
        if self.failure is not None:
            _log.warning("a broker answers again")
        self.failure = None
        told = [topic_info(topic) for topic in answer.topics]
        topics = {topic.name: self._newest(topic) for topic in told if topic.name}
        self.view = ClusterView(
            nodes={b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in answer.brokers},
            topics=topics,
            names={topic.id: topic.name for topic in topics.values() if any(topic.id)},
            controller_id=answer.controller_id,
            version=self.view.version + 1,
        )
        self._close_strangers()
        incomplete = any(self._incomplete(topics.get(name)) for name in wanted)
        self._failures = self._failures + 1 if incomplete else 0
        age_s = self.settings.metadata_max_age_ms / 1000
        self._refresh_in(self.pauses.after(self._failures) if incomplete else age_s)
        self._tell()
        if self._again or not self._wanted <= topics.keys() | set(wanted):
            self.refresh()

    def _newest(self, told: TopicInfo) -> TopicInfo:
        """A topic from metadata, but with the newer leaders already known: brokers learn of a leader one by one."""
        known = self.view.topics.get(told.name)
        if known is None or known.id != told.id or not any(told.id):
            return told
        pairs = list(zip(told.partitions, known.partitions, strict=False))
        if not any(old.leader_epoch > new.leader_epoch for new, old in pairs):
            return told
        kept = (old if old.leader_epoch > new.leader_epoch else new for new, old in pairs)
        return told._replace(partitions=(*kept, *told.partitions[len(pairs) :]))

    @staticmethod
    def _incomplete(topic: TopicInfo | None) -> bool:
        """True if the topic or one of its leaders is missing, and may appear soon."""
        if topic is None or (topic.error and errors.lookup(topic.error).retriable):
            return True
        return any(p.leader < 0 for p in topic.partitions)

    def learn_leaders(
        self, told: Mapping[TopicPartition, Leader | None], brokers: Iterable[Endpoint]
    ) -> Set[TopicPartition]:
        """Take the leaders that an answer names (KIP-951), and return the partitions whose leader is new.

        A value of None means that the answer names no leader. A leader of an older epoch, or an unknown
        broker, is ignored."""
        view = self.view
        moved = set()
        nodes = view.nodes | {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in brokers}
        topics = dict(view.topics)
        for tp, named in told.items():
            if named is None:
                continue
            leader, epoch = named.leader_id, named.leader_epoch
            if leader in nodes and view.leader_epoch(*tp) < epoch and tp.topic in topics:
                known = list(topics[tp.topic].partitions)
                if tp.partition < len(known):
                    known[tp.partition] = known[tp.partition]._replace(leader=leader, leader_epoch=epoch, error=0)
                    topics[tp.topic] = topics[tp.topic]._replace(partitions=tuple(known))
                    moved.add(tp)
        if moved:
            self.view = replace(view, nodes=nodes, topics=topics)
        return moved

    def _close_strangers(self) -> None:
        """Close channels to addresses that are no broker's any more."""
        named = {(n.host, n.port) for n in self.view.nodes.values()}
        self._told_of -= named
        addresses = named | self._told_of | {*self._bootstrap}
        for key in [key for key in self._channels if key[:2] not in addresses]:
            words = f"{HostPort(*key[:2])} is no broker of the cluster any more"
            gone = KafkaError(errors.NETWORK_EXCEPTION, words)
            self._channels.pop(key).close(gone)

    def _refresh_in(self, delay_s: float) -> None:
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        self._refresh_timer = self.loop.call_later(delay_s, self.refresh)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def _closed() -> KafkaError:
    return KafkaError(errors.NETWORK_EXCEPTION, "the client is closed")
