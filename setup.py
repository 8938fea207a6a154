"""Builds core: one extension a module, from Cython, with the facts that Python tables own generated first."""

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)
sys.path.insert(0, str(ROOT))

from tools.core_facts import write  # noqa: E402

# In a checkout pybroker/core is a link to core/; an sdist may have lost it, and Cython looks pybroker.core up there.
LINK = Path("pybroker/core")
if not LINK.exists():
    LINK.symlink_to("../core")


def extensions() -> list[Extension]:
    """Every .pyx of core, or those that PYBROKER_EXT names; PYBROKER_SANITIZE=address,undefined or thread instruments
    them."""
    wanted = set(filter(None, os.environ.get("PYBROKER_EXT", "").split(",")))
    sanitize = os.environ.get("PYBROKER_SANITIZE", "")
    optimize = os.environ.get("PYBROKER_OPTIMIZE", "3")  # 0 where only that it builds matters
    compile_args = [f"-O{optimize}", "-std=gnu11", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    compile_args += ["-Wno-missing-field-initializers", "-Wno-unused-function", "-Wno-cast-function-type"]
    link_args: list[str] = ["-pthread"]
    if os.environ.get("PYBROKER_WERROR"):
        compile_args.append("-Werror")
    if sanitize:
        compile_args += ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", f"-fsanitize={sanitize}"]
        link_args.append(f"-fsanitize={sanitize}")
    elif platform.machine() == "x86_64":
        compile_args.append("-mtune=generic")
    if "bdist_wheel" in sys.argv:  # a quarter of the size without symbols; a checkout keeps them, for gdb and perf
        compile_args.append("-g0")
        link_args.append("-Wl,--strip-all")
    return [
        Extension(
            ".".join(["pybroker", *p.with_suffix("").parts]),
            [str(p)],
            include_dirs=["core"],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
        )
        for p in sorted(Path("core").rglob("*.pyx"))
        if not wanted or p.stem in wanted
    ]


def build() -> None:
    from Cython.Build import cythonize

    write(ROOT)
    directives = {
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "embedsignature": True,
        "freethreading_compatible": False,
    }
    modules = cythonize(
        extensions(),
        compiler_directives=directives,
        include_path=["."],
        nthreads=os.cpu_count() or 1,
        cache=os.environ.get("PYBROKER_CYTHON_CACHE", False),  # a directory: what was translated once is copied
    )
    setup(ext_modules=modules)


build()
