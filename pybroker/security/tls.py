"""TLS on sockets: contexts made from settings, and two implementations.

    secure(socket, context) ──handshake() until None──> recv, send, pending ──> shutdown, close

Core's implementation is used if it can load this Python's OpenSSL, otherwise Python's ssl module. The latter is slower:
each record of 16 KiB takes a call with the GIL, and the native data plane does not serve such connections.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Final, Literal

from pybroker import core
from pybroker.config.broker import BrokerConfig
from pybroker.config.listeners import EVERY_INTERFACE
from pybroker.config.settings import ConfigError, shown
from pybroker.config.ssl_settings import CLIENT_AUTH, NONE, REQUIRED, Ssl
from pybroker.security.keystores import Ending, KeyPair, ending_of, key_store, trust_store
from pybroker.security.tls_errors import FAILED, HANDSHAKE_FAILED, handshake_failed, ssl_words

Bytes = bytes | bytearray | memoryview
Wanted = Literal["read", "write"] | None

RECORD_BYTES: Final = 1 << 14
PIECE_BYTES: Final = 1 << 17
"""The largest record, and the bytes that are encrypted in one call."""
NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not define."""
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
SUITES_1_3: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
SUITES_1_2: Final = {
    f"TLS_{exchange}_WITH_{cipher}": f"{exchange.replace('_', '-')}-{name}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for cipher, name in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""The supported suites of TLS 1.2, by their IANA names: those with forward secrecy and authenticated encryption."""


# -- contexts ----------------------------------------------------------------------------------------------------------


class ListenerContext(ssl.SSLContext):
    """The TLS context of a listener, with the expiry of its own and its trusted certificates."""

    endings: tuple[Ending, ...] = ()


def server_context(settings: Ssl, listener: str, *, dated: bool = True) -> ListenerContext:
    """The TLS context of a listener. Raises ConfigError, in one sentence, for settings that no client can use.

    Without `dated` a certificate may have expired, or not be valid yet. A broker that restarts with one then serves its
    other listeners, where it can be replaced; otherwise all brokers of a cluster could stay down."""
    context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
    pair = _key_store(settings, dated)
    if pair is None:
        raise ConfigError(
            f"the listener {listener} has TLS, but no certificate: "
            f"{settings.prefix('ssl.key')}keystore.location and {settings.prefix('ssl.key')}keystore.key are not set"
        )
    pair.load_into(context)
    _check_usable(settings, listener, pair, dated)
    context.endings = (ending_of(_called(settings, "keystore"), pair.chain, trusted=False),)
    if settings[CLIENT_AUTH] != NONE:
        trusted = _trust(context, settings, dated)
        if trusted is not None:
            context.endings += (ending_of(_called(settings, "truststore"), trusted, trusted=True),)
        context.verify_mode = ssl.CERT_REQUIRED if settings[CLIENT_AUTH] == REQUIRED else ssl.CERT_OPTIONAL
    _narrow(context, settings)
    return context


def client_context(settings: Ssl) -> ssl.SSLContext:
    """The TLS context with which a broker connects to others, which check the dates of its certificate. Raises
    ConfigError, in one sentence."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings["ssl.endpoint.identification.algorithm"] != ""
    pair = _key_store(settings, dated=False)
    if pair is not None:
        pair.load_into(context)
    _trust(context, settings, dated=False)
    _narrow(context, settings)
    return context


def inter_broker_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """The TLS context for connections to other brokers; None if their listener has no TLS. Raises ConfigError."""
    settings = config.ssl.get(config.listeners.inter_broker)
    return None if settings is None else client_context(settings)


def check_believed(config: BrokerConfig) -> None:
    """Check that other brokers with the same settings can connect to this one: that its trust stores verify its
    certificates, and one of them has its host name. Raises ConfigError."""
    name = config.listeners.inter_broker
    settings = config.ssl.get(name)
    if settings is None:
        return
    told = config.listeners.advertised or config.listeners.endpoints
    host = next((each.host for each in told if each.listener == name and each.host not in EVERY_INTERFACE), "")
    server, client = server_context(settings, name), client_context(settings)
    client.check_hostname = client.check_hostname and bool(host)  # without a host: the machine's name, unknown here
    if (why := _refusal(client, server, host or None)) is not None:
        raise ConfigError(f"other brokers could no longer connect to the listener {name}: {why}")


def _check_usable(settings: Ssl, listener: str, pair: KeyPair, dated: bool) -> None:
    """Check that a client with OpenSSL's defaults accepts a listener's certificates, if it trusts the last of them and
    does not check the host name. Such a client refuses weak keys and signatures, a certificate that is not for servers,
    and one that the next has not signed. Raises ConfigError."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    pair.load_into(server)
    _narrow(server, settings)
    believe(client, pair.last)
    if not dated:
        client.verify_flags |= NO_CHECK_TIME
    if (why := _refusal(client, server, None)) is not None:
        store = _called(settings, "keystore")
        raise ConfigError(f"no client could connect to the listener {listener} with the certificates of {store}: {why}")


def _refusal(client: ssl.SSLContext, server: ssl.SSLContext, host: str | None) -> str | None:
    """The reason why a handshake between the two fails, in words; None if it succeeds."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)]
    try:
        while ends:
            ends = [end for end in ends if not _has_shaken_hands(end)]
    except ssl.SSLError as problem:
        return str(handshake_failed(problem)).removeprefix(HANDSHAKE_FAILED)
    return None


def _has_shaken_hands(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _key_store(settings: Ssl, dated: bool) -> KeyPair | None:
    return key_store(
        settings.prefix("ssl.key"),
        type=settings["ssl.keystore.type"],
        location=settings["ssl.keystore.location"],
        password=settings["ssl.keystore.password"],
        key_password=settings["ssl.key.password"],
        key=settings["ssl.keystore.key"],
        chain=settings["ssl.keystore.certificate.chain"],
        dated=dated,
    )


def _called(settings: Ssl, store: str) -> str:
    """The name of a store for the log: its file, or the prefix of its settings."""
    return settings[f"ssl.{store}.location"] or f"{settings.prefix(f'ssl.{store}')}{store}"


def _trust(context: ssl.SSLContext, settings: Ssl, dated: bool) -> bytes | None:
    """Have a context trust the certificates that the settings name, and return them; None for the system's."""
    trusted = trust_store(
        settings.prefix("ssl.truststore"),
        type=settings["ssl.truststore.type"],
        location=settings["ssl.truststore.location"],
        password=settings["ssl.truststore.password"],
        certificates=settings["ssl.truststore.certificates"],
        dated=dated,
    )
    believe(context, trusted)
    return trusted


def believe(context: ssl.SSLContext, trusted: bytes | None) -> None:
    """Have a context trust these certificates (PEM), or with None the system's. As in Java a chain may end at any of
    them, also at an intermediate authority's or at the peer's own."""
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=trusted.decode())


