"""Ctrl-C while modules are imported: it ends the process at once."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """What is imported in here takes its time, and an extension module may lose a KeyboardInterrupt that comes while
    it is: the signal itself ends the process, without a traceback. Where it is ignored it stays so."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # a job in a shell's background ignores it
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
