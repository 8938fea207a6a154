"""`pybroker`, and `python -m pybroker`: what has to be so before the first import that takes its time."""

import gc
import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback from here on."""
    _open_streams()
    from pybroker.cli.interrupts import importing

    with importing():
        from pybroker.cli.main import main as command
    try:
        command()
    finally:
        _end_streams()
        gc.freeze()  # a tenth of a second that Python would look for cycles before it ends


def _open_streams() -> None:
    """Let standard streams that were closed (`>&-`) lead nowhere: else the next files that are opened, logs of
    partitions perhaps, would stand at their numbers, and be written to as if they were them."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free: this one
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _end_streams() -> None:
    """Drop what cannot be written, which the command has reported: Python would try once more as it ends, report that
    too, and exit with 120."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


if __name__ == "__main__":
    main()
