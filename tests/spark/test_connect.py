"""A session of Spark Connect: the source is registered at the server, and what needs the driver's JVM says so.

Spark Connect's client needs grpcio, which the tests do not install. A stand-in has the attributes of both kinds of
session, and fails as the client does for an attribute of the JVM.
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
    """A session without a JVM, as Spark Connect's."""

    def __init__(self) -> None:
        self.dataSource = Sources()

    def __getattr__(self, name: str) -> Any:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name})


def remote() -> tuple[SparkSession, list[type]]:
    made = Remote()
    return cast(SparkSession, made), made.dataSource.registered


def test_the_source_is_registered_at_the_server() -> None:
    """The source is registered at the server, by `register` and by each call that is given a session; to repeat it is
    no error."""
    spark, registered = remote()
    register(spark)
    assert registered == [KafkaSource]
    assert with_source(spark) is spark
    assert registered == [KafkaSource, KafkaSource]


def test_a_session_whose_driver_is_elsewhere_runs_no_pipeline() -> None:
    """A pipeline on a remote session fails with one sentence that says what to do, before it connects to a broker."""
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
    with pytest.raises(KafkaError, match=r"names a Spark Connect server.*unset it, or make the session") as refused:
        session("name", settings={} if by == "the environment" else {"spark.remote": "sc://nowhere"})
    assert refused.value.code == INVALID_CONFIG and "\n" not in refused.value.message
