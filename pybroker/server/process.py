"""Runs a broker as a process: file limits, signals, its service manager, and the end when all disks have failed."""

import asyncio
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable, Collection
from typing import NoReturn

from pybroker.config import BrokerConfig
from pybroker.errors import StartError
from pybroker.logs import event
from pybroker.server.broker import Broker
from pybroker.server.cluster.place import StartLeft
from pybroker.server.cluster.sole_member import FAREWELL_SECONDS
from pybroker.server.network.listener import DESCRIPTORS_MIN
from pybroker.server.service_manager import ServiceManager

log = logging.getLogger(__name__)


def run(config: BrokerConfig, on_ready: Callable[[Broker], object], give_up: Collection[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT, which stop the broker cleanly; a second one does not wait for running requests.
    At SIGHUP, which a closing terminal or a service manager sends, it reads certificates and token keys again.

    `on_ready` is called once the broker serves; `give_up` as in Broker. Raises StartError, OSError. The limit of open
    files is raised to its maximum, as each connection and each segment in use takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < DESCRIPTORS_MIN:
        raise StartError(f"{most} open files are allowed (ulimit -n), but a broker needs {DESCRIPTORS_MIN} or more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ServiceManager(os.environ) as manager:
        asyncio.run(_run(config, on_ready, give_up, manager))


async def _end_without_disks(broker: Broker) -> NoReturn:
    """Abort the broker because no log dir is left, as Kafka does; not a clean stop. Raises StartError.

    Exits the process after FAREWELL_SECONDS, as threads may hang on a disk that does not respond."""
    failed = "; ".join(f"{log_dir.path}: {log_dir.failure}" for log_dir in broker.log_dirs if log_dir.failure)
    lost = any(log_dir.store_removed for log_dir in broker.log_dirs)
    why = "its coordination store was removed" if lost else "all of its log directories failed"
    reason = f"the broker ends because {why} ({failed})"
    ending = asyncio.ensure_future(broker.abort())
    await asyncio.wait([ending], timeout=FAREWELL_SECONDS)
    if not ending.done() or ending.exception() is not None:
        event(log, logging.CRITICAL, "broker ends", reason=reason)
        logging.shutdown()
        os._exit(1)
    raise StartError(reason)


async def _run(
    config: BrokerConfig, on_ready: Callable[[Broker], object], give_up: Collection[str], manager: ServiceManager
) -> None:
    broker = Broker(config, give_up=give_up)
    asked_to_stop, serves = asyncio.Event(), asyncio.Event()

    def where() -> str:
        return ", ".join(map(str, broker.addresses.values()))

    def on_signal() -> None:
        if asked_to_stop.is_set():
            broker.hurry()
        asked_to_stop.set()

    def on_hangup() -> None:
        if not serves.is_set() or asked_to_stop.is_set():
            event(log, logging.INFO, "SIGHUP ignored", reason="the broker is starting or stopping")
            return
        manager.reloading()
        broker.read_again()
        manager.serving(where())

    loop = asyncio.get_running_loop()
    manager.keep_alive(loop)
    manager.notify("STATUS=starting")
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    started = loop.create_task(broker.start())
    await asyncio.wait([started, loop.create_task(asked_to_stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        event(log, logging.INFO, "stopping", during="start")
        manager.stopping("stopping during the start")
        broker.leave_start()
    try:
        await started
    except StartLeft:
        event(log, logging.INFO, "stopped")
        return
    gc.freeze()  # modules and classes live until the end: exclude them from garbage collections
    if not asked_to_stop.is_set():
        serves.set()
        on_ready(broker)
        manager.serving(where())
    ends = [loop.create_task(each.wait()) for each in (asked_to_stop, broker.disks_failed)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not asked_to_stop.is_set():
        manager.stopping("ending: no log dir is left")
        await _end_without_disks(broker)
    event(log, logging.INFO, "stopping")
    manager.stopping("stopping: leadership moves to other brokers, then running requests end")
    await broker.stop()
    event(log, logging.INFO, "stopped")
