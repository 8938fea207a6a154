"""One request to a web server, or a read of a file, by a URL of a setting: bounded in time and size, on its own thread.

Redirects are not followed, proxies of the environment not used: what was allowed is this URL and no other. Certificates
are checked against the system's, those of SSL_CERT_FILE or those that are given. What fails is a WebError, whose words
quote nothing of what was sent or received.
"""

import http.client
import os
import socket
import ssl
import stat
import threading
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

BYTES_MAX: Final = 1 << 20
REFUSAL_BYTES_MAX: Final = 1 << 12
SECONDS_MAX: Final = 10.0
_CHUNK: Final = 1 << 16
_PORTS: Final = {"http": 80, "https": 443}


class WebError(Exception):
    """The failure of a read; the message says why in a few words. `refused`: asking again would not help.

    status: what the server answered with; 0 where it did not answer. answer: what it sent with that, at most
    REFUSAL_BYTES_MAX of it."""

    refused = False
    status = 0
    answer = b""


def read(
    url: str,
    *,
    form: str | None = None,
    headers: dict[str, str] | None = None,
    bytes_max: int = BYTES_MAX,
    authorities: str | None = None,
) -> bytes:
    """What is at a URL; `form` is posted there. `authorities`: certificates (PEM) to check the server's against. Blocks
    for SECONDS_MAX at most, but for the look-up of a name. Raises WebError."""
    parts, seconds_max = urlsplit(url), SECONDS_MAX
    if parts.scheme == "file":
        return _of_file(unquote(parts.path), bytes_max)
    try:
        return _of_server(parts, form, headers or {}, bytes_max, seconds_max, authorities)
    except TimeoutError:
        raise WebError(f"no answer within {seconds_max:g} s") from None
    except ssl.SSLCertVerificationError as problem:
        raise WebError(f"its certificate is refused: {problem.verify_message}") from None
    except ssl.SSLError as problem:
        raise WebError(f"no TLS with it: {problem.reason or 'the connection broke off'}") from None
    except OSError as problem:
        raise WebError(f"it cannot be reached: {problem.strerror or 'it broke the connection off'}") from None
    except (http.client.HTTPException, ValueError):
        raise WebError("it does not speak HTTP as a web server does") from None


def _of_file(path: str, bytes_max: int) -> bytes:
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise WebError("it is no ordinary file")
            data = file.read(bytes_max + 1)
    except OSError as problem:
        raise WebError(f"it cannot be read: {problem.strerror}") from None
    except ValueError:
        raise WebError("it cannot be read: that is no name of a file") from None
    if len(data) > bytes_max:
        raise WebError(f"it has more than {bytes_max} bytes")
    return data


def _of_server(
    parts: SplitResult,
    form: str | None,
    headers: dict[str, str],
    bytes_max: int,
    seconds_max: float,
    authorities: str | None,
) -> bytes:
    """Raises OSError, TimeoutError when the time is over, http.client.HTTPException, ValueError, WebError."""
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    over = threading.Event()
    sock = socket.create_connection((host, port), timeout=seconds_max)
    # A server that sends a byte now and then is never late by the socket's own time-out: this ends it.
    with sock.dup() as held:
        timer = threading.Timer(seconds_max, _break_off, (held, over))
        timer.daemon = True
        timer.start()
        try:
            if parts.scheme == "https":
                context = ssl.create_default_context(cadata=authorities)
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as Java: an old authority may name no key usage
                sock = context.wrap_socket(sock, server_hostname=host)
            data = _ask(sock, parts, form, headers, bytes_max)
        except (OSError, http.client.HTTPException, ValueError):
            if over.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            timer.join()  # it holds a descriptor that is about to be another one's
            sock.close()
    if over.is_set():  # what was broken off may look like an answer
        raise TimeoutError
    return data


def _break_off(held: socket.socket, over: threading.Event) -> None:
    over.set()
    try:
        held.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already


def _ask(sock: socket.socket, parts: SplitResult, form: str | None, headers: dict[str, str], bytes_max: int) -> bytes:
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or _PORTS[parts.scheme])
    connection.sock = sock
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    told = {"Accept": "application/json", "Connection": "close", **headers}
    if form is not None:
        told["Content-Type"] = "application/x-www-form-urlencoded"
    connection.request("GET" if form is None else "POST", target, body=form, headers=told)
    with connection.getresponse() as answer:
        if answer.status != http.HTTPStatus.OK:
            moved = "; redirects are not followed" if 300 <= answer.status < 400 else ""
            problem = WebError(f"it answered with status {answer.status}{moved}")
            problem.refused = answer.status < 500
            problem.status, problem.answer = answer.status, answer.read(REFUSAL_BYTES_MAX)
            raise problem
        data = bytearray()
        while chunk := answer.read(min(_CHUNK, bytes_max + 1 - len(data))):
            data += chunk
            if len(data) > bytes_max:
                raise WebError(f"its answer has more than {bytes_max} bytes")
    return bytes(data)
