"""Authorization on this broker: loads ACLs from the store, puts guards before the handlers, and logs denials."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.config.security_settings import ACL_AUTHORIZER, AUTHORIZER, SUPER_USERS, super_users
from pybroker.coordination.store import Session
from pybroker.decisions.caller import ANONYMOUS, Caller
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.logs import event
from pybroker.metadata.lone_broker import loading
from pybroker.server.api.dispatch import AnyHandler
from pybroker.server.network.closed_connections import CLIENTS_MAX, SILENT_SECONDS, Closings

if TYPE_CHECKING:
    from pybroker.security.acls import Operation, ResourceType
    from pybroker.server.network.plane import Plane

log = logging.getLogger(__name__)

TOLD_MAX = 50
"""Denials of one principal at one address that are logged in full within a minute; further ones are only counted."""
SHOWN_MAX = 100
OPTIONS = {"Topic": "--topic", "Group": "--group", "TransactionalId": "--transactional-id", "Cluster": "--cluster"}
"""The option of `pybroker acls add` by resource type; the command takes no others."""
ANY = "(any)"
"""The name with which `Access.may_to_any` reports that no topic is allowed."""
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"


class Authorization:
    """The authorizer of a broker. A broker without `authorizer.class.name` imports nothing of it."""

    def __init__(self, config: BrokerConfig, session: Callable[[], Session]) -> None:
        from pybroker.metadata.acls import AclStore
        from pybroker.security.access import Access

        self._config = config
        account = config.account if config.sasl else None
        # With OAUTHBEARER the token's issuer decides which principal this broker is.
        own = frozenset({f"User:{account.user}"}) if account and account.tokens is None else frozenset()
        self.access = Access(super_users(config[SUPER_USERS]) | own, config[ALLOW_EVERYONE], self._denied)
        self.store = AclStore(session, self.access, wall_ms)
        self._denials = Closings("requests denied")
        self._counts: dict[tuple[str, str], int] = {}  # by principal and host, in this minute
        self._last: dict[tuple[str, str], tuple[Operation, ResourceType, str]] = {}  # of those with more than TOLD_MAX
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, config: BrokerConfig, session: Callable[[], Session]) -> Authorization | None:
        """Return the authorizer, or None if the settings name none: then every request is allowed."""
        return cls(config, session) if config[AUTHORIZER] == ACL_AUTHORIZER else None

    async def load(self, session: Session) -> None:
        """Read the ACLs; the broker accepts no clients before that. Raises StoreError."""
        from pybroker.security import acl_nodes

        await loading.prepare(session, acl_nodes.PERSISTENT)
        await self.store.read_all(session)

    def warn_of_brokers(self) -> None:
        """Warn if other brokers connect as ANONYMOUS without being super users: an ACL on the cluster may deny them."""
        if not self._config.sasl.keys() & {self._config.listeners.inter_broker} and not self.is_free(ANONYMOUS):
            event(
                log, logging.WARNING, "brokers may be refused", listener=self._config.listeners.inter_broker,
                principal=ANONYMOUS,
                reason=f"not in {SUPER_USERS}: enable SASL on this listener, or add an ACL that allows ClusterAction",
            )  # fmt: skip

    def is_free(self, principal: str) -> bool:
        """True if this principal is a super user, so no ACL is checked and the native plane may serve it."""
        return self.access.is_super(principal)

    def tell(self, plane: Plane) -> None:
        """Have the data plane drop its cached rights whenever the ACLs change."""
        plane.judge_by(self.access.number)
        self.access.on_replaced.append(plane.judge_by)

    def guard(self, table: Mapping[int, AnyHandler], metadata: MetadataCache) -> Mapping[int, AnyHandler]:
        """Return the table of handlers with a guard before each."""
        from pybroker.server.api.guards.auth_helper import AuthHelper
        from pybroker.server.api.guards.table import guarded

        return guarded(AuthHelper(self.access, metadata), table, self._config["auto.create.topics.enable"])

    def _denied(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> None:
        """Log the first denial of a client at once; log the number of equal ones when the minute is over."""
        who = principal, host
        count = self._counts.get(who, 0)
        if count or len(self._counts) < CLIENTS_MAX:
            self._counts[who] = count + 1
        if count >= TOLD_MAX:  # one request may cause 100,000 denials: count these without formatting text
            self._last[who] = operation, kind, name
            return
        loop = asyncio.get_running_loop()
        self._denials.tell("request denied", Caller(host, 0, ""), _words(principal, operation, kind, name), loop.time())
        if self._timer is None:
            self._timer = loop.call_later(SILENT_SECONDS, self._tend)

    def _tell_counts(self) -> None:
        """Log how many more denials there were than TOLD_MAX."""
        counts, self._counts = self._counts, {}
        last, self._last = self._last, {}
        for (principal, host), denied in last.items():
            count = counts[principal, host] - TOLD_MAX
            event(log, logging.WARNING, "requests denied", client=host, count=count, last=_words(principal, *denied))

    def _tend(self) -> None:
        """Log the counts of minutes that are over, and run again in a minute while any denials are counted."""
        loop = asyncio.get_running_loop()
        self._denials.tend(loop.time())
        self._tell_counts()
        self._timer = loop.call_later(SILENT_SECONDS, self._tend) if self._denials else None

    def close(self) -> None:
        """Log the counts that remain; the broker is stopping."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._denials.close()
        self._tell_counts()


def _words(principal: str, operation: Operation, kind: ResourceType, name: str) -> str:
    """The reason of a denial and, if an ACL for just this resource can be added, the command that adds it."""
    denied = f"{principal} is not authorized to {operation.text} {kind.text} {name[:SHOWN_MAX]!r}"
    option = OPTIONS.get(kind.text)
    # The client chooses these names: an ACL on * would allow more than what was denied.
    if option is None or max(len(name), len(principal)) > SHOWN_MAX or "*" in (name, principal.partition(":")[2]):
        return denied
    named = option if kind.text == "Cluster" else f"{option} {shlex.quote(name)}"
    verb = operation.name.lower().replace("_", "-")
    if kind.text == "Topic" and name == ANY:
        verb, named = "idempotent-write", "--cluster"
    return f"{denied}; to allow it: pybroker acls add --allow {shlex.quote(principal)} --operation {verb} {named}"
