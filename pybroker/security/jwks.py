"""The keys by which tokens are signed: a JSON Web Key Set (RFC 7517), read again now and then on a thread of its own.

    read ──refresh.ms, or somebody wants a key that is not there──> read again ──> ...
                                        └──fails, or has it not──> a pause that doubles up to a limit

A set that cannot be read leaves the keys as they were. Only public keys for signatures count; each has the algorithms
that fit it, of RSA and elliptic curves, so that no token is checked by a public key as if that were a secret.
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
from pybroker.security import web

log = logging.getLogger(__name__)

KEYS_MAX: Final = 100
RSA_BITS: Final = range(2048, 8192 + 1)
_RSA: Final[tuple[str, ...]] = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC: Final[dict[Any, tuple[str, ...]]] = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
_OKP: Final[dict[Any, tuple[str, ...]]] = {"Ed25519": ("EdDSA",)}
ALGORITHMS: Final = frozenset(_RSA).union(*_EC.values(), *_OKP.values())
_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")
"""What there is to a public key; a set may give away more."""


class Key(NamedTuple):
    """A public key, its name, and the algorithms of signatures that it checks."""

    kid: str | None
    algorithms: tuple[str, ...]
    key: Any


def parse(data: bytes) -> tuple[Key, ...]:
    """The keys of a set that check signatures. ValueError where it is none, or has no such key."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    told = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
        raise ValueError("it is no JSON Web Key Set")
    if len(told) > KEYS_MAX:
        raise ValueError(f"it has {len(told)} keys; {KEYS_MAX} are allowed")
    keys = tuple(key for key in map(_key, told) if key is not None)
    if not keys:
        raise ValueError("it has no public key for signatures of RSA (2048 bits or more) or elliptic curves")
    return keys


def _key(told: Mapping[str, Any]) -> Key | None:
    """None for one that checks no signature of ours: another kind, another use, nonsense."""
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
    return Key(kid, fitting, key) if fitting else None


class Jwks:
    """The keys at one URL. Any thread may ask for them; they are read on a thread of their own."""

    def __init__(self, url: str, refresh_s: float, backoff_s: float, backoff_max_s: float) -> None:
        self.url = url
        self.keys: tuple[Key, ...] | None = None
        """None: none were read yet."""
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
        """Read them now, on this thread. Raises web.WebError or ValueError."""
        self.keys = parse(web.read(self.url))

    def start(self) -> None:
        """Read them, and again from time to time. Again does nothing."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="pybroker-jwks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read them no more; does not wait for a reading that is under way."""
        with self._bell:
            self._closed = True
            self._bell.notify()

    def find(self, kid: str | None, algorithm: str) -> list[Key]:
        """The keys that may have signed so; without a name, all that fit."""
        fitting = [key for key in self.keys or () if algorithm in key.algorithms]
        return [key for key in fitting if kid is None or key.kid == kid]

    def again(self) -> "Future[None]":
        """Have them read again as soon as that may be; done once they were, or could not be."""
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
        """Read them once; whether that went well."""
        before = self.keys
        try:
            self.load()
        except (web.WebError, ValueError) as problem:
            if not self._failing:  # once, and not again at each pause
                left = "nobody can log in by a token" if before is None else "the keys stay as they were"
                event(log, logging.ERROR, "keys of tokens not read", url=self.url, reason=problem, until_then=left)
            self._failing = True
        else:
            if self._failing:
                event(log, logging.INFO, "keys of tokens read again", url=self.url)
            self._failing = False
        news = not self._failing and {k.kid for k in before or ()} != {k.kid for k in self.keys or ()}
        self._not_before_s = time.monotonic() + self._pause_s
        self._pause_s = self._backoff_s if news else min(2 * self._pause_s, self._backoff_max_s)
        return not self._failing
