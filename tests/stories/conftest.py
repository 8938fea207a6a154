"""Fixtures that the stories share with the tests of whole systems, and the machine's requirements of some stories."""

from __future__ import annotations

import pytest

from pybroker.development.zookeeper_jars import find_jars
from pybroker.errors import KafkaError, StartError
from pybroker.spark.java import find_java
from tests.spark.conftest import own_topics as own_topics
from tests.spark.conftest import spark as spark


@pytest.fixture(scope="session")
def java_and_jars() -> None:
    """Skip a story if Java, or the jars of a ZooKeeper, are missing."""
    try:
        find_java(needs="ZooKeeper")
        find_jars(with_tls=True)
    except KafkaError as missing:
        pytest.skip(missing.message)
    except StartError as missing:
        pytest.skip(str(missing))
