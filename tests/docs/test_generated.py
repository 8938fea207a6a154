"""Generated pages are current: docs/logs.md and the tables of docs/protocol.md."""

from __future__ import annotations

import re
import tomllib

import pytest

import pybroker
from pybroker import testing
from tests.sources import ROOT, files, text_of
from tools import clients_page, log_events

HEAD = "import logging\nfrom pybroker.logs import event\n"


def test_the_page_has_every_event() -> None:
    """The page docs/logs.md has every event of the source; `make docs` writes it."""
    assert log_events.PAGE.read_text() == log_events.page()


def test_every_warning_says_what_to_do() -> None:
    """Every warning has advice: tools/log_advice.toml has each event that may be a WARNING or worse, and no removed
    one."""
    assert not log_events.problems()


def test_names_that_are_spelled_are_of_the_source() -> None:
    """Event names that the calls do not show are listed, and each is a string somewhere in pybroker."""
    spelled = tomllib.loads(log_events.ADVICE.read_text())["spelled"]
    source = "".join(text_of(path) for path in files(".py", under="pybroker"))
    assert not [name for names in spelled.values() for name in names if f'"{name}"' not in source]


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ('event(log, logging.INFO, "went", a=1, exc_info=True)', [("went", "m", ("INFO",), ("a",))]),
        (
            'event(log, logging.ERROR if bad else logging.INFO, "worse" if bad else "well")',
            [("worse", "m", ("ERROR",), ()), ("well", "m", ("INFO",), ())],
        ),
        (
            'event(log, logging.INFO, f"{\'a\' if b else \'c\'} read")',
            [("a read", "m", ("INFO",), ()), ("c read", "m", ("INFO",), ())],
        ),
        ('words, at = "open", 1\nevent(log, logging.DEBUG, words)', [("open", "m", ("DEBUG",), ())]),
        ("event(log, level, name)", [("spelled", "m", ("WARNING",), ())]),
    ],
)  # fmt: skip
def test_the_rule_of_events(call: str, found: list[tuple[object, ...]]) -> None:
    facts = {"spelled": {"m": ["spelled"]} if "name)" in call else {}, "levels": {"m": ["WARNING"]}}
    assert list(log_events.calls_of(f"{HEAD}{call}\n", "m", facts)) == found


def test_an_event_without_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="spell it"):
        list(log_events.calls_of(f"{HEAD}event(log, logging.INFO, name)\n", "m", {}))


def test_the_table_of_clients() -> None:
    """The table of clients in docs/protocol.md has those of tests/clients, and all of their tests passed."""
    page = clients_page.PAGE.read_text()
    table = page.split(clients_page.BEGIN)[1].split(clients_page.END)[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+[^|]*) \| (\d+) of (\d+) \|$", table, re.M)
    assert {title for title, *_ in rows} == set(clients_page.CLIENTS.values())
    assert [passed for _, _, passed, count in rows if passed == count] == [passed for _, _, passed, _ in rows]
    from tests.java.peers import VERSIONS

    assert [version for title, version, *_ in rows if "Java" in title] == list(VERSIONS)
    assert (ROOT / "tests/clients").is_dir()


def test_the_table_of_extras() -> None:
    """docs/install.md has each extra of the package that is not for working on it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| `([\w-]+)` \|", text_of(ROOT / "docs/install.md"), re.M)
    assert sorted(rows) == sorted(set(extras) - {"bench", "demo", "dev", "site", "test"})


def test_the_api_has_every_public_name() -> None:
    """docs/api.md has what pybroker and pybroker.testing offer."""
    shown = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", text_of(ROOT / "docs/api.md"), re.M)}
    assert not sorted({*pybroker.__all__, *testing.__all__} - {"__version__", "Mode"} - shown)
