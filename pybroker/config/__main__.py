"""Prints docs/config.md, made from the tables: `python -m pybroker.config > docs/config.md`."""

from . import broker, topic
from .settings import LONG_MAX, Setting

HEAD = """\
# Settings

This page is generated from the tables in `pybroker/config/`. Change those, and run `make docs`.

Names, types and ranges are Kafka's. So are the defaults, unless the text says otherwise. The broker reads its settings
from a `.properties` file (`--config FILE`) and from `--set name=value`; `--set` wins. If a value is not allowed, the
broker reports it and does not start. Nor does it start if a name looks like a misspelt setting. Other unknown names are
ignored, with a warning. If several settings set the same thing in different units, the one with the smallest unit wins.

If the column "Changes" says "while it runs", AlterConfigs and `pybroker configs alter` change the setting of a running
broker. The new value applies at once, and after a restart. Settings of `ssl.` and `sasl.` are changed for one broker,
by its id, and apply to new connections. Settings of key stores and trust stores are changed for one listener of a
broker: `listener.name.clients.ssl.keystore.location`.

All settings of Kafka 3.9 are listed. A setting whose text begins with "Without effect" is accepted, checked and shown
to clients, but does nothing else, so that a file or a program written for Kafka works unchanged. The broker logs at its
start, in one line, which of these were set.
"""
TOPIC_HEAD = """\
You can give a topic its own settings when you create it, and change all of them while the broker runs. If a topic does
not set one, the broker setting in the last column applies, or else the default.
"""


def document() -> str:
    """The text of docs/config.md."""
    parts = [HEAD, "## Broker settings\n"]
    for title, settings in broker.CHAPTERS.items():
        parts += [f"### {title}\n", _rows(["Setting", "Default", "Takes", "Changes", "What it does"], settings, False)]
    parts += ["## Topic settings\n", TOPIC_HEAD]
    for title, settings in topic.CHAPTERS.items():
        parts += [f"### {title}\n", _rows(["Setting", "Default", "Takes", "What it does", "From"], settings, True)]
    return "\n".join(parts)


def _rows(heads: list[str], settings: dict[str, Setting], origin: bool) -> str:
    rows = [heads, ["---"] * len(heads)]
    for name, setting in settings.items():
        row = [f"`{name}`", _default(setting), setting.allowed]
        if origin:
            rows.append([*row, setting.doc, ", ".join(f"`{broker}`" for broker, _ in setting.synonyms)])
        else:
            rows.append([*row, "while it runs" if setting.dynamic else "at the start", setting.doc])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "not set"
    return "no limit" if setting.default == str(LONG_MAX) else f"`{setting.default}`" if setting.default else "empty"


if __name__ == "__main__":
    print(document(), end="")
