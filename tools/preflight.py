"""Print in one sentence what this machine lacks to build pybroker; nothing if it lacks nothing.

The Makefile runs it with the Python that will create .venv, before anything is made or downloaded.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig

MINIMUM = (3, 11)


def lacking() -> str:
    """Return the first missing thing as a sentence (make adds the full stop), or an empty string."""
    here = f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}"
    if sys.version_info[:2] < MINIMUM:
        return f"pybroker needs Python 3.11 or newer, and {here}: install one, or name it with PYTHON=/path/to/python3"
    if importlib.util.find_spec("ensurepip") is None:
        return f"{here} without the venv module: install it (Debian, Ubuntu: apt install python3-venv)"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"No C compiler: {compiler} is not on PATH: install it (Debian, Ubuntu: apt install gcc) or set CC"
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return f"{here} without its C headers: install them (Debian, Ubuntu: apt install python3-dev)"
    return ""


if __name__ == "__main__":
    print(lacking())
