"""Every listener of a broker: sockets that are bound together, accept together, and share what one broker allows.

Limits of connections, the memory for requests and the native plane are the broker's; a connection knows the listener
that it came by, and is told the addresses that are advertised for that one.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from pybroker import core
from pybroker.cluster.image import LiveBroker
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig, ConfigError, Source
from pybroker.config.listeners import EVERY_INTERFACE
from pybroker.config.ssl_settings import is_reconfigurable
from pybroker.logs import event
from pybroker.model import HostPort
from pybroker.replication.logdirs import StartError
from pybroker.security.credentials import Credentials, offered
from pybroker.security.quotas import ClientQuotas
from pybroker.security.tls import server_context
from pybroker.server.authorization import Authorization
from pybroker.server.bridge import Bridge
from pybroker.server.connection import Responder
from pybroker.server.connection_quotas import Quotas
from pybroker.server.listener import Limits, Listener, why_not
from pybroker.server.login import Logins
from pybroker.server.pool import Pool
from pybroker.server.quotas import QuotaManager
from pybroker.server.sessions import Sessions
from pybroker.server.tls_handshake import Tls, tls_of
from pybroker.server.token_validators import TokenValidators

log = logging.getLogger(__name__)

STEP_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Threads that make the handshakes of TLS."""
POOL_BYTES = 512 << 20
"""What requests may hold in memory where queued.max.request.bytes says nothing."""


