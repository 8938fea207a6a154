"""The console in headless Chromium: what an operator sees and clicks, and what hostile records and pages do not do.

With PYBROKER_SCREENSHOTS=docs the pictures of docs/console.md are taken again.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import confluent_kafka as ck
import pytest

from pybroker.client.admin import Admin
from pybroker.testing import BrokerHandle, ClusterHandle
from tests.cli.conftest import run
from tests.cli.members import commit, write
from tests.console.conftest import Console
from tests.harness import HOST, BrokerProcess, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = os.environ.get("PYBROKER_SCREENSHOTS", "")
WIDTHS = (390, 1280)
ORDER = '{"order": {"id": %d, "customer": "c-%d", "items": [{"sku": "A%d", "count": 2}]}}'
HOSTILE = [
    b"<script>alert(1)</script><img src=x onerror=alert(2)>", b"\x1b[2J\x00\x07\xe2\x80\xae]]>--><!--", b"\xff\xfe\xfd",
    b'{"a": "</pre><script>alert(3)</script>"}', b"x" * 10_000_000,
]  # fmt: skip
Open = Callable[..., "Page"]


class Estate(NamedTuple):
    """A cluster of two brokers with topics and groups, and its console."""

    cluster: ClusterHandle
    console: Console

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def port(self) -> int:
        return self.console.port


@pytest.fixture(scope="module")
def estate() -> Iterator[Estate]:
    """Two brokers: `orders` on both, `alone` on broker 2 only; group `billing` is slow, `shipping` is not."""
    settings = {"min.insync.replicas": 1, "offsets.topic.replication.factor": 1}
    with ClusterHandle(2, settings=settings) as cluster:
        bootstrap = cluster.bootstrap_servers
        with Admin(bootstrap) as admin:
            admin.create_topic("orders", partitions=3, replication_factor=2, configs={"retention.ms": "86400000"})
            admin.create_topic("alone", replica_assignments={0: [2]})
            admin.create_topic("hostile", partitions=1, replication_factor=1, configs={"max.message.bytes": "20000000"})
        producer = ck.Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.max.bytes": 20_000_000})
        for number in range(300):
            value = ORDER % (number, number % 7, number % 5)
            headers = [("trace", b"t%d" % number)]
            producer.produce("orders", value, b"c-%d" % (number % 7), partition=number % 3, headers=headers)
        for value in HOSTILE:
            producer.produce("hostile", value, value[:50], headers=[("<i>h</i>", value[:50])])
        assert producer.flush(120) == 0
        commit(bootstrap, "billing", "orders", {0: 4, 1: 2, 2: 0})
        commit(bootstrap, "shipping", "orders", {0: 100, 1: 100, 2: 99})
        commit(bootstrap, "<img src=x onerror=alert(4)>", "orders", {0: 0})
        console = Console(bootstrap, "--allow-changes")
        yield Estate(cluster, console)
        console.process.kill()


def text_of(page: Page) -> str:
    """The text of a page's content, with single spaces."""
    return " ".join(page.locator("main").inner_text().split())


def rows(page: Page, region: str) -> list[list[str]]:
    """The cells of a table."""
    found = page.get_by_role("region", name=region, exact=True).locator("tbody tr")
    return [[" ".join(cell.split()) for cell in row.locator("td").all_inner_texts()] for row in found.all()]


def picture(page: Page, name: str) -> None:
    """Take a picture of the top of a page, without the paths of disks."""
    size = page.viewport_size
    assert size is not None
    clip = {"x": 0, "y": 0, "width": size["width"], "height": 620}
    page.screenshot(path=Path(PICTURES) / f"console-{name}.png", clip=clip)


