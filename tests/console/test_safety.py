"""The console's login, the names under which it may be reached, and what a forged request gets."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.console.clients import ViewerClients
from pybroker.console.guard import cookie_name, set_cookie
from pybroker.console.sessions import FREE_ATTEMPTS, IDLE_S_MAX, SESSIONS_MAX, WAIT_S_MAX, Attempts, BrowserSessions
from pybroker.console.settings import ConsoleSettings
from pybroker.testing.certificates import Authority
from tests.cli.conftest import run
from tests.console.conftest import Console
from tests.harness import Server

PASSWORD = "correct horse <&> battery"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with the password of the console."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:80", "127.0.0.1.evil.example.org", "", "a:b:c"])
def test_a_foreign_name_is_refused(shared_broker: Server, start_console: Callable[..., Console], host: str) -> None:
    """A request under a name that is not the console's is refused: that is how DNS rebinding comes."""
    browser = start_console(shared_broker.bootstrap).browser()
    answer = browser.get("/", Host=host)
    assert answer.code in (400, 421) and "Healthy" not in answer.page
    for own in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8080", "10.1.2.3:80"):
        assert browser.get("/", Host=own).code == 200


def test_a_name_can_be_allowed(shared_broker: Server, start_console: Callable[..., Console]) -> None:
    browser = start_console(shared_broker.bootstrap, "--host-name", "console.example.org").browser()
    assert browser.get("/", Host="Console.example.org:8080").code == 200
    assert browser.get("/", Host="example.org").code == 421


def test_a_login_is_asked_for(shared_broker: Server, start_console: Callable[..., Console], secret: Path) -> None:
    """Without the password every page leads to the login; with it the session is another one than before."""
    console = start_console(shared_broker.bootstrap, "--user", "ops", "--password-file", secret)
    browser = console.browser()
    for path in ("/", "/topics", "/topic?name=x", "/brokers", "/nothing"):
        answer = browser.get(path)
        assert (answer.code, answer.headers["location"]) == (303, "/login")
    assert browser.get("/static/console.css").code == 200
    for user, password in (("ops", "wrong"), ("root", PASSWORD), ("ops", ""), ("", "")):
        refused = browser.send("/login", "/login", {"user": user, "password": password})
        assert refused.code == 403 and "is wrong" in refused.text
    console.process.kill()
    browser = start_console(shared_broker.bootstrap, "--user", "ops", "--password-file", secret).browser()
    browser.get("/login")
    planted = browser.cookie
    assert browser.send("/login", "/login", {"user": "ops", "password": PASSWORD}).code == 303
    assert browser.cookie != planted
    page = browser.get("/")
    assert page.code == 200 and "ops" in page.text
    assert PASSWORD not in page.page and "correct horse" not in page.page
    inside = browser.cookie
    assert browser.send("/", "/logout", {}).headers["location"] == "/login"
    browser.cookie = inside
    assert browser.get("/").code == 303


def test_guessing_is_slowed(shared_broker: Server, start_console: Callable[..., Console], secret: Path) -> None:
    """After a few wrong passwords an address has to wait, even with the right one."""
    browser = start_console(shared_broker.bootstrap, "--user", "ops", "--password-file", secret).browser()
    codes = [
        browser.send("/login", "/login", {"user": "ops", "password": f"wrong {number}"}).code
        for number in range(FREE_ATTEMPTS + 3)
    ]
    assert codes[:FREE_ATTEMPTS] == [403] * FREE_ATTEMPTS and 429 in codes


