"""One broker in this process for the tests of backups, and its topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pybroker.testing import BrokerHandle
from tests.cli.conftest import Done, run


@pytest.fixture(scope="session")
def backup_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    """Shared: tests use topics of their own. Its data is where backups go, so that there can be hard links."""
    home = tmp_path_factory.mktemp("data")
    with BrokerHandle(settings={"log.retention.check.interval.ms": 86_400_000}, data_dir=str(home)) as handle:
        yield handle


@pytest.fixture
def pybroker_(backup_broker: BrokerHandle) -> Callable[..., Done]:
    """Run `pybroker` with the shared broker's address."""
    return lambda *arguments: run(*arguments, "-b", backup_broker.bootstrap_servers)
