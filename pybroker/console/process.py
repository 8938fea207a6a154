"""Run the console in this process until SIGTERM or Ctrl-C."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from pybroker.console.app import application
from pybroker.console.settings import ConsoleSettings

CONNECTIONS_MAX: Final = 200
GRACE_S_MAX: Final = 2


def run(settings: ConsoleSettings, say_ready: Callable[[str], object]) -> None:
    """Serve the console; `say_ready` gets its address once it listens. OSError if the port cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family, backlog=128) as listener:
        config = uvicorn.Config(
            application(settings), http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, limit_concurrency=CONNECTIONS_MAX, timeout_graceful_shutdown=GRACE_S_MAX,
            proxy_headers=False,
        )  # fmt: skip
        say_ready(settings.url(listener.getsockname()[1]))
        asyncio.run(uvicorn.Server(config).serve([listener]))
