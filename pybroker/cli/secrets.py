"""Passwords among the arguments of a command, where others on the machine can read them.

A client's is refused, for what takes it need not be there yet. A broker's setting is taken, with a warning: whoever
starts or alters a broker so may have no other way at hand, and what was typed has been seen already.
"""

import re
from collections.abc import Iterable

import click

from pybroker.cli import profiles
from pybroker.cli.main import Misuse

READABLE = "everybody on this machine can read an argument"
_SOUNDS_SECRET = re.compile("secret|password|token|access.?key", re.IGNORECASE)
"""As Spark's own `spark.redaction.regex` has it, and for names with underscores."""


def refused(name: str) -> Misuse:
    """What is wrong with a client's setting that is a password, or has one in it."""
    words = f"{READABLE}: put {name} into a file for --command-config"
    return Misuse(f"{words}, or a password into {profiles.PASSWORD_VARIABLE}")


def warn(names: Iterable[str], place: str) -> None:
    """Tell of each broker's setting among these that is a password; `place` is where it belongs."""
    from pybroker.config.broker import setting_of
    from pybroker.config.listener_settings import changes_of_listener

    for name in dict.fromkeys(names):
        setting = setting_of(name) or changes_of_listener(name)
        if setting is not None and setting.sensitive:
            click.echo(f"pybroker: warning: {READABLE}: put {name} into {place}", err=True)


def warn_of_others(names: Iterable[str], place: str) -> None:
    """The same for settings of what is not ours, which sound like secrets."""
    for name in filter(_SOUNDS_SECRET.search, dict.fromkeys(names)):
        click.echo(f"pybroker: warning: {READABLE}: put {name} into {place}", err=True)
