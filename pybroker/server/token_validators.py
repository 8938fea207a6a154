"""The tokens of OAUTHBEARER that the listeners of a broker take, and the keys that are read for them."""

import logging
from typing import TYPE_CHECKING

from pybroker.clock import wall_ms
from pybroker.config.oauth_settings import ANY_AUDIENCE, ANY_ISSUER, JWKS_URL, OAuth
from pybroker.config.security_settings import Sasl
from pybroker.logs import event
from pybroker.replication.logdirs import StartError

if TYPE_CHECKING:
    from pybroker.security.jwks import Jwks
    from pybroker.security.tokens import Validator

log = logging.getLogger(__name__)


class TokenValidators:
    """One for each listener with OAUTHBEARER; listeners with the same settings of keys share what is read."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, float, float, float], Jwks] = {}
        self._made: dict[str, Validator] = {}
        self._uses: dict[str, Jwks] = {}  # by listener

    def add(self, listener: str, sasl: Sasl) -> "Validator | None":
        """That of a listener, which comes; None without OAUTHBEARER. Raises StartError where keys in a file cannot be
        read. No keys are read from a web server before start()."""
        if sasl.oauth is None:
            self.drop(listener)
            return None
        self._uses.pop(listener, None)  # those of before, where it had others
        try:
            self._made[listener] = self._of(listener, sasl.oauth)
        finally:
            self._close_unused()
        return self._made[listener]

    def check(self, sasl: Sasl) -> None:
        """See that a listener could come to have these. Raises StartError where keys in a file cannot be read."""
        if sasl.oauth is not None and not sasl.oauth.unsecured:
            try:
                self._shared(sasl.oauth)
            finally:
                self._close_unused()

    def drop(self, listener: str) -> None:
        """It is gone: keys that no other listener needs are not read any more."""
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
        """None without OAUTHBEARER."""
        return self._made.get(listener)

    def start(self) -> None:
        """Begin to read keys, those that are not read yet."""
        for keys in self._keys.values():
            keys.start()

    def close(self) -> None:
        """Read keys no more."""
        for keys in self._keys.values():
            keys.close()

    def _of(self, listener: str, settings: OAuth) -> "Validator":
        from pybroker.security.tokens import SignedTokens, UnsecuredTokens  # PyJWT and cryptography are large

        if settings.unsecured:
            _warn(listener, "no signature of a token is checked: whoever connects is whoever they say they are")
            return UnsecuredTokens(settings, lambda: wall_ms() / 1000)
        if settings.jwks_url.startswith("http:"):
            _warn(listener, f"the keys of tokens come over a network unprotected: {JWKS_URL} is no https")
        for value, setting in ((settings.audience, ANY_AUDIENCE), (settings.issuer, ANY_ISSUER)):
            if value is None:
                _warn(listener, f"tokens that are not meant for this broker are taken: {setting}")
        keys = self._uses[listener] = self._shared(settings)
        return SignedTokens(settings, keys)

    def _shared(self, settings: OAuth) -> "Jwks":
        from pybroker.security.jwks import Jwks
        from pybroker.security.web import WebError

        key = settings.jwks_url, settings.refresh_s, settings.backoff_s, settings.backoff_max_s
        found = self._keys.get(key)
        if found is None:
            found = Jwks(*key)
            if settings.jwks_url.startswith("file:"):
                try:
                    found.load()
                except (WebError, ValueError) as problem:
                    raise StartError(f"{JWKS_URL} = {settings.jwks_url!r} is of no use: {problem}") from None
            self._keys[key] = found
        return found


def _warn(listener: str, reason: str) -> None:
    event(log, logging.WARNING, "listener with weak tokens", listener=listener, reason=reason)
