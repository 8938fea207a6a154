"""What may become of the listeners of a running broker, as Kafka's DynamicListenerConfig judges it (KIP-226).

One may come, with settings of its own, and one may go that brokers do not use. What is there stays as it is, but for
its TLS, the mechanisms and users of its logins, its limits, and the address that clients are told. Kafka takes another
address in `listeners` without a word, and has it at its next start; here that is refused, but for the address that
the broker was started with: what was altered can be taken back. One that could not be opened is not there, and may
become anything. The refusals have Kafka's words.
"""

from .broker import BrokerConfig
from .listener_settings import changes_of_listener
from .listeners import LISTENERS, PROTOCOLS
from .security_settings import is_exchanged
from .settings import ConfigError
from .ssl_settings import is_reconfigurable


def check_listeners(now: BrokerConfig, after: BrokerConfig) -> None:
    """Raises ConfigError where a running broker cannot go from one to the other."""
    before, then = now.listeners, after.listeners
    there = {endpoint.listener: endpoint for endpoint in before.endpoints}
    started = now.as_started().listeners.endpoints
    for endpoint in then.endpoints:
        name = endpoint.listener
        if name not in there or name in now.not_open:
            continue
        if endpoint != there[name] and endpoint not in started:
            why = f"listener {name} is at {there[name]} while the broker runs: give the one at {endpoint} another name"
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
    """What a listener has of its own that stays as long as it is there."""
    own = config.own_of_listener(listener).items()
    return {(name, text) for name, text in own if not _changes(name)}


def _changes(name: str) -> bool:
    """True if a listener that is there takes another value of this setting of its own."""
    setting = changes_of_listener(name)
    return is_reconfigurable(name) or is_exchanged(name) or (setting is not None and setting.without_effect)
