"""Ask several brokers in parallel, each for what it alone knows; a hanging broker does not delay the others."""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import click

from pybroker.cli.options import admin_of
from pybroker.client.admin import Admin
from pybroker.client.net.metadata import Node
from pybroker.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT, KafkaError
from pybroker.model import HostPort

TELL_S_MAX: Final = 2.0
AT_ONCE_MAX: Final = 32
T = TypeVar("T")


class Silent(Exception):
    """A broker did not answer the question; the text says why."""


class Unanswered(Silent):
    """The broker does not answer Kafka's protocol either."""


def ask_each(nodes: Sequence[Node], ask: Callable[[Node], T]) -> list[tuple[Node, T | Silent]]:
    """Ask brokers in parallel and return each answer, or why there is none. `ask` raises Silent, KafkaError."""

    context = click.get_current_context(silent=True)  # it holds the clients' login, and is local to this thread

    def one(node: Node) -> T | Silent:
        try:
            with contextlib.nullcontext() if context is None else context.scope(cleanup=False):
                return ask(node)
        except Silent as reason:
            return reason
        except KafkaError as problem:
            kind = Unanswered if problem.code in (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) else Silent
            return kind(problem.message)

    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        return list(zip(nodes, threads.map(one, nodes), strict=True))


def admin_at(node: Node, timeout_s: float = TELL_S_MAX) -> Admin:
    """Return an admin client for this broker alone, with a short timeout."""
    return admin_of(str(HostPort(node.host, node.port)), timeout_s)
