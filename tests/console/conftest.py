"""A console as a browser sees it: a process beside a broker, and a client that checks each page that it gets."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from tests.harness import HOST, Process, Server
from tests.java.peers import PEERS, each_peer

READY_S_MAX = 60.0
PAGE_BYTES_MAX = 300_000
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)


class Inline(HTMLParser):
    """The parts of a page that a content security policy is there to stop, the resources of other hosts, and the
    text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.words: list[str] = []
        self.fields: dict[str, str] = {}
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.tags.add(tag)
        if tag == "style" or (tag == "script" and not (given.get("src") or "").startswith("/static/")):
            self.found.append(tag)
        self.found += [name for name in given if name.startswith("on") or name == "style"]
        for name in ("src", "href", "action"):
            if not (given.get(name) or "/").startswith(("/", "#")):
                self.found.append(f"{name}={given[name]}")
        if tag == "input" and given.get("type") == "hidden":
            self.fields[given.get("name") or ""] = given.get("value") or ""

    def handle_data(self, data: str) -> None:
        self.words.append(data)


class Answer(NamedTuple):
    """The answer to a request; a page was checked."""

    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def page(self) -> str:
        return self.body.decode()

    @property
    def text(self) -> str:
        """The text of a page as a reader has it, with single spaces."""
        return " ".join(" ".join(Inline(self.page).words).split())

    @property
    def fields(self) -> dict[str, str]:
        """The hidden fields of a page's forms."""
        return Inline(self.page).fields


class Browser:
    """A browser with one session. Each page that it gets keeps the policy, is small, and has nothing inline."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def get(self, path: str, query: dict[str, object] | None = None, **headers: str) -> Answer:
        """Request a page; `headers` override those of a browser."""
        return self._ask("GET", path + (f"?{urlencode(query)}" if query else ""), None, headers)

    def post(self, path: str, form: dict[str, object], **headers: str) -> Answer:
        """Send a form with these fields, and no token beside them."""
        return self._ask("POST", path, urlencode(form).encode(), headers)

    def send(self, page: str, path: str, form: dict[str, object]) -> Answer:
        """Send a form as a person does: with the hidden token of a page."""
        return self.post(path, {"csrf": self.get(page).fields["csrf"], **form})

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        own = {"Cookie": self.cookie} if self.cookie else {}
        if body is not None:
            own["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, body, {**own, **headers})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, found, response.read())
        connection.close()
        if "set-cookie" in found:
            assert "HttpOnly; SameSite=Strict" in found["set-cookie"]
            self.cookie = found["set-cookie"].partition(";")[0]
        assert found["content-security-policy"] == POLICY and found["x-content-type-options"] == "nosniff"
        if found.get("content-type", "").startswith("text/html"):
            assert not Inline(answer.page).found and len(answer.body) <= PAGE_BYTES_MAX
        return answer


class Console:
    """A console in a process of its own."""

    def __init__(self, bootstrap: str, *options: object) -> None:
        command = [sys.executable, "-m", "pybroker", "console", "-b", bootstrap, "--port", "0", *map(str, options)]
        self.process = Process(command)
        self.port = int(self.process.wait_line(r"pybroker console on https?://\S+:(\d+)/", READY_S_MAX)[1])

    def browser(self) -> Browser:
        return Browser(self.port)


@pytest.fixture
def start_console() -> Iterator[Callable[..., Console]]:
    """Start consoles for this test: `start_console(bootstrap, "--allow-changes")`."""
    started: list[Console] = []

    def start(bootstrap: str, *options: object) -> Console:
        started.append(Console(bootstrap, *options))
        return started[-1]

    yield start
    for console in started:
        console.process.kill()


@pytest.fixture(params=["pybroker", *each_peer(long=PEERS)], scope="module")
def target(target: Server) -> Server:
    """The broker that consoles show; `make long` has them show Kafka."""
    return target


@pytest.fixture(scope="module")
def console(target: Server) -> Iterator[Console]:
    """A console that may change nothing, beside the target."""
    running = Console(target.bootstrap)
    yield running
    running.process.kill()


@pytest.fixture
def browser(console: Console) -> Browser:
    return console.browser()
