"""Guards a group coordinator whose lease has lapsed: it answers only what is certain, else NOT_COORDINATOR.

While ZooKeeper is away for all brokers, groups go on: the followers of their logs prove that no other broker
coordinates them (`replication/proof.py`). A broker that was replaced gets no proof, and its clients look for another
coordinator.

A request is executed once there is a proof. An offset commit is executed at once: followers confirm it, so its success
is a proof by itself, and only its refusals are in doubt.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.server.dispatch import Handler

Named = Callable[[Any], Iterable[str] | None]
"""The groups that a request names; None means all groups here."""
COMMIT = "OffsetCommit"


def _one(request: Any) -> Iterable[str]:
    return [request.group_id]


def _fetched(request: Any) -> Iterable[str]:
    return [request.group_id, *(group.group_id for group in request.groups)]


NAMED: Mapping[str, Named] = {
    COMMIT: _one,
    "OffsetFetch": _fetched,
    "OffsetDelete": _one,
    "JoinGroup": _one,
    "SyncGroup": _one,
    "Heartbeat": _one,
    "LeaveGroup": _one,
    "DescribeGroups": lambda request: request.groups,
    "ListGroups": lambda request: None,
    "DeleteGroups": lambda request: request.groups_names,
}


class Certain:
    """Stands before the handlers of groups."""

    def __init__(self, groups: Coordinator, proof: Proof) -> None:
        self._groups = groups
        self._proof = proof

    def guard(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The handlers by API name, with those of groups guarded."""
        return {name: self._guarded(name, each) if name in NAMED else each for name, each in handlers.items()}

    def _guarded(self, name: str, handler: Handler) -> Handler:
        named = NAMED[name]
        when = self._commit if name == COMMIT else self._when_proven

        def by(request: Any, call: Call) -> Any:
            return when(handler, request, call, named) if self._proof.is_due else handler.by(request, call)

        return handler._replace(by=by)

    async def _when_proven(self, handler: Handler, request: Any, call: Call, named: Named) -> Any:
        await self._check(self._logs(named(request)))
        return await _done(handler.by(request, call))

    async def _commit(self, handler: Handler, request: Any, call: Call, named: Named) -> Any:
        logs = self._logs(named(request))
        try:
            answer = await _done(handler.by(request, call))
        except KafkaError:
            await self._check(logs)
            raise
        if any(p.error_code for topic in answer.topics for p in topic.partitions):
            await self._check(logs)
        return answer

    def _logs(self, names: Iterable[str] | None) -> list[tuple[Replica, int]]:
        """The log of each group, and its leader epoch."""
        return [(log, log.leader_epoch) for log in self._groups.logs(names) if isinstance(log, Replica)]

    async def _check(self, logs: Iterable[tuple[Replica, int]]) -> None:
        """Raise NOT_COORDINATOR if another broker may coordinate one of these groups."""
        if not all(await asyncio.gather(*(self._proof.found(*log) for log in logs))):
            raise KafkaError(errors.NOT_COORDINATOR, "another broker may coordinate the group by now")


async def _done(answer: Any) -> Any:
    return await answer if isinstance(answer, Coroutine) else answer
