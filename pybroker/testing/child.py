"""Entry point of a test broker's process, `python -m pybroker.testing.child`; process.py describes the protocol."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import socket
import sys

from pybroker.errors import KafkaError, StartError
from pybroker.logs import to_stderr
from pybroker.testing.datadir import remove_tree
from pybroker.testing.injector import Injector
from pybroker.testing.lifecycle import BrokerFailed, BrokerPlan


async def _serve() -> int:
    """Run the broker from the first line of the socket to the last; return the exit code."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(sys.stdin.fileno())))

    def say(answer: dict[str, object]) -> None:
        writer.write(json.dumps(answer).encode() + b"\n")

    plan = json.loads(await reader.readline())
    remove = plan.pop("remove")
    try:
        injector = Injector(BrokerPlan(**plan))
        await injector.broker.start()
    except (BrokerFailed, KafkaError, StartError, OSError) as problem:
        say({"failed": f"the broker did not start: {problem}"})
        await writer.drain()
        return 1
    gc.freeze()  # freeze the imported objects, so neither a collection nor the exit of the process walks through them
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
    if remove is not None:  # the parent process, which would have removed it, is gone
        remove_tree(remove)
    return 1


def _execute(injector: Injector, command: dict[str, object]) -> dict[str, object]:
    try:
        return {"ok": injector.execute(command)}
    except Exception as problem:  # report the error to the test; the broker goes on
        if isinstance(problem, KafkaError):
            return {"error": "KafkaError", "code": problem.code, "message": problem.message}
        return {"error": type(problem).__name__, "message": str(problem)}


if __name__ == "__main__":
    to_stderr(logging.INFO)
    sys.exit(asyncio.run(_serve()))
