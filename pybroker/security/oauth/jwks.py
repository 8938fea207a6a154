"""The keys that sign tokens: a JSON Web Key Set (RFC 7517), refreshed on a thread of its own.

    read ──refresh.ms, or a token's key is unknown──> read again ──> ...
                                        └──it fails, or lacks the key──> a pause that doubles up to a limit

If the set cannot be read, the present keys stay. Only public keys for signatures are used, each only with its own RSA
or elliptic curve algorithms: otherwise a public key could be used as the shared secret of an HMAC.
"""

import json
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from pybroker.logs import event
from pybroker.security.oauth import web

log = logging.getLogger(__name__)

KEYS_MAX: Final = 100
RSA_BITS: Final = range(2048, 8192 + 1)
_RSA: Final[tuple[str, ...]] = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC: Final[dict[object, tuple[str, ...]]] = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
_OKP: Final[dict[object, tuple[str, ...]]] = {"Ed25519": ("EdDSA",)}
ALGORITHMS: Final = frozenset(_RSA).union(*_EC.values(), *_OKP.values())
_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")
"""The parameters of a public key; a set may also contain private ones."""


class PublicKey(NamedTuple):
    """A public key, its id, and the signature algorithms that it verifies."""

    kid: str | None
    algorithms: tuple[str, ...]
    key: Any


def parse(data: bytes) -> tuple[PublicKey, ...]:
    """The keys of a set that verify signatures. ValueError if the set is malformed, or has no such key."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    told = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
        raise ValueError("it is not a JSON Web Key Set")
    if len(told) > KEYS_MAX:
        raise ValueError(f"it has {len(told)} keys; {KEYS_MAX} are allowed")
    keys = tuple(key for key in map(_key, told) if key is not None)
    if not keys:
        raise ValueError("it has no public key for signatures of RSA (2048 bits or more) or elliptic curves")
    return keys


def _key(told: Mapping[str, object]) -> PublicKey | None:
    """The public key; None if it does not verify supported signatures, or is malformed."""
    kid, algorithm, operations = told.get("kid"), told.get("alg"), told.get("key_ops")
    if told.get("use", "sig") != "sig" or not (kid is None or isinstance(kid, str)):
        return None
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    public = {name: told[name] for name in _PUBLIC if name in told}
    curve = public.get("crv")
    key: Any
    try:
        if public.get("kty") == "RSA":
            fitting, key = _RSA, RSAAlgorithm.from_jwk(public)
            if key.key_size not in RSA_BITS:
                return None
        elif public.get("kty") == "EC" and curve in _EC:
            fitting, key = _EC[curve], ECAlgorithm.from_jwk(public)
        elif public.get("kty") == "OKP" and curve in _OKP:
            fitting, key = _OKP[curve], OKPAlgorithm.from_jwk(public)
        else:
            return None
    except (PyJWTError, ValueError, TypeError, KeyError, OverflowError):
        return None
    if algorithm is not None:
        fitting = tuple(name for name in fitting if name == algorithm)
    return PublicKey(kid, fitting, key) if fitting else None


class Jwks:
    """The keys at one URL. Any thread may use them; a thread of its own reads them."""

    def __init__(self, url: str, refresh_s: float, backoff_s: float, backoff_max_s: float) -> None:
        self.url = url
        self.keys: tuple[PublicKey, ...] | None = None
        """None before the first read."""
        self._refresh_s = refresh_s
        self._backoff_s = backoff_s
        self._backoff_max_s = max(backoff_s, backoff_max_s)
        self._pause_s = backoff_s
        self._not_before_s = 0.0
        self._failing = False
        self._closed = False
        self._wanted: Future[None] | None = None
        self._bell = threading.Condition()
        self._thread: threading.Thread | None = None

    def load(self) -> None:
        """Read the keys now, on this thread. Raises web.WebError or ValueError."""
        self.keys = parse(web.read(self.url))

    def start(self) -> None:
        """Start to read the keys regularly. A second call does nothing."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="pybroker-jwks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading the keys; does not wait for a read in progress."""
        with self._bell:
            self._closed = True
            self._bell.notify()

    def find(self, kid: str | None, algorithm: str) -> list[PublicKey]:
        """The keys with this id and algorithm; without an id, all with this algorithm."""
        fitting = [key for key in self.keys or () if algorithm in key.algorithms]
        return [key for key in fitting if kid is None or key.kid == kid]

    def again(self) -> "Future[None]":
        """Request another read, as soon as the pause allows; the future is done after it, even if it failed."""
        with self._bell:
            if self._wanted is None:
                self._wanted = Future()
                self._bell.notify()
            wanted = self._wanted
            if self._closed:
                self._wanted = None
                wanted.set_result(None)
            return wanted

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        due_s = time.monotonic() if self.keys is None else time.monotonic() + self._refresh_s
        while True:
            with self._bell:
                while not self._closed and (left_s := self._left_s(due_s)) > 0:
                    self._bell.wait(left_s)
                wanted, self._wanted = self._wanted, None
            if not self._closed:
                read = self._read()
                now_s = time.monotonic()
                due_s = now_s + (self._refresh_s if read else self._pause_s)
            if wanted is not None:
                wanted.set_result(None)
            if self._closed:
                return

    def _left_s(self, due_s: float) -> float:
        when_s = due_s if self._wanted is None else min(due_s, self._not_before_s)
        return min(when_s - time.monotonic(), threading.TIMEOUT_MAX)

    def _read(self) -> bool:
        """Read the keys once. True if that succeeded."""
        before = self.keys
        try:
            self.load()
        except (web.WebError, ValueError) as problem:
            if not self._failing:  # log once, not after each pause
                left = "no client can log in by a token" if before is None else "the present keys stay"
                event(log, logging.ERROR, "token keys not read", url=self.url, reason=problem, until_then=left)
            self._failing = True
        else:
            if self._failing:
                event(log, logging.INFO, "token keys read again", url=self.url)
            self._failing = False
        news = not self._failing and {k.kid for k in before or ()} != {k.kid for k in self.keys or ()}
        self._not_before_s = time.monotonic() + self._pause_s
        self._pause_s = self._backoff_s if news else min(2 * self._pause_s, self._backoff_max_s)
        return not self._failing
