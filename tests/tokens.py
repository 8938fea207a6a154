"""Tokens for tests: an issuer with generated keys, and a web server that serves them, or misbehaves."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE, ISSUER = "brokers", "https://issuer.example"


class Signer:
    """A key pair and its name."""

    def __init__(self, kid: str | None = "k1", algorithm: str = "RS256", bits: int = 2048) -> None:
        self.kid, self.algorithm = kid, algorithm
        self.private: Any
        if algorithm == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
        elif algorithm.startswith("ES"):
            curve = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}[algorithm]
            self.private = ec.generate_private_key(curve())
        else:
            self.private = rsa.generate_private_key(public_exponent=65537, key_size=bits)

    @property
    def jwk(self) -> dict[str, Any]:
        kind: Any = {"E": ECAlgorithm, "R": RSAAlgorithm, "P": RSAAlgorithm}[self.algorithm[0]]
        if self.algorithm == "EdDSA":
            kind = OKPAlgorithm
        made: dict[str, Any] = kind.to_jwk(self.private.public_key(), as_dict=True)
        return made | ({} if self.kid is None else {"kid": self.kid}) | {"use": "sig"}

    def token(
        self, user: str = "alice", *, lives_s: float = 600, header: dict[str, Any] | None = None, **but: Any
    ) -> str:
        """A valid token except for these claims; one that is None is left out."""
        body = json.dumps(claims(user, lives_s, **but)).encode()
        headers = ({} if self.kid is None else {"kid": self.kid}) | (header or {})
        return jwt.PyJWS().encode(body, self.private, algorithm=self.algorithm, headers=headers)


def claims(user: str = "alice", lives_s: float = 600, **but: Any) -> dict[str, Any]:
    now_s = int(time.time())
    made = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "iat": now_s, "exp": now_s + lives_s, "scope": "a b", **but}
    return {name: value for name, value in made.items() if value is not None}


def by_hand(header: Any, body: Any, signature: bytes = b"") -> str:
    """A token of these parts, JSON or text, valid or not."""

    def part(value: Any) -> str:
        data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    return f"{part(header)}.{part(body)}.{part(signature)}"


def jwks(*signers: Signer) -> bytes:
    return json.dumps({"keys": [signer.jwk for signer in signers]}).encode()


class Web:
    """A web server on loopback; `answer` is called with each request's handler."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], object] | bytes) -> None:
        self.answer = answer
        self.asked = 0
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked += 1
                try:
                    if isinstance(web.answer, bytes):
                        say(self, web.answer)
                    else:
                        web.answer(self)
                except OSError:
                    return  # the client has gone

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                return

        socketserver.TCPServer.allow_reuse_address = True
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/keys"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def say(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    """Send a whole response."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
