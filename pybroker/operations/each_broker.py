"""Ask several brokers in parallel, each for what it alone knows; a hanging broker does not delay the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pybroker.client.admin import Admin
from pybroker.client.net.metadata import Node
from pybroker.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT, KafkaError

ANSWER_S_MAX: Final = 2.0
AT_ONCE_MAX: Final = 32
AdminAt = Callable[[Node], Admin]
"""A function that returns an admin client for one broker alone, with a short timeout."""
T = TypeVar("T")


class Silent(Exception):
    """A broker did not answer the question; the text says why."""


class Unanswered(Silent):
    """The broker does not answer Kafka's protocol either."""


def ask_each(nodes: Sequence[Node], ask: Callable[[Node], T]) -> list[tuple[Node, T | Silent]]:
    """Ask brokers in parallel and return each answer, or why there is none. `ask` raises Silent, KafkaError."""

    def one(node: Node) -> T | Silent:
        try:
            return ask(node)
        except Silent as reason:
            return reason
        except KafkaError as problem:
            kind = Unanswered if problem.code in (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) else Silent
            return kind(problem.message)

    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        return list(zip(nodes, threads.map(one, nodes), strict=True))
