"""The progress bar of a backup or a restore, on standard error, and only on a terminal."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from pybroker.backup.batches import Advance
from pybroker.cli import output


@contextlib.contextmanager
def bar(words: str) -> Iterator[Callable[[int], Advance]]:
    """Show a bar until the block ends. The function begins it with a total, and returns what advances it."""
    if not sys.stderr.isatty():
        yield lambda _: lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn(words), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.fields[sent]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    lock = threading.Lock()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(total: int) -> Advance:
            task = progress.add_task(words, total=total, sent="")
            passed = 0

            def advance(done: int, size: int) -> None:
                nonlocal passed
                with lock:
                    passed += size
                    progress.update(task, advance=done, sent=output.size(passed))

            return advance

        yield begin
