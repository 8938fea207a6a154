"""Sends one request to a web server, or reads a file, by the URL in a setting; bounded in time and size.

It does not follow redirects or use the environment's proxies: only this URL is allowed. Certificates are checked
against the system's, those of SSL_CERT_FILE or the given ones. A failure is a WebError, whose message does not quote
data that was sent or received.
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
REFUSAL_BYTES_MAX: Final = 1 << 16
SECONDS_MAX: Final = 10.0
_CHUNK: Final = 1 << 16
_PORTS: Final = {"http": 80, "https": 443}


class WebError(Exception):
    """The failure of a read; the message is a short reason. `refused`: a retry would not help.

    `status` is the HTTP status; 0 without a response. `answer` is the body of an error, up to REFUSAL_BYTES_MAX."""

    refused = False
    status = 0
    answer = b""


def read(
    url: str,
    *,
    form: str | None = None,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    bytes_max: int = BYTES_MAX,
    authorities: str | None = None,
    seconds_max: float | None = None,
) -> bytes:
    """The content of a URL; `form`, or a `body` of the Content-Type in the headers, is posted there. `authorities`:
    certificates (PEM) against which the server's is checked. Blocks for at most `seconds_max`, None for SECONDS_MAX,
    plus the host name's look-up. Raises WebError."""
    parts, headers = urlsplit(url), headers or {}
    seconds_max = SECONDS_MAX if seconds_max is None else seconds_max
    if form is not None:
        body, headers = form.encode(), {**headers, "Content-Type": "application/x-www-form-urlencoded"}
    if parts.scheme == "file":
        return _of_file(unquote(parts.path), bytes_max)
    try:
        return _of_server(parts, body, headers, bytes_max, seconds_max, authorities)
    except TimeoutError:
        raise WebError(f"no answer within {seconds_max:g} s") from None
    except ssl.SSLCertVerificationError as problem:
        raise WebError(f"its certificate is refused: {problem.verify_message}") from None
    except ssl.SSLError as problem:
        raise WebError(f"TLS failed: {problem.reason or 'the connection was closed'}") from None
    except OSError as problem:
        raise WebError(f"it cannot be reached: {problem.strerror or 'it closed the connection'}") from None
    except (http.client.HTTPException, ValueError):
        raise WebError("its response is not valid HTTP") from None


def _of_file(path: str, bytes_max: int) -> bytes:
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise WebError("it is not a regular file")
            data = file.read(bytes_max + 1)
    except OSError as problem:
        raise WebError(f"it cannot be read: {problem.strerror}") from None
    except ValueError:
        raise WebError("it cannot be read: that is not a file name") from None
    if len(data) > bytes_max:
        raise WebError(f"it has more than {bytes_max} bytes")
    return data


def _of_server(
    parts: SplitResult,
    body: bytes | None,
    headers: dict[str, str],
    bytes_max: int,
    seconds_max: float,
    authorities: str | None,
) -> bytes:
    """Send the request. Raises TimeoutError after `seconds_max`, OSError, http.client.HTTPException, ValueError,
    WebError."""
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    over = threading.Event()
    sock = socket.create_connection((host, port), timeout=seconds_max)
    # The socket's timeout never fires if a server sends single bytes: this timer bounds the whole request.
    with sock.dup() as held:
        timer = threading.Timer(seconds_max, _break_off, (held, over))
        timer.daemon = True
        timer.start()
        try:
            if parts.scheme == "https":
                context = ssl.create_default_context(cadata=authorities)
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as Java: an old authority may lack key usage
                sock = context.wrap_socket(sock, server_hostname=host)
            data = _ask(sock, parts, body, headers, bytes_max)
        except (OSError, http.client.HTTPException, ValueError):
            if over.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            timer.join()  # it uses a descriptor that is about to be closed and reused
            sock.close()
    if over.is_set():  # a truncated response may look complete
        raise TimeoutError
    return data


def _break_off(held: socket.socket, over: threading.Event) -> None:
    over.set()
    try:
        held.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # already closed


def _ask(sock: socket.socket, parts: SplitResult, body: bytes | None, headers: dict[str, str], bytes_max: int) -> bytes:
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or _PORTS[parts.scheme])
    connection.sock = sock
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    told = {"Accept": "application/json", "Connection": "close", **headers}
    connection.request("GET" if body is None else "POST", target, body=body, headers=told)
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