VIEWS = [
    "/", "/topics", "/topic?name=orders", "/clients?name=orders", "/changes?name=orders",
    "/messages?name=orders&as=json", "/messages?name=hostile", "/tail?name=orders", "/groups", "/group?id=billing",
    "/brokers", "/broker?id=1", "/moves", "/security", "/topic?name=none", "/nothing",
]  # fmt: skip
PICTURED = {"/": "overview", "/messages?name=orders&as=json": "messages"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_each_view_fits(estate: Estate, opened: Open, width: int, scheme: str) -> None:
    """No view is wider than the screen, each has one heading, and every field of a form has a label."""
    page = opened(estate.port, width=width, color_scheme=scheme)
    for path in VIEWS:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        assert page.locator("h1").count() == 1 and page.title(), path
        for field in page.locator("input:not([type=hidden]), select, textarea").all():
            assert field.evaluate("each => each.labels.length"), path
        if PICTURES and path in PICTURED and (width, scheme) in ((1280, "light"), (390, "dark")):
            picture(page, f"{PICTURED[path]}-{width}")


def test_views_agree_with_the_command_line(estate: Estate, opened: Open) -> None:
    """Topics, partitions, groups and brokers are those that the commands print."""
    page, where = opened(estate.port), ("-b", estate.bootstrap, "--json")
    page.goto("/topics")
    topics = {row[0]: row[1] for row in rows(page, "Topics")}
    listed = {each["name"]: str(each["partitions"]) for each in run("topics", "list", *where).json}
    assert topics == {name: count for name, count in listed.items() if not name.startswith("__")}
    page.goto("/topic?name=orders")
    (described,) = run("topics", "describe", "orders", *where).json
    shown = {row[0]: (row[1], row[4], row[5]) for row in rows(page, "Partitions")}
    assert shown == {
        str(p["partition"]): (str(p["leader"]), str(p["earliest"]), str(p["latest"])) for p in described["partitions"]
    }
    page.goto("/groups")
    assert {row[0]: row[3] for row in rows(page, "Groups") if row[0] != "<img src=x onerror=alert(4)>"} == {
        "billing": "294", "shipping": "1"
    }  # fmt: skip
    page.goto("/brokers")
    assert [row[0].split()[0] for row in rows(page, "Brokers")] == ["1", "2"]


def test_hostile_records_and_names_are_text(estate: Estate, opened: Open) -> None:
    """Markup, control characters, invalid UTF-8 and 10 MB are shown as text, in each format, and run nothing."""
    page = opened(estate.port)
    for how in ("text", "json", "hex"):
        page.goto(f"/messages?{urlencode({'name': 'hostile', 'as': how})}")
        found = rows(page, "Messages")
        assert len(found) == len(HOSTILE)
        assert page.locator("main script, main img, main i").count() == 0
        assert len(page.content()) < 300_000
    page.goto("/messages?name=hostile")
    words = text_of(page)
    assert "<script>alert(1)</script>" in words and "the beginning of 10,000,000 bytes" in words
    assert "\\x1b[2J\\x00\\x07\\u202e" in words and "not UTF-8" in words
    page.goto("/groups")
    page.get_by_role("link", name="<img src=x onerror=alert(4)>").click()
    assert page.locator("h1").inner_text() == "Group <img src=x onerror=alert(4)>"


def test_the_live_tail_shows_what_comes(estate: Estate, opened: Open) -> None:
    """New records that match come in as text, the newest first; pausing keeps the rows."""
    page = opened(estate.port)
    page.goto("/tail?name=alone&text=alert")
    page.get_by_text("Following: waiting for new records").wait_for()
    with Admin(estate.bootstrap):
        producer = ck.Producer({"bootstrap.servers": estate.bootstrap, "log_level": 0})
    for value in (b"nothing", HOSTILE[0]):
        producer.produce("alone", value)
    assert producer.flush(60) == 0
    page.get_by_text("<script>alert(1)</script>").wait_for()
    assert page.locator("#tail tr").count() == 1 and page.locator("#tail script, #tail img").count() == 0
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Go on").count() == 1


def test_a_tail_that_cannot_follow_says_what_it_skipped(estate: Estate, opened: Open) -> None:
    """A tail with a filter shows some of the records that come faster than a person reads, at most 60 times a second,
    and counts the others."""
    total = 200_000
    with Admin(estate.bootstrap) as admin:
        admin.create_topic("fast", partitions=1, replication_factor=1)
    page = opened(estate.port)
    page.goto("/tail?name=fast&text=7")
    page.get_by_text("Following: waiting for new records").wait_for()
    producer = ck.Producer({"bootstrap.servers": estate.bootstrap, "log_level": 0, "linger.ms": 50})
    for number in range(total):
        while True:
            try:
                producer.produce("fast", b"%d" % number)
                break
            except BufferError:
                producer.poll(0.1)
    events = page.evaluate(EVENTS, 2)
    assert producer.flush(120) == 0
    assert events <= 2 * 60

    def is_counted() -> bool:
        found = re.search(r"([\d,]+) read, ([\d,]+) matching, ([\d,]+) skipped", page.locator("#state").inner_text())
        read, matching, skipped = (int(each.replace(",", "")) for each in found.groups()) if found else (0, 0, 0)
        return read + skipped == total and 0 < matching < read and skipped > 0

    until("all records are read or skipped", is_counted, timeout_s=120, every_s=0.5)
    assert page.locator("#tail tr").count() <= 200


EVENTS = """seconds => new Promise(done => {
  let count = 0;
  const source = new EventSource(document.getElementById("tail").dataset.events);
  source.addEventListener("records", () => count++);
  setTimeout(() => { source.close(); done(count); }, seconds * 1000);
})"""
"""Count the events of the page's tail for some seconds."""


def test_a_person_without_a_mouse_or_javascript_gets_everywhere(estate: Estate, opened: Open) -> None:
    """The first Tab leads to a link that skips the menu; links and forms work by Enter, without JavaScript."""
    page = opened(estate.port, java_script_enabled=False)
    page.goto("/topics")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    page.get_by_label("Name contains").fill("order")
    page.keyboard.press("Enter")
    page.get_by_text("1 found").wait_for()
    page.get_by_role("link", name="orders").focus()
    page.keyboard.press("Enter")
    assert page.locator("h1").inner_text() == "Topic orders"
    page.goto("/tail?name=orders")
    assert "A live tail needs JavaScript" in text_of(page)


def test_a_page_of_another_origin_changes_nothing(estate: Estate, opened: Open) -> None:
    """A form on a foreign page that posts to the console is refused, and so is one that guesses the token."""
    form = (
        f'<form method="post" action="http://{HOST}:{estate.port}/topic/delete"><input name="name" value="orders">'
        '<input name="confirm" value="orders"><input name="csrf" value="guessed"><button>go</button></form>'
    )

    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(form.encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer((HOST, 0), Foreign) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        page = opened(estate.port)
        page.goto("/topics")
        page.goto(f"http://localhost:{foreign.server_port}/")
        with page.expect_navigation() as answer:
            page.get_by_role("button").click()
        assert answer.value is not None and answer.value.status == 403
        foreign.shutdown()
    assert run("topics", "describe", "orders", "-b", estate.bootstrap).code == 0


# -- as an operator, with the console alone: at most three clicks ------------------------------------------------------


def test_the_slow_consumer_is_found(estate: Estate, opened: Open) -> None:
    """One click from the overview: the group that is furthest behind, and where."""
    page = opened(estate.port)

    def is_sampled() -> bool:
        page.goto("/")
        return page.get_by_role("link", name="billing").count() == 1

    until("the console has looked at the groups", is_sampled, timeout_s=120, every_s=1)
    assert rows(page, "Groups that are furthest behind")[0][:2] == ["billing", "294"]
    page.get_by_role("link", name="billing").click()
    assert rows(page, "Partitions")[0][:4] == ["orders-2", "0", "100", "100"]


def test_the_topic_without_a_leader_is_found(estate: Estate, opened: Open) -> None:
    """No click: the first sentence is red and names it. One click: its partitions, and the replica that is away."""
    page = opened(estate.port)
    estate.cluster.stop(2)
    try:
        def is_shown() -> bool:
            page.goto("/")
            return "alone-0 (replicas 2" in text_of(page)

        until("the leader is gone", is_shown, timeout_s=120, every_s=0.5)
        assert page.locator(".state.bad").inner_text().startswith("Degraded: broker 2 ")
        if PICTURES:
            picture(page, "degraded-1280")
        page.get_by_role("link", name="alone-0").click()
        assert rows(page, "Partitions")[0][1:3] == ["none", "2"]
    finally:
        estate.cluster.start(2)


def test_why_alice_is_refused_is_found(start_console: Callable[..., Console], opened: Open) -> None:
    """Two clicks and three words: the ACL that decides. A viewer without rights sees reasons, no secrets."""
    users = {"root": "of root", "alice": "of alice"}
    with BrokerHandle(sasl={"mechanism": "PLAIN", "users": users}, acls=True) as broker:
        broker.allow("root", "all", cluster="kafka-cluster")
        broker.allow("root", "all", topic="secrets")
        broker.deny("alice", "read", topic="secrets")
        console = start_console(broker.bootstrap_servers, "--cluster-login", *command_config(broker))
        page = opened(console.port)
        log_in(page, "root", "of root")
        page.get_by_role("link", name="Security").click()
        page.get_by_label("User", exact=True).fill("alice")
        page.get_by_label("named").fill("secrets")
        page.get_by_role("button", name="Explain").click()
        assert "User:alice may not Read Topic secrets: Deny User:alice to Read Topic secrets" in text_of(page)
        other = opened(console.port)
        log_in(other, "alice", "of alice")
        other.goto("/security")
        assert "Not shown" in text_of(other) and "of root" not in other.content()
        other.goto("/messages?name=secrets")
        assert "This cannot be shown" in text_of(other)
        cookie = page.context.cookies()
        page.get_by_role("button", name="Log out").click()
        page.context.clear_cookies()
        page.context.add_cookies(cookie)
        page.goto("/")
        assert page.url.endswith("/login")
        other.goto("/")
        assert not other.url.endswith("/login")


def command_config(broker: BrokerHandle) -> list[str]:
    """The options of a file with the protocol of a broker's clients."""
    file = Path(broker.data_dir) / "console.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    file.chmod(0o600)
    return ["--command-config", str(file)]


def log_in(page: Page, user: str, password: str) -> None:
    page.goto("/")
    page.get_by_label("Name").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Security").wait_for()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_the_broker_with_the_full_disk_is_found(
    start_console: Callable[..., Console], opened: Open, tmp_path: Path
) -> None:
    """No click: the overview has the disk in red. One click: the broker's largest replicas."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=False).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        with BrokerProcess(disk / "data").start() as broker:
            run("topics", "create", "large", "-b", broker.bootstrap)
            write(broker.bootstrap, "large", 1000)
            (disk / "other").write_bytes(bytes(58 << 20))
            page = opened(start_console(broker.bootstrap).port)
            page.goto("/")
            assert re.search(r"\(low\)", page.locator("td.bad").inner_text())
            page.get_by_role("region", name="Brokers").get_by_role("link").click()
            assert rows(page, "Largest replicas")[0][0] == "large-0"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
