"""Quotas in force (KIP-13, 124, 219): each request is counted where its client counts, and told how long to wait.

    request ──> its handler ──> counted ──within the quota──> answered
                                   └──more──> answered with throttle_time_ms, then its connection is muted for so long

Bytes of Produce requests, bytes of Fetch answers, and the time of handlers and network threads; each by itself, and the
longest wait is told. What a connection counts in, its answer brings to the native plane, which counts there from then
on. A Fetch that is over its quota is answered without records, and counts nothing. What brokers say to each other
counts nowhere; nor does the time of a Produce without an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pybroker.clock import monotonic_ms
from pybroker.cluster.caller import Call, Caller, Throttle
from pybroker.core import QuotaBucket
from pybroker.errors import KafkaError
from pybroker.protocol.apis import SERVED
from pybroker.security.quotas import CONSUMER, PRODUCER, REQUEST, ClientQuotas
from pybroker.server.dispatch import Handler

if TYPE_CHECKING:
    from pybroker.server.bridge import Bridge

COUNTED: Final = (PRODUCER, CONSUMER, REQUEST)
NS_A_PERCENT: Final = 10_000_000
"""Of a thread's second."""
REQUEST_THROTTLE_MS_MAX: Final = 1000
THROTTLE_MS_MAX: Final = (1 << 31) - 1
IDLE_MS: Final = 3_600_000
BUCKETS_MAX: Final = 65_536
"""More clients than that are no longer told apart for long: who was there first begins anew."""
ID_BYTES_MAX: Final = 256
"""Of a client id that the native plane knows."""
BETWEEN_BROKERS: Final = frozenset(
    {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition", "AllocateProducerIds"}
)

Key = tuple[str, str, str]
"""A quota, a user, a client id; empty: all of them."""


class Client(NamedTuple):
    """Where a client of a connection counts, by the quotas of one number; None: nowhere."""

    number: int
    client_id: str
    produce: QuotaBucket | None
    fetch: QuotaBucket | None
    request: QuotaBucket | None


class QuotaManager:
    """Counts what clients do, by the quotas that hold now."""

    def __init__(
        self, quotas: ClientQuotas, inter_broker: str | None, now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        """`inter_broker`: the listener that other brokers come by; a lone broker has none."""
        self._quotas = quotas
        self._inter_broker = inter_broker
        self._now_ms = now_ms
        self._buckets: dict[Key, QuotaBucket] = {}  # the one that was made first comes first
        self._swept_ms = now_ms()
        self._gone = dict.fromkeys(COUNTED, (0, 0))  # what `throttled` has of buckets that were dropped

    def tell(self, bridge: Bridge) -> None:
        """Have the native plane hear when quotas change."""
        bridge.count_by(self._quotas.number)
        self._quotas.on_changed.append(lambda: bridge.count_by(self._quotas.number))

    def counted(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same table, with what counts around each handler."""
        return {
            key: handler if SERVED[key].name in BETWEEN_BROKERS else handler._replace(by=self._counted(key, handler))
            for key, handler in table.items()
        }

    @property
    def throttled(self) -> dict[str, tuple[int, int]]:
        """{quota: (how often clients were told to wait, ms in all)}. From any thread."""
        found = dict(self._gone)
        for (quota, _, _), bucket in list(self._buckets.items()):
            _add(found, quota, bucket)
        return found

    @property
    def in_force(self) -> bool:
        """True if there is any quota."""
        return bool(self._quotas.number)

    def owed(self, caller: Caller, client_id: str | None, produce: bool) -> QuotaBucket | None:
        """The bucket for which a client has to wait longest before its next request, or Produce; None if there is
        none."""
        if not self._quotas.number:
            return None
        client, now_ms = self._client(caller, client_id or ""), self._now_ms()
        buckets = (client.request, client.produce if produce else None)
        found = [(bucket, bucket.throttle(now_ms)) for bucket in buckets if bucket is not None]
        most = max(found, key=lambda each: each[1], default=None)
        return most[0] if most is not None and most[1] > 0 else None

    # -- requests ----------------------------------------------------------------------------------------------------

    def _counted(self, key: int, handler: Handler) -> Callable[[Any, Call], Any]:
        api = SERVED[key].name

        def by(request: Any, call: Call) -> Any:
            if not self._quotas.number or (api == "Fetch" and self._is_follower(request, call)):
                return handler.by(request, call)
            client = self._client(call.caller, call.client_id or "")
            if api == "Fetch" and client.fetch is not None:
                request.max_bytes = min(request.max_bytes, client.fetch.most(self._now_ms()))
            if api == "Fetch":
                call = call._replace(fetched=lambda size: self._fetched(client, size))
            began_ns = time.perf_counter_ns()
            try:
                answer = handler.by(request, call)
            except KafkaError as problem:
                answer = handler.failed(request, problem.code, problem.message)
            spent_ns = time.perf_counter_ns() - began_ns
            if isinstance(answer, Coroutine):
                return later(request, call, client, answer)
            return self._finish(api, request, call, client, answer, spent_ns)

        async def later(request: Any, call: Call, client: Client, waiting: Coroutine[Any, Any, Any]) -> Any:
            timed = _Timed(waiting)
            try:
                answer = await timed
            except KafkaError as problem:
                answer = handler.failed(request, problem.code, problem.message)
            return self._finish(api, request, call, client, answer, timed.spent_ns)

        return by

    def _finish(self, api: str, request: Any, call: Call, client: Client, answer: Any, spent_ns: int) -> Any:
        now_ms, wait_ms = self._now_ms(), 0
        if api == "Produce" and client.produce is not None:
            wait_ms = client.produce.record(call.size, now_ms)
        if client.request is not None and not (api == "Produce" and request.acks == 0):
            wait_ms = max(wait_ms, client.request.record(spent_ns, now_ms))
        if hasattr(answer, "throttle_time_ms"):
            wait_ms = answer.throttle_time_ms = max(wait_ms, answer.throttle_time_ms)
        if wait_ms and call.caller.throttle is not None:
            call.caller.throttle.mute_ms = wait_ms
        return answer

    def _fetched(self, client: Client, size: int) -> tuple[int, bool]:
        """How long the client of an answer of so many bytes has to wait, and whether it is to be without records."""
        now_ms = self._now_ms()
        wait_ms = 0 if client.request is None else client.request.throttle(now_ms)
        if client.fetch is None:
            return wait_ms, wait_ms > 0
        if wait_ms:
            return max(wait_ms, client.fetch.throttle(now_ms)), True
        return client.fetch.take(size, now_ms)

    def _is_follower(self, request: Any, call: Call) -> bool:
        if call.caller.listener != self._inter_broker:
            return False
        state = request.replica_state
        return bool(request.replica_id >= 0 or (state is not None and state.replica_id >= 0))

    def charge(self, api: str, call: Call, spent_ns: int) -> int:
        """Count time that was spent on a request outside its handler; the ms that its client has to wait."""
        if not self._quotas.number or api in BETWEEN_BROKERS:
            return 0
        bucket = self._client(call.caller, call.client_id or "").request
        if bucket is None:
            return 0
        now_ms = self._now_ms()
        return int(bucket.record(spent_ns, now_ms) if spent_ns else bucket.throttle(now_ms))

    # -- who counts where --------------------------------------------------------------------------------------------

    def _client(self, caller: Caller, client_id: str) -> Client:
        """The quotas of a request's client; a connection's are looked up once, and again when quotas change."""
        throttle, number = caller.throttle, self._quotas.number
        held: Client | None = None if throttle is None else throttle.client
        if held is not None and (held.number, held.client_id) == (number, client_id) and self._is_current(held):
            if throttle is not None and throttle.is_kept:
                self._tell_plane(throttle, held)
            return held
        user = caller.principal.partition(":")[2]
        found = Client(
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

    def _tell_plane(self, throttle: Throttle, client: Client) -> None:
        """Let the native plane count the client from now on, and execute what it can; not yet if the connection still
        has to wait for what its client produced on others (debts.py)."""
        encoded = client.client_id.encode()
        owes = client.produce is not None and not throttle.is_settled(True) and client.produce.throttle(self._now_ms())
        throttle.is_kept = bool(owes)
        if not owes and len(encoded) <= ID_BYTES_MAX:
            throttle.told = (client.number, encoded, client.produce, client.fetch, client.request)

    def _is_current(self, client: Client) -> bool:
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
        """Drop buckets that nobody used for long, and while there are too many, the oldest."""
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


class _Timed:
    """Awaits a coroutine, and adds up the time that it runs."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self.spent_ns = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        value: Any = None
        problem: BaseException | None = None
        while True:
            began_ns = time.perf_counter_ns()
            try:
                waits_for = self._work.throw(problem) if problem is not None else self._work.send(value)
            except StopIteration as done:
                return done.value
            finally:
                self.spent_ns += time.perf_counter_ns() - began_ns
            value, problem = None, None
            try:
                value = yield waits_for
            except BaseException as thrown:
                problem = thrown
