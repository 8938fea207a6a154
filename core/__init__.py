"""The compiled data plane: bytes, files and watermarks, without the GIL and without opinions.

It is imported as ``pybroker.core`` only: under another name every module would exist twice.
"""

if __name__ != "pybroker.core":
    raise ImportError(f"import pybroker.core, not {__name__}: a second copy of core would share nothing with the first")
