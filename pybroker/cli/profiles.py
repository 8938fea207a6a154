"""Profiles: a cluster's address and its clients' settings, under a name, in a file.

    [profiles.production]
    bootstrap.servers = "b1.example.org:9092,b2.example.org:9092"
    client.id = "ops"
    compression.type = "zstd"

The file is TOML, at $PYBROKER_CONFIG or ~/.config/pybroker/config.toml ($XDG_CONFIG_HOME). Names are Kafka's. Every
command about a cluster uses the profile's bootstrap.servers and login (security.protocol, sasl.*); `produce` and
`consume` use its other settings too. The command line overrides the profile, and a named profile overrides
PYBROKER_BOOTSTRAP_SERVER. The file of --command-config is a .properties file, as for Kafka's tools.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import click
from click.core import ParameterSource

from pybroker.cli.file_permissions import check_owned, warn_of_keys
from pybroker.cli.main import Misuse
from pybroker.cli.output import Document, Options
from pybroker.config import ConfigError
from pybroker.config.broker import read_properties
from pybroker.errors import KafkaError, system_words
from pybroker.model import PLAINTEXT

FILE_VARIABLE: Final = "PYBROKER_CONFIG"
PASSWORD_VARIABLE: Final = "PYBROKER_SASL_PASSWORD"
COMMAND_CONFIG: Final = "--command-config"
JAAS: Final = "sasl.jaas.config"
VARIABLE: Final = "PYBROKER_PROFILE"
ADDRESSES: Final = "bootstrap_servers"
_SECRET: Final = re.compile(
    r"password|secret|token(?!\.endpoint\.url)|jaas|ssl[._]keystore[._]key$", re.IGNORECASE
)
_META: Final = "pybroker.profile"
_FILE: Final = "pybroker.command-config"


class Profile(NamedTuple):
    """A profile as its file has it: {setting by Kafka's name: text}."""

    name: str
    file: str
    settings: Mapping[str, str]

    def of(self, known: Options) -> dict[str, str]:
        """Return the settings among `known`, without the addresses, as a client's keyword arguments."""
        named = {name.replace(".", "_"): text for name, text in self.settings.items()}
        return {name: text for name, text in named.items() if name in known and name != ADDRESSES}


def path() -> str:
    """The path of the file of profiles; the file may not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.environ.get(FILE_VARIABLE) or os.path.join(home, "pybroker", "config.toml")


def load(name: str) -> Profile:
    """Return the profile of this name. Misuse if it is missing or cannot be used."""
    file = path()
    profiles = _read(file)
    if name not in profiles:
        known = f"it has {', '.join(sorted(profiles))}" if profiles else "it has none"
        raise Misuse(f"{file} has no profile {name!r}: {known}")
    profile = Profile(name, file, dict(_flat(profiles[name], "", f"profile {name} ({file})")))
    _check_secrets(profile)
    _check_settings(profile)
    return profile


def _read(file: str) -> Options:
    try:
        with open(file, "rb") as lines:
            document = tomllib.load(lines)
    except OSError as error:
        raise Misuse(f"the file of profiles {file} cannot be read: {system_words(error)}") from None
    except ValueError as error:  # TOML's or UTF-8's error
        raise Misuse(f"the file of profiles {file} is not TOML: {error}") from None
    profiles = document.get("profiles", {})
    if not isinstance(profiles, dict) or not all(isinstance(each, dict) for each in profiles.values()):
        raise Misuse(f"{file} has 'profiles' that is not a table of tables such as [profiles.production]")
    return profiles


def _flat(table: Options, prefix: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each setting: TOML parses the dots of an unquoted name as nested tables."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.", where)
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            yield name, ",".join(value)
        elif isinstance(value, str | int | float):
            yield name, str(value)
        else:
            raise Misuse(f"{where}: {name} must be text, a number, true, false or a list of texts")


def _check_secrets(profile: Profile) -> None:
    """Check that only the owner can read a file with a secret, as ssh does; only warn about a private key."""
    warn_of_keys(profile.settings.items())
    for name in filter(_SECRET.search, profile.settings):
        check_owned(profile.file, name)


def _check_settings(profile: Profile) -> None:
    """Check that every name is a client's setting, with a valid value."""
    from pybroker.client.security.settings import unknown
    from pybroker.client.settings import CONSUMER, PRODUCER

    known = {**PRODUCER, **CONSUMER}
    for name, text in profile.settings.items():
        where = profile.file if profile.name == COMMAND_CONFIG else f"profile {profile.name} ({profile.file})"
        found = known.get(name.replace(".", "_"))
        if found is None:
            raise Misuse(f"{where}: {dotted(unknown('client', known, name))}")
        try:
            found._replace(name=name).parse(text, where)
        except KafkaError as error:
            raise Misuse(error.message) from error


# -- in a command -----------------------------------------------------------------------------------------------------


def take(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    """Load the profile: the callback of --profile, which runs before other options."""
    if name is not None:
        ctx.meta[_META] = load(name)


def take_file(ctx: click.Context, _: click.Parameter, file: str | None) -> None:
    """Load the file of --command-config, as in Kafka's tools; its settings override a profile's."""
    if file is None:
        return
    try:
        told = {name: text for name, text, _ in read_properties(file)}
    except ConfigError as error:
        raise Misuse(error.message) from error
    made = Profile(COMMAND_CONFIG, file, told)
    _check_secrets(made)
    made = made._replace(settings=_without_jaas(told, file))
    _check_settings(made)
    ctx.meta[_FILE] = made


def dotted(sentence: str) -> str:
    """Return a client's sentence with the settings' underscores as dots, as in files."""
    from pybroker.client.security.token_settings import PROVIDER
    from pybroker.client.settings import CONSUMER, PRODUCER

    def written(name: re.Match[str]) -> str:
        known = name[0] in PRODUCER or name[0] in CONSUMER
        return name[0].replace("_", ".") if known and name[0] != PROVIDER else name[0]

    return re.sub(r"\b[a-z_]+\b", written, sentence)


def _told(ctx: click.Context | None) -> Profile | None:
    """The settings of the profile and the file together."""
    if ctx is None:
        return None
    profile: Profile | None = ctx.meta.get(_META)
    file: Profile | None = ctx.meta.get(_FILE)
    if profile is None or file is None:
        return profile or file
    return profile._replace(settings={**profile.settings, **file.settings})


def _without_jaas(settings: Mapping[str, str], file: str) -> Mapping[str, str]:
    """Return the settings with those inside Kafka's sasl.jaas.config as settings of their own."""
    text = settings.get(JAAS)
    if text is None:
        return settings
    from pybroker.client.security.settings import of_jaas

    try:
        told = of_jaas(text)
    except ValueError as problem:
        raise Misuse(f"{JAAS} ({file}) is not allowed: {problem}") from None
    rest = {name: value for name, value in settings.items() if name != JAAS}
    return rest | told


def security() -> dict[str, str]:
    """The login settings of the profile or of --command-config; the password may be in the environment instead."""
    from pybroker.client.security.settings import SECURITY
    from pybroker.client.security.token_settings import CLIENT_SECRET
    from pybroker.config.oauth_settings import OAUTHBEARER

    profile = _told(click.get_current_context(silent=True))
    told = {} if profile is None else profile.of(SECURITY)
    password = os.environ.get(PASSWORD_VARIABLE)
    if told.get("security_protocol", PLAINTEXT).startswith("SASL") and password is not None:
        if not password:
            raise Misuse(f"the password of {PASSWORD_VARIABLE} is empty: set it, or unset the variable")
        told[CLIENT_SECRET if told.get("sasl_mechanism") == OAUTHBEARER else "sasl_password"] = password
    return told


def names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The profiles whose names begin with the text, for the shell."""
    try:
        return [name for name in _read(path()) if name.startswith(incomplete)]
    except Misuse:
        return []


def addresses(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Return the cluster's address: as typed, else the profile's, else `text`, from the environment or the default."""
    profile = _told(ctx)
    assert option.name is not None
    if profile is None or ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
        return text
    return next((told for name, told in profile.settings.items() if name.replace(".", "_") == ADDRESSES), text)


def merged(settings: Options, options: Mapping[str, str | None], known: Options) -> Document:
    """Return a command's client settings, with the profile's values where none was typed. `options` maps a setting to
    the option that sets it; None if the command itself sets it."""
    ctx = click.get_current_context()
    profile = _told(ctx)
    told = {} if profile is None else profile.of(known)
    for name, option in options.items():
        if option is None or ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            told.pop(name, None)
    return {**settings, **told, **security()}
