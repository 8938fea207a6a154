"""The entry point of `pybroker` and `python -m pybroker`: prepares streams and signals before slow imports."""

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
        gc.freeze()  # saves a tenth of a second of garbage collection at exit


def _open_streams() -> None:
    """Open closed standard streams (`>&-`) on /dev/null: otherwise the next opened files, perhaps logs of partitions,
    would get their descriptor numbers, and output would be written to them."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, which is this one
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _end_streams() -> None:
    """Discard output that cannot be written, which the command has reported: at its exit Python would try again, report
    the error too, and exit with 120."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


if __name__ == "__main__":
    main()
