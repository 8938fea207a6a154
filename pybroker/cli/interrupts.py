"""Make Ctrl-C end the process at once while modules are imported."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Let SIGINT end the process without a traceback during slow imports, as an extension module may lose a
    KeyboardInterrupt. An ignored SIGINT stays ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # a job in a shell's background ignores it
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
