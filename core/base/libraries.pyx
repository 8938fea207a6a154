"""Find a C library that a Python package may have installed."""

import glob
import importlib.util
import os


def library_paths(str package, str pattern, str system):
    """The matching modules of a package, then the system's name of the library. The package's copy is newer, and the
    same on every machine. The package is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module of that name without a spec is loaded
        spec = None
    for place in spec.submodule_search_locations or () if spec is not None else ():
        yield from glob.glob(os.path.join(glob.escape(place), pattern))
    yield system
