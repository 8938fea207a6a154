"""TLS and logins of each listener of a broker, by the settings of the listener."""

import contextlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor

from pybroker import core
from pybroker.config import BrokerConfig, ConfigError, Source
from pybroker.config.security_settings import Sasl
from pybroker.config.ssl_settings import OF_STORES, Ssl, is_of_stores
from pybroker.errors import StartError
from pybroker.logs import event
from pybroker.security.credentials import Credentials, offered
from pybroker.security.tls import check_believed, server_context
from pybroker.server.network.login import Logins
from pybroker.server.network.tls_handshake import Tls, tls_of
from pybroker.server.network.token_validators import TokenValidators

log = logging.getLogger(__name__)

STEP_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Threads for TLS handshakes."""


class ListenerSecurity:
    """TLS and logins of all listeners of one broker, which may be added and removed."""

    def __init__(self, config: BrokerConfig, credentials: Credentials) -> None:
        """Create it without listeners."""
        self._config = config
        self._credentials = credentials
        self._tokens = TokenValidators()
        self.logins = Logins(
            config["sasl.server.max.receive.size"], config["connection.failed.authentication.delay.ms"] / 1000, {}
        )
        self._steps = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="pybroker-tls")
        self._sasl: dict[str, Sasl] = {}
        self._ssl: dict[str, Ssl] = {}
        self._tls: dict[str, Tls] = {}

    def tell_if_slow(self) -> None:
        """Warn if TLS is used but not in core."""
        if self._tls and not core.tls_available():
            why = "core cannot use the OpenSSL of this Python, so TLS runs in Python's ssl module on the event loop"
            event(log, logging.WARNING, "TLS is slow", listeners=",".join(self._tls), reason=why)

    def start(self) -> None:
        """Begin to read token keys that have not been read yet."""
        self._tokens.start()

    def close(self) -> None:
        """Stop reading token keys, and end the handshake threads."""
        self._tokens.close()
        self._steps.shutdown(wait=False)

    def stop_reading(self) -> None:
        """Stop reading token keys."""
        self._tokens.close()

    def tls_of(self, listener: str) -> Tls | None:
        """The TLS of a listener; None without TLS."""
        return self._tls.get(listener)

    def logins_of(self, listener: str) -> Logins | None:
        """The logins of a listener; None without SASL."""
        return self.logins if listener in self._sasl else None

    def add(self, config: BrokerConfig, listener: str) -> None:
        """Add a listener of this configuration. Raises ConfigError, StartError; then it is not added."""
        ssl, sasl = config.ssl.get(listener), config.sasl.get(listener)
        if ssl is not None:
            self._ssl[listener], self._tls[listener] = self._made(config, listener, ssl)
        if sasl is not None:
            try:
                validator = self._tokens.add(listener, sasl)
            except BaseException:
                self.drop(listener)
                raise
            self._sasl[listener] = sasl
            self.logins.mechanisms[listener] = offered(sasl, self._credentials, validator)

    def drop(self, listener: str) -> None:
        """Remove a listener."""
        self._tokens.drop(listener)
        for held in (self._ssl, self._tls, self._sasl, self.logins.mechanisms):
            held.pop(listener, None)

    def _made(self, config: BrokerConfig, listener: str, ssl: Ssl) -> tuple[Ssl, Tls]:
        """Return the TLS settings of a listener and its context. If dynamic settings cannot be used, log it and use
        those that the broker was started with. Certificates that are expired or not yet valid are used, and logged.
        Raises ConfigError if none can be used."""
        try:
            return ssl, tls_of(listener, ssl, self._steps, self.logins)
        except ConfigError as problem:
            started = config.as_started().ssl.get(listener)
            if started is not None and started.values != ssl.values:
                with contextlib.suppress(ConfigError):
                    made = tls_of(listener, started, self._steps, self.logins)
                    event(log, logging.ERROR, "certificate reload failed", listener=listener, reason=problem.message)
                    return started, made
            try:
                made = tls_of(listener, ssl, self._steps, self.logins, dated=False)
            except ConfigError:
                raise problem from None
            event(log, logging.ERROR, "clients cannot connect", listener=listener, reason=problem.message)
            return ssl, made

    def check_logins(self, config: BrokerConfig) -> None:
        """Check that the current listeners can use the logins of this configuration. Raises ConfigError."""
        for name, sasl in config.sasl.items():
            if name in self._sasl and sasl.oauth != self._sasl[name].oauth:
                try:
                    self._tokens.check(sasl)
                except StartError as problem:
                    raise ConfigError(problem.message) from None

    def reload(self) -> None:
        """Apply changed TLS and login settings to new connections. Certificates that were ever set dynamically are read
        again, as their files may have changed under the same names. On an error the old ones stay."""
        for name, sasl in self._config.sasl.items():
            if name in self._sasl and sasl != self._sasl[name]:
                self._log_in_by(name, sasl)
        changed = [name for name in self._config.dynamic(Source.DYNAMIC_BROKER) if is_of_stores(name)]
        for name, settings in self._config.ssl.items():
            own = any(each.startswith(f"listener.name.{name.lower()}.") for each in changed)
            if name in self._tls and (own or settings.values != self._ssl[name].values):
                stores = own or any(settings[each] != self._ssl[name][each] for each in OF_STORES)
                if self._exchanged(name, settings):
                    event(log, logging.INFO, f"{'certificates' if stores else 'TLS settings'} reloaded", listener=name)

    def read_again(self, *, has_peers: bool) -> None:
        """Read the files of all listeners and the keys of tokens again, whose content may be new. On an error the old
        ones stay, also if brokers with the same files could no longer connect to this one (`has_peers`)."""
        read = []
        for name, settings in self._config.ssl.items():
            peers = has_peers and name == self._config.listeners.inter_broker
            if name in self._tls and self._exchanged(name, settings, peers=peers):
                read.append(name)
        keys = self._tokens.read_again()
        event(log, logging.INFO, "files read again", certificates=",".join(read) or "none", token_keys=keys)

    def _exchanged(self, listener: str, settings: Ssl, *, peers: bool = False) -> bool:
        """True if new connections of a listener use these settings, and the content of their files, from now on."""
        try:
            if peers:
                check_believed(self._config)
            self._tls[listener].context = server_context(settings, listener)
        except ConfigError as problem:
            event(log, logging.ERROR, "certificate reload failed", listener=listener, reason=problem.message)
            return False
        self._ssl[listener] = settings
        return True

    def _log_in_by(self, listener: str, sasl: Sasl) -> None:
        """Apply changed SASL settings of a listener to new logins."""
        validator = self._tokens.get(listener)
        if sasl.oauth != self._sasl[listener].oauth:
            try:
                validator = self._tokens.add(listener, sasl)
            except StartError as problem:
                event(log, logging.ERROR, "SASL settings reload failed", listener=listener, reason=problem.message)
                return
            self._tokens.start()
        self._sasl[listener] = sasl
        self.logins.mechanisms[listener] = offered(sasl, self._credentials, validator)
        event(log, logging.INFO, "SASL settings reloaded", listener=listener, mechanisms=",".join(sasl.mechanisms))
