"""Who may do what on this broker: the rules of the store, the guards before the handlers, the log of denials."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pybroker.clock import wall_ms
from pybroker.cluster.caller import ANONYMOUS, Caller
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.config.security_settings import ACL_AUTHORIZER, AUTHORIZER, SUPER_USERS, super_users
from pybroker.controller import loading
from pybroker.coordination.store import Session
from pybroker.logs import event
from pybroker.server.closings import CLIENTS_MAX, SILENT_SECONDS, Closings
from pybroker.server.dispatch import Handler

if TYPE_CHECKING:
    from pybroker.security.acls import Operation, ResourceType
    from pybroker.server.bridge import Bridge

log = logging.getLogger(__name__)

TOLD_MAX = 50
"""Denials of one principal at one address within a minute that are described in the log; the others are counted."""
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"


class Authorization:
    """Of a broker whose settings name an authorizer. Nothing of it is imported by one whose settings do not."""

    def __init__(self, config: BrokerConfig, session: Callable[[], Session]) -> None:
        from pybroker.controller.acls import AclStore
        from pybroker.security.access import Access

        self._config = config
        account = config.account if config.sasl else None
        # What a token calls this broker is the issuer's to say.
        own = frozenset({f"User:{account.user}"}) if account and account.tokens is None else frozenset()
        self.access = Access(super_users(config[SUPER_USERS]) | own, config[ALLOW_EVERYONE], self._denied)
        self.store = AclStore(session, self.access, wall_ms)
        self._denials = Closings("requests denied")
        self._counts: dict[tuple[str, str], int] = {}  # by principal and host, in this minute
        self._last: dict[tuple[str, str], tuple[Operation, ResourceType, str]] = {}  # of those with more than TOLD_MAX
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, config: BrokerConfig, session: Callable[[], Session]) -> Authorization | None:
        """None where everybody may do everything."""
        return cls(config, session) if config[AUTHORIZER] == ACL_AUTHORIZER else None

    async def load(self, session: Session) -> None:
        """Read the ACLs, without which nobody is let in. Raises StoreError."""
        from pybroker.security import acl_nodes

        await loading.prepare(session, acl_nodes.PERSISTENT)
        await self.store.read_all(session)

    def warn_of_brokers(self) -> None:
        """Say so where the other brokers may be refused what they need, by the first ACL that is about the cluster."""
        if not self._config.sasl.keys() & {self._config.listeners.inter_broker} and not self.is_free(ANONYMOUS):
            event(
                log, logging.WARNING, "brokers may be refused", listener=self._config.listeners.inter_broker,
                principal=ANONYMOUS,
                reason=f"they are no {SUPER_USERS}: have them log in, or let them do ClusterAction by an ACL",
            )  # fmt: skip

    def is_free(self, principal: str) -> bool:
        """Is this principal never asked for rights? Then the native plane may serve it."""
        return self.access.is_super(principal)

    def tell(self, bridge: Bridge) -> None:
        """Have the data plane forget rights whenever the rules change."""
        bridge.judge_by(self.access.number)
        self.access.on_replaced.append(bridge.judge_by)

    def guard(self, table: Mapping[int, Handler], metadata: MetadataCache) -> Mapping[int, Handler]:
        """The table of handlers, with guards before them."""
        from pybroker.server.guards.auth_helper import AuthHelper
        from pybroker.server.guards.table import guarded

        return guarded(AuthHelper(self.access, metadata), table, self._config["auto.create.topics.enable"])

    def _denied(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> None:
        """One line for the first of a client, and one with a number for those of the next minute."""
        who = principal, host
        count = self._counts.get(who, 0)
        if count or len(self._counts) < CLIENTS_MAX:
            self._counts[who] = count + 1
        if count >= TOLD_MAX:  # a request may hold a hundred thousand denials: count these, without making text
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
        """Tell the numbers of the minutes that are over, as long as there are any."""
        loop = asyncio.get_running_loop()
        self._denials.tend(loop.time())
        self._tell_counts()
        self._timer = loop.call_later(SILENT_SECONDS, self._tend) if self._denials else None

    def close(self) -> None:
        """The broker stops: tell the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._denials.close()
        self._tell_counts()


def _words(principal: str, operation: Operation, kind: ResourceType, name: str) -> str:
    return f"{principal} may not {operation.text} {kind.text} {name[:100]!r}"
