"""Connects to the inter-broker listeners of other brokers, with TLS and a login where needed."""

import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from pybroker import core
from pybroker.client.net.requests import RetryBackoff
from pybroker.config import BrokerConfig, ConfigError
from pybroker.decisions.image import LiveBroker
from pybroker.interbroker.link import Dialled, Link, dial
from pybroker.logs import event
from pybroker.model import HostPort
from pybroker.security.login import Account
from pybroker.security.tls import inter_broker_context

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
LOGIN_PAUSES = RetryBackoff(0.1, 8.0)
"""Backoff between logins at a broker that refuses them, shared by all connections to it."""


class _Refusal(NamedTuple):
    """Consecutive refused logins at a broker, and the monotonic time before which no login is attempted."""

    times: int
    not_before_s: float
    why: str


class OtherBrokers:
    """Opens connections, which the caller owns."""

    def __init__(
        self,
        config: BrokerConfig,
        known: Callable[[], Mapping[int, LiveBroker]],
        client_id: Callable[[], str],
        reach: Callable[[int, HostPort], HostPort] | None = None,
    ) -> None:
        """`known`: returns the live brokers by id; `reach`: maps a broker's id and advertised address to the address to
        connect to."""
        self._config = config
        self._alive = known
        self._client_id = client_id
        self._reach = reach
        self._listener = config.listeners.inter_broker
        self._account: Account | None = None
        self._tls: ssl.SSLContext | None = None
        self._refusals: dict[HostPort, _Refusal] = {}

    def begin(self) -> None:
        """Read the account and the TLS settings; the account never changes. If the certificates cannot be used, those
        that the broker was started with are. Raises ConfigError."""
        account = self._config.account
        self._account = None if account is None else Account.of(account)
        try:
            self._tls = inter_broker_context(self._config)
        except ConfigError:  # the listener logs the error
            self._tls = inter_broker_context(self._config.as_started())

    @property
    def are_reached_by_core(self) -> bool:
        """True unless connections need TLS and core cannot use OpenSSL."""
        return self._tls is None or core.tls_available()

    def reload(self) -> None:
        """Use the current certificates and trust stores for new connections. On an error the old ones stay, and the
        listener with the same files logs it."""
        with contextlib.suppress(ConfigError):
            self._tls = inter_broker_context(self._config)

    def try_again(self) -> None:
        """Retry at once at brokers that refused our login; passwords of users may have changed."""
        for at, refused in self._refusals.items():
            self._refusals[at] = refused._replace(times=0, not_before_s=0)

    async def connect(self, broker_id: int) -> Link:
        """A link to a broker, at its address in the metadata. Raises OSError."""
        return await self.connect_to(self._known(broker_id))

    async def connect_to(self, broker: LiveBroker) -> Link:
        """A link to the inter-broker listener of a broker. Raises OSError."""
        at, client_id = self._address(broker), self._client_id()
        with self._logging_in(broker.id, at):
            return await Link.open(
                at.host, at.port, client_id=client_id, timeout_s=CONNECT_SECONDS, account=self._account, tls=self._tls
            )

    async def dial(self, broker_id: int) -> Dialled:
        """A non-blocking socket that is connected to a broker. Raises OSError."""
        at, client_id = self._address(self._known(broker_id)), self._client_id()
        with self._logging_in(broker_id, at):
            return await dial(
                at.host, at.port, client_id=client_id, timeout_s=CONNECT_SECONDS, account=self._account, tls=self._tls
            )

    @contextlib.contextmanager
    def _logging_in(self, broker_id: int, at: HostPort) -> Iterator[None]:
        """Wrap an attempt to connect; raise PermissionError without an attempt during the backoff after a refusal."""
        refused, now_s = self._refusals.get(at), time.monotonic()
        times = 1 if refused is None else refused.times + 1
        next_s = now_s + LOGIN_PAUSES.after(times)
        if refused is not None:
            if now_s < refused.not_before_s:
                raise PermissionError(refused.why)
            self._refusals[at] = refused._replace(not_before_s=next_s)  # other connections wait for this attempt
        try:
            yield
        except PermissionError as problem:
            if at not in self._refusals:
                event(log, logging.WARNING, "broker refused the login", broker=broker_id, reason=problem)
            self._refusals[at] = _Refusal(times, next_s, str(problem))
            raise
        except OSError:
            self._refusals.pop(at, None)
            raise
        self._refusals.pop(at, None)

    def _known(self, broker_id: int) -> LiveBroker:
        broker = self._alive().get(broker_id)
        if broker is None:
            raise OSError(f"broker {broker_id} is not known to be alive")
        return broker

    def _address(self, broker: LiveBroker) -> HostPort:
        at = broker.endpoints.get(self._listener)
        if at is None:
            raise OSError(f"broker {broker.id} has no listener {self._listener}")
        return at if self._reach is None else self._reach(broker.id, at)
