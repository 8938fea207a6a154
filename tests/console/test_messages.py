"""Records in the browser: searches and their limits, hostile bytes, and the live tail."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shlex
import time

import confluent_kafka as ck
import pytest
from starlette.requests import Request

from pybroker.client.consuming.consumer import Consumer
from pybroker.console.clients import ViewerClients
from pybroker.console.filters import RecordFilter
from pybroker.console.pages import Busy, Pages
from pybroker.console.searching import NEWEST, OFFSET, TIME, Limits, Search, find
from pybroker.console.sessions import Viewer
from pybroker.console.views import messages
from pybroker.console.views.messages import TAILS_MAX, MessagePages
from tests.cli.conftest import run
from tests.console.conftest import Browser, Console
from tests.harness import HOST, Server, until

HOSTILE = b"<script>alert(1)</script><img src=x onerror=alert(2)>\x00\x1b[2J\xff\"'"
NONE = RecordFilter()


def produce(target: Server, topic: str, *records: dict[str, object]) -> None:
    """Write records, given as the arguments of confluent-kafka."""
    producer = ck.Producer({"bootstrap.servers": target.bootstrap, "log_level": 0, "message.max.bytes": 20 << 20})
    for each in records:
        producer.produce(topic, **each)
    assert producer.flush(60) == 0


@pytest.fixture
def orders(target: Server, topic: str) -> str:
    """A topic with 3 partitions that has the numbers from 0 to 299 in JSON, a second between each and the next."""
    run("topics", "create", topic, "-p", 3, "-b", target.bootstrap)
    records: list[dict[str, object]] = [
        {
            "value": json.dumps({"order": {"id": number, "kind": "even" if number % 2 == 0 else "odd"}}),
            "key": f"k{number % 10}", "partition": number % 3, "timestamp": 1_700_000_000_000 + number * 1000,
            "headers": [("trace", f"t{number % 5}".encode())],
        }
        for number in range(300)
    ]  # fmt: skip
    produce(target, topic, *records)
    return topic


def ids(page: str) -> list[int]:
    """The numbers on a page, in its order."""
    return [int(number) for number in re.findall(r"&#34;id&#34;: (\d+)", page)]


def test_the_newest_come_first(browser: Browser, orders: str) -> None:
    """Without a start the newest records of all partitions are shown, the latest first."""
    page = browser.get("/messages", {"name": orders, "count": 10})
    assert page.code == 200 and ids(page.page) == list(range(299, 289, -1))
    page = browser.get("/messages", {"name": orders, "count": 10, "partition": 1})
    assert ids(page.page) == [298 - 3 * number for number in range(10)]


def test_from_an_offset_or_a_time(browser: Browser, orders: str) -> None:
    """A search goes on from an offset, with a link to what follows, or from a time."""
    page = browser.get("/messages", {"name": orders, "partition": 0, "start": "offset", "at": 20, "count": 10})
    assert ids(page.page) == [60 + 3 * number for number in range(10)]
    (following,) = re.findall(r'href="(/messages\?[^"]+)" rel="next"', page.page)
    assert ids(browser.get(following.replace("&amp;", "&")).page) == [90 + 3 * number for number in range(10)]
    page = browser.get("/messages", {"name": orders, "start": "time", "at": "2023-11-14T22:17:20", "count": 50})
    assert sorted(ids(page.page)) == sorted(ids(page.page)) and min(ids(page.page)) == 240
    assert browser.get("/messages", {"name": orders, "start": "time", "at": "-1m"}).text.count("0 shown") == 1


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"json": "order.id=7"}, [7]),
        ({"json": "order.kind=odd", "key": "k7", "header": "trace=t2"}, [297, 287, 277]),
        ({"text": '"ID": 12,'}, [12]),
        ({"header": "trace=t4", "partition": 2}, [299, 284, 269]),
        ({"text": "nothing like that"}, []),
    ],
)
def test_filters(browser: Browser, orders: str, wanted: dict[str, object], found: list[int]) -> None:
    """A filter is of the value's text, the key, a JSON path or a header; it looks through the topic, newest first."""
    page = browser.get("/messages", {"name": orders, **wanted})
    assert ids(page.page)[:3] == found and "read" in page.text


