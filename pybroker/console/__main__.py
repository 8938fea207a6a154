"""The console beside a broker, which starts it: `python -m pybroker.console`.

Its settings are a line of JSON on standard input. It ends as standard input closes, so it does not outlive a broker
that is killed.
"""

import asyncio
import json
import sys

from pybroker.console import process
from pybroker.console.settings import ConsoleSettings
from pybroker.errors import system_words


def main() -> int:
    """Serve the console; return the exit code, 1 if it cannot listen."""
    settings = ConsoleSettings(**json.loads(sys.stdin.readline()))
    try:
        process.run(settings, _say_ready, until=_closed)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        print(f"pybroker: the console could not listen on {where}: {system_words(error)}", file=sys.stderr)
        return 1
    return 0


def _say_ready(address: str) -> None:
    print(f"pybroker console on {address}", flush=True)


async def _closed() -> None:
    """Return once standard input is closed, or has more than its settings."""
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, closed.set)
    await closed.wait()


if __name__ == "__main__":
    sys.exit(main())
