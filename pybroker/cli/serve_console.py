"""The console of `pybroker serve --console`: a process beside the broker, so that no viewer costs the broker's threads.

    broker serves -> `python -m pybroker.console` starts, with its settings on standard input
    broker ends, or is killed -> standard input closes, and the console ends
"""

import contextlib
import importlib.util
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pybroker import extras
from pybroker.cli.main import Failure, Misuse
from pybroker.console.settings import ConsoleSettings
from pybroker.logs import event
from pybroker.model import PLAINTEXT, HostPort

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.server.broker import Broker

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
ADDRESS: Final = f"{HOST}:8080"
"""Where the console listens unless it is given."""
PACKAGES: Final = ("jinja2", "starlette", "uvicorn")
SASL: Final = "SASL_PLAINTEXT"
PASSWORDS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""The mechanisms by which a viewer logs in with a password, the best first."""
TIMEOUT_S: Final = 10.0
GRACE_S_MAX: Final = 5.0


def settings_of(text: str, config: "BrokerConfig") -> ConsoleSettings:
    """Return the settings of a console at HOST:PORT, or PORT; its cluster is known when the broker serves.

    Misuse if no listener of the broker suits it, or if other machines could reach it without a login; Failure without
    the packages it needs."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(f"the console needs {missing[0]}: {extras.install('console')}")
    try:
        host, port = HostPort.parse(text if ":" in text else f"{HOST}:{text}")
    except ValueError as error:
        raise Misuse(f"--console is HOST:PORT or PORT, not {text[:100]!r}") from error
    listener = _listener(config)
    if (sasl := config.sasl.get(listener)) is None:
        settings = ConsoleSettings("", {}, TIMEOUT_S, host, port)
        if not settings.on_loopback:
            raise Misuse(
                f"--console {text} is reached by other machines, and listener {listener} has no login: run `pybroker "
                "console` with --user and --password-file"
            )
        return settings
    mechanism = next((each for each in PASSWORDS if each in sasl.mechanisms), None)
    if mechanism is None:
        raise Misuse(f"--console needs a login with a password; listener {listener} has {', '.join(sasl.mechanisms)}")
    login = {"security_protocol": SASL, "sasl_mechanism": mechanism}
    return ConsoleSettings("", login, TIMEOUT_S, host, port, cluster_login=True)


def _listener(config: "BrokerConfig") -> str:
    """Return the listener that the console uses: the first without TLS, one without a login before one with it."""
    protocols = config.listeners.protocols
    for wanted in (PLAINTEXT, SASL):
        for endpoint in config.listeners.endpoints:
            if protocols[endpoint.listener] == wanted:
                return endpoint.listener
    words = f"--console needs a listener with {PLAINTEXT} or {SASL}"
    raise Misuse(f"{words}: for others run `pybroker console` with a profile")


@contextlib.contextmanager
def with_console(
    text: str | None, config: "BrokerConfig", on_ready: Callable[["Broker"], None]
) -> Iterator[Callable[["Broker"], None]]:
    """Yield what to call once the broker serves: `on_ready`, and then the start of its console, unless `text` is None.
    Raises Misuse, Failure as `settings_of`."""
    if text is None:
        yield on_ready
        return
    console = ConsoleProcess(text, config)

    def on_ready_of_both(broker: "Broker") -> None:
        on_ready(broker)
        console.start(broker)

    try:
        yield on_ready_of_both
    finally:
        console.stop()


class ConsoleProcess:
    """The console of a broker."""

    def __init__(self, text: str, config: "BrokerConfig") -> None:
        self._settings = settings_of(text, config)
        self._listener = _listener(config)
        self._process: subprocess.Popen[str] | None = None

    def start(self, broker: "Broker") -> None:
        """Start the console of a broker that serves. A failure is logged, because the broker serves all the same."""
        settings = self._settings._replace(bootstrap=str(broker.addresses[self._listener]))
        command = [sys.executable, "-m", "pybroker.console"]
        try:
            # In a session of its own, so that Ctrl-C ends the broker first, which then ends the console.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
            assert self._process.stdin is not None
            self._process.stdin.write(f"{json.dumps(settings._asdict())}\n")
            self._process.stdin.flush()
        except OSError as error:
            event(log, logging.ERROR, "console failed", error=error)

    def stop(self) -> None:
        """End the console, if it was started."""
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(GRACE_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
