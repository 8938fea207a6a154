"""Gets a client's OAUTHBEARER tokens from the caller's function, a file, or a token endpoint.

A token from an endpoint (RFC 6749, client credentials) is used until RENEW_AT of its lifetime, then another is
requested. If that fails, the old token is used until it expires. Functions and files are read each time.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode

from pybroker import errors
from pybroker.errors import KafkaError

RENEW_AT: Final = 0.8
"""The share of its lifetime after which a token is renewed (Kafka's sasl.login.refresh.window.factor)."""
RESERVE_S: Final = 5.0
"""Seconds before its expiry from which a token is no longer used, as a broker may refuse it."""


class TokenSource:
    """Tokens of one account. Sources with equal settings are equal. A pickled source has no token."""

    def __init__(
        self,
        url: str = "",
        client_id: str = "",
        client_secret: str = "",
        scope: str = "",
        provider: Callable[[], str] | None = None,
    ) -> None:
        """`url`: of a file, or of a token endpoint; empty with a `provider`."""
        self._settings = url, client_id, client_secret, scope, provider
        self.url = url
        self._lock = threading.Lock()
        self._held = ""
        self._renew_s = self._expires_s = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenSource) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    def __reduce__(self) -> tuple[object, ...]:
        return TokenSource, self._settings

    def __repr__(self) -> str:
        return f"TokenSource({self.url or 'a function'!r})"

    def settings(self) -> tuple[str, str, str, str, Callable[[], str] | None]:
        """The URL, client id, client secret, scope and provider, as given."""
        return self._settings

    def token(self) -> str:
        """A valid token. Blocks. Raises KafkaError if there is none; its message has no token or secret."""
        provider = self._settings[4]
        if provider is not None:
            return _provided(provider)
        if self.url.startswith("file:"):
            return self._of_file()
        with self._lock:
            if not self._held or time.time() >= self._renew_s:
                try:
                    self._ask()
                except KafkaError:
                    if time.time() >= self._expires_s - RESERVE_S:
                        raise
            return self._held

    def _of_file(self) -> str:
        from pybroker.security.oauth import web  # few clients need its dependencies

        try:
            return web.read(self.url).decode("ascii").strip()
        except UnicodeDecodeError:
            raise self._lack(errors.SASL_AUTHENTICATION_FAILED, "the file holds no token") from None
        except web.WebError as problem:
            raise self._lack(errors.SASL_AUTHENTICATION_FAILED, str(problem)) from None

    def _ask(self) -> None:
        """Request a token from the endpoint."""
        from pybroker.security.oauth import web

        url, client_id, client_secret, scope, _ = self._settings
        form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        basic = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        try:
            answer = json.loads(web.read(url, form=urlencode(form), headers={"Authorization": f"Basic {basic}"}))
        except web.WebError as problem:
            code = errors.SASL_AUTHENTICATION_FAILED if problem.refused else errors.NETWORK_EXCEPTION
            raise self._lack(code, str(problem)) from None
        except (ValueError, RecursionError):
            answer = None
        found = answer.get("access_token") if isinstance(answer, dict) else None
        lives_s = answer.get("expires_in", 0) if isinstance(answer, dict) else 0
        if not isinstance(found, str):
            raise self._lack(errors.SASL_AUTHENTICATION_FAILED, "its answer has no access_token")
        if isinstance(lives_s, bool) or not isinstance(lives_s, int | float) or not 0 < lives_s < 1e9:
            lives_s = 0
        now_s = time.time()
        self._held, self._renew_s, self._expires_s = found, now_s + RENEW_AT * lives_s, now_s + lives_s

    def _lack(self, code: int, why: str) -> KafkaError:
        return KafkaError(code, f"no token from {self.url}: {why}")


def _provided(provider: Callable[[], object]) -> str:
    try:
        found = provider()
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # the program's own code; its message may hold a secret
        words = f"the function that provides tokens failed with {type(problem).__name__}"
        raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, words) from problem
    if not isinstance(found, str):
        words = f"the function that provides tokens returned {type(found).__name__} instead of str"
        raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, words)
    return found
