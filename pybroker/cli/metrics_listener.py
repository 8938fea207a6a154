"""What a broker tells over HTTP, at its metrics.listener."""

import json
from http.client import HTTPException
from typing import Any, Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from pybroker.client.admin import Admin, ConfigResource, ResourceType
from pybroker.client.metadata import Node
from pybroker.config.listeners import EVERY_INTERFACE
from pybroker.errors import KafkaError
from pybroker.model import HostPort

LISTENER: Final = "metrics.listener"
ANSWER_BYTES_MAX: Final = 1 << 20


class Silent(Exception):
    """A broker does not tell; the text says why."""


def address(admin: Admin, node: Node) -> str:
    """Where a broker serves HTTP. Raises Silent if it does not, or nobody can know where."""
    try:
        entries = admin.configs(ConfigResource(ResourceType.BROKER, str(node.id)), [LISTENER])
    except KafkaError as problem:
        raise Silent(str(problem)) from None
    value = next((entry.value for entry in entries if entry.name == LISTENER), None)
    if not value:
        raise Silent(f"it has no {LISTENER}")
    listener = HostPort.parse(value)
    if not listener.port:
        raise Silent(f"its {LISTENER} is a free port, {value}")
    return str(HostPort(node.host if listener.host in EVERY_INTERFACE else listener.host, listener.port))


def objects(where: str, path: str, timeout_s: float) -> list[dict[str, Any]]:
    """The JSON objects, one a line, that lie at a path of an address. Raises Silent."""
    url = f"http://{where}{path}"
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=timeout_s) as answer:
            told = answer.read(ANSWER_BYTES_MAX).decode()
        lines = [json.loads(line) for line in told.splitlines()]
    except URLError as problem:
        raise Silent(str(problem.reason)) from None
    except (OSError, HTTPException, ValueError) as problem:
        raise Silent(str(problem)) from None
    if not all(isinstance(line, dict) for line in lines):
        raise Silent(f"{url} is not of pybroker")
    return lines
