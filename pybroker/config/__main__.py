"""Prints docs/config.md, made from the tables: `python -m pybroker.config > docs/config.md`."""

from . import broker, topic
from .settings import LONG_MAX, Setting

HEAD = """\
# Settings

Generated from the tables in `pybroker/config/` by `python -m pybroker.config`; edit those.

Names, types and ranges are Kafka's, and so are the defaults unless the text says otherwise. The broker reads its own
settings from a `.properties` file (`--config FILE`) and from `--set name=value`, which wins. A value that is not
allowed stops the start with one sentence; a name that is not listed here warns. Where several settings say one thing
in different units, the finest one that is set holds. Where the column "Changes" says so, AlterConfigs and
`pybroker configs alter` change a setting of a running broker, which goes by it at once and after a restart.
"""
TOPIC_HEAD = """\
A topic's own settings are given when it is created, and all of them change while the broker runs; what it leaves out
comes from the broker setting named in the last column, or is the default shown.
"""


def document() -> str:
    """The whole of docs/config.md."""
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
