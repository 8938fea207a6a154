"""The lag of groups over time: what is kept, and the chart of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pybroker.console.charts import HEIGHT, WIDTH, lag_chart
from pybroker.console.clients import ViewerClients
from pybroker.console.lags import GROUPS_MAX, LOGINS_MAX, SAMPLES_MAX, LagHistory, LagSample, LagSampler, sample
from tests.cli.conftest import run
from tests.cli.members import commit, write
from tests.console.conftest import Console
from tests.harness import Server, free_port, until

MUCH = 5000
"""Records behind which no group of another test is: the first page has the groups that are furthest behind."""


def test_a_history_is_bounded() -> None:
    """Old samples and groups that are gone give way; the groups that are furthest behind come first."""
    history = LagHistory()
    for number in range(SAMPLES_MAX + 2):
        history.add(number, {"a": number, "b": 1, "c": 0})
    assert len(history.of("a")) == SAMPLES_MAX and history.of("a")[0] == LagSample(2, 2)
    last = LagSample(SAMPLES_MAX + 1, SAMPLES_MAX + 1)
    assert history.furthest_behind(1) == [("a", last, SAMPLES_MAX - 1)]
    assert [group for group, _, _ in history.furthest_behind(9)] == ["a", "b"]
    history.add(10**6, {f"g{number}": 1 for number in range(GROUPS_MAX)})
    assert history.of("a") == [] and len(history.furthest_behind(10**6)) == GROUPS_MAX


def test_a_group_that_is_gone_is_not_behind() -> None:
    """A group that is not in the newest sample is not among those that are behind now."""
    history = LagHistory()
    history.add(1, {"gone": 5, "here": 1})
    history.add(2, {"here": 2})
    assert [group for group, _, _ in history.furthest_behind(9)] == ["here"]


def test_a_chart_has_its_points_and_gaps() -> None:
    """A chart spans its box, its highest point is the largest lag, and missing samples interrupt the line."""
    assert lag_chart([LagSample(0, 1)], 15.0) is None
    chart = lag_chart([LagSample(0, 0), LagSample(15_000, 10), LagSample(75_000, 5)], 15.0)
    assert chart is not None and chart.most == 10
    assert chart.lines == (f"0.0,{HEIGHT:.1f} {WIDTH / 5:.1f},0.0", f"{WIDTH:.1f},{HEIGHT / 2:.1f}")
    assert chart.words == "Lag from 0 to 5, 10 at most, in 1 min 15 s"
    flat = lag_chart([LagSample(0, 0), LagSample(1, 0)], 15.0)
    assert flat is not None and flat.most == 0


def test_a_cluster_that_is_away_leaves_a_gap() -> None:
    """A sample that fails raises nothing, and adds nothing."""
    clients = ViewerClients(f"127.0.0.1:{free_port()}", {}, 0.5)
    sample(clients, 1)
    assert clients.lags.furthest_behind(9) == []


def test_a_sampler_forgets_logins_that_are_over(shared_broker: Server, topic: str) -> None:
    """A login is sampled until it is closed; only so many are."""
    run("topics", "create", topic, "-b", shared_broker.bootstrap)
    write(shared_broker.bootstrap, topic, 3)
    commit(shared_broker.bootstrap, topic, topic, {0: 1})
    sampler = LagSampler(interval_s=0.05)
    logins = [ViewerClients(shared_broker.bootstrap, {}, 10.0) for _ in range(LOGINS_MAX + 1)]
    for clients in logins:
        sampler.watch(clients)
    until("the last is sampled", lambda: len(logins[-1].lags.of(topic)) >= 2)
    assert {each.lag for each in logins[-1].lags.of(topic)} == {2}
    for clients in logins[:-1]:
        clients.close()
    counts = [len(each.lags.of(topic)) for each in logins]
    until("it goes on", lambda: len(logins[-1].lags.of(topic)) > counts[-1] + 3)
    assert all(len(each.lags.of(topic)) <= count + 1 for each, count in zip(logins[:-1], counts[:-1], strict=True))
    logins[-1].close()


def test_viewers_with_the_password_of_the_console_share_its_samples(
    shared_broker: Server, start_console: Callable[..., Console], topic: str, tmp_path: Path
) -> None:
    """The console looks at groups from its start; each viewer that has its password sees all samples."""
    run("topics", "create", topic, "-b", shared_broker.bootstrap)
    write(shared_broker.bootstrap, topic, MUCH)
    commit(shared_broker.bootstrap, topic, topic, {0: 0})
    secret = tmp_path / "password"
    secret.write_text("a long password\n")
    secret.chmod(0o600)
    console = start_console(shared_broker.bootstrap, "--user", "ops", "--password-file", secret)
    first, second = console.browser(), console.browser()
    form = {"user": "ops", "password": "a long password"}
    assert first.send("/login", "/login", form).code == 303
    until("the group is sampled", lambda: f"{topic} {MUCH:,}" in first.get("/").text)
    assert second.send("/login", "/login", form).code == 303
    assert f"{topic} {MUCH:,}" in second.get("/").text


def test_the_group_that_falls_behind_is_on_the_first_page(
    shared_broker: Server, start_console: Callable[..., Console], topic: str
) -> None:
    """The overview names the group whose lag is largest, and the group's page says since when the console looks."""
    run("topics", "create", topic, "-b", shared_broker.bootstrap)
    write(shared_broker.bootstrap, topic, MUCH)
    commit(shared_broker.bootstrap, topic, topic, {0: 7})
    browser = start_console(shared_broker.bootstrap).browser()
    until("the group is sampled", lambda: f"{topic} {MUCH - 7:,}" in browser.get("/").text)
    assert "too few samples" in browser.get("/group", {"id": topic}).text
