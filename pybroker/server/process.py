"""A broker as a process of its own: its kind, its signals, its end."""

import asyncio
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from pybroker.config import BrokerConfig
from pybroker.logs import event
from pybroker.replication.logdirs import StartError
from pybroker.server.broker import FAREWELL_SECONDS, Broker, StartLeft
from pybroker.server.listener import DESCRIPTORS_MIN

log = logging.getLogger(__name__)


def run(config: BrokerConfig, on_ready: Callable[[Broker], object], give_up: Collection[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT, which end it cleanly; a second one waits for no running request. SIGHUP, which a
    closing terminal sends, or a service manager to reload settings, does not end it.

    `on_ready` is called once the broker serves; `give_up` as in Broker. Raises StartError, OSError. The process may
    open as many files as the system lets it: connections and segments that are in use take one each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < DESCRIPTORS_MIN:
        raise StartError(f"{most} open files are allowed (ulimit -n), and a broker needs {DESCRIPTORS_MIN} or more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_run(config, on_ready, give_up))


async def _end_without_disks(broker: Broker) -> NoReturn:
    """There is nothing left to write to: end at once, as Kafka does, and not as a clean stop. Raises StartError.

    A disk that does not answer would hold up whoever waits for the threads that wait for it."""
    failed = "; ".join(f"{log_dir.path}: {log_dir.failure}" for log_dir in broker.log_dirs if log_dir.failure)
    lost = any(log_dir.store_removed for log_dir in broker.log_dirs)
    why = "its coordination store was removed" if lost else "all of its log directories failed"
    reason = f"the broker ends, for {why} ({failed})"
    ending = asyncio.ensure_future(broker.abort())
    await asyncio.wait([ending], timeout=FAREWELL_SECONDS)
    if not ending.done() or ending.exception() is not None:
        event(log, logging.CRITICAL, "broker ends", reason=reason)
        logging.shutdown()
        os._exit(1)
    raise StartError(reason)


def broker_of(config: BrokerConfig, **how: Any) -> Broker:
    """The broker that a configuration is of: a lone one, or with zookeeper.connect one of a cluster."""
    if config["zookeeper.connect"] is None:
        return Broker(config, **how)
    from pybroker.server.cluster_broker import ClusterBroker  # a lone broker starts without it

    return ClusterBroker(config, **how)


async def _run(config: BrokerConfig, on_ready: Callable[[Broker], object], give_up: Collection[str]) -> None:
    broker = broker_of(config, give_up=give_up)
    asked_to_stop = asyncio.Event()

    def on_signal() -> None:
        if asked_to_stop.is_set():
            broker.hurry()
        asked_to_stop.set()

    def on_hangup() -> None:
        event(log, logging.INFO, "SIGHUP ignored", reason="pybroker configs alter changes the settings of a broker")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    started = loop.create_task(broker.start())
    await asyncio.wait([started, loop.create_task(asked_to_stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        event(log, logging.INFO, "stopping", while_it="starts")
        broker.leave_start()
    try:
        await started
    except StartLeft:
        event(log, logging.INFO, "stopped")
        return
    gc.freeze()  # modules and classes stay: no collection looks at them again
    if not asked_to_stop.is_set():
        on_ready(broker)
    ends = [loop.create_task(each.wait()) for each in (asked_to_stop, broker.disks_failed)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not asked_to_stop.is_set():
        await _end_without_disks(broker)
    event(log, logging.INFO, "stopping")
    await broker.stop()
    event(log, logging.INFO, "stopped")
