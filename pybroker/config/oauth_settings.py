"""The settings of OAUTHBEARER on a broker: accepted tokens, and keys to verify them. Names and defaults are Kafka's.

A listener can override them: listener.name.clients.sasl.oauthbearer.jwks.endpoint.url, with or without `oauthbearer.`
after the listener's name, as in Kafka.
"""

from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from .settings import ConfigError, Range, Setting, Type, Value, table

OAUTHBEARER: Final = "OAUTHBEARER"
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
AUDIENCE: Final = "sasl.oauthbearer.expected.audience"
ISSUER: Final = "sasl.oauthbearer.expected.issuer"
ANY_AUDIENCE: Final = "sasl.oauthbearer.accept.any.audience"
ANY_ISSUER: Final = "sasl.oauthbearer.accept.any.issuer"
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
HANDLER: Final = "sasl.server.callback.handler.class"

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
SECURE: Final = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
UNSECURED: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"

OAUTH: Final = table(
    Setting(
        JWKS_URL,
        Type.STRING,
        None,
        "The URL of the keys to verify tokens, a JSON Web Key Set: file:///path, https://host/path, or http. Redirects "
        "are not followed.",
    ),
    Setting(
        ALLOWED_URLS,
        Type.LIST,
        "",
        "The URLs allowed for sasl.oauthbearer.jwks.endpoint.url; they must match exactly. In Kafka this is a system "
        "property.",
    ),
    Setting(
        AUDIENCE,
        Type.LIST,
        None,
        "A token must be for one of these (its claim aud). Without it a broker with OAUTHBEARER does not start.",
    ),
    Setting(
        ISSUER,
        Type.STRING,
        None,
        "A token must be of this issuer (its claim iss). Without it a broker with OAUTHBEARER does not start.",
    ),
    Setting(
        ANY_AUDIENCE,
        Type.BOOLEAN,
        "false",
        "Accept tokens for any audience: sasl.oauthbearer.expected.audience need not be set. Then another service that "
        "gets a user's token can log in at this broker with it.",
    ),
    Setting(
        ANY_ISSUER,
        Type.BOOLEAN,
        "false",
        "Accept tokens of any issuer, if signed with a known key: sasl.oauthbearer.expected.issuer need not be set.",
    ),
    Setting(
        TOKEN_URL,
        Type.STRING,
        None,
        "The source of the tokens with which this broker logs in at others, if brokers use OAUTHBEARER: a token "
        "endpoint, or a file:///path. The client id and secret are set in "
        "listener.name.brokers.oauthbearer.sasl.jaas.config (clientId, clientSecret, scope).",
    ),
    Setting("sasl.oauthbearer.sub.claim.name", Type.STRING, "sub", "The claim of a token that names its user."),
    Setting(
        "sasl.oauthbearer.scope.claim.name",
        Type.STRING,
        "scope",
        "The optional claim of a token with its scope: a text or a list of texts.",
    ),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds",
        Type.INT,
        "30",
        "Seconds by which the clock of the token issuer may differ.",
        Range(0, 3600),
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        Type.LONG,
        "3600000",
        "How often the keys are read again. A token with an unknown key id causes a read at once.",
        Range(1000),
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        Type.LONG,
        "100",
        "The first pause before keys are read again after a failure or an unknown key id; further pauses double.",
        Range(1),
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        Type.LONG,
        "10000",
        "The longest such pause.",
        Range(1),
    ),
)


class OwnTokens(NamedTuple):
    """The source of the tokens with which a broker logs in at others."""

    url: str
    scope: str = ""


class OAuth(NamedTuple):
    """The tokens that a listener accepts. `audience` or `issuer` None: any."""

    jwks_url: str
    """Empty: unsigned tokens."""
    audience: tuple[str, ...] | None
    issuer: str | None
    sub_claim: str
    scope_claim: str
    skew_s: int
    refresh_s: float
    backoff_s: float
    backoff_max_s: float

    @property
    def unsecured(self) -> bool:
        return not self.jwks_url


def oauth_of(listener: str, value: Callable[[str], Value], handler: str | None) -> OAuth:
    """The OAUTHBEARER settings of a listener. `value` returns the value of a setting, with the listener's overrides;
    `handler` is the value of sasl.server.callback.handler.class. Raises ConfigError."""
    if handler is not None and handler not in (*SECURE, UNSECURED):
        raise ConfigError(
            f"{HANDLER} of the listener {listener} is not allowed: it takes {SECURE[0]}, or for tests {UNSECURED}"
        )
    url, audience, issuer = value(JWKS_URL), value(AUDIENCE), value(ISSUER)
    if handler == UNSECURED:
        url = ""
    elif not url:
        words = f"the listener {listener} has OAUTHBEARER, but no keys to verify tokens"
        raise ConfigError(f"{JWKS_URL} is not set: {words}")
    else:
        _check_url(str(url), value(ALLOWED_URLS))
        for name, expected, unchecked in ((AUDIENCE, audience, ANY_AUDIENCE), (ISSUER, issuer, ANY_ISSUER)):
            if not expected and value(unchecked) is not True:
                raise ConfigError(
                    f"{name} is not set: the listener {listener} would accept tokens for other services; "
                    f"set it, or {unchecked}=true"
                )
    assert audience is None or isinstance(audience, tuple)

    def number(name: str) -> float:
        found = value(name)
        assert isinstance(found, int | float)
        return found

    return OAuth(
        str(url),
        audience or None,
        None if not issuer else str(issuer),
        str(value("sasl.oauthbearer.sub.claim.name")),
        str(value("sasl.oauthbearer.scope.claim.name")),
        int(number("sasl.oauthbearer.clock.skew.seconds")),
        number("sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000,
        number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms") / 1000,
        number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms") / 1000,
    )


def _check_url(url: str, allowed: Value) -> None:
    """Raise ConfigError for a URL that is not in the allowed list, or has an unsupported form."""
    if not is_url(url):
        raise ConfigError(f"{JWKS_URL} = {url!r} is not allowed: it takes file:///path, https://host/path or http://")
    assert isinstance(allowed, tuple)
    if url not in allowed:
        raise ConfigError(f"{JWKS_URL} = {url!r} is not allowed: add it to {ALLOWED_URLS}")


def is_url(url: str) -> bool:
    """True for the URL of a local file or of a web server, without a password in it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if not url.isprintable() or " " in url or parts.fragment:
        return False
    if parts.scheme == "file":
        return not parts.netloc and parts.path.startswith("/")
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
