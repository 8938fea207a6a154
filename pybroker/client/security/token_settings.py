"""The settings by which a client has tokens for OAUTHBEARER, by Kafka's names (KIP-768, KIP-1139), and a function."""

from collections.abc import Mapping
from typing import Final

from pybroker.config.oauth_settings import is_url
from pybroker.config.settings import ConfigError, Setting, Type, table
from pybroker.security.oauth.token_source import TokenSource

PROVIDER: Final = "sasl_oauth_token_provider"
URL: Final = "sasl_oauthbearer_token_endpoint_url"
CLIENT_ID: Final = "sasl_oauthbearer_client_credentials_client_id"
CLIENT_SECRET: Final = "sasl_oauthbearer_client_credentials_client_secret"
SCOPE: Final = "sasl_oauthbearer_scope"

TOKENS: Final = table(
    Setting(URL, Type.STRING, None, "A token endpoint, https://host/path, or a file with a token, file:///path."),
    Setting(CLIENT_ID, Type.STRING, None, "The client id at the token endpoint."),
    Setting(CLIENT_SECRET, Type.PASSWORD, None, "The secret by which the endpoint knows this client."),
    Setting(SCOPE, Type.STRING, None, "The scope that the endpoint is asked for."),
    Setting(PROVIDER, Type.CLASS, None, "A function without arguments, in Python, whose result is a token each time."),
)
JAAS_OPTIONS: Final = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": SCOPE}
"""Options of Kafka's login module with the same meaning."""


def source_of(given: Mapping[str, object]) -> TokenSource:
    """The source of tokens in these settings. Raises ConfigError."""
    provider, url = given.get(PROVIDER), given.get(URL)
    if provider is not None:
        if not callable(provider):
            raise ConfigError(f"{PROVIDER} is a function of Python, and no text")
        for name in (name for name in TOKENS if name != PROVIDER and given.get(name) is not None):
            raise ConfigError(f"{name} is given, but {PROVIDER} provides the tokens")
        return TokenSource(provider=provider)
    if url is None:
        raise ConfigError(f"sasl_mechanism is OAUTHBEARER, and neither {URL} nor {PROVIDER} is given")
    if not is_url(str(url)):
        raise ConfigError(f"{URL} is not allowed: it takes https://host/path, http:// or file:///path")
    if str(url).startswith("file:"):
        return TokenSource(str(url))
    for name in (name for name in (CLIENT_ID, CLIENT_SECRET) if not given.get(name)):
        raise ConfigError(f"{URL} is a token endpoint, and {name} is not given")
    return TokenSource(str(url), str(given[CLIENT_ID]), str(given[CLIENT_SECRET]), str(given.get(SCOPE) or ""))


def as_settings(source: TokenSource) -> dict[str, object]:
    """The keyword arguments of a client for this source."""
    said = zip((URL, CLIENT_ID, CLIENT_SECRET, SCOPE, PROVIDER), source.settings(), strict=True)
    return {name: value for name, value in said if value}
