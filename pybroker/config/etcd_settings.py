"""The table of settings for etcd as the store of a cluster. Kafka has none of them."""

import re
from typing import Final

from .cluster_settings import check_connect
from .settings import Choice, Setting, Shape, Type, table

STRING, PASSWORD = Type.STRING, Type.PASSWORD
PREFIX_DEFAULT: Final = "/pybroker"
PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._-]+)+")


def split_connect(text: str) -> tuple[bool, str, str]:
    """Return if TLS is used, the servers as HOST:PORT,..., and the prefix of the keys. Raises ValueError."""
    scheme, found, rest = text.strip().partition("://")
    servers, slash, path = rest.partition("/")
    prefix = (slash + path).rstrip("/")
    if scheme not in ("http", "https") or not found or (prefix and not PREFIX.fullmatch(prefix)):
        raise ValueError(text)
    check_connect(servers)
    if any(not re.search(r":[0-9]+$", server.strip()) for server in servers.split(",")):
        raise ValueError(text)
    return scheme == "https", servers, prefix or PREFIX_DEFAULT


ETCD = table(
    Setting(
        "etcd.connect",
        STRING,
        None,
        "The etcd of the cluster, in place of a ZooKeeper: http://HOST:PORT,HOST:PORT/prefix, or https:// for TLS. All "
        f"keys are below the prefix, {PREFIX_DEFAULT} if none is given. zookeeper.session.timeout.ms (whole seconds "
        "here, 2 at least) and zookeeper.connection.timeout.ms count for etcd too. Let etcd compact its history "
        "(--auto-compaction-retention), or its disk quota is used in the end.",
        Shape(
            "http://HOST:PORT,HOST:PORT,... or https://, and perhaps a prefix, as in http://e1:2379,e2:2379/kafka",
            split_connect,
        ),
    ),
    Setting(
        "etcd.user",
        STRING,
        None,
        "The user with which the broker logs in at etcd. It needs a role that may read and write all keys below the "
        "prefix.",
    ),
    Setting("etcd.password", PASSWORD, None, "The password of this user."),
    Setting(
        "etcd.ssl.truststore.location",
        STRING,
        None,
        "The file with the certificates that the broker trusts, PEM or PKCS12. Not set: those of the system.",
    ),
    Setting("etcd.ssl.truststore.password", PASSWORD, None, "The password of the trust store; PEM has none."),
    Setting(
        "etcd.ssl.keystore.location",
        STRING,
        None,
        "The file with the broker's certificate and its key, PEM or PKCS12, if etcd asks for one (--client-cert-auth). "
        "It opens the connection only: etcd's gateway takes no user from a certificate.",
    ),
    Setting("etcd.ssl.keystore.password", PASSWORD, None, "The password of the key store; of PEM, of its key."),
    Setting(
        "etcd.ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "Whether a server's certificate must match its host in etcd.connect. Empty: it need not.",
        Choice(("", "https")),
    ),
)
