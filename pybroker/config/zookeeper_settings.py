"""The table of settings that say how a broker reaches ZooKeeper safely: Kafka's names, but for those of the login.

Kafka has that in a JAAS file; zookeeper.sasl.client is a property of its JVM."""

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
        f"The form of {what}. Not set: by the end of the file's name, which is .pem, .p12 or .jks. A PKCS12 may be "
        "called JKS, as keytool does; what really is a JKS is refused, with how to convert it.",
        Shape(f"one of {', '.join(STORES)}", lambda text: _any_case(text, STORES)),
    )


ZOOKEEPER = table(
    Setting(
        "zookeeper.set.acl",
        BOOLEAN,
        "false",
        "Make nodes that only the brokers may change, and read where secrets are (/config/users, /config/brokers, "
        "/delegation_token/tokens). It needs a login or a certificate of the broker, the same for all brokers of a "
        "cluster. Nodes that are there already stay as they are: see pybroker zookeeper-acls.",
    ),
    Setting(
        "zookeeper.sasl.client.username",
        STRING,
        None,
        "Whom the broker logs in as at ZooKeeper, by DIGEST-MD5: a user of the section Server of its JAAS file. Kafka "
        "has this in the section Client of a JAAS file.",
    ),
    Setting("zookeeper.sasl.client.password", PASSWORD, None, "That user's password."),
    Setting("zookeeper.ssl.client.enable", BOOLEAN, "false", "Speak TLS to ZooKeeper."),
    Setting(
        "zookeeper.clientCnxnSocket",
        STRING,
        None,
        "Kafka wants it with TLS. Here it makes no difference.",
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
        "The password of that file; of a PEM file, that of the key in it, if it is encrypted.",
    ),
    _store_type("keystore", "zookeeper.ssl.keystore.location"),
    Setting(
        "zookeeper.ssl.truststore.location",
        STRING,
        None,
        "The file with the certificates of those who vouch for ZooKeeper's servers. Not set: whom this machine trusts.",
    ),
    Setting("zookeeper.ssl.truststore.password", PASSWORD, None, "The password of that file; a PEM file has none."),
    _store_type("truststore", "zookeeper.ssl.truststore.location"),
    Setting(
        "zookeeper.ssl.protocol",
        STRING,
        "TLSv1.2",
        "The version of TLS, where zookeeper.ssl.enabled.protocols is not set.",
        Choice(VERSIONS),
    ),
    Setting("zookeeper.ssl.enabled.protocols", LIST, None, "The versions of TLS.", Choice(VERSIONS)),
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
        "Whether a server's certificate has to be of the host that zookeeper.connect names. Empty: it need not.",
        Shape("HTTPS, or nothing", lambda text: _any_case(text, ("HTTPS", ""))),
    ),
    Setting(
        "zookeeper.ssl.crl.enable",
        BOOLEAN,
        "false",
        "Lists of certificates that were revoked are not looked at: no more can be asked for.",
        Choice(("false",)),
    ),
    Setting(
        "zookeeper.ssl.ocsp.enable",
        BOOLEAN,
        "false",
        "Nobody is asked whether a certificate was revoked: no more can be asked for.",
        Choice(("false",)),
    ),
)
