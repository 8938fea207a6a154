"""The brokers that our client is tested against: ours, and Apache Kafka's."""

from __future__ import annotations

import pytest

from tests.harness import Server
from tests.java.peers import each_peer


@pytest.fixture(params=["pybroker", *each_peer(long=["kafka391"])], scope="module")  # 4.1.1 behaves the same
def target(target: Server) -> Server:
    return target
