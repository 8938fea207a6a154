"""Keeps passwords and keys out of a debug bundle: settings by their type and name, and values in lines of text."""

import re
from collections.abc import Iterable
from typing import Final

from pybroker.cli.configs import source_name
from pybroker.cli.output import Document
from pybroker.client.admin import ConfigEntry, ConfigSource
from pybroker.config.broker import BROKER, setting_of
from pybroker.config.listener_settings import changes_of_listener

_SOUNDS_SECRET: Final = ("password", "secret", "jaas.config")
_ENDS: Final = "|".join(
    re.escape(name)
    for name in (*_SOUNDS_SECRET, *(name for name, setting in BROKER.items() if setting.sensitive))
    if name in _SOUNDS_SECRET or not name.endswith(_SOUNDS_SECRET)
)
_NAME: Final = re.compile(rf"(?:{_ENDS})$")
"""The names of settings that may hold a secret, whatever prefix they have and whatever the broker calls their type."""
HIDDEN: Final = "(hidden)"
_VALUE: Final = r"""(\\".*?(?:\\"|$)|"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s,;"'{}]+)"""
_IN_TEXT: Final = re.compile(
    rf"""((?:\buser_[\w.@-]+|{_ENDS}|passwd|api_?key|authorization)["']?\s*[=:]\s*){_VALUE}""",
    re.IGNORECASE | re.MULTILINE,
)
"""A name that sounds like a secret, as a setting, in a login module or in JSON, and its value."""
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_PEM_END: Final = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")


def is_secret(entry: ConfigEntry) -> bool:
    """True if a setting may hold a password or a key."""
    known = setting_of(entry.name) or changes_of_listener(entry.name)
    return entry.sensitive or (known is not None and known.sensitive) or _NAME.search(entry.name) is not None


def document(entries: Iterable[ConfigEntry]) -> Document:
    """Return the settings that differ from their default, without those that may hold a secret: only their names."""
    found = [entry for entry in entries if entry.source != ConfigSource.DEFAULT]
    shown = [
        {"name": each.name, "value": each.value, "source": source_name(each.source)}
        for each in found if not is_secret(each)
    ]  # fmt: skip
    return {"configs": shown, "left_out": [each.name for each in found if is_secret(each)]}


def redacted(text: str) -> str:
    """Return a text without the values that follow names of passwords, and without private keys."""
    if (end := _PEM_END.search(text)) is not None and "-----BEGIN" not in text[: end.start()]:
        text = HIDDEN + text[end.end() :]  # the rest of a key whose beginning was cut off
    return _IN_TEXT.sub(rf"\1{HIDDEN}", _PEM.sub(HIDDEN, text))
