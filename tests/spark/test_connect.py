"""A session of Spark Connect: the source is registered at the server, and what needs the driver's JVM says so.

Its client needs grpcio, which is not among the packages of the tests: here is a stand-in that has what both kinds of
session have, and fails like the client where an attribute is of the JVM.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark import register
from pybroker.spark.pipeline import Job, run
from pybroker.spark.session import session, with_source
from pybroker.spark.source import KafkaSource


class Sources:
    def __init__(self) -> None:
        self.registered: list[type] = []

    def register(self, source: type) -> None:
        self.registered.append(source)


class Remote:
    """A session without a JVM."""

    def __init__(self) -> None:
        self.dataSource = Sources()

    def __getattr__(self, name: str) -> Any:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name})


def remote() -> tuple[SparkSession, list[type]]:
    made = Remote()
    return cast(SparkSession, made), made.dataSource.registered


def test_the_source_is_registered_at_the_server() -> None:
    """By `register`, and by what brings a session that knows it; again is no error."""
    spark, registered = remote()
    register(spark)
    assert registered == [KafkaSource]
    assert with_source(spark) is spark
    assert registered == [KafkaSource, KafkaSource]


def test_a_session_whose_driver_is_elsewhere_runs_no_pipeline() -> None:
    """One sentence says so, and what to do instead, before a broker is asked."""
    spark, registered = remote()
    with pytest.raises(KafkaError, match=r"one of Spark Connect.*run it without one, or with spark-submit") as refused:
        run(Job("nowhere:1", "/nowhere/table", "t", format="raw"), spark=spark)
    assert refused.value.code == INVALID_CONFIG and "\n" not in refused.value.message
    assert not registered


@pytest.mark.parametrize("by", ["the environment", "a setting"])
def test_a_session_of_our_own_is_none_of_spark_connect(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    if by == "the environment":
        monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere")
    with pytest.raises(KafkaError, match=r"names a server of Spark Connect.*unset it, or make the session") as refused:
        session("name", settings={} if by == "the environment" else {"spark.remote": "sc://nowhere"})
    assert refused.value.code == INVALID_CONFIG and "\n" not in refused.value.message
