"""SIGTERM and Ctrl-C as an event, whichever process of a driver receives them: Python, or the JVM.

    python -m pybroker   Python gets them; a service manager sends SIGTERM to its JVM as well
    spark-submit         the JVM gets SIGTERM, and Python nothing; both get Ctrl-C in a terminal
    a notebook's thread  only the JVM's signals can be handled
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Final

from pybroker.spark.jvm import under_spark_submit
from pybroker.spark.untyped import Document, JavaObject

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def ctrl_c_stays() -> Iterator[None]:
    """Keep PySpark from handling Ctrl-C when a session begins: it would raise KeyboardInterrupt in the middle of
    that."""
    from pyspark.core import context

    module: JavaObject = context
    module.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        module.signal = signal  # not the earlier value, which may belong to a pipeline of another thread


class Stopping:
    """`asked` is set by the first signal. A context manager; call `listen` again after a session has begun."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._before: dict[int, JavaObject] = {}
        self._before_in_jvm: Document = {}

    def listen(self) -> None:
        """Handle the signals here, and in the JVM if there is one by now; may be called again."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:  # Spark handles Ctrl-C itself once a session begins
                before = signal.signal(number, lambda *_: self.asked.set())
                self._before.setdefault(number, before)
        self._listen_in_jvm()

    def _listen_in_jvm(self) -> None:
        from pyspark import SparkContext
        from pyspark.java_gateway import ensure_callback_server_started

        if under_spark_submit():
            SparkContext._ensure_initialized()
        gateway = SparkContext._gateway
        if gateway is None or self._before_in_jvm:
            return
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        signals = gateway.jvm.sun.misc.Signal
        for number in SIGNALS:
            name = number.name.removeprefix("SIG")
            self._before_in_jvm[name] = signals.handle(signals(name), _Handler(self.asked))

    def __enter__(self) -> "Stopping":
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before_in_jvm:
            from py4j.protocol import Py4JError  # type: ignore[import-untyped]
            from pyspark import SparkContext

            assert SparkContext._gateway is not None
            with suppress(Py4JError, OSError):  # for a JVM that is gone
                signals = SparkContext._gateway.jvm.sun.misc.Signal
                for name, handler in self._before_in_jvm.items():
                    signals.handle(signals(name), handler)


class _Handler:
    """The handler that the JVM calls, in a thread of its own."""

    def __init__(self, asked: threading.Event) -> None:
        self._asked = asked

    def handle(self, _: object) -> None:
        self._asked.set()

    def toString(self) -> str:
        return "pybroker pipeline"

    class Java:
        implements: Final = ["sun.misc.SignalHandler"]
