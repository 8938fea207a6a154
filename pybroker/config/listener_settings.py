"""The settings of which a listener may have a value of its own, before the broker's: listener.name.<l>.max.connections.

They are Kafka's ListenerReconfigurableConfigs. Who may log in at a listener is told in security_settings, and its TLS
in ssl_settings.
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
    """What the setting is called where it is said of one listener."""
    return f"{OF_LISTENER}{listener.lower()}.{name}"


def of_broker(name: str) -> str | None:
    """The setting of the broker that holds where a listener has not set this one; None if it is no listener's."""
    found = _OWN.fullmatch(name)
    return None if found is None else found["name"]


def own_setting(name: str) -> Setting | None:
    """The setting of one listener that is called so, None if there is none. It has no default."""
    base = of_broker(name)
    if base is None:
        return None
    return NETWORK[base]._replace(name=name, default=None, valid=Range(1))


def changes_of_listener(name: str) -> Setting | None:
    """The setting of one listener's TLS or logins that is called so, or one that Kafka's listeners have; None if there
    is none. Only a broker by itself has it, and the store has it encrypted if it is sensitive. Some of them do not
    change while the listener is there."""
    setting = own_of_login(name) or own_of_tls(name) or own_without_effect(name)
    if setting is None and re.fullmatch(rf"listener\.name\.[^.]+\.{re.escape(THREADS)}", name):
        setting = _THREADS
    return None if setting is None else setting._replace(name=name)
