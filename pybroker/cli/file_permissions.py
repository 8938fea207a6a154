"""Warn about files with secrets that other users can read, or refuse them.

A broker only warns and starts: the file of a packaged broker may belong to another user, and only that user can change
it. A client's own file with a password is refused instead.
"""

import os
import re
import shlex
import stat
from collections.abc import Iterable
from typing import Final

from pybroker.cli import sentences
from pybroker.cli.main import Misuse

OTHERS: Final = 0o077
KEY_BYTES_MAX: Final = 4 << 20
_LOCATION: Final = re.compile(r"ssl[._](keystore[._]location|keyfile)$")
_PLAIN_KEY: Final = re.compile(rb"-----BEGIN ((?:RSA |EC |DSA )?PRIVATE KEY)-----\s*(Proc-Type: 4,ENCRYPTED)?")


def warn_of_config(file: str) -> None:
    """Warn about a broker's .properties file that holds a secret, and about the private keys that it names."""
    from pybroker.config.broker import read_properties, setting_of
    from pybroker.config.listener_settings import changes_of_listener

    settings = {name: text for name, text, _ in read_properties(file) if text}
    found = ((name, setting_of(name) or changes_of_listener(name)) for name in settings)
    secret = next((name for name, setting in found if setting is not None and setting.sensitive), None)
    if secret is not None:
        warn(file, secret)
    warn_of_keys(settings.items())


def warn_of_keys(settings: Iterable[tuple[str, str]]) -> None:
    """Warn about the files in these settings, (name, text) each, that hold a private key without a password."""
    for file in dict.fromkeys(text for name, text in settings if _LOCATION.search(name)):
        if _mode(file) & OTHERS and _has_plain_key(file):
            warn(file, "a private key without a password")


def warn(file: str, what: str) -> None:
    """Warn about a file that holds `what`, if others can read it; never about a pipe or a terminal."""
    mode = _mode(file)
    if mode & OTHERS:
        words = f"{file} holds {what}, and its mode {mode:04o} lets other users read it: chmod 600 {shlex.quote(file)}"
        sentences.warn(words)


def check_owned(file: str, secret: str) -> None:
    """Misuse if other users can read a file that holds a secret."""
    if os.stat(file).st_mode & OTHERS:
        raise Misuse(f"{file} holds {secret}, and other users can read it: keep it to yourself with chmod 600 {file}")


def _mode(file: str) -> int:
    """The mode bits of a regular file; 0 for anything else."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):  # the code that opens the file reports the error
        return 0
    return stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else 0


def _has_plain_key(file: str) -> bool:
    try:
        with open(file, "rb") as opened:
            data = opened.read(KEY_BYTES_MAX)
    except OSError:
        return False
    return any(found[2] is None for found in _PLAIN_KEY.finditer(data))
