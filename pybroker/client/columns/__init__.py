"""Records as columns, of NumPy and of Arrow: in memory, and out of the files of a log directory.

NumPy is optional: the extra `numpy`, and part of `arrow`.
"""

try:
    import numpy as np
except ModuleNotFoundError as error:
    from pybroker import extras

    raise ModuleNotFoundError(f"columns need numpy: {extras.install('numpy')}", name=error.name) from error

__all__ = ["np"]