def test_the_wait_of_an_address_doubles() -> None:
    """The wait after failed attempts doubles up to a limit, is over in time, and ends with a success."""
    clock = [0.0]
    attempts = Attempts(lambda: clock[0])
    for _ in range(FREE_ATTEMPTS):
        assert attempts.wait_s("a") == 0
        attempts.begin("a")
    waits = []
    for _ in range(9):
        waits.append(attempts.wait_s("a"))
        clock[0] += attempts.wait_s("a")
        assert attempts.wait_s("a") == 0
        attempts.begin("a")
    assert waits == [1, 2, 4, 8, 16, 32, WAIT_S_MAX, WAIT_S_MAX, WAIT_S_MAX]
    assert attempts.wait_s("b") == 0
    attempts.succeeded("a")
    assert attempts.wait_s("a") == 0


def test_consoles_at_two_ports_of_a_host_have_cookies_of_their_own() -> None:
    """Browsers send a cookie to all ports of a host: a login at one console does not replace that of another."""
    settings = [ConsoleSettings("h:1", {}, 1.0, "127.0.0.1", port) for port in (8080, 8081)]
    assert len({cookie_name(each) for each in settings}) == 2
    assert set_cookie("x", settings[0]).startswith(cookie_name(settings[0]) + "=x;")


def test_a_session_ends_and_cannot_be_made_up() -> None:
    """A cookie that this console did not make is no session; one that is idle for hours, or pushed out, has no user."""
    clock = [0.0]
    sessions = BrowserSessions(lambda: clock[0])
    clients = ViewerClients("localhost:1", {}, 1.0)
    cookie = sessions.begin()
    session = sessions.read(cookie)
    assert session is not None
    for forged in (None, "", "x", f"{session}.", f"{session}.{'0' * 64}", f"other.{cookie.partition('.')[2]}"):
        assert sessions.read(forged) is None
    assert BrowserSessions(lambda: 0.0).read(cookie) is None
    sessions.log_in(session, "alice", clients)
    clock[0] += IDLE_S_MAX - 1
    assert sessions.find(session) == ("alice", clients)
    clock[0] += IDLE_S_MAX
    assert sessions.find(session) is None
    sessions.log_in(session, "alice", clients)
    for number in range(SESSIONS_MAX):
        sessions.log_in(f"s{number}", "bob", clients)
    assert sessions.find(session) is None and sessions.find("s0") is not None


def test_a_forged_form_is_refused(shared_broker: Server, start_console: Callable[..., Console], secret: Path) -> None:
    """A form without the token of its session, with another one's, or that is too large, does nothing."""
    console = start_console(shared_broker.bootstrap, "--user", "ops", "--password-file", secret)
    mine, other = console.browser(), console.browser()
    right = {"user": "ops", "password": PASSWORD}
    token = other.get("/login").fields["csrf"]
    mine.get("/login")
    assert mine.post("/login", right).code == 403
    assert mine.post("/login", {**right, "csrf": token}).code == 403
    assert mine.post("/login", {**right, "csrf": "é"}).code == 403
    assert mine.post("/login", {"csrf": mine.get("/login").fields["csrf"], "user": "x" * 70_000}).code == 400
    answer = mine.post("/login", right, **{"Content-Type": "text/plain"})
    assert answer.code == 400
    assert mine.get("/").code == 303


@pytest.mark.parametrize(
    ("origin", "code"),
    [("https://evil.example.org", 403), ("null", 403), ("http://127.0.0.1:1", 403), (None, 303), ("own", 303)],
)
def test_a_form_of_another_origin_is_refused(
    shared_broker: Server, start_console: Callable[..., Console], secret: Path, origin: str | None, code: int
) -> None:
    """A form that a browser says to be on a page of another origin does nothing, even with the right token."""
    browser = start_console(shared_broker.bootstrap, "--user", "ops", "--password-file", secret).browser()
    form = {"csrf": browser.get("/login").fields["csrf"], "user": "ops", "password": PASSWORD}
    given = f"http://127.0.0.1:{browser.port}" if origin == "own" else origin
    assert browser.post("/login", form, **({} if given is None else {"Origin": given})).code == code


