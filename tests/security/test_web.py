"""One request to a web server: the authorities that the client trusts."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pybroker.security.oauth import web
from tests.certificates import Identity


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"keys")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[Identity], str]]:
    """The URL of a server with a certificate of this authority."""
    running = []

    def start(authority: Identity) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Identity("server", authority, hosts=["127.0.0.1"]).pem(tmp_path / "server.pem"))
        server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return f"https://127.0.0.1:{server.server_port}/"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_authority_that_names_no_key_usage_is_trusted(
    served: Callable[[Identity], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authority without a key usage is trusted, as by Java and unlike Python 3.13's defaults."""
    default = ssl.create_default_context

    def strict(made: Callable[..., ssl.SSLContext], **named: str) -> ssl.SSLContext:
        context = made(**named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", partial(strict, default))
    authority = Identity("an old authority", named_usage=False)
    assert web.read(served(authority), authorities=authority.certificate_pem.decode()) == b"keys"
    with pytest.raises(web.WebError, match="its certificate is refused"):
        web.read(served(authority), authorities=Identity("another").certificate_pem.decode())
