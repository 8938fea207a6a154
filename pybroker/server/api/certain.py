"""Guards a group coordinator whose lease has lapsed: it answers NOT_COORDINATOR without a proof that it still is one.

While no broker reaches ZooKeeper, groups keep working: the followers of their logs prove that no other broker
coordinates them (`replication/proof.py`). A broker that was replaced gets no proof, and its clients look for another
coordinator.

A request is executed once there is a proof. An offset commit is executed at once: its followers confirm the commit, so
success is a proof, and only a refusal needs one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.protocol import messages as m
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.server.api.dispatch import A, Answered, AnyHandler, Handler, Q, done

Named = Callable[..., Iterable[str] | None]
"""Returns the groups that a request names; None means all groups of this coordinator."""
COMMIT = "OffsetCommit"


class OfGroup(Protocol):
    """A request about one group."""

    group_id: str


def _one(request: OfGroup) -> Iterable[str]:
    return [request.group_id]


def _fetched(request: m.OffsetFetchRequest) -> Iterable[str]:
    return [request.group_id, *(group.group_id for group in request.groups)]


def _described(request: m.DescribeGroupsRequest) -> Iterable[str]:
    return request.groups


def _deleted(request: m.DeleteGroupsRequest) -> Iterable[str]:
    return request.groups_names


NAMED: Mapping[str, Named] = {
    COMMIT: _one,
    "OffsetFetch": _fetched,
    "OffsetDelete": _one,
    "JoinGroup": _one,
    "SyncGroup": _one,
    "Heartbeat": _one,
    "LeaveGroup": _one,
    "DescribeGroups": _described,
    "ListGroups": lambda request: None,
    "DeleteGroups": _deleted,
}


class Certain:
    """Wraps the handlers of group requests."""

    def __init__(self, groups: Coordinator, proof: Proof) -> None:
        self._groups = groups
        self._proof = proof

    def guard(self, handlers: Mapping[str, AnyHandler]) -> dict[str, AnyHandler]:
        """Return the handlers by API name, those of group requests guarded."""
        return {name: self._guarded(name, each) if name in NAMED else each for name, each in handlers.items()}

    def _guarded(self, name: str, handler: Handler[Q, A]) -> Handler[Q, A]:
        named = NAMED[name]
        when = self._commit if name == COMMIT else self._when_proven

        def by(request: Q, call: Call) -> Answered[A]:
            return when(handler, request, call, named) if self._proof.is_due else handler.by(request, call)

        return handler._replace(by=by)

    async def _when_proven(self, handler: Handler[Q, A], request: Q, call: Call, named: Named) -> A | None:
        await self._check(self._logs(named(request)))
        return await done(handler.by(request, call))

    async def _commit(self, handler: Handler[Q, A], request: Q, call: Call, named: Named) -> A | None:
        logs = self._logs(named(request))
        try:
            answer = await done(handler.by(request, call))
        except KafkaError:
            await self._check(logs)
            raise
        refused = isinstance(answer, m.OffsetCommitResponse) and any(
            p.error_code for topic in answer.topics for p in topic.partitions
        )
        if refused:
            await self._check(logs)
        return answer

    def _logs(self, names: Iterable[str] | None) -> list[tuple[Replica, int]]:
        """The log of each group with its leader epoch."""
        return [(log, log.leader_epoch) for log in self._groups.logs(names) if isinstance(log, Replica)]

    async def _check(self, logs: Iterable[tuple[Replica, int]]) -> None:
        """Raise NOT_COORDINATOR if another broker may coordinate one of these groups."""
        if not all(await asyncio.gather(*(self._proof.found(*log) for log in logs))):
            raise KafkaError(errors.NOT_COORDINATOR, "another broker may coordinate the group by now")