def _narrow(context: ssl.SSLContext, settings: Ssl) -> None:
    name = f"{settings.prefix('ssl.cipher')}cipher.suites"
    # A client that closes its side without a TLS alert still gets its responses; a truncated frame is ignored anyway.
    context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)  # the default of OpenSSL 1.1.1
    narrow(context, settings["ssl.enabled.protocols"], settings["ssl.cipher.suites"], name)


def narrow(context: ssl.SSLContext, versions: Sequence[str], suites: Sequence[str], name: str) -> None:
    """Restrict a context to these versions and cipher suites; `name` is the suites' setting. Disable renegotiation,
    with which one end can waste the other's time. Raises ConfigError."""
    spoken = [VERSIONS[version] for version in versions]
    context.minimum_version, context.maximum_version = min(spoken), max(spoken)
    context.options |= ssl.OP_NO_RENEGOTIATION
    unknown = [suite for suite in suites if suite not in SUITES_1_3 and suite not in SUITES_1_2]
    if unknown:
        raise ConfigError(
            f"{name} has {shown(unknown[0])}, which is not supported: "
            f"it takes {', '.join([*SUITES_1_3, *SUITES_1_2])}"
        )
    newer, older = [s for s in suites if s in SUITES_1_3], [SUITES_1_2[s] for s in suites if s in SUITES_1_2]
    if not suites:
        return
    if (not newer and context.minimum_version > VERSIONS["TLSv1.2"]) or (
        not older and context.maximum_version < VERSIONS["TLSv1.3"]
    ):
        raise ConfigError(f"{name} has no cipher suite of {', '.join(versions)}")
    if older:
        context.set_ciphers(":".join(older))
    else:
        context.minimum_version = VERSIONS["TLSv1.3"]
    if not newer:
        context.maximum_version = VERSIONS["TLSv1.2"]
    elif core.tls_available():
        core.set_ciphersuites(context, newer)
    elif set(newer) != set(SUITES_1_3):
        raise ConfigError(f"{name}: the ssl module of this Python cannot restrict the suites of TLSv1.3")


