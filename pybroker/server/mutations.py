"""The quota of partitions that are created and deleted (KIP-599), around the handlers of topics.

    request ──each topic in turn──tokens are there──> taken ──> done ──failed──> given back
                     └──none──> 89, of versions whose clients know it; older ones are done, and wait behind it

What is only validated costs nothing. The tokens are this broker's: clients ask the controller for such changes.
A topic that Metadata creates costs as much; without tokens Metadata answers
LEADER_NOT_AVAILABLE, and the client asks again.
"""

import copy
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.errors import KafkaError
from pybroker.protocol.apis import SERVED
from pybroker.security.quotas import MUTATION, ClientQuotas
from pybroker.security.token_bucket import TokenBucket
from pybroker.server.dispatch import Handler

BUCKETS_MAX: Final = 65_536
METADATA: Final = next(key for key, api in SERVED.items() if api.name == "Metadata")
WORDS: Final = "the quota of partitions that are created and deleted is used up for now"


class _Api(NamedTuple):
    strict_from: int
    """The version whose clients know THROTTLING_QUOTA_EXCEEDED."""
    told: str
    """Where the answer tells of each topic."""


APIS: Final[Mapping[str, _Api]] = {
    "CreateTopics": _Api(6, "topics"),
    "DeleteTopics": _Api(5, "responses"),
    "CreatePartitions": _Api(3, "results"),
}


class Mutations:
    """Who may create and delete how many partitions."""

    def __init__(
        self, quotas: ClientQuotas, metadata: MetadataCache, config: BrokerConfig, now_ms: Callable[[], int]
    ) -> None:
        self._quotas = quotas
        self._metadata = metadata
        self._config = config
        self._now_ms = now_ms
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def counted(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same table, with what counts around the handlers of topics."""
        return {
            key: handler._replace(by=self._counted(name, handler)) if (name := SERVED[key].name) in APIS else handler
            for key, handler in table.items()
        } | {METADATA: table[METADATA]._replace(by=self._mentioned(table[METADATA]))}

    def _mentioned(self, handler: Handler) -> Callable[[Any, Call], Any]:
        """The handler of Metadata, which takes tokens for the missing topics that it creates."""

        def by(request: Any, call: Call) -> Any:
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

            def finish(answer: Any) -> Any:
                if mentioned:
                    answer.throttle_time_ms = max(answer.throttle_time_ms, bucket.throttle_ms(self._now_ms()))
                return answer

            async def later(waiting: Coroutine[Any, Any, Any]) -> Any:
                return finish(await waiting)

            answer = handler.by(request, call._replace(may_create=may_create))
            return later(answer) if isinstance(answer, Coroutine) else finish(answer)

        return by

    def _counted(self, name: str, handler: Handler) -> Callable[[Any, Call], Any]:
        api = APIS[name]

        def by(request: Any, call: Call) -> Any:
            bucket = self._bucket(call)
            if bucket is None or getattr(request, "validate_only", False):
                return handler.by(request, call)
            field = "topic_names" if name == "DeleteTopics" and not request.topics else "topics"
            costs, refused = [], []
            for topic in getattr(request, field):
                if call.version >= api.strict_from and bucket.is_exceeded(self._now_ms()):
                    refused.append(topic)
                else:
                    costs.append((topic, self._cost(name, topic)))
                    bucket.record(costs[-1][1], self._now_ms())
            return self._execute(name, handler, request, call, bucket, field, costs, refused)

        return by

    async def _execute(
        self, name: str, handler: Handler, request: Any, call: Call, bucket: TokenBucket, field: str,
        costs: list[tuple[Any, int]], refused: list[Any],
    ) -> Any:  # fmt: skip
        told = APIS[name].told
        denied = handler.failed(_with(request, field, refused), errors.THROTTLING_QUOTA_EXCEEDED, WORDS)
        if costs or not refused:
            try:
                answer = handler.by(_with(request, field, [topic for topic, _ in costs]), call)
                answer = await answer if isinstance(answer, Coroutine) else answer
            except BaseException:
                bucket.record(-sum(cost for _, cost in costs), self._now_ms())
                raise
            done = [each for each in getattr(answer, told) if each.error_code in (0, errors.REQUEST_TIMED_OUT)]
            for topic, cost in costs:
                if not any(_is(each, topic) for each in done):
                    bucket.record(-cost, self._now_ms())
            getattr(answer, told).extend(getattr(denied, told))
        else:
            answer = denied
        answer.throttle_time_ms = max(answer.throttle_time_ms, bucket.throttle_ms(self._now_ms()))
        return answer

    def _cost(self, name: str, topic: Any) -> int:
        """How many partitions a topic of a request stands for."""
        if name == "CreateTopics":
            count = len(topic.assignments) or topic.num_partitions
            return count if count > 0 else int(self._config["num.partitions"])
        image = self._metadata.image
        if isinstance(topic, str) or topic.name is not None:
            found = image.topic(topic if isinstance(topic, str) else topic.name)
        else:
            found = image.topic_by_id(topic.topic_id)
        there = 0 if found is None else len(found.partitions)
        return there if name == "DeleteTopics" else max(0, topic.count - there)

    def _bucket(self, call: Call) -> TokenBucket | None:
        user = call.caller.principal.partition(":")[2]
        found = self._quotas.bucket(MUTATION, user, call.client_id or "")
        if found is None:
            return None
        key, now_ms = (found.user, found.client_id), self._now_ms()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:  # who is full is as if it were new
                self._buckets = {key: each for key, each in self._buckets.items() if not each.is_full(now_ms)}
            bucket = self._buckets[key] = TokenBucket(found.limit, now_ms)
        elif bucket.rate != found.limit:
            bucket.set_rate(found.limit, now_ms)
        return bucket


def _is(told: Any, topic: Any) -> bool:
    """Is this what an answer tells of a topic of the request?"""
    if isinstance(topic, str):
        return bool(told.name == topic)
    if topic.name is not None:
        return bool(told.name == topic.name)
    return bool(told.topic_id == topic.topic_id)


def _with(request: Any, field: str, topics: list[Any]) -> Any:
    less = copy.copy(request)
    setattr(less, field, topics)
    return less
