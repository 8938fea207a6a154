"""Every listener of a broker: sockets that are bound together, accept together, and share what one broker allows.

Limits of connections, the memory for requests and the native plane are the broker's; a connection knows the listener
that it came by, and is told the addresses that are advertised for that one.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping

from pybroker.cluster.caller import Caller
from pybroker.cluster.image import LiveBroker
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig, ConfigError
from pybroker.config.listeners import EVERY_INTERFACE, LISTENERS, Listeners
from pybroker.logs import event
from pybroker.model import Endpoint, HostPort
from pybroker.replication.logdirs import StartError
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import ClientQuotas
from pybroker.server.authorization import Authorization
from pybroker.server.bridge import Bridge
from pybroker.server.closings import REQUESTS_REFUSED, Closings
from pybroker.server.connection import Responder
from pybroker.server.connection_quotas import Quotas
from pybroker.server.listener import STALL_SECONDS, Limits, Listener, address_of, why_not
from pybroker.server.listener_security import ListenerSecurity
from pybroker.server.pool import Pool
from pybroker.server.quotas import QuotaManager
from pybroker.server.sessions import Sessions

log = logging.getLogger(__name__)

POOL_BYTES = 512 << 20
"""What requests may hold in memory where queued.max.request.bytes says nothing."""
FAREWELL_SECONDS = 1.0
"""How long connections of a listener that is removed have for the answers that they are owed."""

STORED = (
    "an alteration of listeners that is stored: have the address free and alter any setting of this broker, or take it "
    "back with pybroker configs alter --broker ID --delete listeners"
)


class SocketServer:
    """The listeners of one broker, in the order of `listeners`."""

    def __init__(self, config: BrokerConfig, credentials: Credentials) -> None:
        self._config = config
        self._security = ListenerSecurity(config, credentials)
        self.logins = self._security.logins
        self._pool = Pool(pool_bytes(config))
        self._quotas = Quotas()
        self._quotas.close_longest_silent = self._close_longest_silent
        self._bridge: Bridge | None = None
        self._metadata: MetadataCache | None = None
        self._heard: ClientQuotas | None = None  # that tell of changes
        self._responder: Responder | None = None
        self._free: Callable[[str], bool] | None = None
        self._listeners: list[Listener] = []
        self._addresses: dict[str, str | BaseException] = {}  # of hosts, or why there is none, as they were last found
        self._prepared: dict[str, Listener] = {}  # bound, or to be bound in the place of one that goes
        self._leaving: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Connections."""
        return self._quotas.count

    # -- addresses -------------------------------------------------------------------------------------------------

    async def bind(self) -> None:
        """Bind every listener, without accepting yet. Of one that was altered in an earlier life and cannot be had the
        log tells: whoever is to take it back needs a broker that runs. Raises StartError and ConfigError, and then none
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
        """A listener that comes. Raises StartError and ConfigError, and then nothing is known of it."""
        self._security.add(config, endpoint.listener)
        listener = self._listener(config, endpoint.listener)
        try:
            self._bind(listener, endpoint)
        except StartError:
            self._security.drop(endpoint.listener)
            raise
        return listener

    async def look_up(self, *wanted: Listeners) -> None:
        """Know the addresses of the hosts where these listeners are to be bound, or those of the settings, which
        `follow` binds; not of those that are bound."""
        there = {listener.name for listener in self._listeners}
        every = [each for listeners in wanted or [self._config.listeners] for each in listeners.endpoints]
        hosts = {each.host for each in every if each.listener not in there}
        found = await asyncio.gather(*map(address_of, hosts), return_exceptions=True)
        self._addresses |= dict(zip(hosts, found, strict=True))

    def _address(self, endpoint: Endpoint) -> str:
        """Raises StartError."""
        found = self._addresses.get(endpoint.host, endpoint.host)
        if isinstance(found, OSError | ValueError):
            raise _no_place(endpoint, found)
        if isinstance(found, BaseException):
            raise found
        return found

    def _bind(self, listener: Listener, endpoint: Endpoint) -> None:
        """Raises StartError."""
        address = self._address(endpoint)
        try:
            listener.bind(endpoint.host, endpoint.port, address)
        except (OSError, ValueError) as problem:
            raise _no_place(endpoint, problem) from problem

    def _instead(self, stored: Endpoint, problem: StartError | ConfigError) -> list[Listener]:
        """What there is in the place of a listener that was altered in an earlier life and cannot be had: nothing, or
        for the listener of brokers the address that the broker was started with. No other: that may have been taken
        back because it was open to all. Raises `problem` where the broker was started with this listener."""
        name = stored.listener
        there = {each.listener: each for each in self._config.as_started().listeners.endpoints}
        found, until_then = [], "the broker does without it"
        if there.get(name) == stored:
            raise problem
        if name == self._config.listeners.inter_broker:
            if name not in there:
                raise problem
            try:
                found = [self._bound(self._config, there[name])]
            except (StartError, ConfigError):
                raise problem from None
            until_then = f"it is at {HostPort(found[0].host, found[0].port)}, as the broker was started with"
        event(log, logging.ERROR, "listener not opened", listener=name, address=HostPort(stored.host, stored.port),
              reason=problem.message, set_by=STORED, until_then=until_then)  # fmt: skip
        return found

    def _listener(self, config: BrokerConfig, name: str) -> Listener:
        """One whose security is known."""
        security = self._security
        logins, tls = security.logins_of(name), security.tls_of(name)
        return Listener(name, self._pool, Limits.of(config, name), self._quotas, logins, tls)

    @property
    def addresses(self) -> Mapping[str, HostPort]:
        """Where each listener is bound, by name; the machine's name where that is every interface."""
        machine = socket.gethostname()
        return {
            listener.name: HostPort(machine if listener.host in EVERY_INTERFACE else listener.host, listener.port)
            for listener in self._listeners
        }

    def certificate_ends(self) -> Mapping[str, float]:
        """When the certificates of each listener with TLS end, in seconds since 1970; on any thread."""
        told = [(each.name, each.tls.context.endings) for each in list(self._listeners) if each.tls is not None]
        return {name: min(ending.ends.timestamp() for ending in endings) for name, endings in told}

    def advertised(self, broker_id: int) -> LiveBroker:
        """The broker as the settings say now that clients see it."""
        listeners, bound = self._config.listeners, self.addresses
        shown = bound
        if listeners.advertised is not None:
            told = [each for each in listeners.advertised if each.listener in bound]
            shown = {name: HostPort(host, port or bound[name].port) for name, host, port in told}
        protocols = {name: listeners.protocols[name] for name in shown}
        return LiveBroker(broker_id, shown, protocols, self._config["broker.rack"])

    # -- life ------------------------------------------------------------------------------------------------------

    def use(self, bridge: Bridge, metadata: MetadataCache) -> None:
        """Hand every connection to the native plane, which is shown where brokers are."""
        self._bridge, self._metadata = bridge, metadata
        metadata.watch(bridge.show)
        for listener in self._listeners:
            listener.bridge = bridge if bridge.has_listener(listener.name) else None

    def open(self, responder: Responder, free: Callable[[str], bool] | None = None) -> None:
        """Begin to accept, and have requests executed by `responder`. `free`: which principals nobody asks for their
        rights; None: no one is asked."""
        self.limit()
        self._security.start()
        # What is told of connections, the one listener tells that is never removed.
        closings = self._closings
        self._responder, self._free = Sessions(responder, self.logins, closings), free
        if self._bridge is not None:
            self._bridge.open(self._responder, closings)
        for listener in self._listeners:
            listener.free = free
            listener.open(self._responder)

    def refuse(self, caller: Caller, reason: str) -> None:
        """Log that a request was refused: at once, then once a minute with a number."""
        now = asyncio.get_running_loop().time()
        self._closings.tell("request refused", caller, reason, now, caller.principal, summary=REQUESTS_REFUSED)

    @property
    def _closings(self) -> Closings:
        return next(each for each in self._listeners if each.name == self._config.listeners.inter_broker).closings

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

    def _spare(self) -> None:
        """Spare the listener that brokers use among themselves, where it is not the only one."""
        listeners = self._config.listeners
        for each in self._listeners:
            if each.name == listeners.inter_broker and len(listeners.endpoints) > 1:
                self._quotas.spare(each.name, each.pending)
                return
        self._quotas.spare(None, ())

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
        """Have clients of the listeners that there are see certificates, and log in, as the settings say now."""
        self._security.reload()

    # -- listeners that come and go ----------------------------------------------------------------------------------

    async def prepare(self, config: BrokerConfig) -> None:
        """Bind the listeners that come by this configuration, without accepting yet, and see that those that stay can
        have clients log in by it. Raises ConfigError, and then none is bound. A port that a listener has which goes is
        bound when that is gone. One that could not be had before fails no change in which it stays as it was."""
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
        """The listeners that were prepared do not come, but those that are there by now."""
        for name, listener in self._prepared.items():
            listener.stop_accepting()
            self._security.drop(name)
        self._prepared.clear()

    def follow(self) -> None:
        """Have the listeners that the settings name now: open those that come, close those that go, and leave the
        connections of the others as they are."""
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
        """For whoever judges what may become of a listener."""
        named = {endpoint.listener for endpoint in self._config.listeners.endpoints}
        self._config.not_open = frozenset(named - {listener.name for listener in self._listeners})

    def _add(self, endpoint: Endpoint) -> None:
        """Open a listener. Raises StartError, ConfigError."""
        name = endpoint.listener
        listener = self._prepared.pop(name, None)
        if listener is None:  # somebody else wrote the settings, or it could not be had before
            listener = self._bound(self._config, endpoint)
        elif not listener.is_bound:
            try:
                self._bind(listener, endpoint)
            except StartError:
                self._security.drop(name)
                raise
        assert self._responder is not None
        if self._bridge is not None and self._bridge.add_listener(name):
            listener.bridge = self._bridge
            assert self._metadata is not None
            self._bridge.show(self._metadata.image)
        listener.free = self._free
        self._security.start()
        self._listeners.append(listener)
        listener.open(self._responder)
        event(log, logging.INFO, "listener opened", listener=name, address=endpoint.host, port=listener.port)

    def _remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        listener.finish()  # before the plane forgets it: who logged in after that, it would not close any more
        number = None if self._bridge is None else self._bridge.remove_listener(listener.name)
        task = asyncio.get_running_loop().create_task(self._leave(listener, number))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        event(log, logging.INFO, "listener closed", listener=listener.name)

    async def _leave(self, listener: Listener, number: int | None) -> None:
        """End the connections of a listener that was removed."""
        await listener.close(FAREWELL_SECONDS, "its listener was removed")
        if self._bridge is not None and number is not None:
            self._bridge.cut(number)
        if listener.name not in {*self._prepared, *(each.name for each in self._listeners)}:
            self._security.drop(listener.name)

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
        self._security.stop_reading()
        self.give_up()
        for listener in self._listeners:
            listener.stop_accepting()

    async def close(self, timeout_seconds: float) -> None:
        """Accept no more, let the running requests end within the time, close every connection."""
        self.stop_accepting()
        if self._bridge is not None:
            self._bridge.finish(STALL_SECONDS)
        await asyncio.gather(*(listener.close(timeout_seconds) for listener in self._listeners), *self._leaving)
        self._close_bridge()

    def release(self) -> None:
        """Give back addresses and plane at once."""
        self.stop_accepting()
        self._close_bridge()

    def _close_bridge(self) -> None:
        """What is left of its connections closes with the last reference to the plane."""
        self._security.close()
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


def _no_place(endpoint: Endpoint, problem: OSError | ValueError) -> StartError:
    at = HostPort(endpoint.host, endpoint.port)
    return StartError(f"could not listen on {at}: {why_not(problem)}")