# -- connections -------------------------------------------------------------------------------------------------------


class NativeStream:
    """A socket with core's TLS."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool, host: str | None) -> None:
        self.sock = sock
        self.tls = core.TlsSocket(sock.fileno(), context, server=server, host=host)
        self.handshake = self.tls.handshake
        self.recv = self.tls.recv
        self.recv_into = self.tls.recv_into
        self.peer_certificate = self.tls.peer_certificate

    def send(self, data: Bytes, flags: int = 0) -> int:
        return self.tls.send(data)

    def sendmsg(self, views: list[memoryview]) -> int:
        return self.tls.send(_joined(views))

    @property
    def pending(self) -> bool:
        """True if recv may return data although the socket has none."""
        return self.tls.pending

    def fileno(self) -> int:
        return self.sock.fileno()

    def shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.tls.end()
        self.sock.shutdown(how)

    def close(self) -> None:
        self.sock.close()


class SslStream:
    """A socket with TLS by Python's ssl module."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool, host: str | None) -> None:
        self.sock = context.wrap_socket(
            sock, server_side=server, server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def handshake(self) -> Wanted:
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            return "read"
        except ssl.SSLWantWriteError:
            return "write"
        except (ssl.SSLError, ConnectionError) as problem:
            raise handshake_failed(problem) from None
        return None

    def recv(self, n: int) -> bytes:
        into = bytearray(n)
        return bytes(into[: self.recv_into(into)])

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        with _as_a_socket():
            return self.sock.recv_into(buffer)

    def send(self, data: Bytes, flags: int = 0) -> int:
        with _as_a_socket():
            return self.sock.send(data)

    def sendmsg(self, views: list[memoryview]) -> int:
        return self.send(_joined(views))

    def peer_certificate(self) -> bytes | None:
        return self.sock.getpeercert(binary_form=True)

    @property
    def pending(self) -> bool:
        return self.sock.pending() > 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def shutdown(self, how: int) -> None:
        self.sock.shutdown(how)

    def close(self) -> None:
        self.sock.close()


def _joined(views: list[memoryview]) -> memoryview:
    """The first view; if it is small, joined with the following ones, up to PIECE_BYTES."""
    if len(views) == 1 or len(views[0]) >= RECORD_BYTES:
        return views[0]
    data = bytearray()
    for view in views:
        data += view[: PIECE_BYTES - len(data)]
        if len(data) == PIECE_BYTES:
            break
    return memoryview(data)


class _as_a_socket(contextlib.AbstractContextManager[None]):
    """Convert errors of the ssl module to those of a socket."""

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, ssl.SSLWantReadError | ssl.SSLWantWriteError):
            raise BlockingIOError from None
        if isinstance(problem, ssl.SSLError):
            raise ConnectionAbortedError(f"{FAILED}{ssl_words(problem)}") from None


Stream = NativeStream | SslStream


def secure(sock: socket.socket, context: ssl.SSLContext, *, server: bool, host: str | None = None) -> Stream:
    """TLS on a connected non-blocking socket, before its handshake. `host`: at a client, the host it connected to."""
    kind = NativeStream if core.tls_available() else SslStream
    return kind(sock, context, server=server, host=host)


def pending(sock: socket.socket | Stream) -> bool:
    """True if recv may return data although the socket below has none."""
    return isinstance(sock, NativeStream | SslStream) and sock.pending
