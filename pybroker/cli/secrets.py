"""Passwords in command lines, which other users of the machine can read.

A client's password is refused, as no server has to be up for that. A broker's setting is accepted with a warning: the
operator may have no other way at hand, and the password has been visible already.
"""

import re
from collections.abc import Iterable

from pybroker.cli import profiles, sentences
from pybroker.cli.main import Misuse

READABLE = "every user of this machine can read arguments"
_SOUNDS_SECRET = re.compile("secret|password|token|access.?key", re.IGNORECASE)
"""Spark's own default of `spark.redaction.regex`, and names with underscores."""


def refused(name: str) -> Misuse:
    """Return the error for a client's setting that is, or contains, a password."""
    words = f"{READABLE}: put {name} into a file for --command-config"
    return Misuse(f"{words}, or a password into {profiles.PASSWORD_VARIABLE}")


def warn(names: Iterable[str], place: str) -> None:
    """Warn about each broker's setting among these that is a password; `place` is where it belongs."""
    from pybroker.config.broker import setting_of
    from pybroker.config.listener_settings import changes_of_listener

    for name in dict.fromkeys(names):
        setting = setting_of(name) or changes_of_listener(name)
        if setting is not None and setting.sensitive:
            sentences.warn(f"{READABLE}: put {name} into {place}")


def warn_of_others(names: Iterable[str], place: str) -> None:
    """Warn about settings of other software whose names suggest a secret."""
    for name in filter(_SOUNDS_SECRET.search, dict.fromkeys(names)):
        sentences.warn(f"{READABLE}: put {name} into {place}")
