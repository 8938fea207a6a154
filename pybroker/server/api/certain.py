"""Guards a coordinator whose lease has lapsed: it answers NOT_COORDINATOR without a proof that it still is one.

While no broker reaches ZooKeeper, groups and transactions keep working: the followers of their logs prove that no other
broker coordinates them (`replication/proof.py`). A broker that was replaced gets no proof, and its clients look for
another coordinator.

A request is executed once there is a proof. An offset commit is executed at once: its followers confirm the commit, so
success is a proof, and only a refusal needs one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.server.api.dispatch import A, Answered, AnyHandler, Handler, Q, done
from pybroker.state_log.log import StateLog

Named = Callable[..., Iterable[str] | None]
"""Returns the groups or transactional ids that a request names; None means all of this coordinator."""
COMMITS = ("OffsetCommit", "TxnOffsetCommit")


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


OF_GROUPS: Mapping[str, Named] = {
    **dict.fromkeys(COMMITS, _one),
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
OF_TRANSACTIONS: Mapping[str, Named] = {
    "InitProducerId": lambda request: [] if request.transactional_id is None else [request.transactional_id],
    "AddPartitionsToTxn": lambda request: [
        request.v3_and_below_transactional_id, *(each.transactional_id for each in request.transactions)
    ],
    "AddOffsetsToTxn": lambda request: [request.transactional_id],
    "EndTxn": lambda request: [request.transactional_id],
    "DescribeTransactions": lambda request: request.transactional_ids,
    "ListTransactions": lambda request: None,
}


class Leads(Protocol):
    """A coordinator on this broker."""

    def logs(self, keys: Iterable[str] | None) -> Sequence[StateLog]:
        """The logs led here that hold these keys; None means all keys."""


class Certain:
    """Wraps the handlers of requests to one coordinator."""

    def __init__(self, coordinator: Leads, proof: Proof, named: Mapping[str, Named]) -> None:
        self._coordinator = coordinator
        self._proof = proof
        self._named = named

    def guard(self, handlers: Mapping[str, AnyHandler]) -> dict[str, AnyHandler]:
        """Return the handlers by API name, those of requests to the coordinator guarded."""
        return {name: self._guarded(name, each) if name in self._named else each for name, each in handlers.items()}

    def _guarded(self, name: str, handler: Handler[Q, A]) -> Handler[Q, A]:
        named = self._named[name]
        when = self._commit if name in COMMITS else self._when_proven

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
        refused = isinstance(answer, m.OffsetCommitResponse | m.TxnOffsetCommitResponse) and any(
            p.error_code for topic in answer.topics for p in topic.partitions
        )
        if refused:
            await self._check(logs)
        return answer

    def _logs(self, names: Iterable[str] | None) -> list[tuple[Replica, int]]:
        """The log of each key with its leader epoch."""
        return [(log, log.leader_epoch) for log in self._coordinator.logs(names) if isinstance(log, Replica)]

    async def _check(self, logs: Iterable[tuple[Replica, int]]) -> None:
        """Raise NOT_COORDINATOR if another broker may coordinate one of these keys."""
        if not all(await asyncio.gather(*(self._proof.found(*log) for log in logs))):
            raise KafkaError(errors.NOT_COORDINATOR, "another broker may be the coordinator by now")
