"""Print in one sentence what this machine lacks to build pybroker; nothing if it lacks nothing.

The Makefile runs it with the Python that will create .venv, before anything is made or downloaded; setup.py asks the
same before it compiles. Pythons that are too old must be able to read this file.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig

MINIMUM = (3, 11)
HERE = f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}"


def lacking_to_run() -> str:
    """Return in a sentence why this machine cannot run pybroker (the caller adds the full stop); empty if it can."""
    if not sys.platform.startswith("linux"):
        return f"pybroker runs on Linux only, and this is {sys.platform}: use a container, a virtual machine or WSL 2"
    if sys.version_info[:2] < MINIMUM:
        return f"pybroker needs Python 3.11 or newer, and {HERE}: install one, or name it with PYTHON=/path/to/python3"
    return ""


def lacking_to_compile() -> str:
    """Return in a sentence what is missing to compile core; empty if nothing is."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"No C compiler: {compiler} is not on PATH: install it (Debian, Ubuntu: apt install gcc) or set CC"
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return f"{HERE} without its C headers: install them (Debian, Ubuntu: apt install python3-dev)"
    return ""


def lacking() -> str:
    """Return the first thing in a sentence that is missing to build in a virtual environment; empty if nothing is."""
    if problem := lacking_to_run():
        return problem
    if importlib.util.find_spec("ensurepip") is None:
        return f"{HERE} without the venv module: install it (Debian, Ubuntu: apt install python3-venv)"
    return lacking_to_compile()


if __name__ == "__main__":
    print(lacking())
