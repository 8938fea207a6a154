"""Spark logs in, with TLS and without: a source's driver and executors, a sink, and the errors of a failed login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pybroker.testing import Record
from pybroker.testing.security import certificates
from tests.clients.system.test_oauthbearer import MODULE as OAUTH_MODULE
from tests.clients.system.test_oauthbearer import SIGNER, Issuer
from tests.clients.system.test_oauthbearer import settings as oauth_settings
from tests.harness import HOST, BrokerProcess, free_port
from tests.spark.topics import Topics
from tests.tokens import jwks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(scope="module", params=["SASL_SSL"])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BrokerProcess, Reach]]:
    """A broker, and how clients reach its authenticated listener."""
    port, clients, protocol = free_port(), free_port(), request.param
    sets = {
        "listeners": f"PLAINTEXT://{HOST}:{port},CLIENTS://{HOST}:{clients}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CLIENTS:{protocol}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": f'{MODULE} required user_spark="of spark";',
    }
    authority = ""
    if protocol == "SASL_SSL":
        files = certificates()
        authority = files.authority
        sets |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": files.own}
    broker = BrokerProcess(tmp_path_factory.mktemp("secured"), port, sets)
    broker.start()
    yield broker, Reach(clients, protocol, authority)
    broker.close()


class Reach(NamedTuple):
    """The address at which clients log in, and the certificate authority that they trust."""

    port: int
    protocol: str
    authority: str


def options(reach: Reach, password: str = "of spark", *, as_jaas: bool = True) -> dict[str, Any]:
    how = {"kafka.bootstrap.servers": f"{HOST}:{reach.port}", "kafka.security.protocol": reach.protocol,
           "kafka.sasl.mechanism": "PLAIN"}  # fmt: skip
    if reach.authority and as_jaas:
        how |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": reach.authority}
    elif reach.authority:
        how["kafka.ssl.cafile"] = reach.authority
    if as_jaas:
        return {**how, "kafka.sasl.jaas.config": f'{MODULE} required username="spark" password="{password}";'}
    return {**how, "kafka.sasl.username": "spark", "kafka.sasl.password": password}


def test_a_read_and_a_write(
    spark: SparkSession, secured: tuple[BrokerProcess, Reach], topic: str, tmp_path: Path
) -> None:
    broker, reach = secured
    topics = Topics(broker, spark)
    topics.create(topic, 2)
    topics.produce(topic, [Record(f"{n}", partition=n % 2) for n in range(100)])
    made = topics.create(topic + "-made")
    frame = spark.read.format("pybroker").options(**options(reach), subscribe=topic).load()
    assert sorted(int(row.value) for row in frame.collect()) == list(range(100))
    sink = frame.select("value").write.format("pybroker").options(**options(reach, as_jaas=False), topic=made)
    sink.mode("append").save()
    assert sorted(int(record.value or b"") for record in topics.held(made)) == list(range(100))
    stream = spark.readStream.format("pybroker").options(**options(reach), subscribe=made, startingOffsets="earliest")
    query = (
        stream.option("kafka.group.id", "progress").load().writeStream.format("memory").queryName("kept")
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(60)
    assert spark.sql("select count(*) as n from kept").collect()[0].n == 100


@pytest.mark.parametrize("as_jaas", [True, False])
def test_a_wrong_password_is_told(
    spark: SparkSession, secured: tuple[BrokerProcess, Reach], topic: str, as_jaas: bool
) -> None:
    with pytest.raises(Exception, match="refused the login: Authentication failed") as refused:
        given = options(secured[1], "guessed", as_jaas=as_jaas)
        spark.read.format("pybroker").options(**given, subscribe=topic).load().collect()
    assert "guessed" not in str(refused.value)


def test_a_read_by_a_token(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    """Executors fetch OAuth tokens of their own from the token endpoint in the options."""
    issuer, keys = Issuer(), tmp_path / "keys.json"
    keys.write_bytes(jwks(SIGNER))
    port, clients = free_port(), free_port()
    broker = BrokerProcess(tmp_path / "data", port, oauth_settings(port, clients, keys))
    with issuer.web:
        broker.start()
        topics = Topics(broker, spark)
        topics.create(topic, 2)
        topics.produce(topic, [Record(f"{n}", partition=n % 2) for n in range(100)])
        given = {
            "kafka.bootstrap.servers": f"{HOST}:{clients}", "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.oauthbearer.token.endpoint.url": issuer.url,
            "kafka.sasl.jaas.config": f'{OAUTH_MODULE} required clientId="svc" clientSecret="of svc";',
        }  # fmt: skip
        frame = spark.read.format("pybroker").options(**given, subscribe=topic).load()
        assert sorted(int(row.value) for row in frame.collect()) == list(range(100))
        given["kafka.sasl.jaas.config"] = f'{OAUTH_MODULE} required clientId="svc" clientSecret="guessed";'
        with pytest.raises(Exception, match="answered with status 401") as refused:
            spark.read.format("pybroker").options(**given, subscribe=topic).load().collect()
        assert "guessed" not in str(refused.value)
        broker.close()
