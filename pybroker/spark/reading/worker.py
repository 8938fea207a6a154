"""Setup of Spark's Python workers, which serve one task after another."""

import gc
from typing import Final

OBJECTS_MAX: Final = 10_000


def freeze_loaded() -> None:
    """Exempt loaded objects from garbage collection, if there are many. A worker collects garbage after each task,
    which delays the next one: by 7 ms or more with pyarrow, NumPy and pandas."""
    if len(gc.get_objects(generation=2)) > OBJECTS_MAX:  # these have survived the collection after an earlier task
        gc.freeze()
