"""The reports of brokers, and the clients of a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

from pybroker.client.admin import Admin
from pybroker.console.certificates import certificates, ends_soon
from pybroker.console.clients import ViewerClients
from pybroker.console.reports import DamagedPartition, RequestTimes, report_of
from pybroker.testing import BrokerHandle
from tests.cli.conftest import run
from tests.cli.members import commit, write
from tests.console.conftest import Browser, Console
from tests.harness import HOST, BrokerProcess, Server, free_port

REPORT = """\
# TYPE pybroker_connections gauge
pybroker_connections 7.0
# TYPE pybroker_request_seconds histogram
pybroker_request_seconds_bucket{api="Metadata",le="0.05"} 1.0
pybroker_request_seconds_bucket{api="Metadata",le="0.1"} 3.0
pybroker_request_seconds_bucket{api="Metadata",le="+Inf"} 4.0
pybroker_request_seconds_count{api="Metadata"} 4.0
pybroker_request_seconds_sum{api="Metadata"} 2.0
pybroker_request_seconds_bucket{api="Fetch",le="+Inf"} 9.0
pybroker_request_seconds_count{api="Fetch"} 9.0
pybroker_request_seconds_sum{api="Fetch"} 90.0
# TYPE pybroker_plane_request_seconds histogram
pybroker_plane_request_seconds_bucket{api="Produce",le="0.131072"} 5.0
pybroker_plane_request_seconds_count{api="Produce"} 5.0
pybroker_plane_request_seconds_sum{api="Produce"} 0.05
# TYPE pybroker_damaged_places gauge
pybroker_damaged_places{partition="3",topic="a\\\\b"} 2.0
pybroker_damaged_offsets{partition="3",topic="a\\\\b"} 40.0
# TYPE pybroker_scrub_last_pass_timestamp_seconds gauge
pybroker_scrub_last_pass_timestamp_seconds{dir="/d"} 1.5
"""


def test_a_report_has_what_is_slow_and_damaged() -> None:
    """Requests are counted above a tenth of a second, the slowest first; those that wait by design are left out."""
    report = report_of(REPORT)
    assert report.connections == 7
    assert report.requests == [RequestTimes("Metadata", 4, 1, 0.5), RequestTimes("Produce", 5, 0, 0.01)]
    assert report.damaged == [DamagedPartition("a\\b", "3", 2, 40)] and report.scrubs == {"/d": 1500}


@pytest.mark.parametrize("text", ["pybroker_connections", "pybroker_connections x", 'pybroker_connections{a="} 1'])
def test_what_is_no_report_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        report_of(text)


@pytest.fixture
def reporting(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a metrics listener."""
    with BrokerProcess(tmp_path / "data", sets={"metrics.listener": f"{HOST}:{free_port()}"}).start() as broker:
        assert isinstance(broker, BrokerProcess)
        yield broker


def test_a_broker_says_what_is_slow(reporting: BrokerProcess, start_console: Callable[..., Console]) -> None:
    """The page of a broker has its connections, slow requests, scrubs and damage."""
    (log_dir,) = run("logdirs", "-b", reporting.bootstrap, "--json").json
    page = start_console(reporting.bootstrap).browser().get("/broker", {"id": log_dir["broker"]})
    assert page.code == 200 and "open. Requests that wait by design" in page.text
    assert "Metadata" in page.text and "No partition is damaged" in page.text
    assert "not scrubbed yet" in page.text or "the last scrub began 20" in page.text


def test_a_broker_that_reports_nothing_says_why(browser: Browser, target: Server) -> None:
    with Admin(target.bootstrap) as admin:
        (node,) = admin.describe_cluster().nodes
    assert "Not shown: it has no metrics.listener" in browser.get("/broker", {"id": node.id}).text


def test_the_end_of_a_certificate_is_shown() -> None:
    """The console sees the certificate of each broker that it reaches by TLS, and no other."""
    with BrokerHandle(tls=True) as broker:
        login = {name: str(each) for name, each in broker.pybroker_config().items() if name != "bootstrap_servers"}
        with Admin(broker.bootstrap_servers, **login) as admin:
            nodes = admin.describe_cluster().nodes
        clients = ViewerClients(broker.bootstrap_servers, login, 10.0)
        (found,) = certificates(clients, nodes)
        assert found.broker == nodes[0].id and not found.reason and found.subject
        assert not ends_soon(1 << 50) and ends_soon(0)
        gone = [nodes[0]._replace(port=free_port())]
        assert certificates(clients, gone)[0].reason
        assert certificates(ViewerClients(broker.bootstrap_servers, {}, 10.0), nodes) == []


def test_a_topic_has_its_readers_and_writers(browser: Browser, target: Server, topic: str) -> None:
    """The clients of a topic: a group with its lag there, and an idempotent producer with its last sequence."""
    run("topics", "create", topic, "-b", target.bootstrap)
    assert "No group has committed" in browser.get("/clients", {"name": topic}).text
    write(target.bootstrap, topic, 3)
    producer = ck.Producer({"bootstrap.servers": target.bootstrap, "enable.idempotence": True, "log_level": 0})
    for _ in range(5):
        producer.produce(topic, b"x")
    assert producer.flush(60) == 0
    commit(target.bootstrap, topic, topic, {0: 1})
    page = browser.get("/clients", {"name": topic})
    assert f"{topic} Empty 1 7" in page.text and " 0 4 20" in page.text
    assert "ACLs that apply to it" in page.text
    assert browser.get("/clients", {"name": f"{topic}-none"}).code == 404
