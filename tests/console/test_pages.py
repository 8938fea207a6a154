"""The pages of the console, over HTTP, beside what the commands print."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pybroker.client.admin import Admin
from tests.cli.conftest import run
from tests.cli.members import Reader, commit, write
from tests.console.conftest import Browser, Console
from tests.harness import Server, free_port, until


def test_the_overview_says_in_one_sentence_that_a_cluster_is_well(browser: Browser, target: Server) -> None:
    """A cluster without a problem is green, and its brokers and disks are there."""
    checked = run("cluster", "check", "-b", target.bootstrap)
    page = browser.get("/")
    assert checked.code == 0 and page.code == 200
    assert 'class="state good"' in page.page and "Healthy: 1 broker, " in page.text
    (log_dir,) = run("logdirs", "-b", target.bootstrap, "--json").json
    assert log_dir["log_dir"] in page.text and f"broker {log_dir['broker']}" in page.text


def test_a_topic_has_what_the_command_prints(browser: Browser, target: Server, topic: str) -> None:
    """A topic's page has its partitions with leaders and offsets, and settings with their source and meaning."""
    run("topics", "create", topic, "-p", 2, "-c", "retention.ms=12345678", "-b", target.bootstrap)
    write(target.bootstrap, topic, 7, partition=1)
    assert topic in browser.get("/topics", {"find": topic}).text
    page = browser.get("/topic", {"name": topic})
    (described,) = run("topics", "describe", topic, "-b", target.bootstrap, "--json").json
    for p in described["partitions"]:
        cells = (p["partition"], p["leader"], p["leader"], p["leader"], p["earliest"], p["latest"])
        assert " ".join(map(str, cells)) in page.text
    assert "retention.ms 12345678 topic How long records are kept" in page.text and "Offsets held 7" in page.text


def test_a_group_has_its_members_and_its_lag(browser: Browser, target: Server, topic: str) -> None:
    """A group's page has the lag of each partition, the furthest behind first, and the members."""
    run("topics", "create", topic, "-p", 2, "-b", target.bootstrap)
    write(target.bootstrap, topic, 5, partition=0)
    write(target.bootstrap, topic, 9, partition=1)
    commit(target.bootstrap, topic, topic, {0: 4, 1: 2})
    assert f"{topic} Empty" in browser.get("/groups", {"find": topic}).text
    page = browser.get("/group", {"id": topic})
    assert "Lag 8" in page.text and "No members" in page.text
    assert page.text.index(f"{topic}-1 2 9 7") < page.text.index(f"{topic}-0 4 5 1")
    with Reader(target.bootstrap, topic, topic, **{"client.id": "worker"}) as reader:
        until("all is read", lambda: reader.count == 8)
        page = browser.get("/group", {"id": topic})
        assert "State Stable Lag 0 Members 1" in page.text and "1 worker 127.0.0.1" in page.text
        assert ("Last rebalance 20" in page.text) == (target.name == "pybroker")


def test_a_broker_has_its_log_dirs_and_settings(browser: Browser, target: Server) -> None:
    """A broker's page has its log dirs, and the settings that differ from their default."""
    (log_dir,) = run("logdirs", "-b", target.bootstrap, "--json").json
    page = browser.get("/broker", {"id": log_dir["broker"]})
    assert page.code == 200 and log_dir["log_dir"] in page.text
    assert "static broker" in page.text
    assert browser.get("/brokers").text.count(log_dir["log_dir"]) == 1


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("/nothing", {}, "There is no such page"),
        ("/topic", {"name": "no-such-topic"}, "no-such-topic"),
        ("/group", {"id": "<b>no</b>"}, "Group <b>no</b> does not exist"),
        ("/broker", {"id": "777"}, "No broker 777 is registered"),
    ],
)
def test_what_is_not_there_is_404(browser: Browser, path: str, query: dict[str, object], words: str) -> None:
    """A page about something that does not exist is a 404 that says so."""
    answer = browser.get(path, query)
    assert answer.code == 404 and words in answer.text and "<b>" not in answer.page


@pytest.mark.parametrize("path", ["/topic", "/messages", "/tail", "/tail/events", "/record", "/changes", "/clients"])
@pytest.mark.parametrize("name", ["", "\0", "..", "a/b", "a\r\nX: y", "a" * 250, "\N{GRINNING FACE}"])
def test_what_is_no_name_of_a_topic_is_400(browser: Browser, path: str, name: str) -> None:
    """A name that no topic can have is refused at once, with a sentence; the cluster is not asked."""
    answer = browser.get(path, {"name": name, "partition": 0})
    assert answer.code == 400 and "topic" in answer.text and "x" not in answer.headers


@pytest.mark.parametrize(("path", "query"), [("/topics", {"page": "x"}), ("/broker", {"id": "one"})])
def test_an_address_that_is_wrong_is_400(browser: Browser, path: str, query: dict[str, object]) -> None:
    answer = browser.get(path, query)
    assert answer.code == 400 and "is a number" in answer.text


def test_a_hostile_name_is_text(browser: Browser, target: Server, topic: str) -> None:
    """Names of groups and clients with markup and control characters are shown, and not obeyed."""
    group = f"{topic}<script>alert(1)</script>\x1b[2J\u202e\"'"
    run("topics", "create", topic, "-b", target.bootstrap)
    commit(target.bootstrap, group, topic, {0: 0})
    for page in (browser.get("/groups", {"find": topic}), browser.get("/group", {"id": group})):
        assert page.code == 200 and "<script>alert" not in page.page
        assert "<script>alert(1)</script>\\x1b[2J\\u202e" in page.text and "\x1b" not in page.page


def test_a_thousand_topics_are_pages_of_a_hundred(browser: Browser, target: Server, topic: str) -> None:
    """A long list is cut into pages that lead to each other; each stays small."""
    names = [f"{topic}-{number:03}" for number in range(120)]
    with Admin(target.bootstrap) as admin:
        for name in names:
            admin.create_topic(name)
    first = browser.get("/topics", {"find": topic})
    last = browser.get("/topics", {"find": topic, "page": 99})
    assert "120 found" in first.text and "Page 1 of 2" in first.text and "Page 2 of 2" in last.text
    assert names[99] in first.text and names[100] not in first.text and names[119] in last.text
    with Admin(target.bootstrap) as admin:
        for name in names:
            admin.delete_topic(name)


def test_a_cluster_that_is_away_is_a_sentence(start_console: Callable[..., Console]) -> None:
    """A console starts without its cluster, and says on each page that no broker answers."""
    browser = start_console(f"127.0.0.1:{free_port()}", "--timeout", 1).browser()
    for path in ("/", "/topics", "/groups", "/brokers"):
        answer = browser.get(path)
        assert answer.code == 502 and "This cannot be shown" in answer.text
