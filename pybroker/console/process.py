"""Run the console in this process until SIGTERM or Ctrl-C, or until the process that started it ends."""

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import uvicorn
from starlette.concurrency import run_in_threadpool

from pybroker.console.app import application
from pybroker.console.settings import ConsoleSettings

CONNECTIONS_MAX: Final = 200
GRACE_S_MAX: Final = 2
Until = Callable[[], Awaitable[None]]


async def _never() -> None:
    await asyncio.Event().wait()


def run(settings: ConsoleSettings, say_ready: Callable[[str], object], until: Until = _never) -> None:
    """Serve the console until a signal, or until `until` returns; `say_ready` gets its address once it listens.
    OSError if the port cannot be had, or a file of its TLS cannot be read."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family, backlog=128) as listener:
        config = uvicorn.Config(
            application(settings), http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, limit_concurrency=CONNECTIONS_MAX, timeout_graceful_shutdown=GRACE_S_MAX,
            proxy_headers=False, ssl_certfile=settings.certificate, ssl_keyfile=settings.key,
        )  # fmt: skip
        config.load()  # reads the files of TLS
        url = settings.url(listener.getsockname()[1])
        asyncio.run(_serve(uvicorn.Server(config), listener, lambda: say_ready(url), until))


async def _serve(
    server: uvicorn.Server, listener: socket.socket, say_ready: Callable[[], object], until: Until
) -> None:
    # The first view is not to pay for what is done once: anyio's own imports, a collection of all modules.
    await run_in_threadpool(gc.freeze)
    say_ready()

    async def end() -> None:
        await until()
        server.should_exit = True

    ending = asyncio.create_task(end())
    await server.serve([listener])
    ending.cancel()
