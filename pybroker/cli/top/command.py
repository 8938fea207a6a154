"""`pybroker top`: throughput, lag, leaders, replicas in sync, reassignments and disks, live."""

import queue
import sys
import threading
import time
from typing import Final

import click

from pybroker.cli import output
from pybroker.cli.main import Misuse
from pybroker.cli.options import Seconds, cluster_options
from pybroker.cli.output import Document
from pybroker.cli.top import rates, screen
from pybroker.cli.top.keys import TerminalKeys
from pybroker.cli.top.reading import Reader, Reading
from pybroker.cli.waiting import WaitReport

ANSWER_S_MAX: Final = 5.0
"""Seconds that a live view waits for a broker, however long --timeout is."""
KEY_S: Final = 0.2


@click.command(name="top")
@click.option("--once", is_flag=True, help="Show the rates of one interval as text, or with --json, and end.")
@click.option("--interval", "interval_s", type=Seconds(0.2, 3600.0), default=2.0, show_default=True, metavar="SECONDS",
              help="How far apart two looks at the cluster are.")  # fmt: skip
@click.option("--sort", type=click.Choice(list(screen.SORTS)), default="records", show_default=True,
              help="What topics are sorted by, the largest first.")  # fmt: skip
@cluster_options
def command(once: bool, interval_s: float, sort: str, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show a cluster live: brokers with their throughput, requests and disks, topics, lag of groups, and reassignments.

    Keys: q ends it, s sorts topics by something else. A broker that does not answer is named, and the rest is shown.

    Records, lag, leaders, replicas and disks come from any broker that speaks Kafka's protocol. Bytes, requests and the
    time within which 99 % of them were answered come from brokers of pybroker with a metrics.listener; requests that
    wait by design, as Fetch, are left out of that time.

    Exit codes: 0 done; 1 no broker could be reached at the start; 2 an option is wrong; 130 ended by Ctrl-C.
    """
    if not once and (as_json or not sys.stdout.isatty()):
        raise Misuse("a live view needs a terminal: add --once")
    reader = Reader(bootstrap_server, min(timeout_s, ANSWER_S_MAX))
    with WaitReport("for the cluster"):
        first = reader.read()
    if not once:
        _live(reader, first, interval_s, sort)
        return
    time.sleep(interval_s)
    document = rates.document(first, reader.read())
    if as_json:
        output.as_json(document)
    else:
        screen.show(document, sort)


class Sampler:
    """Looks at the cluster at intervals, on a thread, so that keys work while a broker does not answer."""

    def __init__(self, reader: Reader, first: Reading, interval_s: float) -> None:
        self.documents: queue.SimpleQueue[Document | str] = queue.SimpleQueue()
        """Documents, and sentences that say why there is none."""
        self._reader, self._last, self._interval_s = reader, first, interval_s
        self._over = threading.Event()
        self._context = click.get_current_context()  # has the clients' login, and is local to a thread
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present look; does not wait for it."""
        self._over.set()

    def _run(self) -> None:
        with self._context.scope(cleanup=False):
            while not self._over.wait(self._interval_s):
                self.documents.put(self._look())

    def _look(self) -> Document | str:
        """Look once. Each failure becomes a sentence, because the view goes on until it is ended."""
        try:
            now = self._reader.read()
            found = rates.document(self._last, now)
        except Exception as problem:
            return f"no broker answers: {getattr(problem, 'message', None) or problem or type(problem).__name__}"
        self._last = now
        return found


def _live(reader: Reader, first: Reading, interval_s: float, sort: str) -> None:
    from rich.console import Console
    from rich.live import Live

    sampler, console, orders = Sampler(reader, first, interval_s), Console(), list(screen.SORTS)
    shown = rates.document(first, first)
    note = f"first rates in {interval_s:g} s"
    sampler.start()
    try:
        with TerminalKeys() as keys, Live(console=console, screen=True, auto_refresh=False) as view:
            while True:
                view.update(screen.frame(shown, sort, note, console.height), refresh=True)
                for key in keys.wait(KEY_S):
                    if key == "q":
                        return
                    if key == "s":
                        sort = orders[(orders.index(sort) + 1) % len(orders)]
                while not sampler.documents.empty():
                    told = sampler.documents.get()
                    if isinstance(told, str):
                        shown = {**shown, "problems": [told]}
                    else:
                        shown, note = told, time.strftime("%H:%M:%S UTC", time.gmtime())
    finally:
        sampler.stop()
