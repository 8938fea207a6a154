"""What a broker of a test is started with, and what the test asks of it, wherever it runs."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0
ASK_S_MAX: Final = 30.0


class BrokerFailed(RuntimeError):
    """The broker did not start, did not stop, or ended by itself; the text has what it said."""


@dataclass(frozen=True)
class Plan:
    """What a broker is started with; it survives restarts."""

    log_dir: str
    port: int
    settings: Mapping[str, str]
    ways: Mapping[str, int] = field(default_factory=dict)
    """By id: the port by which another broker of its cluster is reached, if that is not its own."""

    def config(self) -> "BrokerConfig":
        """The broker's configuration. Raises ConfigError; BrokerFailed for a setting that would do nothing."""
        from pybroker.config import BrokerConfig

        where = {"log.dirs": self.log_dir, "listeners": f"PLAINTEXT://{HOST}:{self.port}"}
        given = where | dict(self.settings)
        config = BrokerConfig({name: (text, "settings of the test") for name, text in given.items()})
        if config.warnings:
            raise BrokerFailed("; ".join(config.warnings))
        return config


class Life(Protocol):
    """A broker that can be started and ended, again and again, on one thread at a time.

    down --start--> running --stop (clean) or kill (as SIGKILL)--> down
    """

    @property
    def running(self) -> bool: ...

    def start(self) -> None:
        """Return when it serves. Raises BrokerFailed."""

    def stop(self) -> None:
        """End it as SIGTERM does: flushed, recorded, marked as clean. Raises BrokerFailed."""

    def kill(self) -> None:
        """End it as SIGKILL does; nothing of it runs any more when this returns."""

    def discard(self) -> None:
        """The interpreter ends: leave no process behind; threads end with it."""

    def ask(self, command: dict[str, Any]) -> Any:
        """Have the broker's Injector execute a command. Raises ValueError, BrokerFailed if there is no broker."""

    def output(self) -> str:
        """What it said; empty where it logs into this process."""


class Inherited:
    """What a forked child has of its parent's broker: it may be talked to, and only the parent starts or ends it."""

    running = False

    def __init__(self, parent: int) -> None:
        self._words = f"this broker was made before a fork: only process {parent}, which made it, starts and ends it"

    def start(self) -> None:
        raise BrokerFailed(self._words)

    def stop(self) -> None:
        raise BrokerFailed(self._words)

    def kill(self) -> None:
        """The end of a `with` in the child ends nothing."""

    discard = kill

    def ask(self, command: dict[str, Any]) -> Any:
        raise BrokerFailed(self._words)

    def output(self) -> str:
        return ""


def as_text(value: object) -> str:
    """A setting's value as a properties file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def hold_port(port: int = 0) -> socket.socket:
    """A socket that holds a free port, or this one, without listening, beside which a broker may listen."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, port))
    return held
