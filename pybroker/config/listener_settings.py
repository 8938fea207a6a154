"""Settings that a listener can override: listener.name.<l>.max.connections.

They are Kafka's ListenerReconfigurableConfigs. Logins are in security_settings, and TLS in ssl_settings.
"""

import re
from typing import Final

from .broker_settings import NETWORK
from .security_settings import own_of_login, own_without_effect
from .settings import WITHOUT_EFFECT, Range, Setting
from .ssl_settings import own_of_tls

OF_LISTENER: Final = "listener.name."
NAMES: Final = ("max.connections", "max.connection.creation.rate")
THREADS: Final = "num.network.threads"
_THREADS: Final = NETWORK[THREADS]._replace(default=None, doc=f"{WITHOUT_EFFECT}: threads serve all listeners.")
_OWN: Final = re.compile(rf"listener\.name\.[^.]+\.(?P<name>{'|'.join(map(re.escape, NAMES))})")


def own_name(listener: str, name: str) -> str:
    """The name of the setting with the listener's prefix."""
    return f"{OF_LISTENER}{listener.lower()}.{name}"


def of_broker(name: str) -> str | None:
    """The broker setting that this listener setting overrides; None if it is not a listener setting."""
    found = _OWN.fullmatch(name)
    return None if found is None else found["name"]


def own_setting(name: str) -> Setting | None:
    """The listener setting of this name, without a default; None if there is none."""
    base = of_broker(name)
    if base is None:
        return None
    return NETWORK[base]._replace(name=name, default=None, valid=Range(1))


def changes_of_listener(name: str) -> Setting | None:
    """The TLS, login or ineffective setting of one listener with this name; None if there is none. It can only be set
    for one broker, and sensitive values are encrypted in the store. Some do not change while the listener is open."""
    setting = own_of_login(name) or own_of_tls(name) or own_without_effect(name)
    if setting is None and re.fullmatch(rf"listener\.name\.[^.]+\.{re.escape(THREADS)}", name):
        setting = _THREADS
    return None if setting is None else setting._replace(name=name)
