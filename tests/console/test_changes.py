"""Changes by the console, with the rights of its viewers: over HTTP, beside what the commands see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.cli.members import Reader, commit, write
from tests.cli.system.test_users import Secured, config
from tests.console.conftest import Browser, Console
from tests.harness import HOST, Server, until

SASL = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"


@pytest.fixture(scope="module")
def writing(target: Server) -> Iterator[Console]:
    """A console that may change what its user may."""
    console = Console(target.bootstrap, "--allow-changes")
    yield console
    console.process.kill()


@pytest.fixture
def editor(writing: Console) -> Browser:
    return writing.browser()


def exists(target: Server, topic: str) -> bool:
    return run("topics", "describe", topic, "-b", target.bootstrap).code == 0


def test_a_topic_is_created_and_deleted(editor: Browser, target: Server, topic: str) -> None:
    """A topic is created as the form says, and deleted once its name is typed."""
    form: dict[str, object] = {"name": topic, "partitions": 3, "configs": "retention.ms=1000\n\n segment.ms = 2000 "}
    done = editor.send("/topics", "/topic/create", form)
    assert (done.code, done.headers["location"]) == (303, f"/topic?name={topic}")
    (found,) = run("topics", "describe", topic, "-b", target.bootstrap, "--json").json
    assert found["configs"]["segment.ms"]["value"] == "2000" and len(found["partitions"]) == 3
    again = editor.send("/topics", "/topic/create", form)
    assert again.code == 400 and "exists" in again.text
    page = f"/topic?name={topic}"
    refused = editor.send(page, "/topic/delete", {"name": topic, "confirm": topic[:-1]})
    assert refused.code == 400 and "type its name" in refused.text and exists(target, topic)
    assert editor.send(page, "/topic/delete", {"name": topic, "confirm": topic}).code == 303
    assert not exists(target, topic)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"partitions": "0"}, "partitions is a number from 1"),
        ({"replicas": "x"}, "replicas is a number from 1"),
        ({"configs": "retention.ms"}, "is not NAME=VALUE"),
    ],
)
def test_a_form_that_is_wrong(editor: Browser, target: Server, topic: str, form: dict[str, object], words: str) -> None:
    done = editor.send("/topics", "/topic/create", {"name": topic, **form})
    assert done.code == 400 and words in done.text and not exists(target, topic)


def offsets(target: Server, group: str) -> list[int]:
    (described,) = run("groups", "describe", group, "-b", target.bootstrap, "--json").json
    return [p["committed"] for p in described["partitions"]]


@pytest.fixture
def group(target: Server, topic: str) -> str:
    """A group with the topic's name that has read 10 of 15 records of each of 2 partitions."""
    run("topics", "create", topic, "-p", 2, "-b", target.bootstrap)
    for partition in (0, 1):
        write(target.bootstrap, topic, 15, partition=partition)
    commit(target.bootstrap, topic, topic, {0: 10, 1: 10})
    return topic


@pytest.mark.parametrize(
    ("kind", "value", "plan"),
    [
        ("to_earliest", "", "0:10:0,1:10:0"),
        ("to_latest", "", "0:10:15,1:10:15"),
        ("to_offset", "12", "0:10:12,1:10:12"),
        ("to_offset", "99", "0:10:15,1:10:15"),
        ("shift_by", "-3", "0:10:7,1:10:7"),
        ("to_time", "-1h", "0:10:0,1:10:0"),
    ],
)
def test_offsets_are_planned_then_set(
    editor: Browser, target: Server, group: str, kind: str, value: str, plan: str
) -> None:
    """A reset first shows its plan and changes nothing; then exactly that plan is set."""
    page = f"/group?id={group}"
    planned = editor.send(page, "/group/reset", {"id": group, "topic": group, "kind": kind, "value": value})
    assert planned.code == 200 and planned.fields["plan"] == plan and offsets(target, group) == [10, 10]
    assert ("99 is out of range" in planned.text) == (value == "99")
    write(target.bootstrap, group, 5)
    assert editor.post("/group/reset", dict(planned.fields)).code == 303
    assert offsets(target, group) == [int(step.split(":")[2]) for step in plan.split(",")]


def test_a_plan_that_is_late_is_refused(editor: Browser, target: Server, group: str) -> None:
    """A plan is not carried out once the group has committed or has members; a made-up plan is none."""
    page, form = f"/group?id={group}", {"id": group, "topic": group}
    planned = editor.send(page, "/group/reset", {**form, "kind": "to_earliest"})
    commit(target.bootstrap, group, group, {1: 11})
    refused = editor.post("/group/reset", dict(planned.fields))
    assert refused.code == 400 and f"{group}-1 since the plan was shown" in refused.text
    for plan in ("", "x", "0:1", "0:10:-5", "-1:10:0", "0:10:9223372036854775808"):
        assert editor.send(page, "/group/reset", {**form, "plan": plan}).code == 400
    with Reader(target.bootstrap, group, group) as reader:
        until("all is read", lambda: reader.count > 0)
        refused = editor.send(page, "/group/reset", {**form, "kind": "to_earliest"})
        assert refused.code == 400 and "stop its members before" in refused.text
    for bad in ({"kind": "to_moon"}, {"kind": "to_offset", "value": "x"}, {"kind": "to_time", "value": "<b>"}):
        assert editor.send(page, "/group/reset", {**form, **bad}).code == 400


