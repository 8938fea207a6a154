"""One blocking connection to one broker: versions are agreed when it opens, then one request waits for one answer.

    closed --connect--> greeting --ApiVersions answered--> open --any failure or close()--> closed

A connection that failed in the middle of an answer is closed: the next answer could not be found in its bytes.
"""

import contextlib
import math
import select
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final

from pybroker import __version__, errors, fork_safety
from pybroker.client.security.tls import ClientTls
from pybroker.errors import KafkaError, system_words
from pybroker.model import HostPort, check_port
from pybroker.patience import waiting
from pybroker.protocol import apis, codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import Api
from pybroker.protocol.frames import PERHAPS_TLS, SIZE, frame_size, read_answer
from pybroker.protocol.message import Message, R, Request
from pybroker.security.login import Account, Login
from pybroker.security.tls_errors import (
    FAILED,
    HANDSHAKE_FAILED,
    HUNG_UP,
    for_a_client,
    handshake_failed,
    is_of_certificates,
    ssl_words,
)

CLIENT_ID: Final = "pybroker"
REACHED: Final = "reach"
GREETED: Final = "get a first answer from"
SERVED: Final = "be served by"
ANSWERED: Final = "get an answer from"
"""The steps of a connection, as words of its errors."""


class BrokerConnection:
    """A socket to `host:port` whose broker's API versions are known.

    A failure of the network is a KafkaError (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) with the address in its sentence.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = 30.0,
        client_id: str = CLIENT_ID,
        account: Account | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.address = str(HostPort(host, port))
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.versions: dict[int, tuple[int, int]] = {}
        """API key to (lowest, highest) version that the broker serves."""
        self._correlation_id = 0
        self._served = False
        self._deadline = time.monotonic() + timeout_s
        self._forked = False
        self._socket: socket.socket | None = None
        fork_safety.tell(self)
        try:
            check_port(port)
            with waiting.get()(f"for a connection to {self.address}"):
                self._socket = socket.create_connection((host, port), timeout=timeout_s)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if tls is not None:
                    self._socket = self._encrypt(self._socket, tls)
        except OSError as error:
            raise self._lost(error, REACHED, timeout_s) from error
        except (ValueError, OverflowError) as error:
            raise no_address(host, port) from error
        self._greet()
        self._account = account
        self._renew_s = math.inf
        if account is not None:
            self._log_in(account)

    def __enter__(self) -> "BrokerConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        """Close the socket; calling it again does nothing."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def has_ended(self) -> bool:
        """True if the other end has closed the connection, or this one; no request may be under way."""
        if self._socket is None:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))  # readable: a broker sends nothing that was not asked for

    def forked(self) -> None:
        """Close the child's copy of the socket after a fork: parent and child would take each other's answers."""
        self._forked = True
        self.close()

    def version_of(self, api: Api, version_max: int | None = None) -> int:
        """The highest version that both sides and the caller know. KafkaError(UNSUPPORTED_VERSION) if there is none."""
        return agreed_version(self.versions, api, self.address, version_max)

    def request(self, message: Request[R], *, timeout_s: float | None = None, version_max: int | None = None) -> R:
        """Send one request message and return the answer to it, both at the highest version in common; `version_max`
        is the last one that the caller has filled the message for."""
        self._stay_logged_in()
        api = apis.SPOKEN[type(message).SCHEMA.key]
        version = self.version_of(api, version_max)
        return self._exchange(api, version, message, self.timeout_s if timeout_s is None else timeout_s)

    # -- the exchange of frames ---------------------------------------------------------------------------------------

    def _greet(self) -> None:
        """Ask for the broker's API versions: at our highest version, then at the one its refusal names (KIP-511)."""
        asked = m.ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version=__version__)
        api = apis.SPOKEN[apis.API_VERSIONS]
        answer = self._exchange(api, api.max_version, asked, self.timeout_s)
        if answer.error_code == errors.UNSUPPORTED_VERSION:
            highest = max((k.max_version for k in answer.api_keys if k.api_key == api.key), default=0)
            answer = self._exchange(api, min(api.max_version, highest), asked, self.timeout_s)
        if answer.error_code:
            self.close()
            raise KafkaError(answer.error_code, f"the broker at {self.address} refused ApiVersions")
        self.versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}

    def _encrypt(self, sock: socket.socket, tls: ClientTls) -> socket.socket:
        try:
            return tls.context().wrap_socket(sock, server_hostname=self.host)
        except TimeoutError:
            raise
        except (ssl.SSLError, ConnectionError) as problem:
            raise handshake_failed(problem) from None

    def _stay_logged_in(self) -> None:
        """Log in again if the last login nearly expired (KIP-368). No request is under way then."""
        if time.monotonic() >= self._renew_s and self.is_open:
            assert self._account is not None
            self._log_in(self._account)

    def _log_in(self, account: Account) -> None:
        self._renew_s = math.inf
        try:
            login = Login(account, self.address)
            message: Request[Message] | None = login.start()
            while message is not None:
                message = login.step(self.request(message))
        except KafkaError:
            self.close()
            raise
        renew_in_s = login.renew_in_s()
        if renew_in_s is not None:
            self._renew_s = time.monotonic() + renew_in_s

    def _exchange(self, api: Api, version: int, message: Request[R], timeout_s: float) -> R:
        """The message that answers this one."""
        self._deadline = time.monotonic() + timeout_s
        with waiting.get()(f"for the broker at {self.address} to answer {api.name}"):
            self._send(api, version, message, timeout_s)
            answer: R = self._answer(api, version, timeout_s)
        self._served = bool(self.versions)
        return answer

    def _send(self, api: Api, version: int, message: Message, timeout_s: float) -> None:
        if self._forked:
            raise fork_safety.refusal("connection")
        if self._socket is None:
            raise KafkaError(errors.NETWORK_EXCEPTION, f"the connection to {self.address} is closed")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        try:
            body = codec.encode_request(api.key, version, self._correlation_id, self.client_id, message)
        except codec.EncodeError as error:
            raise KafkaError(errors.INVALID_REQUEST, f"no such request can be written: {error}") from error
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(SIZE.pack(len(body)) + body)
        except OSError as error:
            raise self._lost(error, self._doing, timeout_s) from error

    @property
    def _doing(self) -> str:
        return ANSWERED if self._served else SERVED if self.versions else GREETED

    def _answer(self, api: Api, version: int, timeout_s: float) -> Any:
        """The message that comes next, before the deadline of the request."""
        try:
            frame = self._receive(frame_size(self._receive(SIZE.size), self.address))
            return read_answer(api, version, self._correlation_id, frame, self.address)
        except OSError as error:
            raise self._lost(error, self._doing, timeout_s) from error
        except KafkaError:
            self.close()
            raise

    def _receive(self, size: int) -> bytes | memoryview:
        """Exactly `size` bytes, before the deadline of the request."""
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            chunk = self._socket.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise ConnectionResetError
            data += chunk
        return bytes(data)

    def _lost(self, error: OSError, doing: str, timeout_s: float) -> KafkaError:
        """The connection is gone; why, in words that name the other end."""
        self.close()
        return connection_lost(error, doing, self.host, self.port, timeout_s)


