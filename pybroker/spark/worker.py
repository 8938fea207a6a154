"""What is done once in each of Spark's Python workers: processes that serve one task after another."""

import functools
import gc


@functools.cache
def settle() -> None:
    """Take what is loaded by now out of garbage collection, which walks through all of it after each task: 7 ms and
    more, while the next task waits for the worker."""
    gc.freeze()
