"""The pytest plugin: fixtures for a broker, one that tests share and a cluster, markers that say how they are started,
and the option --pybroker-mode."""

import difflib
import re
import uuid
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest

from pybroker.testing.cluster import ClusterHandle
from pybroker.testing.handle import MODES, BrokerHandle
from pybroker.testing.shared import SharedBroker

PREFIX_CHARACTERS_MAX: Final = 60
MARKERS: Final = (
    "pybroker(mode=..., settings={...}, data_dir=..., sasl=..., acls=..., tls=...): how this test's broker is started",
    "pybroker_cluster(brokers, mode=..., store=..., settings={...}, sasl=..., acls=..., tls=...): how the cluster of "
    "this test is started",
)

TAKES: Final = {
    "pybroker": ("mode", "settings", "data_dir", "sasl", "acls", "tls"),
    "pybroker_cluster": ("brokers", "mode", "store", "settings", "sasl", "acls", "tls"),
}
"""The arguments that each marker takes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pybroker", "a Kafka-compatible broker for tests")
    group.addoption(
        "--pybroker-mode",
        choices=MODES,
        default=MODES[0],
        help="where the brokers of the tests run: on threads of this process (default) or in processes of their own",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.fixture
def pybroker(request: pytest.FixtureRequest) -> Iterator[BrokerHandle]:
    """A fresh broker of this test's own; the marker `pybroker` says how it is started."""
    __tracebackhide__ = True
    with BrokerHandle(**_how(request)) as handle:
        yield handle


@pytest.fixture
def secured_pybroker(request: pytest.FixtureRequest) -> Iterator[BrokerHandle]:
    """The same, of which clients log in: by SCRAM-SHA-256, where the marker `pybroker` says nothing else."""
    __tracebackhide__ = True
    with BrokerHandle(**{"sasl": True, **_how(request)}) as handle:
        yield handle


def _how(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of a test's broker, by the marker `pybroker` and the options of the run."""
    __tracebackhide__ = True
    args, how = _said(request, "pybroker")
    if args:
        words = f"@pytest.mark.pybroker takes its words by name, as settings={{...}}, and not {args[0]!r}"
        pytest.fail(words, pytrace=False)
    how.setdefault("mode", request.config.getoption("--pybroker-mode"))
    return how


@pytest.fixture
def pybroker_cluster(request: pytest.FixtureRequest) -> Iterator[ClusterHandle]:
    """Fresh brokers of this test's own that are one cluster, three without the marker `pybroker_cluster`."""
    __tracebackhide__ = True
    count, how = _said(request, "pybroker_cluster")
    if how.get("store") != "memory":  # which says that the brokers are in this process
        how.setdefault("mode", request.config.getoption("--pybroker-mode"))
    with ClusterHandle(*count, **how) as handle:
        yield handle


def _said(request: pytest.FixtureRequest, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a test's marker; the test fails if the marker does not take one of them."""
    __tracebackhide__ = True
    marker = request.node.get_closest_marker(name)
    if marker is None:
        return (), {}
    takes = TAKES[name]
    for word in marker.kwargs.keys() - takes:
        near = "".join(f": did you mean {found}?" for found in difflib.get_close_matches(word, takes, 1))
        words = f"@pytest.mark.{name} takes {', '.join(takes[:-1])} and {takes[-1]}, and no {word}{near}"
        pytest.fail(words, pytrace=False)
    return marker.args, dict(marker.kwargs)


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
        used = getattr(item, "funcargs", {})
        for name in ("pybroker", "secured_pybroker", "pybroker_of_session", "pybroker_cluster"):
            handle = used.get(name)
            if isinstance(handle, BrokerHandle) and (said := handle.output()):
                report.sections.append((f"log of the broker at {handle.bootstrap_servers}", said))
            elif isinstance(handle, ClusterHandle):
                logs = {number: handle.output(number) for number in handle.brokers}
                report.sections += [(f"log of broker {number}", said) for number, said in logs.items() if said]
    return report
