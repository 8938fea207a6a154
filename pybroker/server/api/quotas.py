"""Enforces client quotas (KIP-13, KIP-124, KIP-219): counts each request in its client's buckets, and throttles.

    request ──> its handler ──> counted ──within the quota──> answered.
                                   └──over──> answered with throttle_time_ms, then the connection is muted so long.

Counted are bytes of Produce requests, bytes of Fetch responses, and the time of handlers and network threads, each in a
bucket of its own; throttle_time_ms is the longest wait. With its response a connection hands its buckets to the native
plane, which counts in them from then on. A Fetch over its quota is answered without records and not counted. Requests
between brokers are not counted, nor is the time of a Produce with acks=0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from pybroker.clock import monotonic_ms
from pybroker.core import QuotaBucket
from pybroker.decisions.caller import Call, Caller, Throttle
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.protocol.apis import SERVED
from pybroker.protocol.message import Message
from pybroker.security.quotas import CONSUMER, PRODUCER, REQUEST, ClientQuotas
from pybroker.server.api.dispatch import A, Answered, AnyHandler, Handler, Q

if TYPE_CHECKING:
    from pybroker.server.network.plane import Plane

COUNTED: Final = (PRODUCER, CONSUMER, REQUEST)
NS_A_PERCENT: Final = 10_000_000
"""Nanoseconds of thread time in one percent of a second."""
REQUEST_THROTTLE_MS_MAX: Final = 1000
THROTTLE_MS_MAX: Final = (1 << 31) - 1
IDLE_MS: Final = 3_600_000
BUCKETS_MAX: Final = 65_536
"""With more clients than this the oldest bucket is dropped, and its client starts with an empty one."""
ID_BYTES_MAX: Final = 256
"""The longest client id that the native plane takes, in bytes."""
BETWEEN_BROKERS: Final = frozenset(
    {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition", "AllocateProducerIds"}
)

Key = tuple[str, str, str]
"""(quota, user, client id); an empty string stands for all users or client ids."""


class CountedClient(NamedTuple):
    """The buckets of a client, under the version `number` of the quotas; None where no quota applies."""

    number: int
    client_id: str
    produce: QuotaBucket | None
    fetch: QuotaBucket | None
    request: QuotaBucket | None


class QuotaManager:
    """Counts requests of clients under the current quotas."""

    def __init__(
        self, quotas: ClientQuotas, inter_broker: str | None, now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        """`inter_broker`: the listener that other brokers connect to; None for a lone broker."""
        self._quotas = quotas
        self._inter_broker = inter_broker
        self._now_ms = now_ms
        self._buckets: dict[Key, QuotaBucket] = {}  # in order of creation
        self._swept_ms = now_ms()
        self._gone = dict.fromkeys(COUNTED, (0, 0))  # the part of `throttled` from dropped buckets

    def tell(self, plane: Plane) -> None:
        """Have the native plane notified when quotas change."""
        plane.count_by(self._quotas.number)
        self._quotas.on_changed.append(lambda: plane.count_by(self._quotas.number))

    def counted(self, table: Mapping[int, AnyHandler]) -> dict[int, AnyHandler]:
        """Return the table with each handler wrapped so that its requests are counted."""
        return {
            key: handler if SERVED[key].name in BETWEEN_BROKERS else handler._replace(by=self._counted(handler))
            for key, handler in table.items()
        }

    @property
    def throttled(self) -> dict[str, tuple[int, int]]:
        """{quota: (number of throttled responses, sum of their throttle times in ms)}. Thread-safe."""
        found = dict(self._gone)
        for (quota, _, _), bucket in list(self._buckets.items()):
            _add(found, quota, bucket)
        return found

    @property
    def in_force(self) -> bool:
        """True if there is any quota."""
        return bool(self._quotas.number)

    def owed(self, caller: Caller, client_id: str | None, produce: bool) -> QuotaBucket | None:
        """The bucket that makes a client wait longest before its next request, or Produce; None if it need not wait."""
        if not self._quotas.number:
            return None
        client, now_ms = self._client(caller, client_id or ""), self._now_ms()
        buckets = (client.request, client.produce if produce else None)
        found = [(bucket, bucket.throttle(now_ms)) for bucket in buckets if bucket is not None]
        most = max(found, key=lambda each: each[1], default=None)
        return most[0] if most is not None and most[1] > 0 else None

    # -- requests ----------------------------------------------------------------------------------------------------

    def _counted(self, handler: Handler[Q, A]) -> Callable[[Q, Call], Answered[A]]:
        def by(request: Q, call: Call) -> Answered[A]:
            fetch = request if isinstance(request, m.FetchRequest) else None
            if not self._quotas.number or (fetch is not None and self._is_follower(fetch, call)):
                return handler.by(request, call)
            client = self._client(call.caller, call.client_id or "")
            if fetch is not None and client.fetch is not None:
                fetch.max_bytes = min(fetch.max_bytes, client.fetch.most(self._now_ms()))
            if fetch is not None:
                call = call._replace(fetched=lambda size: self._fetched(client, size))
            began_ns = time.perf_counter_ns()
            answer: Answered[A]
            try:
                answer = handler.by(request, call)
            except KafkaError as problem:
                answer = handler.failed(request, problem.code, problem.message)
            spent_ns = time.perf_counter_ns() - began_ns
            if isinstance(answer, Coroutine):
                return later(request, call, client, answer)
            return self._finish(request, call, client, answer, spent_ns)

        async def later(
            request: Q, call: Call, client: CountedClient, waiting: Coroutine[object, None, A | None]
        ) -> A | None:
            timed, answer = Timed(waiting), None
            try:
                answer = await timed
            except KafkaError as problem:
                answer = handler.failed(request, problem.code, problem.message)
            return self._finish(request, call, client, answer, timed.spent_ns)

        return by

    def _finish(self, request: Message, call: Call, client: CountedClient, answer: A | None, spent_ns: int) -> A | None:
        now_ms, wait_ms = self._now_ms(), 0
        produce = request if isinstance(request, m.ProduceRequest) else None
        if produce is not None and client.produce is not None:
            wait_ms = client.produce.record(call.size, now_ms)
        if client.request is not None and not (produce is not None and produce.acks == 0):
            wait_ms = max(wait_ms, client.request.record(spent_ns, now_ms))
        if answer is not None and hasattr(answer, "throttle_time_ms"):
            wait_ms = answer.throttle_time_ms = max(wait_ms, answer.throttle_time_ms)
        if wait_ms and call.caller.throttle is not None:
            call.caller.throttle.mute_ms = wait_ms
        return answer

    def _fetched(self, client: CountedClient, size: int) -> tuple[int, bool]:
        """Count a Fetch response of `size` bytes; return (ms that its client waits, True to omit the records)."""
        now_ms = self._now_ms()
        wait_ms = 0 if client.request is None else client.request.throttle(now_ms)
        if client.fetch is None:
            return wait_ms, wait_ms > 0
        if wait_ms:
            return max(wait_ms, client.fetch.throttle(now_ms)), True
        return client.fetch.take(size, now_ms)

    def _is_follower(self, request: m.FetchRequest, call: Call) -> bool:
        if call.caller.listener != self._inter_broker:
            return False
        state = request.replica_state
        return bool(request.replica_id >= 0 or (state is not None and state.replica_id >= 0))

    def charge(self, api: str, call: Call, spent_ns: int) -> int:
        """Count time spent on a request outside its handler; return the ms that its client has to wait."""
        if not self._quotas.number or api in BETWEEN_BROKERS:
            return 0
        bucket = self._client(call.caller, call.client_id or "").request
        if bucket is None:
            return 0
        now_ms = self._now_ms()
        return int(bucket.record(spent_ns, now_ms) if spent_ns else bucket.throttle(now_ms))

    # -- the buckets of a client -------------------------------------------------------------------------------------

    def _client(self, caller: Caller, client_id: str) -> CountedClient:
        """The buckets of a request's client; looked up once for a connection, and again when quotas change."""
        throttle, number = caller.throttle, self._quotas.number
        held = None if throttle is None else throttle.client
        counted = held if isinstance(held, CountedClient) else None
        if counted and (counted.number, counted.client_id) == (number, client_id) and self._is_current(counted):
            if throttle is not None and throttle.is_kept:
                self._tell_plane(throttle, counted)
            return counted
        user = caller.principal.partition(":")[2]
        found = CountedClient(
            number,
            client_id,
            self._bucket(PRODUCER, user, client_id, 1, THROTTLE_MS_MAX),
            self._bucket(CONSUMER, user, client_id, 1, THROTTLE_MS_MAX),
            self._bucket(REQUEST, user, client_id, NS_A_PERCENT, REQUEST_THROTTLE_MS_MAX),
        )
        if throttle is not None:
            throttle.client = found
            self._tell_plane(throttle, found)
        return found

    def _tell_plane(self, throttle: Throttle, client: CountedClient) -> None:
        """Let the native plane count this client and execute its requests. If the client has exceeded its produce quota
        on other connections, this is put off until it has waited (debts.py)."""
        encoded = client.client_id.encode()
        owes = client.produce is not None and not throttle.is_settled(True) and client.produce.throttle(self._now_ms())
        throttle.is_kept = bool(owes)
        if not owes and len(encoded) <= ID_BYTES_MAX:
            throttle.told = (client.number, encoded, client.produce, client.fetch, client.request)

    def _is_current(self, client: CountedClient) -> bool:
        return not any(b is not None and b.retired for b in (client.produce, client.fetch, client.request))

    def _bucket(self, quota: str, user: str, client_id: str, unit: int, wait_ms_max: int) -> QuotaBucket | None:
        found = self._quotas.bucket(quota, user, client_id)
        if found is None:
            return None
        key = (quota, found.user, found.client_id)
        bucket = self._buckets.get(key)
        if bucket is None:
            self._make_room()
            bucket = self._buckets[key] = QuotaBucket(found.limit * unit, throttle_ms_max=wait_ms_max)
        else:
            bucket.set_limit(found.limit * unit)
        return bucket

    def _make_room(self) -> None:
        """Drop buckets unused for IDLE_MS, and the oldest ones while there are too many."""
        now_ms = self._now_ms()
        if now_ms - self._swept_ms > IDLE_MS // 60:
            self._swept_ms = now_ms
            for key in [key for key, bucket in self._buckets.items() if now_ms - bucket.last_ms > IDLE_MS]:
                self._drop(key)
        while len(self._buckets) >= BUCKETS_MAX:
            self._drop(next(iter(self._buckets)))

    def _drop(self, key: Key) -> None:
        bucket = self._buckets.pop(key)
        bucket.retire()
        _add(self._gone, key[0], bucket)


def _add(found: dict[str, tuple[int, int]], quota: str, bucket: QuotaBucket) -> None:
    times, ms = bucket.throttled
    found[quota] = (found[quota][0] + times, found[quota][1] + ms)


T = TypeVar("T")


class Timed(Generic[T]):
    """Awaits a coroutine and measures how long it runs, without the time that it waits."""

    def __init__(self, work: Coroutine[object, None, T]) -> None:
        self._work = work
        self.spent_ns = 0

    def __await__(self) -> Generator[object, None, T]:
        value: None = None
        problem: BaseException | None = None
        while True:
            began_ns = time.perf_counter_ns()
            try:
                waits_for = self._work.throw(problem) if problem is not None else self._work.send(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self.spent_ns += time.perf_counter_ns() - began_ns
            value, problem = None, None
            try:
                value = yield waits_for
            except BaseException as thrown:
                problem = thrown
