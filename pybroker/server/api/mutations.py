"""Enforces controller_mutation_rate, the quota of partitions created and deleted (KIP-599).

    request ──each topic in turn──tokens left──> tokens taken ──> executed ──failed──> tokens given back
                     └──no tokens──> THROTTLING_QUOTA_EXCEEDED; in versions without this code: executed, then throttled

A request with validate_only costs nothing. Each broker counts its own tokens; clients ask the controller for changes.
A topic that Metadata creates costs the same. Without tokens Metadata answers LEADER_NOT_AVAILABLE, and the client asks
again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.decisions.caller import Call
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.protocol.apis import SERVED
from pybroker.security.quotas import MUTATION, ClientQuotas
from pybroker.security.token_bucket import TokenBucket
from pybroker.server.api.dispatch import Answered, AnyHandler, Handler, done

if TYPE_CHECKING:
    Topic = str | m.CreateTopicsRequest.Topics | m.DeleteTopicsRequest.Topics | m.CreatePartitionsRequest.Topics
    Told = m.CreateTopicsResponse.Topics | m.DeleteTopicsResponse.Responses | m.CreatePartitionsResponse.Results

Mutation = TypeVar("Mutation", bound="m.CreateTopicsRequest | m.DeleteTopicsRequest | m.CreatePartitionsRequest")
Changed = TypeVar("Changed", bound="m.CreateTopicsResponse | m.DeleteTopicsResponse | m.CreatePartitionsResponse")
BUCKETS_MAX: Final = 65_536
METADATA: Final = next(key for key, api in SERVED.items() if api.name == "Metadata")
WORDS: Final = "quota controller_mutation_rate exceeded: retry after throttle_time_ms"


class _Api(NamedTuple):
    strict_from: int
    """The first version whose clients know THROTTLING_QUOTA_EXCEEDED."""
    told: str
    """The field of the response with one element for each topic."""


APIS: Final[Mapping[str, _Api]] = {
    "CreateTopics": _Api(6, "topics"),
    "DeleteTopics": _Api(5, "responses"),
    "CreatePartitions": _Api(3, "results"),
}


class Mutations:
    """Limits the rate at which clients create and delete partitions."""

    def __init__(
        self, quotas: ClientQuotas, metadata: MetadataCache, config: BrokerConfig, now_ms: Callable[[], int]
    ) -> None:
        self._quotas = quotas
        self._metadata = metadata
        self._config = config
        self._now_ms = now_ms
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def counted(self, table: Mapping[int, AnyHandler]) -> dict[int, AnyHandler]:
        """Return the table with the handlers that create and delete partitions wrapped."""
        return {
            key: handler._replace(by=self._counted(name, handler)) if (name := SERVED[key].name) in APIS else handler
            for key, handler in table.items()
        } | {METADATA: table[METADATA]._replace(by=self._mentioned(table[METADATA]))}

    def _mentioned(
        self, handler: Handler[m.MetadataRequest, m.MetadataResponse]
    ) -> Callable[[m.MetadataRequest, Call], Answered[m.MetadataResponse]]:
        """Wrap the handler of Metadata: it takes tokens for the topics that it creates."""

        def by(request: m.MetadataRequest, call: Call) -> Answered[m.MetadataResponse]:
            bucket = self._bucket(call)
            if bucket is None:
                return handler.by(request, call)
            asked, mentioned = call.may_create, []

            def may_create(name: str) -> bool:
                if asked is not None and not asked(name):
                    return False
                mentioned.append(name)
                if bucket.is_exceeded(self._now_ms()):
                    raise KafkaError(errors.LEADER_NOT_AVAILABLE, WORDS)
                bucket.record(int(self._config["num.partitions"]), self._now_ms())
                return True

            def finish(answer: m.MetadataResponse | None) -> m.MetadataResponse | None:
                if mentioned and answer is not None:
                    answer.throttle_time_ms = max(answer.throttle_time_ms, bucket.throttle_ms(self._now_ms()))
                return answer

            async def later(waiting: Answered[m.MetadataResponse]) -> m.MetadataResponse | None:
                return finish(await done(waiting))

            answer = handler.by(request, call._replace(may_create=may_create))
            return later(answer) if isinstance(answer, Coroutine) else finish(answer)

        return by

    def _counted(self, name: str, handler: Handler[Mutation, Changed]) -> Callable[[Mutation, Call], Answered[Changed]]:
        api = APIS[name]

        def by(request: Mutation, call: Call) -> Answered[Changed]:
            bucket = self._bucket(call)
            if bucket is None or getattr(request, "validate_only", False):
                return handler.by(request, call)
            field = "topic_names" if name == "DeleteTopics" and not request.topics else "topics"
            costs: list[tuple[Topic, int]] = []
            refused: list[Topic] = []
            for topic in getattr(request, field):
                if call.version >= api.strict_from and bucket.is_exceeded(self._now_ms()):
                    refused.append(topic)
                else:
                    costs.append((topic, self._cost(topic)))
                    bucket.record(costs[-1][1], self._now_ms())
            return self._execute(name, handler, request, call, bucket, field, costs, refused)

        return by

    async def _execute(
        self, name: str, handler: Handler[Mutation, Changed], request: Mutation, call: Call, bucket: TokenBucket,
        field: str, costs: list[tuple[Topic, int]], refused: list[Topic],
    ) -> Changed:  # fmt: skip
        told = APIS[name].told
        denied = handler.failed(_with(request, field, refused), errors.THROTTLING_QUOTA_EXCEEDED, WORDS)
        if costs or not refused:
            try:
                answer = await done(handler.by(_with(request, field, [topic for topic, _ in costs]), call))
                assert answer is not None, f"{name} is always answered"
            except BaseException:
                bucket.record(-sum(cost for _, cost in costs), self._now_ms())
                raise
            made = [each for each in getattr(answer, told) if each.error_code in (0, errors.REQUEST_TIMED_OUT)]
            for topic, cost in costs:
                if not any(_is(each, topic) for each in made):
                    bucket.record(-cost, self._now_ms())
            getattr(answer, told).extend(getattr(denied, told))
        else:
            answer = denied
        answer.throttle_time_ms = max(answer.throttle_time_ms, bucket.throttle_ms(self._now_ms()))
        return answer

    def _cost(self, topic: Topic) -> int:
        """The number of partitions that a topic of a request creates or deletes."""
        if isinstance(topic, m.CreateTopicsRequest.Topics):
            count = len(topic.assignments) or topic.num_partitions
            return count if count > 0 else int(self._config["num.partitions"])
        image = self._metadata.image
        name = topic if isinstance(topic, str) else topic.name
        if name is not None or not isinstance(topic, m.DeleteTopicsRequest.Topics):
            found = image.topic(name or "")
        else:
            found = image.topic_by_id(topic.topic_id)
        there = 0 if found is None else len(found.partitions)
        return max(0, topic.count - there) if isinstance(topic, m.CreatePartitionsRequest.Topics) else there

    def _bucket(self, call: Call) -> TokenBucket | None:
        user = call.caller.principal.partition(":")[2]
        found = self._quotas.bucket(MUTATION, user, call.client_id or "")
        if found is None:
            return None
        key, now_ms = (found.user, found.client_id), self._now_ms()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:  # a full bucket is no different from a new one
                self._buckets = {key: each for key, each in self._buckets.items() if not each.is_full(now_ms)}
            bucket = self._buckets[key] = TokenBucket(found.limit, now_ms)
        elif bucket.rate != found.limit:
            bucket.set_rate(found.limit, now_ms)
        return bucket


def _is(told: Told, topic: Topic) -> bool:
    """True if this element of a response is about this topic of the request."""
    name = topic if isinstance(topic, str) else topic.name
    if name is None and isinstance(topic, m.DeleteTopicsRequest.Topics):
        return not isinstance(told, m.CreatePartitionsResponse.Results) and told.topic_id == topic.topic_id
    return told.name == name


def _with(request: Mutation, field: str, topics: Sequence[Topic]) -> Mutation:
    less = copy.copy(request)
    setattr(less, field, topics)
    return less
