"""The validators of OAUTHBEARER tokens of a broker's listeners, and the keys that they read."""

import logging
from typing import TYPE_CHECKING

from pybroker.clock import wall_ms
from pybroker.config.oauth_settings import ANY_AUDIENCE, ANY_ISSUER, JWKS_URL, OAuth
from pybroker.config.security_settings import Sasl
from pybroker.errors import StartError
from pybroker.logs import event

if TYPE_CHECKING:
    from pybroker.security.oauth.jwks import Jwks
    from pybroker.security.oauth.tokens import Validator

log = logging.getLogger(__name__)


class TokenValidators:
    """The validators by listener; listeners with the same key settings share the keys."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, float, float, float], Jwks] = {}
        self._made: dict[str, Validator] = {}
        self._uses: dict[str, Jwks] = {}  # keys by listener

    def add(self, listener: str, sasl: Sasl) -> "Validator | None":
        """Create the validator of a listener; None without OAUTHBEARER. Keys from a web server are not read before
        start(). Raises StartError if keys in a file cannot be read."""
        if sasl.oauth is None:
            self.drop(listener)
            return None
        self._uses.pop(listener, None)  # keys of its earlier settings
        try:
            self._made[listener] = self._of(listener, sasl.oauth)
        finally:
            self._close_unused()
        return self._made[listener]

    def check(self, sasl: Sasl) -> None:
        """Check that a listener could use these settings. Raises StartError if keys in a file cannot be read."""
        if sasl.oauth is not None and not sasl.oauth.unsecured:
            try:
                self._shared(sasl.oauth)
            finally:
                self._close_unused()

    def drop(self, listener: str) -> None:
        """Remove a listener, and stop reading keys that no other listener needs."""
        self._made.pop(listener, None)
        self._uses.pop(listener, None)
        self._close_unused()

    def _close_unused(self) -> None:
        used = list(self._uses.values())
        for key, keys in list(self._keys.items()):
            if keys not in used:
                del self._keys[key]
                keys.close()

    def get(self, listener: str) -> "Validator | None":
        """The validator of a listener; None without OAUTHBEARER."""
        return self._made.get(listener)

    def start(self) -> None:
        """Begin to read keys that have not been read yet."""
        for keys in self._keys.values():
            keys.start()

    def read_again(self) -> int:
        """Request another read of all keys; return how many sets there are."""
        for keys in self._keys.values():
            keys.again()
        return len(self._keys)

    def close(self) -> None:
        """Stop reading keys."""
        for keys in self._keys.values():
            keys.close()

    def _of(self, listener: str, settings: OAuth) -> "Validator":
        from pybroker.security.oauth.tokens import SignedTokens, UnsecuredTokens  # PyJWT and cryptography are large

        if settings.unsecured:
            _warn(listener, "no signature of a token is checked: any client can claim to be any user")
            return UnsecuredTokens(settings, lambda: wall_ms() / 1000)
        if settings.jwks_url.startswith("http:"):
            _warn(listener, f"the token keys are fetched without TLS: use an https URL in {JWKS_URL}")
        for value, setting in ((settings.audience, ANY_AUDIENCE), (settings.issuer, ANY_ISSUER)):
            if value is None:
                _warn(listener, f"tokens for other services are accepted: {setting}")
        keys = self._uses[listener] = self._shared(settings)
        return SignedTokens(settings, keys)

    def _shared(self, settings: OAuth) -> "Jwks":
        from pybroker.security.oauth.jwks import Jwks
        from pybroker.security.oauth.web import WebError

        key = settings.jwks_url, settings.refresh_s, settings.backoff_s, settings.backoff_max_s
        found = self._keys.get(key)
        if found is None:
            found = Jwks(*key)
            if settings.jwks_url.startswith("file:"):
                try:
                    found.load()
                except (WebError, ValueError) as problem:
                    raise StartError(f"{JWKS_URL} = {settings.jwks_url!r} cannot be used: {problem}") from None
            self._keys[key] = found
        return found


def _warn(listener: str, reason: str) -> None:
    event(log, logging.WARNING, "listener with weak tokens", listener=listener, reason=reason)
