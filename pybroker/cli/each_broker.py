"""Ask several brokers in parallel, with the login of the command."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import click

from pybroker.cli.options import admin_of
from pybroker.client.admin import Admin
from pybroker.client.net.metadata import Node
from pybroker.model import HostPort
from pybroker.operations import each_broker
from pybroker.operations.each_broker import Silent

__all__ = ["TELL_S_MAX", "Silent", "admin_at", "ask_each"]

TELL_S_MAX: Final = each_broker.ANSWER_S_MAX
T = TypeVar("T")


def ask_each(nodes: Sequence[Node], ask: Callable[[Node], T]) -> list[tuple[Node, T | Silent]]:
    """Ask brokers in parallel and return each answer, or why there is none. `ask` raises Silent, KafkaError."""
    return each_broker.ask_each(nodes, in_command(ask))


def in_command(ask: Callable[[Node], T]) -> Callable[[Node], T]:
    """Return `ask` for other threads: click's context holds the clients' login, and is local to this thread."""
    context = click.get_current_context(silent=True)

    def one(node: Node) -> T:
        with contextlib.nullcontext() if context is None else context.scope(cleanup=False):
            return ask(node)

    return one


def admin_at(node: Node, timeout_s: float = TELL_S_MAX) -> Admin:
    """Return an admin client for this broker alone, with a short timeout."""
    return admin_of(str(HostPort(node.host, node.port)), timeout_s)
