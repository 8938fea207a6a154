"""What is done in each of Spark's Python workers: processes that serve one task after another."""

import gc
from typing import Final

OBJECTS_MAX: Final = 10_000


def settle() -> None:
    """Take what is loaded by now out of garbage collection, once it is much. A worker collects garbage after each task,
    and the next task waits for that: with pyarrow, NumPy and pandas for 7 ms and more."""
    if len(gc.get_objects(generation=2)) > OBJECTS_MAX:  # has survived the collection after an earlier task
        gc.freeze()
