"""The plan from which a test's broker starts, and the interface through which a test controls it."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0
ASK_S_MAX: Final = 30.0

Command = dict[str, object]
"""A command for a broker's Injector: "do" names it, the rest are its arguments. It can be written as JSON."""


class BrokerFailed(RuntimeError):
    """The broker did not start, did not stop, or ended by itself; the text includes its log."""


@dataclass(frozen=True)
class BrokerPlan:
    """The directory, port and settings of a broker, the same in all of its lives."""

    log_dir: str
    port: int
    settings: Mapping[str, str]
    ways: Mapping[str, int] = field(default_factory=dict)
    """By broker id: the port on which to reach that broker of the cluster, if not its own (a proxy's)."""

    def config(self) -> "BrokerConfig":
        """Return the broker's configuration. Raises ConfigError; BrokerFailed for a setting that has no effect."""
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
        """Return when the broker serves. Raises BrokerFailed."""

    def stop(self) -> None:
        """Stop the broker as SIGTERM does: flushed and marked as clean. Raises BrokerFailed."""

    def kill(self) -> None:
        """Kill the broker as SIGKILL does; none of it runs any more when this returns."""

    def discard(self) -> None:
        """Leave no process behind as the interpreter exits; threads end with the interpreter."""

    def ask(self, command: Command) -> object:
        """Have the broker's Injector execute a command. Raises ValueError, BrokerFailed if there is no broker."""

    def output(self) -> str:
        """The end of the broker's log; empty if the broker logs into this process."""


class InheritedBroker:
    """A parent's broker as its forked child sees it: only the parent starts or ends it."""

    running = False

    def __init__(self, parent: int) -> None:
        self._words = f"this broker was made before a fork: only process {parent}, which made it, may start or stop it"

    def start(self) -> None:
        raise BrokerFailed(self._words)

    def stop(self) -> None:
        raise BrokerFailed(self._words)

    def kill(self) -> None:
        """Do nothing: the end of a `with` in the child does not end the parent's broker."""

    discard = kill

    def ask(self, command: Command) -> object:
        raise BrokerFailed(self._words)

    def output(self) -> str:
        return ""


def as_text(value: object) -> str:
    """Return a setting's value as a properties file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def hold_port(port: int = 0) -> socket.socket:
    """Return a socket that holds a free port, or this one, without listening; a broker may listen beside it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, port))
    return held
