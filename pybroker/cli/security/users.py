"""`pybroker users`: list, set and remove the passwords with which users log in by SCRAM."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import click
from click.core import ParameterSource

from pybroker.cli import file_permissions, output
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Misuse, Whole
from pybroker.cli.options import F, admin_of, answering, cluster_options, delete_each, say, warn_of_type
from pybroker.cli.zookeeper.options import config_of, zookeeper_options
from pybroker.client.admin import Admin
from pybroker.errors import RESOURCE_NOT_FOUND
from pybroker.security.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN

if TYPE_CHECKING:
    from pybroker.cli.zookeeper.users import ZooKeeperUsers

PASSWORD_VARIABLE = "PYBROKER_USER_PASSWORD"
STAYS = "connections that are open go on until their login ends; ACLs and quotas stay, if there are any"


@click.group(name="users")
def command() -> None:
    """List, set and remove the passwords by which users log in by SCRAM, of any broker that speaks Kafka's protocol.

    With --zookeeper, or --config and a broker's file, change the cluster's store itself, also before the first broker
    starts.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """


def _where(function: F) -> F:
    return cluster_options(zookeeper_options(function))


def _admin(bootstrap: str, timeout_s: float, zookeeper: str | None, file: str | None) -> "Admin | ZooKeeperUsers":
    """Return the admin client of a broker or of ZooKeeper. Misuse for both."""
    if zookeeper is None and file is None:
        return admin_of(bootstrap, timeout_s)
    if click.get_current_context().get_parameter_source("bootstrap_server") is ParameterSource.COMMANDLINE:
        raise Misuse("--bootstrap-server asks a broker, --zookeeper and --config ask ZooKeeper: leave one of them out")
    with importing():
        from pybroker.cli.zookeeper.users import ZooKeeperUsers

    is_given = click.get_current_context().get_parameter_source("timeout_s") is not ParameterSource.DEFAULT
    within = {"zookeeper.connection.timeout.ms": str(round(timeout_s * 1000))} if is_given else {}
    return ZooKeeperUsers(config_of(zookeeper, file, within, takes_etcd=True))


@command.command(name="list")
@_where
def list_users(bootstrap_server: str, timeout_s: float, as_json: bool, zookeeper: str | None, file: str | None) -> None:
    """List the users with a SCRAM password, and their mechanisms."""
    with _admin(bootstrap_server, timeout_s, zookeeper, file) as admin:
        found = admin.users()
    if as_json:
        output.as_json([{"user": user.name, "iterations": dict(user.iterations)} for user in found])
        return
    rows = [(u.name, *(u.iterations.get(mechanism) for mechanism in HASHES)) for u in found]
    output.table(("user", *HASHES), rows)


@command.command(name="set")
@click.argument("user")
@click.option("--mechanism", "-m", "mechanisms", multiple=True, type=click.Choice(list(HASHES)),
              help="A mechanism; repeatable. Both, if none is given.")  # fmt: skip
@click.option("--iterations", type=Whole(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS_MIN,
              show_default=True, help="The iterations of the hash, which slow down guessing.")  # fmt: skip
@click.option("--password-file", type=click.File("r"), metavar="FILE",
              help="Read the password from the first line of FILE, - for standard input.")  # fmt: skip
@_where
def set_password(
    user: str,
    mechanisms: Sequence[str],
    iterations: int,
    password_file: TextIO | None,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
    zookeeper: str | None,
    file: str | None,
) -> None:
    """Let USER log in with a password: that of --password-file, of PYBROKER_USER_PASSWORD, or of a prompt.

    It is never an argument, which every user of this machine could read. The broker gets a salted hash of it, with
    which an eavesdropper could log in.
    """
    warn_of_type(user)
    password = _password(password_file)
    with _admin(bootstrap_server, timeout_s, zookeeper, file) as admin:
        admin.set_password(user, password, mechanisms or tuple(HASHES), iterations)
    document = {"user": user, "mechanisms": list(mechanisms or HASHES), "iterations": iterations}
    say(as_json, document, f"User {user} can log in by {' and '.join(mechanisms or HASHES)}.")


def _password(file: TextIO | None) -> str:
    if file is not None:
        file_permissions.warn(file.name, "a password")
        place = "the first line of --password-file"
        try:
            password = file.readline().rstrip("\r\n")
        except UnicodeDecodeError:
            raise Misuse("the password of --password-file is not UTF-8") from None
    elif PASSWORD_VARIABLE in os.environ:
        place, password = PASSWORD_VARIABLE, os.environ[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        place = "the prompt"
        with answering("no password was set", Failure("no password was set: the input has ended")):
            password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise Misuse(f"no password is given: use --password-file FILE, or set {PASSWORD_VARIABLE}")
    if not password:
        raise Misuse(f"the password from {place} is empty")
    return password


@command.command(name="remove")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@click.option("--if-exists", is_flag=True, help="A user who cannot log in is no failure.")
@_where
def remove(
    users: Sequence[str],
    if_exists: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
    zookeeper: str | None,
    file: str | None,
) -> None:
    """Remove the passwords of USERs. A client that is logged in stays so until its login or connection ends."""
    with _admin(bootstrap_server, timeout_s, zookeeper, file) as admin:
        deleted = delete_each("user", users, admin.remove_password, RESOURCE_NOT_FOUND if if_exists else None, as_json)
    if deleted:
        click.echo(f"pybroker: {STAYS}", err=True)
