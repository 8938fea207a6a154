"""Options, questions and reports that the commands about a cluster share."""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pybroker.cli import output, profiles, secrets
from pybroker.cli.main import Failure, Misuse
from pybroker.cli.output import Document
from pybroker.cli.records.delimited import unescaped
from pybroker.client.admin import Admin
from pybroker.client.net.metadata import parse_bootstrap
from pybroker.config import ConfigError
from pybroker.errors import KafkaError
from pybroker.logs import printable

if TYPE_CHECKING:
    from pybroker.config.settings import Setting

BOOTSTRAP_DEFAULT: Final = "localhost:9092"
BOOTSTRAP_VARIABLE: Final = "PYBROKER_BOOTSTRAP_SERVER"
COMPLETION_S_MAX: Final = 1.0
"""Seconds that completion, after the tab key, waits for a broker."""

TYPE: Final = "User:"
WAIT_S_MAX: Final = 86_400.0

F = TypeVar("F", bound=Callable[..., object])


class Seconds(click.FloatRange):
    """The type of an option that is a time: refuses nan, which passes every range check."""

    name = "seconds"
    unit = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number of {self.unit}.", param, ctx) if math.isnan(number) else number


class Hours(Seconds):
    """A time in hours; see Seconds."""

    name = "hours"
    unit = "hours"


