"""The table of settings for secure connections to ZooKeeper: Kafka's names, except for the login.

Kafka has the login in a JAAS file; zookeeper.sasl.client is a property of its JVM."""

from typing import Final

from .settings import Choice, Setting, Shape, Type, table

BOOLEAN, STRING, LIST, PASSWORD = Type.BOOLEAN, Type.STRING, Type.LIST, Type.PASSWORD
STORES: Final = ("PEM", "PKCS12", "JKS")
NETTY: Final = "org.apache.zookeeper.ClientCnxnSocketNetty"
VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


def _any_case(text: str, words: tuple[str, ...]) -> None:
    if text.upper() not in words:
        raise ValueError(text)


def _store_type(name: str, what: str) -> Setting:
    return Setting(
        f"zookeeper.ssl.{name}.type",
        STRING,
        None,
        f"The format of {what}. Not set: from the file's extension, .pem, .p12 or .jks. A PKCS12 file may be called "
        "JKS, as keytool does; a real JKS file is refused, with how to convert it.",
        Shape(f"one of {', '.join(STORES)}", lambda text: _any_case(text, STORES)),
    )


ZOOKEEPER = table(
    Setting(
        "zookeeper.set.acl",
        BOOLEAN,
        "false",
        "Create nodes that only the brokers can change; nodes with secrets (/config/users, /config/brokers, "
        "/delegation_token/tokens) can only be read by them. This needs a login or a certificate, the same for all "
        "brokers of a cluster. Existing nodes do not change: see pybroker zookeeper-acls.",
    ),
    Setting(
        "zookeeper.sasl.client.username",
        STRING,
        None,
        "The user with which the broker logs in at ZooKeeper, by DIGEST-MD5: one of the section Server of ZooKeeper's "
        "JAAS file. Kafka has this in the section Client of a JAAS file.",
    ),
    Setting("zookeeper.sasl.client.password", PASSWORD, None, "The password of this user."),
    Setting("zookeeper.ssl.client.enable", BOOLEAN, "false", "Use TLS for connections to ZooKeeper."),
    Setting(
        "zookeeper.clientCnxnSocket",
        STRING,
        None,
        "Kafka needs it for TLS. Here it has no effect.",
        Choice((NETTY,)),
    ),
    Setting(
        "zookeeper.ssl.keystore.location",
        STRING,
        None,
        "The file with the broker's certificate and its key, if ZooKeeper asks for one (ssl.clientAuth).",
    ),
    Setting(
        "zookeeper.ssl.keystore.password",
        PASSWORD,
        None,
        "The password of the key store; for a PEM file, of the key in it if that is encrypted.",
    ),
    _store_type("keystore", "zookeeper.ssl.keystore.location"),
    Setting(
        "zookeeper.ssl.truststore.location",
        STRING,
        None,
        "The file with the certificates of the authorities that are trusted for ZooKeeper's servers. Not set: those of "
        "the system.",
    ),
    Setting("zookeeper.ssl.truststore.password", PASSWORD, None, "The password of the trust store; PEM has none."),
    _store_type("truststore", "zookeeper.ssl.truststore.location"),
    Setting(
        "zookeeper.ssl.protocol",
        STRING,
        "TLSv1.2",
        "The version of TLS, if zookeeper.ssl.enabled.protocols is not set.",
        Choice(VERSIONS),
    ),
    Setting("zookeeper.ssl.enabled.protocols", LIST, None, "The allowed versions of TLS.", Choice(VERSIONS)),
    Setting(
        "zookeeper.ssl.cipher.suites",
        LIST,
        None,
        "The cipher suites, by names like TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256. Not set: those of OpenSSL.",
    ),
    Setting(
        "zookeeper.ssl.endpoint.identification.algorithm",
        STRING,
        "HTTPS",
        "Whether a server's certificate must match its host in zookeeper.connect. Empty: it need not.",
        Shape("HTTPS, or nothing", lambda text: _any_case(text, ("HTTPS", ""))),
    ),
    Setting(
        "zookeeper.ssl.crl.enable",
        BOOLEAN,
        "false",
        "Certificate revocation lists are not supported, so only false is allowed.",
        Choice(("false",)),
    ),
    Setting(
        "zookeeper.ssl.ocsp.enable",
        BOOLEAN,
        "false",
        "OCSP is not supported, so only false is allowed.",
        Choice(("false",)),
    ),
)