def test_a_limit_that_ends_a_search_is_said(target: Server, orders: str) -> None:
    """A search reads no more than its limits, and says which of them ended it; one that is through says nothing."""
    wanted = RecordFilter(text="nothing like that")
    clock = [0.0]

    def later() -> float:
        clock[0] += 1
        return clock[0]

    with Consumer(bootstrap_servers=target.bootstrap, auto_offset_reset="earliest") as consumer:
        for start, at in ((NEWEST, 0), (OFFSET, 0), (TIME, 0)):
            search = Search(orders, None, start, at, 10, wanted)
            found = find(consumer, search, Limits(records=100, seconds=60))
            assert (found.read, found.records) == (100, []) and "100 records were read" in found.notes[0]
            found = find(consumer, search, Limits(size_bytes=1000, seconds=60))
            assert found.read < 40 and "1.0 kB were read" in found.notes[0]
            assert "it took 5 s" in find(consumer, search, Limits(seconds=5), later).notes[0]
            found = find(consumer, search, Limits(seconds=60))
            assert (found.read, found.notes) == (300, [])
        found = find(consumer, Search(orders, 0, OFFSET, 95, 10, NONE), Limits(seconds=60))
        assert [record.offset for record in found.records] == [95, 96, 97, 98, 99] and not found.notes


@pytest.mark.parametrize("how", ["text", "json", "hex"])
def test_hostile_records_are_text(browser: Browser, target: Server, topic: str, how: str) -> None:
    """Markup, control characters and invalid UTF-8 in keys, values and headers are shown, and not obeyed."""
    run("topics", "create", topic, "-b", target.bootstrap)
    hostile: dict[str, object] = {"value": HOSTILE, "key": HOSTILE, "headers": [("<script>x</script>", HOSTILE)]}
    nested: dict[str, object] = {"value": b"[" * 50_000, "key": None, "headers": [("", None)] * 100}
    produce(target, topic, hostile, nested, {"value": None, "key": b""}, {"value": b'{"a": "</td><script>"}'})
    page = browser.get("/messages", {"name": topic, "as": how})
    assert page.code == 200 and "4 shown" in page.text
    assert "<script>" not in page.page and "<img" not in page.page and "\x1b" not in page.page
    assert "null" in page.text and "\\x1b[2J\\xff" in page.text and ("3c 73 63 72" in page.text) == (how == "hex")


def test_a_huge_value_is_cut_and_can_be_had(browser: Browser, target: Server, topic: str) -> None:
    """A value of megabytes is shown by its beginning; as a file it is whole, and no page of this host."""
    run("topics", "create", topic, "-c", "max.message.bytes=12000000", "-b", target.bootstrap)
    huge = b'<&">' * 2_500_000
    produce(target, topic, *[{"value": huge}, {"value": b"small"}])
    page = browser.get("/messages", {"name": topic})
    assert page.code == 200 and "the beginning of 10,000,000 bytes" in page.text and "small" in page.text
    answer = browser.get("/record", {"name": topic, "partition": 0, "at": 0})
    assert answer.body == huge and answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert browser.get("/record", {"name": topic, "partition": 0, "at": 2}).code == 404
    assert browser.get("/record", {"name": topic, "at": 0}).code == 400


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ({"partition": "x"}, 400, "partition is a number"),
        ({"partition": 77}, 404, "has no partition 77"),
        ({"start": "elsewhere"}, 400, "start is one of newest, offset, time"),
        ({"start": "offset", "at": "-1"}, 400, "an offset is a number"),
        ({"start": "offset", "at": 1 << 63}, 400, "an offset is a number"),
        ({"start": "time", "at": "<b>"}, 400, "is not a time"),
        ({"json": "a[["}, 400, "is not a path"),
        ({"as": "xml"}, 400, "as is one of text, json, hex"),
        ({"count": 51}, 400, "count is from 1 to 50"),
        ({"name": "no-such-topic"}, 404, "no-such-topic"),
    ],
)
def test_a_search_that_is_wrong(browser: Browser, orders: str, query: dict[str, object], code: int, words: str) -> None:
    answer = browser.get("/messages", {"name": orders, **query})
    assert answer.code == code and words in answer.text


def test_the_command_prints_the_same(browser: Browser, orders: str) -> None:
    """The command of a page prints the records that it shows."""
    for query in ({"count": 10}, {"partition": 1, "start": "offset", "at": 5, "count": 10}):
        page = browser.get("/messages", {"name": orders, **query})
        (command,) = re.findall(r"<pre>pybroker (.*)</pre>\n\s*</main>", page.page)
        printed = run(*shlex.split(command)).json_lines
        assert sorted(json.loads(line["value"])["order"]["id"] for line in printed) == sorted(ids(page.page))


