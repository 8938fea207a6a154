"""Builds core: one extension a module, from Cython, with the facts that Python tables own generated first.

The same sources and tools give the same bytes, in any directory, at any time and under any umask: names in the archives
are sorted, and their times are SOURCE_DATE_EPOCH, or 1980 without it.
"""

import gzip
import os
import platform
import sys
import tarfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)
sys.path.insert(0, str(ROOT))

from tools.preflight import lacking_to_compile, lacking_to_run  # noqa: E402

if problem := lacking_to_run():  # one sentence, before anything that would end in a traceback or a compiler's error
    sys.exit(f"{problem}.")

from tools.core_facts import write  # noqa: E402

EPOCH = os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # the first second that a wheel can hold
os.umask(0o022)
COMPILES = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}

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


class Sdist(sdist):
    """An sdist without the times, owners and order of this machine's files."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)

        def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = int(EPOCH)
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(EPOCH)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(base_dir, filter=plain)  # sorted by name
        return path


def build() -> None:
    write(ROOT)
    setup(ext_modules=translated() if COMPILES.intersection(sys.argv) else [], cmdclass={"sdist": Sdist})


def translated() -> list[Extension]:
    """Return the extensions with their C, which Cython writes."""
    wanted = extensions()
    if wanted and (problem := lacking_to_compile()):
        sys.exit(f"{problem}.")
    from Cython.Build import cythonize

    directives = {
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "embedsignature": True,
        "freethreading_compatible": False,
    }
    made: list[Extension] = cythonize(
        wanted,
        compiler_directives=directives,
        include_path=["."],
        nthreads=os.cpu_count() or 1,
        cache=os.environ.get("PYBROKER_CYTHON_CACHE", False),  # a directory: what was translated once is copied
    )
    return made


build()