def _addresses(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    text = profiles.addresses(ctx, option, text)
    try:
        if text is not None:  # None while a shell asks for completions
            parse_bootstrap(text)
    except KafkaError as error:
        raise click.BadParameter(error.message) from error
    return text


def cluster_options(function: F) -> F:
    """Add the options of a command about a cluster, with --json."""
    return click.option("--json", "as_json", is_flag=True, help="Answer with a JSON document.")(
        address_options(function)
    )


def address_options(function: F) -> F:
    """Add the options for the cluster's address and the timeout."""
    wait = click.option("--timeout", "timeout_s", type=Seconds(0.1, WAIT_S_MAX), default=30.0, show_default=True,
                        metavar="SECONDS", help="How long to wait for the broker.")  # fmt: skip
    return bootstrap_option(wait(function))


def bootstrap_option(function: F) -> F:
    """Add the options for the cluster: by address, profile or file."""
    profile = click.option("--profile", metavar="NAME", envvar=profiles.VARIABLE, show_envvar=True, is_eager=True,
                           expose_value=False, callback=profiles.take, shell_complete=profiles.names,
                           help="The cluster and settings of a profile (docs/cli.md).")  # fmt: skip
    config = click.option("--command-config", metavar="FILE", type=click.Path(dir_okay=False), expose_value=False,
                          callback=profiles.take_file, is_eager=True,
                          help="A .properties file that says how to log in, as Kafka's tools read it.")  # fmt: skip
    return click.option("--bootstrap-server", "-b", default=BOOTSTRAP_DEFAULT, show_default=True,
                        metavar="HOST:PORT,...", envvar=BOOTSTRAP_VARIABLE, show_envvar=True, callback=_addresses,
                        help="Brokers of the cluster to begin with.")(profile(config(function)))  # fmt: skip


def admin_of(bootstrap: str, timeout_s: float) -> Admin:
    """Return an admin client that logs in as the options say. Misuse if they contradict each other."""
    try:
        return Admin(bootstrap, timeout_s=timeout_s, **profiles.security())
    except ConfigError as error:
        raise Misuse(profiles.dotted(error.message)) from error


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The topics whose names begin with the text, for the shell; empty unless a broker answers at once."""
    return _complete(ctx, incomplete, lambda admin: (topic.name for topic in admin.topics() if not topic.internal))


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The groups whose names begin with the text."""
    return _complete(ctx, incomplete, lambda admin: (group.id for group in admin.groups()))


def _complete(ctx: click.Context, incomplete: str, names: Callable[[Admin], Iterable[str]]) -> list[str]:
    bootstrap = ctx.params.get("bootstrap_server") or os.environ.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP_DEFAULT
    with contextlib.suppress(KafkaError, Misuse), admin_of(bootstrap, COMPLETION_S_MAX) as admin:
        return [name for name in names(admin) if name.startswith(incomplete)]
    return []


def ask(question: str, yes: bool, otherwise: str) -> None:
    """Ask a question unless `yes`. Failure for another answer than yes; `otherwise` says what did not happen then."""
    failure = Failure(f"{otherwise}: answer yes, or give --yes")
    with answering(otherwise, failure):
        if not (yes or click.confirm(question, err=True)):
            raise failure


@contextlib.contextmanager
def answering(otherwise: str, failure: Failure) -> Iterator[None]:
    """Raise KeyboardInterrupt with a sentence for Ctrl-C at a prompt of click, and `failure` for the end of input."""
    try:
        yield
    except click.Abort as abort:
        is_interrupt = isinstance(abort.__context__, KeyboardInterrupt)
        if not (is_interrupt and sys.stderr.isatty()):  # the main program ends the line on which ^C is shown
            click.echo(err=True)
        raise KeyboardInterrupt(f"interrupted: {otherwise}") if is_interrupt else failure from None


def delete_each(
    kind: str, names: Sequence[str], delete: Callable[[str], None], absent: int | None, as_json: bool
) -> list[str]:
    """Delete names one by one, and report which were deleted and which were missing; return the deleted ones. `absent`
    is the error code for a missing name, None if that is a failure. A failure names what was deleted before it."""
    deleted, missing = [], []
    for name in names:
        try:
            delete(name)
            deleted.append(name)
        except KafkaError as error:
            if error.code != absent:
                done = f" ({', '.join(deleted)}: deleted before that)" if deleted else ""
                raise KafkaError(error.code, error.message + done) from error
            missing.append(name)
    words = [f"Deleted {kind} {name}." for name in deleted]
    words += [f"{kind.capitalize()} {name} does not exist." for name in missing]
    say(as_json, {"deleted": deleted, "missing": missing}, "\n".join(words))
    return deleted


def name_value(text: str, option: str) -> tuple[str, str]:
    """Split NAME=VALUE, an argument of `option`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return name.strip(), value.strip()


def warn_of_type(user: str) -> None:
    """Warn about a user named with a principal's type, as in ACLs: the type is not part of the user's name."""
    if user.startswith(TYPE):
        words = f"users are named without {TYPE!r}: this one logs in as {user}, and is {TYPE}{user} in ACLs"
        click.echo(f"pybroker: warning: {printable(words)}", err=True)


def escaped(_: click.Context, __: click.Parameter, text: str | None) -> bytes | None:
    """Return the bytes of an option, with its escapes replaced."""
    try:
        return None if text is None else unescaped(os.fsencode(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def header(text: str) -> tuple[str, bytes]:
    """Split NAME=VALUE into a record header."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, os.fsencode(value)


def client_settings(texts: Sequence[str], kind: str, known: Mapping[str, "Setting"]) -> dict[str, str]:
    """Return a client's settings, given by Kafka's names, as its keyword arguments. Misuse names the setting as
    typed."""
    given = {}
    for name, value in (name_value(text, "--setting") for text in texts):
        found = known.get(name.replace(".", "_"))
        if found is None:
            import difflib

            near = difflib.get_close_matches(name, [each.replace("_", ".") for each in known], n=1)
            raise Misuse(f"{name!r} is no setting of a {kind}" + (f"; did you mean {near[0]}?" if near else ""))
        if found.sensitive:
            raise secrets.refused(name)
        try:
            found._replace(name=name).parse(value, "--setting")
        except KafkaError as error:
            raise Misuse(error.message) from error
        given[found.name] = value
    return given


def say(as_json: bool, document: Document, sentence: str) -> None:
    """Report what was done: a document for programs, a sentence for people."""
    if as_json:
        output.as_json(document)
    else:
        click.echo("\n".join(map(printable, sentence.split("\n"))))
