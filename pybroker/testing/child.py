"""The process of a broker that a test started: `python -m pybroker.testing.child`, spoken to as process.py says."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import socket
import sys
from typing import Any

from pybroker.errors import KafkaError
from pybroker.logs import to_stderr
from pybroker.replication.logdirs import StartError
from pybroker.testing.datadir import remove_tree
from pybroker.testing.injector import Injector
from pybroker.testing.life import BrokerFailed, Plan


async def _serve() -> int:
    """Live from the first line to the last; the exit code."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(sys.stdin.fileno())))

    def say(answer: dict[str, Any]) -> None:
        writer.write(json.dumps(answer).encode() + b"\n")

    plan = json.loads(await reader.readline())
    remove = plan.pop("remove")
    try:
        injector = Injector(Plan(**plan))
        await injector.broker.start()
    except (BrokerFailed, KafkaError, StartError, OSError) as problem:
        say({"failed": f"the broker did not start: {problem}"})
        await writer.drain()
        return 1
    gc.freeze()  # what was imported stays: neither a collection nor the end of the process looks through it again
    say({"ok": None})
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            command = json.loads(line)
            if command["do"] == "stop":
                injector.clear()
                await injector.broker.stop()
                return 0
            say(_execute(injector, command))
    injector.clear()
    await injector.broker.abort()
    if remove is not None:  # whoever would have done so is gone
        remove_tree(remove)
    return 1


def _execute(injector: Injector, command: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": injector.execute(command)}
    except Exception as problem:  # the test is told, and the broker goes on
        if isinstance(problem, KafkaError):
            return {"error": "KafkaError", "code": problem.code, "message": problem.message}
        return {"error": type(problem).__name__, "message": str(problem)}


if __name__ == "__main__":
    to_stderr(logging.INFO)
    sys.exit(asyncio.run(_serve()))