def test_a_console_that_is_read_only_changes_nothing(browser: Browser, target: Server, group: str) -> None:
    """Without --allow-changes there is no form, and a form that comes all the same is refused."""
    for path in ("/topics", f"/topic?name={group}", f"/group?id={group}"):
        assert "<form" not in browser.get(path).page or 'method="post"' not in browser.get(path).page
    assert "read-only" in browser.get("/").text
    refused = browser.post("/topic/delete", {"name": group, "confirm": group})
    assert refused.code == 403 and exists(target, group)


def test_a_get_changes_nothing(editor: Browser, target: Server, group: str) -> None:
    for path in ("/topic/delete", "/topic/create", "/group/reset", "/logout"):
        assert editor.get(path, {"name": group, "confirm": group, "id": group}).code in (404, 405)
    assert exists(target, group)


# -- viewers with their own user of the cluster ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker where alice may see and read `hers`, and nothing else."""
    made = Secured(tmp_path_factory.mktemp("guarded"))
    made.sets = {
        **made.sets, "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }  # fmt: skip
    made.start()
    where = ("-b", made.bootstrap)
    for user in ("alice", "bob"):
        assert run("users", "set", user, *where, "--password-file", "-", stdin=f"of {user}\n").code == 0
    for topic in ("hers", "other"):
        run("topics", "create", topic, *where)
        write(made.bootstrap, topic, 1)
    assert run("acls", "add", "--allow", "User:alice", "-o", "read", "-o", "describe", "-t", "hers", *where).code == 0
    assert run("acls", "add", "--allow", "User:alice", "-o", "describe", "-g", "readers", *where).code == 0
    commit(made.bootstrap, "readers", "hers", {0: 0})
    commit(made.bootstrap, "readers", "other", {0: 0})
    yield made
    made.close()


@pytest.fixture
def logins(guarded: Secured, start_console: Callable[..., Console], tmp_path: Path) -> Console:
    """A console whose viewers log in as users of the cluster."""
    file = config(tmp_path / "console.properties", SASL)
    address = f"{HOST}:{guarded.sasl_port}"
    return start_console(address, "--command-config", file, "--cluster-login", "--allow-changes")


def log_in(console: Console, user: str) -> Browser:
    browser = console.browser()
    done = browser.send("/login", "/login", {"user": user, "password": f"of {user}"})
    assert done.code == 303, done.text
    return browser


def test_a_viewer_has_the_rights_of_a_user(logins: Console, guarded: Secured) -> None:
    """Alice sees her topic and not the other one, and may delete neither; what she may not see is said."""
    alice = log_in(logins, "alice")
    listed = alice.get("/topics").text
    assert "hers" in listed and "other" not in listed and "alice" in listed
    assert "1 shown" in alice.get("/messages", {"name": "hers"}).text
    assert alice.get("/messages", {"name": "other"}).code in (403, 404)
    page = alice.get("/topic", {"name": "hers"})
    assert page.code == 200 and "Your user may not see these settings" in page.text
    refused = alice.send("/topic?name=hers", "/topic/delete", {"name": "hers", "confirm": "hers"})
    assert refused.code == 403 and "not authorized" in refused.text
    assert run("topics", "describe", "hers", "-b", guarded.bootstrap).code == 0
    readers = alice.get("/group", {"id": "readers"})
    assert readers.code == 200 and "hers-0 0 1 1" in readers.text and "other-0" not in readers.text
    assert "readers Empty classic 1" in alice.get("/groups").text
    for path in ("/", "/brokers", "/groups", "/broker?id=1001"):
        answer = alice.get(path)
        assert answer.code in (200, 403) and "of alice" not in answer.page, path


def test_a_session_is_one_viewers(logins: Console) -> None:
    """Alice's form does not work in Bob's session, and Bob sees nothing of what Alice may see."""
    alice, bob = log_in(logins, "alice"), log_in(logins, "bob")
    token = alice.get("/topics").fields["csrf"]
    assert bob.post("/topic/create", {"csrf": token, "name": "made"}).code == 403
    assert not re.search(r"\bhers\b", bob.get("/topics").text)


@pytest.mark.parametrize(("user", "password"), [("alice", "of bob"), ("nobody", "x"), ("alice", ""), ("", "x")])
def test_a_login_that_the_cluster_refuses(logins: Console, user: str, password: str) -> None:
    browser = logins.browser()
    done = browser.send("/login", "/login", {"user": user, "password": password})
    assert done.code == 403 and browser.get("/").code == 303