def tls_files(home: Path) -> tuple[Path, Path, Path]:
    """The files of a certificate, its private key, and the authority that signed it."""
    authority = Authority()
    own = authority.sign("localhost")
    made = home / "chain.pem", home / "key.pem", home / "authority.pem"
    for file, data in zip(made, (own.chain, own.key, authority.certificate), strict=True):
        file.write_bytes(data)
        file.chmod(0o600)
    return made


def test_the_console_speaks_tls(shared_broker: Server, start_console: Callable[..., Console], tmp_path: Path) -> None:
    """With a certificate the console serves HTTPS and nothing else, and browsers send its cookie over TLS only."""
    chain, key, authority = tls_files(tmp_path)
    console = start_console(shared_broker.bootstrap, "--tls-certificate", chain, "--tls-key", key)
    trusting = ssl.create_default_context(cafile=authority)
    with urllib.request.urlopen(f"https://localhost:{console.port}/", context=trusting, timeout=60) as answer:
        assert b"Healthy: 1 broker" in answer.read()
        assert "; Secure" in answer.headers["set-cookie"]
    with pytest.raises((OSError, http.client.HTTPException)):
        console.browser().get("/")


def test_files_of_tls_that_do_not_fit_are_a_sentence(tmp_path: Path) -> None:
    """The files are checked before the console listens: both are given, belong together, and the key is private."""
    chain, key, _ = tls_files(tmp_path)
    done = run("console", "-b", "localhost:1", "--tls-certificate", chain)
    assert done.code == 2 and "need each other" in done.err
    key.write_text("no key\n")
    done = run("console", "-b", "localhost:1", "--tls-certificate", chain, "--tls-key", key)
    assert done.code == 2 and "cannot be used for TLS" in done.sentence
    key.chmod(0o644)
    done = run("console", "-b", "localhost:1", "--tls-certificate", chain, "--tls-key", key)
    assert done.code == 2 and "chmod 600" in done.sentence


def test_a_console_is_read_only_unless_it_is_started_otherwise(
    shared_broker: Server, start_console: Callable[..., Console], secret: Path, topic: str
) -> None:
    """Without --allow-changes even a form with the right token, made by hand, changes nothing."""
    run("topics", "create", topic, "-b", shared_broker.bootstrap)
    browser = start_console(shared_broker.bootstrap, "--user", "ops", "--password-file", secret).browser()
    browser.send("/login", "/login", {"user": "ops", "password": PASSWORD})
    for path in ("/topic/delete", "/topic/create", "/group/reset"):
        refused = browser.send("/", path, {"name": topic, "confirm": topic, "id": topic, "plan": "0:0:0"})
        assert refused.code == 403 and "is read-only" in refused.text
    assert run("topics", "describe", topic, "-b", shared_broker.bootstrap).code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "is reached by other machines: give --user and --password-file, or --cluster-login"),
        (["--cluster-login"], "--cluster-login needs security.protocol"),
    ],
)
def test_options_that_would_open_it_are_refused(options: list[str], words: str) -> None:
    done = run("console", "-b", "localhost:1", *options)
    assert done.code == 2 and words in done.sentence


def test_a_password_file_is_private_and_long(secret: Path) -> None:
    """The password is long enough, and no other user can read it."""
    secret.write_text("short\n")
    done = run("console", "-b", "localhost:1", "--user", "ops", "--password-file", secret)
    assert done.code == 2 and "has 5 characters" in done.sentence
    secret.chmod(0o644)
    done = run("console", "-b", "localhost:1", "--user", "ops", "--password-file", secret)
    assert done.code == 2 and "chmod 600" in done.sentence
    done = run("console", "-b", "localhost:1", "--user", "ops")
    assert done.code == 2 and "need each other" in done.err


def test_a_port_in_use_is_a_sentence(start_console: Callable[..., Console]) -> None:
    running = start_console("localhost:1")
    done = run("console", "-b", "localhost:1", "--port", running.port)
    assert done.code == 1 and f"could not listen on 127.0.0.1:{running.port}" in done.sentence
