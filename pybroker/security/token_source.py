"""Where a client has its tokens from: a function of its caller's, a file, or a token endpoint that it shows its secret.

An endpoint's token (RFC 6749, client credentials) is used until most of its life is over, and then another is asked
for; one that cannot be had is not missed as long as the old one holds. Functions and files are asked each time.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

from pybroker import errors
from pybroker.errors import KafkaError

RENEW_AT: Final = 0.8
"""This part of an endpoint's token's life is it used, as Kafka has it (sasl.login.refresh.window.factor)."""
RESERVE_S: Final = 5.0
"""So long before its end a token is not shown any more, for a broker would take it hardly."""


class TokenSource:
    """Tokens of one account. Two with the same settings are equal. It goes to other processes without what it holds."""

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

    def __reduce__(self) -> Any:
        return TokenSource, self._settings

    def __repr__(self) -> str:
        return f"TokenSource({self.url or 'a function'!r})"

    def settings(self) -> tuple[str, str, str, str, Callable[[], str] | None]:
        """URL, client id, client secret, scope and provider, as they were given."""
        return self._settings

    def token(self) -> str:
        """One that is good now. Blocks. KafkaError, which says nothing of it or of a secret, where none can be had."""
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
        from pybroker.security import web  # few clients need what it stands on

        try:
            return web.read(self.url).decode("ascii").strip()
        except UnicodeDecodeError:
            raise self._lack(errors.SASL_AUTHENTICATION_FAILED, "it holds no token") from None
        except web.WebError as problem:
            raise self._lack(errors.SASL_AUTHENTICATION_FAILED, str(problem)) from None

    def _ask(self) -> None:
        """Have another token of the endpoint."""
        from pybroker.security import web

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
        return KafkaError(code, f"no token could be had from {self.url}: {why}")


def _provided(provider: Callable[[], object]) -> str:
    try:
        found = provider()
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # the program's own code; its words may hold a secret
        words = f"the function that provides tokens failed with {type(problem).__name__}"
        raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, words) from problem
    if not isinstance(found, str):
        words = f"the function that provides tokens gave {type(found).__name__} in place of text"
        raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, words)
    return found