Stream = tuple[http.client.HTTPConnection, http.client.HTTPResponse]


def asked(console: Console, path: str) -> Stream:
    connection = http.client.HTTPConnection(HOST, console.port, timeout=60)
    connection.request("GET", path)
    return connection, connection.getresponse()


def events(console: Console, path: str) -> Stream:
    """A stream of events, once there is room for one more."""
    found: list[Stream] = []

    def is_open() -> bool:
        connection, response = asked(console, path)
        if response.status == 200:
            found.append((connection, response))
            return True
        assert response.status == 503
        connection.close()
        return False

    until("there is room for one more", is_open, timeout_s=60)
    return found[0]


def next_event(response: http.client.HTTPResponse) -> tuple[str, dict[str, object]]:
    """The name and the document of the next server-sent event."""
    lines = [response.readline().decode().rstrip("\n") for _ in range(3)]
    assert lines[2] == ""
    return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))


def test_the_live_tail(console: Console, browser: Browser, target: Server, orders: str) -> None:
    """A tail has the new records that match, and none of those before it."""
    assert f"/tail/events?name={orders}" in browser.get("/tail", {"name": orders, "text": "new"}).page
    connection, response = events(console, f"/tail/events?name={orders}&text=NEW")
    assert next_event(response)[0] == "begin"
    produce(target, orders, {"value": b"old"}, {"value": b"<b>new</b>\n\nevent: x", "key": b"\xff"})
    records: list[dict[str, object]] = []
    while not records:
        name, found = next_event(response)
        assert name == "records"
        records += found["records"]  # type: ignore[arg-type]
    assert [(each["value"], each["key"]) for each in records] == [("<b>new</b>\n\nevent: x", "\\xff")]
    while found["read"] != 2:
        _, found = next_event(response)
    assert (found["matched"], found["skipped"]) == (1, 0)
    connection.close()


def test_a_tail_that_falls_behind_skips(console: Console, target: Server, orders: str) -> None:
    """A tail shows a few records of a flood at a time, counts what it skipped, and comes to the end."""
    connection, response = events(console, f"/tail/events?name={orders}")
    assert next_event(response)[0] == "begin"
    flood: list[dict[str, object]] = [{"value": b"%d" % number, "partition": number % 3} for number in range(60_000)]
    produce(target, orders, *flood)
    produce(target, orders, {"value": b"last"})
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        _, found = next_event(response)
        assert len(found["records"]) <= 20  # type: ignore[arg-type]
        if found["read"] + found["skipped"] >= 60_001:  # type: ignore[operator]
            break
    assert found["read"] + found["skipped"] == 60_001 and found["skipped"] > 0  # type: ignore[operator]
    connection.close()


def test_tails_are_bounded(console: Console, orders: str) -> None:
    """So many tails may be open; one more is refused until another one is closed."""
    path, tails = f"/tail/events?name={orders}", list[Stream]()
    while True:
        tails.append(asked(console, path))
        if tails[-1][1].status == 503:
            break
        assert next_event(tails[-1][1])[0] == "begin"
    assert 2 <= len(tails) <= TAILS_MAX + 1
    for connection, _ in tails:
        connection.close()
    events(console, path)[0].close()


@pytest.mark.parametrize("most", [0, 1])
def test_one_search_too_many_is_refused(
    monkeypatch: pytest.MonkeyPatch, target: Server, orders: str, most: int
) -> None:
    """So many searches may be under way at a time: one more is refused, and one after the other is not."""
    monkeypatch.setattr(messages, "SEARCHES_MAX", most)
    pages = MessagePages(Pages(bootstrap=target.bootstrap, allow_changes=False), target.bootstrap, None)
    viewer = Viewer(ViewerClients(target.bootstrap, {}, 30.0), "session", "token", None)
    query = f"name={orders}&partition=0&at=3".encode()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": query, "viewer": viewer}
    for _ in range(3):
        with pytest.raises(Busy, match="0 searches") if most == 0 else contextlib.nullcontext():
            assert json.loads(bytes(pages.record(Request(scope)).body))["order"]["id"] == 9


def test_a_tail_of_nothing_is_a_problem(console: Console) -> None:
    connection, response = events(console, "/tail/events?name=no-such-topic")
    name, found = next_event(response)
    assert name == "problem" and "no-such-topic" in str(found["words"])
    connection.close()
