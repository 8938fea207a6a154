"""`pybroker console`: a cluster in the browser."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pybroker import extras
from pybroker.cli import profiles
from pybroker.cli.file_permissions import check_owned
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Misuse, Whole
from pybroker.cli.options import address_options, admin_of
from pybroker.errors import KafkaError, system_words

if TYPE_CHECKING:
    from pybroker.avro.writer_schemas import WriterSchemas

LOOPBACK: Final = "127.0.0.1"
PORT_DEFAULT: Final = 8080
PASSWORD_CHARACTERS_MIN: Final = 8
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@click.command(name="console")
@click.option("--host", default=LOOPBACK, show_default=True,
              help="The address to listen on. Another one than this machine's own needs a login.")  # fmt: skip
@click.option("--port", type=Whole(0, 65535), default=PORT_DEFAULT, show_default=True,
              help="The port to listen on; 0: any free port.")  # fmt: skip
@click.option("--user", metavar="NAME", help="Ask viewers for this name and the password of --password-file.")
@click.option("--password-file", metavar="FILE", type=click.Path(dir_okay=False),
              help="A file with the password of --user, which only you can read.")  # fmt: skip
@click.option("--cluster-login", is_flag=True,
              help="Ask viewers for their own user and password of the cluster: each has the rights of that user.")
@click.option("--host-name", "host_names", multiple=True, metavar="NAME",
              help="A name by which browsers may reach the console, beside addresses and localhost; repeatable.")
@click.option("--tls-certificate", metavar="FILE", type=click.Path(dir_okay=False),
              help="Serve HTTPS with this certificate (PEM), followed by those that issued it.")  # fmt: skip
@click.option("--tls-key", metavar="FILE", type=click.Path(dir_okay=False),
              help="The private key (PEM) of --tls-certificate, which only you can read.")  # fmt: skip
@click.option("--registry", metavar="URL,...", help="The schema registry for the ids in Avro's frames.")
@click.option("--registry-config", metavar="FILE", help="The registry's login and CA, as for `pybroker read`.")
@click.option("--allow-changes", is_flag=True, help="Let viewers change what their user may change; read-only else.")
@address_options
def command(
    host: str, port: int, user: str | None, password_file: str | None, cluster_login: bool,
    host_names: tuple[str, ...], tls_certificate: str | None, tls_key: str | None, registry: str | None,
    registry_config: str | None, allow_changes: bool, bootstrap_server: str, timeout_s: float,
) -> None:  # fmt: skip
    """Show a cluster in the browser: its health, topics and their records, brokers, groups.

    As soon as the console serves, it prints its address. It reads from the cluster as a client, with the login of the
    profile or of --command-config, of any broker that speaks Kafka's protocol. It ends with SIGTERM or Ctrl-C.

    Exit codes: 0 stopped; 1 the port is in use; 2 an option is wrong.
    """
    with importing():
        try:
            from pybroker.console import process
            from pybroker.console.settings import ConsoleSettings
        except ModuleNotFoundError as missing:
            raise Failure(f"the console needs {missing.name}: {extras.install('console')}") from missing
    login = _login(user, password_file, cluster_login)
    settings = ConsoleSettings(
        bootstrap_server, profiles.security(), timeout_s, host, port, user, login, cluster_login, allow_changes,
        host_names, tls_certificate, tls_key, _schemas(registry, registry_config),
    )  # fmt: skip
    _check_tls(tls_certificate, tls_key)
    if not (settings.on_loopback or settings.needs_login):
        raise Misuse(
            f"--host {host} is reached by other machines: give --user and --password-file, or --cluster-login"
        )
    if cluster_login:
        _check_sasl(settings.login)
    else:
        admin_of(bootstrap_server, timeout_s).close()  # Misuse if the login contradicts itself
    try:
        process.run(settings, _say_ready)
    except OSError as error:
        raise Failure(f"could not listen on {host}:{port}: {system_words(error)}") from error


def _say_ready(address: str) -> None:
    click.echo(f"pybroker console on {address}")


def _login(user: str | None, file: str | None, cluster_login: bool) -> str:
    """Return the password of --user; empty without one. Misuse if options contradict each other."""
    if cluster_login and (user is not None or file is not None):
        raise click.UsageError("--cluster-login excludes --user and --password-file: the cluster checks passwords")
    if (user is None) != (file is None):
        raise click.UsageError("--user and --password-file need each other")
    if file is None:
        return ""
    try:
        check_owned(file, "a password")
        password = Path(file).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        words = system_words(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Misuse(f"the password file {file} cannot be read: {words}") from error
    if len(password) < PASSWORD_CHARACTERS_MIN:
        least = PASSWORD_CHARACTERS_MIN
        raise Misuse(f"the password in {file} has {len(password)} characters: give it {least} or more")
    return password


def _schemas(registry: str | None, file: str | None) -> "WriterSchemas | None":
    """Return the schemas of a registry; None without one. Misuse if it cannot be used."""
    if registry is None:
        if file is not None:
            raise click.UsageError("--registry-config needs --registry")
        return None
    with importing():
        from pybroker.avro.writer_schemas import writer_schemas
        from pybroker.cli.records.pipeline import read_registry_config
    if importlib.util.find_spec("fastavro") is None:
        raise Failure(f"--registry needs fastavro: {extras.install('schema-registry')}")
    try:
        made = writer_schemas(registry, read_registry_config(file))
    except KafkaError as error:
        raise Misuse(error.message) from error
    return None if made is None else dataclasses.replace(made, patience_s=0.0)  # a viewer waits


def _check_tls(certificate: str | None, key: str | None) -> None:
    """Misuse unless both files of TLS are given and belong together, or neither."""
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-certificate and --tls-key need each other")
    if certificate is None or key is None:
        return
    import ssl

    try:
        check_owned(key, "a private key")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError, too, is an OSError
        words = system_words(error) if isinstance(error, OSError) else str(error)
        raise Misuse(f"{certificate} and {key} cannot be used for TLS: {words}") from error


def _no_password() -> str:
    """Refuse a key with a password: OpenSSL would ask the terminal for it."""
    raise ValueError("the key has a password")


def _check_sasl(login: Mapping[str, str]) -> None:
    """Misuse unless the clients' settings say how a user logs in with a password."""
    mechanism = login.get("sasl_mechanism", "")
    if not login.get("security_protocol", "").startswith("SASL") or mechanism not in ("PLAIN", *SCRAM):
        raise Misuse(
            "--cluster-login needs security.protocol (SASL_SSL or SASL_PLAINTEXT) and sasl.mechanism (SCRAM-SHA-256,"
            " SCRAM-SHA-512 or PLAIN), in a profile or the file of --command-config"
        )

