"""ACLs in the store: each broker reads them all at its start, then those of each resource that changed.

    /kafka-acl, /kafka-acl-extended            one node per resource, with its ACLs (security/acl_nodes.py)
    /kafka-acl-changes, ..-extended-changes    each new notice names a resource: its ACLs are read again
    after an unreadable notice, or when the session has reconnected, all ACLs are read again

Any broker writes ACLs, with a notice in the same multi. If a node cannot be read, an error is logged and its resource
is denied to all but super users.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from pybroker import errors
from pybroker.coordination.commit import commit, read, until_answered
from pybroker.coordination.store import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Op,
    Session,
    Set,
    StoreError,
    StoreFailed,
)
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata.notices import Notices
from pybroker.metadata.slow_changes import in_time
from pybroker.security import acl_nodes
from pybroker.security.access import Access
from pybroker.security.acl_nodes import Unreadable
from pybroker.security.acls import Acl, AclBinding, AclFilter, ResourcePattern
from pybroker.tasks import by_time

log = logging.getLogger(__name__)

READ_AT_ONCE = 1000
CHANGES_KEPT_MS = 15 * 60 * 1000
TRIES = 10
"""Attempts at one change while other brokers change the same node."""
CHANGES = {
    acl_nodes.CHANGES: acl_nodes.load_change, acl_nodes.EXTENDED_CHANGES: acl_nodes.load_extended_change
}  # fmt: skip

Held = frozenset[Acl] | Unreadable


class AclStore:
    """Keeps a broker's ACLs in step with the store, and changes them; one change at a time."""

    def __init__(self, session: Callable[[], Session], access: Access, wall_ms: Callable[[], int]) -> None:
        """`session` returns the current session; `wall_ms`, close to the store's clock, is used to age notices."""
        self._session = session
        self._access = access
        self._wall_ms = wall_ms
        self._one = asyncio.Lock()
        self._changed: set[ResourcePattern] = set()
        """Resources that this broker changed since the current read began: the read may return older ACLs of them."""
        self._heard = 0
        """The number of reads applied so far."""

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read_all(self, session: Session) -> None:
        """Replace all rules with the ACLs in the store. Raises StoreError."""
        self._changed.clear()
        found: list[ResourcePattern] = []
        for pattern, root in acl_nodes.ROOTS.items():
            kinds, _ = await until_answered(lambda root=root: session.children(root))  # type: ignore[misc]
            for name in kinds:
                kind = acl_nodes.resource_type(name)
                if kind is None:
                    event(log, logging.WARNING, "ACLs ignored", path=f"{root}/{name}", reason="no such type is known")
                    continue
                path = f"{root}/{name}"
                names, _ = await until_answered(lambda path=path: session.children(path))  # type: ignore[misc]
                found += [ResourcePattern(kind, each, pattern) for each in names]
        held: dict[ResourcePattern, Held] = dict.fromkeys(self._access.rules.resources(), frozenset())
        for first in range(0, len(found), READ_AT_ONCE):
            share = found[first : first + READ_AT_ONCE]
            held |= zip(share, await asyncio.gather(*(_held(session, each) for each in share)), strict=True)
        self._hear(held)

    async def follow(self, session: Session) -> None:
        """Read and apply changes until the session ends. Raises StoreError."""
        with Notices(session, *CHANGES) as notices:
            while True:
                fresh = await notices.look()
                if fresh is None or not await self._take(session, fresh):
                    await self.read_all(session)
                await notices.wait()

    async def _take(self, session: Session, notices: Iterable[str]) -> bool:
        """Apply the changes that these notices name. False if a notice cannot be read."""
        resources: dict[ResourcePattern, None] = {}
        for path in notices:
            load = CHANGES[path.rpartition("/")[0]]
            try:
                resource = load((await read(session, path))[0])
            except NoNode:  # purged meanwhile, so every broker has read it
                continue
            except StoreFailed:
                resource = None
            if resource is None:
                event(log, logging.WARNING, "all ACLs reloaded", path=path, reason="the notice cannot be read")
                return False
            resources[resource] = None
        self._changed.clear()
        self._hear({resource: await _held(session, resource) for resource in resources})
        return True

    def _hear(self, held: Mapping[ResourcePattern, Held]) -> None:
        """Apply what was read, except resources that this broker changed meanwhile. Later changes have own notices."""
        self._heard += 1
        self._go_by({resource: acls for resource, acls in held.items() if resource not in self._changed})

    def _go_by(self, held: Mapping[ResourcePattern, Held]) -> None:
        held = {resource: acls for resource, acls in held.items() if self._access.rules.of(resource) != acls}
        if not held:
            return  # the same rules: cached authorizations stay valid
        for resource, acls in held.items():
            if isinstance(acls, Unreadable) and self._access.rules.unreadable.get(resource) != acls.why:
                event(
                    log, logging.ERROR, "ACLs unreadable", resource=resource, path=acl_nodes.path(resource),
                    reason=acls.why, effect="the resource is denied to all but super users",
                )  # fmt: skip
        self._access.replace(self._access.rules.replaced(held))

    # -- changes -----------------------------------------------------------------------------------------------------

    @in_time
    async def add(self, bindings: Sequence[AclBinding]) -> None:
        """Create ACLs of one resource. Raises INVALID_REQUEST if its present ACLs cannot be read, KAFKA_STORAGE_ERROR,
        REQUEST_TIMED_OUT."""
        resource, new = bindings[0].resource, {binding.acl for binding in bindings}
        async def with_new(held: frozenset[Acl]) -> frozenset[Acl]:
            return held | new

        await self._change(resource, with_new)

    @in_time
    async def remove(self, wanted: Sequence[AclFilter]) -> list[dict[AclBinding, KafkaError | None]]:
        """Delete the ACLs that the filters match. Return, for each filter, the ACLs that no earlier filter matched,
        each with the error if it was not deleted. Raises REQUEST_TIMED_OUT."""
        told: list[dict[AclBinding, KafkaError | None]] = [{} for _ in wanted]
        for resource in sorted(await self._with_any(wanted)):
            about = [(index, each) for index, each in enumerate(wanted) if each.matches_resource(resource)]
            problem: KafkaError | None = None
            try:
                before, left = await self._change(resource, partial(_without, [each for _, each in about]))
                matched = before - left
            except KafkaError as refusal:
                problem, held = refusal, self._access.rules.of(resource)
                matched = frozenset()
                if isinstance(held, frozenset):
                    matched = held - await _without([each for _, each in about], held)
            async for acl in by_time(sorted(matched)):
                first = next(index for index, each in about if each.matches_acl(acl))
                told[first][AclBinding(resource, acl)] = problem
        return told

    async def _with_any(self, wanted: Iterable[AclFilter]) -> set[ResourcePattern]:
        """The resources with an ACL that any filter matches, by the current rules."""
        rules = self._access.rules
        looks = ((each, *about) for each in wanted for about in rules.about(each))
        return {resource async for each, resource, acls in by_time(looks) if any(map(each.matches_acl, acls))}

    async def _change(
        self, resource: ResourcePattern, after: Callable[[frozenset[Acl]], Awaitable[frozenset[Acl]]]
    ) -> tuple[frozenset[Acl], frozenset[Acl]]:
        """Replace a resource's ACLs with `after` of them, write a notice, and apply them here. Return the ACLs before
        and after."""
        path = acl_nodes.path(resource)
        notice = acl_nodes.dump_change(resource)
        async with self._one:
            for _ in range(TRIES):
                session, heard = self._session(), self._heard
                try:
                    held, version = await _with_version(session, path)
                    if isinstance(held, Unreadable):
                        words = f"the ACLs of {resource} in {path} are unreadable: {held.why}"
                        raise KafkaError(errors.INVALID_REQUEST, words)
                    acls = await after(held)
                    if acls == held:
                        self._change_to(resource, held)
                        return held, acls
                    op: Op = Set(path, acl_nodes.dump_acls(acls), -1 if version is None else version)
                    if version is None:
                        op = Create(path, acl_nodes.dump_acls(acls))
                    elif not acls:
                        op = Delete(path, version)
                    await commit(session, [op, Create(notice.path, notice.data, sequential=True)])
                    break
                except (BadVersion, NodeExists, NoNode):
                    continue  # another broker changed it first
                except StoreError as problem:
                    words = f"the coordination store cannot be written to: {problem}"
                    raise KafkaError(errors.KAFKA_STORAGE_ERROR, words) from problem
            else:
                words = f"other brokers kept changing the ACLs of {resource}, or the parent of {path} is missing"
                raise KafkaError(errors.KAFKA_STORAGE_ERROR, words)
            if heard == self._heard:
                self._change_to(resource, acls)
            else:  # a later change by another broker may have been read meanwhile
                now: Held = acls
                with contextlib.suppress(StoreError):  # the next connection reads all
                    now = await _held(session, resource)
                self._change_to(resource, now)
        event(log, logging.INFO, "ACLs altered", resource=resource, acls=len(acls))
        with contextlib.suppress(StoreError):  # the change is made; the next one removes the notices left
            await self._purge(session, notice.path.rpartition("/")[0])
        return held, acls

    def _change_to(self, resource: ResourcePattern, acls: Held) -> None:
        self._changed.add(resource)
        self._go_by({resource: acls})

    async def _purge(self, session: Session, root: str) -> None:
        """Remove notices older than CHANGES_KEPT_MS: every broker has read them."""
        names, _ = await session.children(root)
        for name in names:
            stat = await session.exists(f"{root}/{name}")
            if stat is None or stat.ctime_ms >= self._wall_ms() - CHANGES_KEPT_MS:
                return  # sorted by age: the rest are younger
            await session.delete(f"{root}/{name}")


async def _without(wanted: Sequence[AclFilter], held: frozenset[Acl]) -> frozenset[Acl]:
    """The ACLs of one resource that no filter matches; all filters match the resource itself."""
    return frozenset([acl async for acl in by_time(held) if not any(each.matches_acl(acl) for each in wanted)])


async def _held(session: Session, resource: ResourcePattern) -> Held:
    """The ACLs of a resource; empty if it has no node. Raises StoreError."""
    return (await _with_version(session, acl_nodes.path(resource)))[0]


async def _with_version(session: Session, path: str) -> tuple[Held, int | None]:
    try:
        data, stat = await read(session, path)
    except NoNode:
        return frozenset(), None
    except StoreFailed as problem:  # access is denied
        return Unreadable(str(problem)), None
    return acl_nodes.load_acls(data), stat.version
