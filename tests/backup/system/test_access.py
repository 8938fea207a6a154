"""Backup and restore by a user that has the ACLs of docs/backup.md, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.client.admin import Admin, Committed
from pybroker.testing import BrokerHandle
from tests.backup.kit import says
from tests.cli.conftest import run

USERS = {"mechanism": "SCRAM-SHA-512", "users": {"keeper": "a-word", "boss": "a-word"}}
LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", "sasl_password": "a-word"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerHandle]:
    """A broker where clients log in and have the rights that they are given."""
    sets = {"super.users": "User:boss"}
    with BrokerHandle(sasl=USERS, acls=True, data_dir=str(tmp_path / "data"), settings=sets) as handle:
        yield handle


def test_the_rights_that_it_takes(broker: BrokerHandle, tmp_path: Path) -> None:
    """A user with the documented ACLs backs up and restores; without them the sentence says what was refused."""
    login = tmp_path / "keeper.properties"
    login.touch(0o600)
    login.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=keeper\nsasl.password=a-word\n"
    )
    how = ("-b", broker.bootstrap_servers, "--command-config", login)
    home = tmp_path / "backup"
    broker.create_topic("orders", 1, {"message.timestamp.type": "LogAppendTime", "segment.bytes": 1000})
    for n in range(30):
        broker.produce("orders", b"%d" % n + b"x" * 100)
    with Admin(broker.bootstrap_servers, sasl_username="boss", **LOGIN) as admin:
        admin.alter_group_offsets("billing", {("orders", 0): Committed(7)})
    assert "no topic orders" in run("backup", "orders", "--to", home, *how).sentence
    broker.allow("keeper", "read", "describe_configs", topic="orders")
    broker.allow("keeper", "describe", group="billing")
    assert says(run("backup", "orders", "--to", home, "--json", *how)).json["linked_bytes"] == 0
    broker.allow("keeper", "describe", cluster="kafka-cluster")
    told = says(run("backup", "orders", "--to", tmp_path / "two", "--json", *how)).json
    assert told["linked_bytes"] > 0 and told["groups"] == ["billing"]
    assert "not authorized" in run("restore", home, "--as", "again", *how).sentence
    broker.allow("keeper", "create", "write", "read", "alter_configs", topic="again")
    refused = says(run("restore", home, "--as", "again", *how))
    assert "the offsets of group billing were not set" in refused.err
    assert [r.value for r in broker.records("again")] == [r.value for r in broker.records("orders")]
    broker.allow("keeper", "read", group="billing")
    says(run("restore", home, "--as", "again", "--append", *how))
    with Admin(broker.bootstrap_servers, sasl_username="boss", **LOGIN) as admin:
        assert admin.group_offsets(["billing"])["billing"][("again", 0)].offset == 37  # type: ignore[index]
