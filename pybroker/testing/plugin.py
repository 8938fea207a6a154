"""The pytest plugin: fixtures for a broker, a broker shared by tests and a cluster, markers with their arguments, and
the option --pybroker-mode."""

import difflib
import re
import uuid
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest

from pybroker.testing.cluster import ClusterHandle
from pybroker.testing.handle import MODES, BrokerHandle
from pybroker.testing.shared_broker import SharedBroker

PREFIX_CHARACTERS_MAX: Final = 60
MARKERS: Final = (
    "pybroker(mode=..., settings={...}, data_dir=..., sasl=..., acls=..., tls=...): arguments of this test's broker",
    "pybroker_cluster(brokers, mode=..., store=..., settings={...}, sasl=..., acls=..., tls=...): arguments of this "
    "test's cluster",
)

TAKES: Final = {
    "pybroker": ("mode", "settings", "data_dir", "sasl", "acls", "tls"),
    "pybroker_cluster": ("brokers", "mode", "store", "settings", "sasl", "acls", "tls"),
}
"""The arguments that each marker accepts."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pybroker", "a Kafka-compatible broker for tests")
    group.addoption(
        "--pybroker-mode",
        choices=MODES,
        default=MODES[0],
        help="where the tests' brokers run: on threads of this process (default) or in processes of their own",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.fixture
def pybroker(request: pytest.FixtureRequest) -> Iterator[BrokerHandle]:
    """A fresh broker for this test; the marker `pybroker` gives its arguments."""
    __tracebackhide__ = True
    with BrokerHandle(**_how(request)) as handle:
        yield handle


@pytest.fixture
def kafka_broker(pybroker: BrokerHandle) -> BrokerHandle:
    """The fixture `pybroker` under a name that does not hide the module."""
    return pybroker


@pytest.fixture
def secured_pybroker(request: pytest.FixtureRequest) -> Iterator[BrokerHandle]:
    """A fresh broker to which clients log in, by SCRAM-SHA-256 unless the marker `pybroker` says otherwise."""
    __tracebackhide__ = True
    with BrokerHandle(**{"sasl": True, **_how(request)}) as handle:
        yield handle


def _how(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of a test's broker, from the marker `pybroker` and the command line."""
    __tracebackhide__ = True
    args, how = _said(request, "pybroker")
    if args:
        words = f"@pytest.mark.pybroker takes keyword arguments only, as settings={{...}}, not {args[0]!r}"
        pytest.fail(words, pytrace=False)
    how.setdefault("mode", request.config.getoption("--pybroker-mode"))
    return how


@pytest.fixture
def pybroker_cluster(request: pytest.FixtureRequest) -> Iterator[ClusterHandle]:
    """A fresh cluster for this test, of three brokers unless the marker `pybroker_cluster` says otherwise."""
    __tracebackhide__ = True
    count, how = _said(request, "pybroker_cluster")
    if how.get("store") != "memory":  # a store in memory needs brokers in this process
        how.setdefault("mode", request.config.getoption("--pybroker-mode"))
    with ClusterHandle(*count, **how) as handle:
        yield handle


def _said(request: pytest.FixtureRequest, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a test's marker; fail the test if the marker does not accept one of them."""
    __tracebackhide__ = True
    marker = request.node.get_closest_marker(name)
    if marker is None:
        return (), {}
    takes = TAKES[name]
    for word in (word for word in marker.kwargs if word not in takes):
        near = difflib.get_close_matches(word, takes, 1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(takes[:-1])} and {takes[-1]}"
        pytest.fail(f"@pytest.mark.{name} has no argument {word}: {hint}", pytrace=False)
    return marker.args, dict(marker.kwargs)


@pytest.fixture(scope="session")
def pybroker_of_session(request: pytest.FixtureRequest) -> Iterator[BrokerHandle]:
    """The broker that the tests of a session (or of one xdist worker) share, through `shared_pybroker`."""
    with BrokerHandle(mode=request.config.getoption("--pybroker-mode")) as handle:
        yield handle


@pytest.fixture
def shared_pybroker(request: pytest.FixtureRequest, pybroker_of_session: BrokerHandle) -> SharedBroker:
    """The session's broker, with topics and groups of this test's own."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:PREFIX_CHARACTERS_MAX]
    return SharedBroker(pybroker_of_session, f"{name}-{uuid.uuid4().hex[:8]}.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the log of the test's broker to a failure report, if the broker ran in a process of its own."""
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
