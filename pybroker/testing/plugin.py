"""The pytest plugin: fixtures `pybroker` and `shared_pybroker`, the option --pybroker-mode, the marker `pybroker`."""

import re
import uuid
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest

from pybroker.testing.cluster import ClusterHandle
from pybroker.testing.handle import MODES, BrokerHandle
from pybroker.testing.shared import SharedBroker

PREFIX_CHARACTERS_MAX: Final = 60
MARKER: Final = "pybroker(mode=..., settings={...}, data_dir=...): how the broker of this test is started"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pybroker", "a Kafka-compatible broker for tests")
    group.addoption(
        "--pybroker-mode",
        choices=MODES,
        default=MODES[0],
        help="where the brokers of the tests run: on threads of this process (default) or in processes of their own",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def pybroker(request: pytest.FixtureRequest) -> Iterator[BrokerHandle]:
    """A fresh broker of this test's own; the marker `pybroker` says how it is started."""
    __tracebackhide__ = True
    marker = request.node.get_closest_marker("pybroker")
    how: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    how.setdefault("mode", request.config.getoption("--pybroker-mode"))
    with BrokerHandle(**how) as handle:
        yield handle


@pytest.fixture
def pybroker_cluster() -> Iterator[ClusterHandle]:
    """Three fresh brokers of this test's own, that are one cluster."""
    __tracebackhide__ = True
    with ClusterHandle() as handle:
        yield handle


@pytest.fixture(scope="session")
def pybroker_of_session(request: pytest.FixtureRequest) -> Iterator[BrokerHandle]:
    """The broker that the tests of a session share (of a worker, under xdist); they use `shared_pybroker`."""
    with BrokerHandle(mode=request.config.getoption("--pybroker-mode")) as handle:
        yield handle


@pytest.fixture
def shared_pybroker(request: pytest.FixtureRequest, pybroker_of_session: BrokerHandle) -> SharedBroker:
    """The session's broker, with topics and groups of this test's own."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:PREFIX_CHARACTERS_MAX]
    return SharedBroker(pybroker_of_session, f"{name}-{uuid.uuid4().hex[:8]}.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a failure what the test's broker said, if it ran in a process of its own."""
    report = yield
    if report.failed:
        for name in ("pybroker", "pybroker_of_session"):
            handle = getattr(item, "funcargs", {}).get(name)
            if isinstance(handle, BrokerHandle) and (said := handle.output()):
                report.sections.append((f"log of the broker at {handle.bootstrap_servers}", said))
    return report
