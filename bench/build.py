"""Builds and loads native.pyx, the loops of the benchmarks; once for each state of its sources."""

import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(__file__).with_name("native.pyx")

BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
source, target = sys.argv[1:]
modules = cythonize(
    [Extension("native", [source], extra_compile_args=["-O3", "-std=gnu11"])],
    include_path=["."],
    build_dir=target,
    quiet=True,
    compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True},
)
setup(ext_modules=modules, script_args=["-q", "build_ext", "--build-lib", target, "--build-temp", target])
"""


@cache
def native() -> ModuleType:
    """The compiled loops, built under build/bench if this state of them and of core's headers was not built before."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    facts = [suffix.encode(), BUILD.encode(), SOURCE.read_bytes()]
    facts += [path.read_bytes() for path in sorted(ROOT.glob("core/*.pxd"))]
    target = ROOT / "build/bench" / hashlib.sha256(b"\0".join(facts)).hexdigest()[:16]
    library = target / f"native{suffix}"
    if not library.exists():
        target.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", BUILD, str(SOURCE.relative_to(ROOT)), str(target)]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
    spec = importlib.util.spec_from_file_location("native", library)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
