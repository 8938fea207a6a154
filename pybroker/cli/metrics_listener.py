"""What a broker tells over HTTP, at its metrics.listener."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final, TypeVar
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from pybroker.client.admin import Admin, ConfigResource, ResourceType
from pybroker.client.metadata import Node
from pybroker.config.listeners import EVERY_INTERFACE
from pybroker.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT, KafkaError
from pybroker.model import HostPort

LISTENER: Final = "metrics.listener"
ANSWER_BYTES_MAX: Final = 1 << 20
TELL_S_MAX: Final = 2.0
AT_ONCE_MAX: Final = 32
T = TypeVar("T")


class Silent(Exception):
    """A broker does not tell; the text says why."""


class Unanswered(Silent):
    """It does not answer Kafka's protocol either."""


def told(nodes: Sequence[Node], ask: Callable[[str], T]) -> list[tuple[Node, T | Silent]]:
    """What each broker tells over HTTP, where `ask` is given its address, and raises Silent."""
    return beside(nodes, lambda node: ask(address(node)))


def beside(nodes: Sequence[Node], ask: Callable[[Node], T]) -> list[tuple[Node, T | Silent]]:
    """What brokers say that are asked beside each other: none that hangs holds up the rest. `ask` raises Silent, and
    KafkaError."""

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


def admin_of(node: Node) -> Admin:
    """For what this broker alone can say, soon."""
    return Admin(str(HostPort(node.host, node.port)), timeout_s=TELL_S_MAX)


def address(node: Node) -> str:
    """Where a broker serves HTTP. Raises Silent if it does not, KafkaError if nobody can know where."""
    with admin_of(node) as admin:
        entries = admin.configs(ConfigResource(ResourceType.BROKER, str(node.id)), [LISTENER])
    value = next((entry.value for entry in entries if entry.name == LISTENER), None)
    if not value:
        raise Silent(f"it has no {LISTENER}")
    listener = HostPort.parse(value)
    if not listener.port:
        raise Silent(f"its {LISTENER} is a free port, {value}")
    return str(HostPort(node.host if listener.host in EVERY_INTERFACE else listener.host, listener.port))


def objects(where: str, path: str) -> list[dict[str, Any]]:
    """The JSON objects, one a line, that lie at a path of an address. Raises Silent."""
    url = f"http://{where}{path}"
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=TELL_S_MAX) as answer:
            told = answer.read(ANSWER_BYTES_MAX).decode()
        lines = [json.loads(line) for line in told.splitlines()]
    except URLError as problem:
        raise Silent(str(problem.reason)) from None
    except (OSError, HTTPException, ValueError, RecursionError) as problem:
        raise Silent(str(problem)) from None
    if not all(isinstance(line, dict) for line in lines):
        raise Silent(f"{url} is not of pybroker")
    return lines
