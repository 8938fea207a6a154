"""All listeners of a broker, which share its connection limits, its memory for requests and its native plane.

Clients of a listener get the addresses that are advertised for it.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping

from pybroker.config import BrokerConfig, ConfigError
from pybroker.config.listeners import EVERY_INTERFACE, LISTENERS, Listeners
from pybroker.decisions.caller import Caller
from pybroker.decisions.image import LiveBroker
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import StartError, why_not
from pybroker.logs import event
from pybroker.model import Endpoint, HostPort
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import ClientQuotas
from pybroker.server.api.authorization import Authorization
from pybroker.server.api.quotas import QuotaManager
from pybroker.server.api.responder import Responder
from pybroker.server.network.closed_connections import REQUESTS_REFUSED, Closings
from pybroker.server.network.connection_quotas import Quotas
from pybroker.server.network.listener import Listener, ListenerLimits, address_of
from pybroker.server.network.listener_security import ListenerSecurity
from pybroker.server.network.plane import Plane
from pybroker.server.network.relay import STALL_SECONDS
from pybroker.server.network.sessions import Sessions

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 1.0
"""Seconds that connections of a removed listener have to receive their responses."""

STORED = (
    "the stored dynamic setting listeners: free the address and alter any setting of this broker, or remove the "
    "setting with pybroker configs alter --broker ID --delete listeners"
)


class SocketServer:
    """The listeners of one broker, in the order of the setting `listeners`."""

    def __init__(self, config: BrokerConfig, credentials: Credentials) -> None:
        self._config = config
        self._security = ListenerSecurity(config, credentials)
        self.logins = self._security.logins
        self._quotas = Quotas()
        self._quotas.close_longest_silent = self._close_longest_silent
        self._plane: Plane | None = None
        self._metadata: MetadataCache | None = None
        self._heard: ClientQuotas | None = None  # whose changes are followed
        self._responder: Responder | None = None
        self._free: Callable[[str], bool] | None = None
        self._listeners: list[Listener] = []
        self._addresses: dict[str, str | BaseException] = {}  # of hosts, or the error of the last lookup
        self._prepared: dict[str, Listener] = {}  # bound, or to be bound once a removed one is closed
        self._leaving: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """The number of connections."""
        return self._quotas.count

    # -- addresses -------------------------------------------------------------------------------------------------

    async def bind(self) -> None:
        """Bind every listener, without accepting yet. A listener from a dynamic setting that cannot be bound is logged
        and left out, as the setting can only be removed at a running broker. Raises StartError, ConfigError; then none
        is bound."""
        await self.look_up(self._config.listeners, self._config.as_started().listeners)
        try:
            for endpoint in self._config.listeners.endpoints:
                try:
                    self._listeners.append(self._bound(self._config, endpoint))
                except (StartError, ConfigError) as problem:
                    self._listeners += self._instead(endpoint, problem)
        except (StartError, ConfigError):
            self.stop_accepting()
            raise
        self._security.tell_if_slow()
        self._spare()
        self._note_what_is_open()

    def _bound(self, config: BrokerConfig, endpoint: Endpoint) -> Listener:
        """Create and bind a listener. Raises StartError, ConfigError; then it is not added."""
        self._security.add(config, endpoint.listener)
        listener = self._listener(config, endpoint.listener)
        try:
            self._bind(listener, endpoint)
        except StartError:
            self._security.drop(endpoint.listener)
            raise
        return listener

    async def look_up(self, *wanted: Listeners) -> None:
        """Resolve the hosts of these listeners that are not bound yet; by default of those in the settings."""
        there = {listener.name for listener in self._listeners}
        every = [each for listeners in wanted or [self._config.listeners] for each in listeners.endpoints]
        hosts = {each.host for each in every if each.listener not in there}
        found = await asyncio.gather(*map(address_of, hosts), return_exceptions=True)
        self._addresses |= dict(zip(hosts, found, strict=True))

    def _address(self, endpoint: Endpoint) -> str:
        """The resolved address of an endpoint's host. Raises StartError."""
        found = self._addresses.get(endpoint.host, endpoint.host)
        if isinstance(found, OSError | ValueError):
            raise _no_place(endpoint, found)
        if isinstance(found, BaseException):
            raise found
        return found

    def _bind(self, listener: Listener, endpoint: Endpoint) -> None:
        """Bind a listener. Raises StartError."""
        address = self._address(endpoint)
        try:
            listener.bind(endpoint.host, endpoint.port, address)
        except (OSError, ValueError) as problem:
            raise _no_place(endpoint, problem) from problem

    def _instead(self, stored: Endpoint, problem: StartError | ConfigError) -> list[Listener]:
        """Return the replacement for a listener from a dynamic setting that cannot be bound: none, or for the
        inter-broker listener the one that the broker was started with. Other listeners are not replaced, as the old
        address may have been too open. Raises `problem` if the broker was started with this listener."""
        name = stored.listener
        there = {each.listener: each for each in self._config.as_started().listeners.endpoints}
        found, until_then = [], "the broker runs without it"
        if there.get(name) == stored:
            raise problem
        if name == self._config.listeners.inter_broker:
            if name not in there:
                raise problem
            try:
                found = [self._bound(self._config, there[name])]
            except (StartError, ConfigError):
                raise problem from None
            until_then = f"it listens on {HostPort(found[0].host, found[0].port)}, as the broker was started with"
        event(log, logging.ERROR, "listener not opened", listener=name, address=HostPort(stored.host, stored.port),
              reason=problem.message, set_by=STORED, until_then=until_then)  # fmt: skip
        return found

    def _listener(self, config: BrokerConfig, name: str) -> Listener:
        """Create a listener whose security was added."""
        security = self._security
        logins, tls = security.logins_of(name), security.tls_of(name)
        return Listener(name, ListenerLimits.of(config, name), self._quotas, logins, tls)

    @property
    def addresses(self) -> Mapping[str, HostPort]:
        """The bound address of each listener, by name; the machine's host name if that is every interface."""
        machine = socket.gethostname()
        return {
            listener.name: HostPort(machine if listener.host in EVERY_INTERFACE else listener.host, listener.port)
            for listener in self._listeners
        }

    def certificate_ends(self) -> Mapping[str, float]:
        """The first expiry of a certificate of each listener with TLS, in seconds since 1970. Thread-safe."""
        told = [(each.name, each.tls.context.endings) for each in list(self._listeners) if each.tls is not None]
        return {name: min(ending.ends.timestamp() for ending in endings) for name, endings in told}

    def advertised(self, broker_id: int) -> LiveBroker:
        """The broker with its advertised addresses, by the current settings."""
        listeners, bound = self._config.listeners, self.addresses
        shown = bound
        if listeners.advertised is not None:
            told = [each for each in listeners.advertised if each.listener in bound]
            shown = {name: HostPort(host, port or bound[name].port) for name, host, port in told}
        protocols = {name: listeners.protocols[name] for name in shown}
        return LiveBroker(broker_id, shown, protocols, self._config["broker.rack"])

    # -- life ------------------------------------------------------------------------------------------------------

    def use(self, plane: Plane, metadata: MetadataCache) -> None:
        """Use a plane for every connection; it gets the brokers' addresses from the metadata."""
        self._plane, self._metadata = plane, metadata
        metadata.watch(plane.show)

    def open(self, responder: Responder, free: Callable[[str], bool] | None = None) -> None:
        """Begin to accept; `responder` executes requests. `free`: True for principals that need no authorization; None
        without an authorizer."""
        self.limit()
        self._security.start()
        # Closed connections are logged by the inter-broker listener, which is never removed.
        closings = self._closings
        self._responder, self._free = Sessions(responder, self.logins, closings), free
        plane = self._present_plane
        plane.open(self._responder, closings)
        for listener in self._listeners:
            listener.free = free
            listener.open(self._responder, plane)

    def refuse(self, caller: Caller, reason: str) -> None:
        """Log that a request was refused: at once, then once a minute with a count."""
        now = asyncio.get_running_loop().time()
        self._closings.tell("request refused", caller, reason, now, caller.principal, summary=REQUESTS_REFUSED)

    @property
    def _present_plane(self) -> Plane:
        assert self._plane is not None
        return self._plane

    @property
    def _closings(self) -> Closings:
        return next(each for each in self._listeners if each.name == self._config.listeners.inter_broker).closings

    def judge_by(self, authorization: Authorization) -> None:
        """Notify the plane when ACLs change."""
        authorization.tell(self._present_plane)

    def count_by(self, manager: QuotaManager, quotas: ClientQuotas) -> None:
        """Notify the plane when quotas change, and the listeners when connection rates of addresses do."""
        manager.tell(self._present_plane)

        def rate() -> None:
            self._quotas.addresses.set_rates(quotas.connection_rates())

        rate()
        quotas.on_changed.append(rate)
        self._heard = quotas

    def limit(self) -> None:
        """Apply the current connection limits. Connections above max.connections are closed, the longest idle ones
        first; other limits close no open connection."""
        self._quotas.connections_max = self._config["max.connections"]
        self._quotas.creation_rate_max = self._config["max.connection.creation.rate"]
        for listener in self._listeners:
            listener.limit(ListenerLimits.of(self._config, listener.name))
        self._quotas.make_room(asyncio.get_running_loop().time())

    def _spare(self) -> None:
        """Exempt the inter-broker listener from max.connections, if it is not the only one."""
        listeners = self._config.listeners
        for each in self._listeners:
            if each.name == listeners.inter_broker and len(listeners.endpoints) > 1:
                self._quotas.spare(each.name, each.pending)
                return
        self._quotas.spare(None, ())

    def _close_longest_silent(self, count: int) -> int:
        """Close up to `count` connections, none of the spared listener; return how many are or will be closed."""
        closed = 0
        for listener in self._listeners:
            if listener.name != self._quotas.spared and closed < count:
                closed += listener.close_longest_silent(count - closed)
        if closed < count and self._plane is not None:
            closed += self._plane.close_longest_silent(count - closed, self._quotas.spared)
        return closed

    def reload(self) -> None:
        """Apply changed certificates and login settings to the current listeners."""
        self._security.reload()

    def read_again(self, *, has_peers: bool) -> None:
        """Read certificates and token keys again, as ListenerSecurity does."""
        self._security.read_again(has_peers=has_peers)

    # -- listeners that come and go ----------------------------------------------------------------------------------

    async def prepare(self, config: BrokerConfig) -> None:
        """Bind the new listeners of this configuration, without accepting yet, and check its login settings for the
        others. Raises ConfigError; then none is bound. A port of a listener to be removed is bound after its removal.
        An unchanged listener that could not be bound before causes no error."""
        self._security.check_logins(config)
        await self.look_up(config.listeners)
        there = {listener.name: listener for listener in self._listeners}
        before, after = self._config.listeners, config.listeners
        kept = {each.listener for each in before.endpoints if each in after.endpoints}
        missing = {name for name in kept - there.keys() if before.protocols[name] == after.protocols[name]}
        wanted = {endpoint.listener: endpoint for endpoint in after.endpoints}
        going = [each for name, each in there.items() if name not in wanted]
        try:
            for name in wanted.keys() - there.keys() - missing:
                self._security.add(config, name)
                self._prepared[name] = listener = self._listener(config, name)
                address, port = self._address(wanted[name]), wanted[name].port
                if not any(each.is_in_the_way(address, port) for each in going):
                    self._bind(listener, wanted[name])
        except (StartError, ConfigError) as problem:
            self.give_up()
            refused = isinstance(problem, ConfigError)
            raise ConfigError(problem.message if refused else f"{LISTENERS}: {problem.message}") from None

    def give_up(self) -> None:
        """Close the prepared listeners that were not opened."""
        for name, listener in self._prepared.items():
            listener.stop_accepting()
            self._security.drop(name)
        self._prepared.clear()

    def follow(self) -> None:
        """Apply the setting `listeners`: open new listeners and close removed ones; connections of others stay."""
        wanted = {endpoint.listener: endpoint for endpoint in self._config.listeners.endpoints}
        for listener in [each for each in self._listeners if each.name not in wanted]:
            self._remove(listener)
        self._spare()
        for name in wanted.keys() - {each.name for each in self._listeners}:
            try:
                self._add(wanted[name])
            except (StartError, ConfigError) as problem:
                event(log, logging.ERROR, "listener not opened", listener=name, reason=problem.message)
        self._listeners.sort(key=lambda listener: list(wanted).index(listener.name))
        self._note_what_is_open()

    def _note_what_is_open(self) -> None:
        """Record in the configuration which listeners are not open, for the checks of later changes."""
        named = {endpoint.listener for endpoint in self._config.listeners.endpoints}
        self._config.not_open = frozenset(named - {listener.name for listener in self._listeners})

    def _add(self, endpoint: Endpoint) -> None:
        """Open a listener. Raises StartError, ConfigError."""
        name = endpoint.listener
        listener = self._prepared.pop(name, None)
        if listener is None:  # the settings were written elsewhere, or it could not be bound before
            listener = self._bound(self._config, endpoint)
        elif not listener.is_bound:
            try:
                self._bind(listener, endpoint)
            except StartError:
                self._security.drop(name)
                raise
        assert self._responder is not None and self._metadata is not None
        plane = self._present_plane
        plane.add_listener(name)
        plane.show(self._metadata.image)
        listener.free = self._free
        self._security.start()
        self._listeners.append(listener)
        listener.open(self._responder, plane)
        event(log, logging.INFO, "listener opened", listener=name, address=endpoint.host, port=listener.port)

    def _remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        listener.finish()  # first, or the plane would not close clients that log in after remove_listener
        number = None if self._plane is None else self._plane.remove_listener(listener.name)
        task = asyncio.get_running_loop().create_task(self._leave(listener, number))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        event(log, logging.INFO, "listener closed", listener=listener.name)

    async def _leave(self, listener: Listener, number: int | None) -> None:
        """Close the connections of a removed listener."""
        await listener.close(FAREWELL_SECONDS, "its listener was removed")
        if self._plane is not None and number is not None:
            self._plane.cut(number)
        if listener.name not in {*self._prepared, *(each.name for each in self._listeners)}:
            self._security.drop(listener.name)

    def disconnect(self) -> None:
        """Close all current connections, and continue accepting."""
        for listener in self._listeners:
            listener.disconnect()
        if self._plane is not None:
            self._plane.cut()

    def abandon(self) -> None:
        """Do not wait for running requests: close() ends at once."""
        for listener in self._listeners:
            listener.abandon()

    def stop_accepting(self) -> None:
        self._security.stop_reading()
        self.give_up()
        for listener in self._listeners:
            listener.stop_accepting()

    async def close(self, timeout_seconds: float) -> None:
        """Stop accepting, wait for running requests until the timeout, then close every connection."""
        self.stop_accepting()
        if self._plane is not None:
            self._plane.finish(STALL_SECONDS)
        await asyncio.gather(*(listener.close(timeout_seconds) for listener in self._listeners), *self._leaving)
        self._close_plane()

    def release(self) -> None:
        """Release the addresses and the plane at once."""
        self.stop_accepting()
        self._close_plane()

    def _close_plane(self) -> None:
        """Close the plane; remaining connections are closed with the last reference to it."""
        self._security.close()
        if self._heard is not None:
            self._heard.on_changed.clear()
        plane, self._plane = self._plane, None
        for listener in self._listeners:
            listener.plane = None
        if plane is not None:
            if self._metadata is not None:
                self._metadata.unwatch(plane.show)
            plane.close()


def _no_place(endpoint: Endpoint, problem: OSError | ValueError) -> StartError:
    at = HostPort(endpoint.host, endpoint.port)
    return StartError(f"could not listen on {at}: {why_not(problem)}")
