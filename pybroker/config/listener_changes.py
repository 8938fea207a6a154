"""Checks changes of the listeners of a running broker, like Kafka's DynamicListenerConfig (KIP-226).

Listeners may be added, and removed except for the inter-broker listener. Of an existing listener only the TLS settings,
SASL mechanisms and users, limits and advertised address may change. Kafka silently accepts another address in
`listeners` and uses it after the next start. Here this is refused, except for the address that the broker was started
with, so that a change can be reverted. A listener that could not be opened may change in any way. The error texts are
Kafka's.
"""

from .broker import BrokerConfig
from .listener_settings import changes_of_listener
from .listeners import LISTENERS, PROTOCOLS
from .security_settings import is_exchanged
from .settings import ConfigError
from .ssl_settings import is_reconfigurable


def check_listeners(now: BrokerConfig, after: BrokerConfig) -> None:
    """Raise ConfigError if a running broker cannot change from one configuration to the other."""
    before, then = now.listeners, after.listeners
    there = {endpoint.listener: endpoint for endpoint in before.endpoints}
    started = now.as_started().listeners.endpoints
    for endpoint in then.endpoints:
        name = endpoint.listener
        if name not in there or name in now.not_open:
            continue
        if endpoint != there[name] and endpoint not in started:
            why = f"listener {name} cannot move from {there[name]}: give the listener at {endpoint} another name"
            raise ConfigError(f"{LISTENERS} is not allowed: {why}")
        if before.protocols[name] != then.protocols[name]:
            why = f"Security protocol cannot be updated for existing listener {name}"
            raise ConfigError(f"{PROTOCOLS} is not allowed: {why}")
        changed = {setting for setting, _ in _fixed(now, name) ^ _fixed(after, name)}
        if changed:
            words = f"Configs cannot be updated dynamically for existing listener {name}"
            instead = "restart broker or create a new listener for update"
            raise ConfigError(f"{words}, {instead}: {', '.join(sorted(changed))}")


def _fixed(config: BrokerConfig, listener: str) -> set[tuple[str, str]]:
    """The settings of one listener that cannot change while it is open."""
    own = config.own_of_listener(listener).items()
    return {(name, text) for name, text in own if not _changes(name)}


def _changes(name: str) -> bool:
    """True if this setting of an open listener can change."""
    setting = changes_of_listener(name)
    return is_reconfigurable(name) or is_exchanged(name) or (setting is not None and setting.without_effect)