class SocketServer:
    """The listeners of one broker, in the order of `listeners`."""

    def __init__(self, config: BrokerConfig, credentials: Credentials) -> None:
        """Raises StartError."""
        self._config = config
        self._credentials = credentials
        self._sasl = config.sasl
        self._tokens = TokenValidators(self._sasl)
        self.logins = Logins(
            config["sasl.server.max.receive.size"],
            config["connection.failed.authentication.delay.ms"] / 1000,
            {name: offered(sasl, credentials, self._tokens.get(name)) for name, sasl in self._sasl.items()},
        )
        self._steps = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="pybroker-tls")
        self._ssl = config.ssl
        self._tls = {name: self._tls_of(name) for name in self._ssl}
        if self._tls and not core.tls_available():
            why = "the OpenSSL of this Python cannot be used by core: its ssl module serves TLS, on the event loop"
            event(log, logging.WARNING, "TLS is slow", listeners=",".join(self._tls), reason=why)
        self._pool = Pool(pool_bytes(config))
        names = [endpoint.listener for endpoint in config.listeners.endpoints]
        self._quotas = Quotas(config.listeners.inter_broker if len(names) > 1 else None)
        self._quotas.close_longest_silent = self._close_longest_silent
        self._bridge: Bridge | None = None
        self._metadata: MetadataCache | None = None
        self._heard: ClientQuotas | None = None  # that tell of changes
        self._listeners: list[Listener] = []

    def _tls_of(self, name: str) -> Tls:
        """What a listener speaks TLS by. Where what was changed in an earlier life cannot be used, that is told, and
        the listener begins by what the broker was started with. Raises ConfigError where that is of no use either."""
        try:
            return tls_of(name, self._ssl[name], self._steps, self.logins)
        except ConfigError as problem:
            started = self._config.as_started().ssl.get(name)
            if started is None or started.values == self._ssl[name].values:
                raise
            try:
                made = tls_of(name, started, self._steps, self.logins)
            except ConfigError:
                raise problem from None
            event(log, logging.ERROR, "certificates not exchanged", listener=name, reason=problem.message)
            self._ssl[name] = started
            return made

    def __len__(self) -> int:
        """Connections."""
        return self._quotas.count

    # -- addresses -------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Bind every listener, without accepting yet. Raises StartError, and then none is bound."""
        for endpoint in self._config.listeners.endpoints:
            limits = Limits.of(self._config, endpoint.listener)
            logins = self.logins if endpoint.listener in self.logins.mechanisms else None
            tls = self._tls.get(endpoint.listener)
            listener = Listener(endpoint.listener, self._pool, limits, self._quotas, logins, tls)
            try:
                listener.bind(endpoint.host, endpoint.port)
            except (OSError, ValueError) as problem:
                self.stop_accepting()
                at = HostPort(endpoint.host, endpoint.port)
                raise StartError(f"could not listen on {at}: {why_not(problem)}") from problem
            self._listeners.append(listener)

    @property
    def addresses(self) -> Mapping[str, HostPort]:
        """Where each listener is bound, by name; the machine's name where that is every interface."""
        machine = socket.gethostname()
        return {
            listener.name: HostPort(machine if listener.host in EVERY_INTERFACE else listener.host, listener.port)
            for listener in self._listeners
        }

    def advertised(self, broker_id: int) -> LiveBroker:
        """The broker as the settings say now that clients see it."""
        listeners, bound = self._config.listeners, self.addresses
        shown = bound
        if listeners.advertised is not None:
            told = listeners.advertised
            shown = {name: HostPort(host, port or bound[name].port) for name, host, port in told}
        protocols = {name: listeners.protocols[name] for name in shown}
        return LiveBroker(broker_id, shown, protocols, self._config["broker.rack"])

    # -- life ------------------------------------------------------------------------------------------------------

    def use(self, bridge: Bridge, metadata: MetadataCache) -> None:
        """Hand every connection to the native plane, which is shown where brokers are."""
        self._bridge, self._metadata = bridge, metadata
        metadata.watch(bridge.show)
        for listener in self._listeners:
            listener.bridge = bridge

    def open(self, responder: Responder, free: Callable[[str], bool] | None = None) -> None:
        """Begin to accept, and have requests executed by `responder`. `free`: which principals nobody asks for their
        rights; None: no one is asked."""
        self.limit()
        self.reload()
        self._tokens.start()
        if self.logins.mechanisms:
            responder = Sessions(responder, self.logins, self._listeners[0].closings)
        for listener in self._listeners:
            listener.free = free
        if self._bridge is not None:
            self._bridge.open(responder, self._listeners[0].closings)
        for listener in self._listeners:
            listener.open(responder)

    def judge_by(self, authorization: Authorization) -> None:
        """Have the native plane hear of rules that change."""
        if self._bridge is not None:
            authorization.tell(self._bridge)

    def count_by(self, manager: QuotaManager, quotas: ClientQuotas) -> None:
        """Have the native plane hear of quotas that change, and the listeners of rates of addresses."""
        if self._bridge is not None:
            manager.tell(self._bridge)

        def rate() -> None:
            self._quotas.addresses.set_rates(quotas.connection_rates())

        rate()
        quotas.on_changed.append(rate)
        self._heard = quotas

    def limit(self) -> None:
        """Accept by the limits that the settings say now. Of connections that are too many by max.connections, those
        are closed that were silent for longest; others that are open stay."""
        self._quotas.connections_max = self._config["max.connections"]
        self._quotas.creation_rate_max = self._config["max.connection.creation.rate"]
        for listener in self._listeners:
            listener.limit(Limits.of(self._config, listener.name))
        self._quotas.make_room(asyncio.get_running_loop().time())

    def _close_longest_silent(self, count: int) -> int:
        """Close so many connections, none of the listener that brokers use; how many are closed, or will be."""
        closed = 0
        for listener in self._listeners:
            if listener.name != self._quotas.spared and closed < count:
                closed += listener.close_longest_silent(count - closed)
        if closed < count and self._bridge is not None:
            closed += self._bridge.close_longest_silent(count - closed, self._quotas.spared)
        return closed

    def reload(self) -> None:
        """Show new clients the certificates that the settings name now, of listeners where these were changed while the
        broker runs: their files may be others under the names of before. What cannot be used stays as it was. And have
        clients log in as the settings say now."""
        for name, sasl in self._config.sasl.items():
            if name in self._sasl and sasl != self._sasl[name]:
                self._sasl[name] = sasl
                self.logins.mechanisms[name] = offered(sasl, self._credentials, self._tokens.get(name))
                event(log, logging.INFO, "logins exchanged", listener=name)
        changed = [name for name in self._config.dynamic(Source.DYNAMIC_BROKER) if is_reconfigurable(name)]
        for name, settings in self._config.ssl.items():
            own = any(each.startswith(f"listener.name.{name.lower()}.") for each in changed)
            if name in self._tls and (own or settings.values != self._ssl[name].values):
                try:
                    self._tls[name].context = server_context(settings, name)
                except ConfigError as problem:
                    event(log, logging.ERROR, "certificates not exchanged", listener=name, reason=problem.message)
                else:
                    self._ssl[name] = settings
                    event(log, logging.INFO, "certificates exchanged", listener=name)

    def disconnect(self) -> None:
        """Close the connections that there are, and go on accepting."""
        for listener in self._listeners:
            listener.disconnect()
        if self._bridge is not None:
            self._bridge.cut()

    def abandon(self) -> None:
        """Wait for no running request: close() comes to its end at once."""
        for listener in self._listeners:
            listener.abandon()

    def stop_accepting(self) -> None:
        self._tokens.close()
        for listener in self._listeners:
            listener.stop_accepting()

    async def close(self, timeout_seconds: float) -> None:
        """Accept no more, let the running requests end within the time, close every connection."""
        self.stop_accepting()
        await asyncio.gather(*(listener.close(timeout_seconds) for listener in self._listeners))
        self._close_bridge()

    def release(self) -> None:
        """Give back addresses and plane at once."""
        self.stop_accepting()
        self._close_bridge()

    def _close_bridge(self) -> None:
        """What is left of its connections closes with the last reference to the plane."""
        self._steps.shutdown(wait=False)
        if self._heard is not None:
            self._heard.on_changed.clear()
        bridge, self._bridge = self._bridge, None
        for listener in self._listeners:
            listener.bridge = None
        if bridge is not None:
            if self._metadata is not None:
                self._metadata.unwatch(bridge.show)
            bridge.close()


def pool_bytes(config: BrokerConfig) -> int:
    """What requests may hold in memory."""
    most: int = config["queued.max.request.bytes"]
    return most if most > 0 else POOL_BYTES