# -- what the blocking connection shares with the channels of producers and consumers ---------------------------------


def agreed_version(
    versions: Mapping[int, tuple[int, int]], api: Api, address: str, version_max: int | None = None
) -> int:
    """The highest version of an API that both sides and the caller know. KafkaError(UNSUPPORTED_VERSION) if none."""
    if api.key not in versions:
        raise KafkaError(errors.UNSUPPORTED_VERSION, f"the broker at {address} does not serve {api.name}")
    lowest, highest = versions[api.key]
    known = api.max_version if version_max is None else min(api.max_version, version_max)
    version = min(highest, known)
    if version < max(lowest, api.min_version):
        ours = f"{api.min_version} to {known}"
        theirs = f"{lowest} to {highest}"
        raise KafkaError(
            errors.UNSUPPORTED_VERSION,
            f"the broker at {address} serves {api.name} {theirs}, and this client knows {ours}",
        )
    return version


_PERHAPS: Final = {
    GREETED: f"; {PERHAPS_TLS}",
    SERVED: "; its listener may be one where clients log in (security.protocol SASL_PLAINTEXT or SASL_SSL)",
}


def connection_lost(error: OSError, doing: str, host: str, port: int, timeout_s: float) -> KafkaError:
    """Why a connection is gone, in words that name the other end."""
    address = HostPort(host, port)
    if isinstance(error, TimeoutError):
        return KafkaError(errors.REQUEST_TIMED_OUT, f"could not {doing} {address} in {timeout_s:g} s")
    if isinstance(error, ConnectionResetError | BrokenPipeError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        why = "it closed the connection" + _PERHAPS.get(doing, "")
    elif isinstance(error, socket.gaierror):
        why = f"the name {host} is not known"
    elif (system_words(error)).startswith(_REFUSED_BY_TLS):
        return _refused(error, doing, address)
    elif isinstance(error, ssl.SSLError) or str(error).startswith(FAILED):
        why = ssl_words(error) if isinstance(error, ssl.SSLError) else str(error).removeprefix(FAILED)
        code = errors.SASL_AUTHENTICATION_FAILED if is_of_certificates(why) else errors.NETWORK_EXCEPTION
        return KafkaError(code, f"could not {doing} {address}: {FAILED}{for_a_client(why)}")
    else:
        why = system_words(error)
    return KafkaError(errors.NETWORK_EXCEPTION, f"could not {doing} {address}: {why}")


_REFUSED_BY_TLS: Final = HANDSHAKE_FAILED.lower()


def _refused(error: OSError, doing: str, address: HostPort) -> KafkaError:
    """No handshake of TLS will be made with these settings; unless the other end just hung up in the midst of it."""
    why = error.strerror or str(error)
    perhaps = "; the port may be one without TLS (security.protocol PLAINTEXT or SASL_PLAINTEXT)"
    if why.endswith(HUNG_UP):
        return KafkaError(errors.NETWORK_EXCEPTION, f"could not {doing} {address}: {why}{perhaps}")
    if "wrong version number" in why:
        why += perhaps
    words = HANDSHAKE_FAILED + for_a_client(why.removeprefix(HANDSHAKE_FAILED))
    return KafkaError(errors.SASL_AUTHENTICATION_FAILED, f"could not {doing} {address}: {words}")


def no_address(host: str, port: int) -> KafkaError:
    """The error for an address that the system cannot even look up: a label that is too long, say."""
    return KafkaError(errors.NETWORK_EXCEPTION, f"could not reach {host!r}, port {port}: that is no address")
