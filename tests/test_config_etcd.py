"""Settings for etcd: addresses, prefix and login are checked, and one store is chosen."""

from __future__ import annotations

import pytest

from pybroker.config import BrokerConfig, ConfigError
from pybroker.coordination.etcd.gateway import EtcdLogin
from pybroker.coordination.etcd.settings import is_here, servers_of
from pybroker.model import HostPort
from tests.rows import with_each


def config(*sets: str) -> BrokerConfig:
    return BrokerConfig.load(None, ["log.dirs=/tmp/none", *sets])


@with_each(
    ("text", "addresses", "prefix", "here"),
    [
        ("http://localhost:2379", [HostPort("localhost", 2379)], "/pybroker", True),
        ("http://127.0.0.1:1,[::1]:2/", [HostPort("127.0.0.1", 1), HostPort("::1", 2)], "/pybroker", True),
        ("http://e1:2379, e2:2380/kafka/test", [HostPort("e1", 2379), HostPort("e2", 2380)], "/kafka/test", False),
    ],
)
def test_servers_and_prefix(text: str, addresses: list[HostPort], prefix: str, here: bool) -> None:
    read = config(f"etcd.connect={text}")
    servers = servers_of(read)
    assert (list(servers.addresses), servers.prefix, servers.access.tls) == (addresses, prefix, None)
    assert read.in_cluster and is_here(read) is here


@with_each(
    "text",
    [
        "", "localhost:2379", "ftp://e1:2379", "http://", "http://e1", "http://e1:0", "http://e1:65536",
        "http://e1:2379/a b", "http://e1:2379//a", "http://e1:2379,http://e2:2379", "http://user@e1:2379/é",
    ],
)  # fmt: skip
def test_what_is_no_etcd_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"etcd\.connect .*http://e1:2379,e2:2379/kafka"):
        config(f"etcd.connect={text}")


def test_tls_and_login() -> None:
    servers = servers_of(config("etcd.connect=https://e1:2379", "etcd.user=ada", "etcd.password=secret"))
    assert servers.access.login == EtcdLogin("ada", "secret")
    assert servers.access.tls is not None and servers.access.tls.check_hostname
    open_to_names = config("etcd.connect=https://e1:2379", "etcd.ssl.endpoint.identification.algorithm=")
    context = servers_of(open_to_names).access.tls
    assert context is not None and not context.check_hostname


@with_each(
    ("sets", "why"),
    [
        (["etcd.user=ada"], "etcd.password is not set: etcd.user .* needs it"),
        (["etcd.password=secret"], "etcd.user is not set: etcd.password .* needs it"),
        (["zookeeper.connect=zk:2181"], "zookeeper.connect is set too: set only one of them"),
        (["etcd.ssl.truststore.location=/none.pem"], r"etcd\.ssl\.truststore\.location"),
        (["etcd.ssl.keystore.password=x"], r"etcd\.ssl\.keystore"),
    ],
)
def test_settings_that_do_not_agree(sets: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        servers_of(config("etcd.connect=https://e1:2379", *sets))
    assert "secret" not in refused.value.message
