"""Build and load the benchmarks' Cython: native.pyx, their loops, and limit.pyx; once for each state of it."""

import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]

BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
source, name, target = sys.argv[1:]
modules = cythonize(
    [Extension(name, [source], include_dirs=["core"], extra_compile_args=["-O3", "-std=gnu11"])],
    include_path=["."],
    build_dir=target,
    quiet=True,
    compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True},
)
setup(ext_modules=modules, script_args=["-q", "build_ext", "--build-lib", target, "--build-temp", target])
"""


def native() -> ModuleType:
    """Return the compiled loops."""
    return compiled("native")


@cache
def compiled(name: str) -> ModuleType:
    """Return a module of bench/, built under build/bench unless this state of it and of core's headers is there."""
    source = Path(__file__).with_name(f"{name}.pyx")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    facts = [suffix.encode(), BUILD.encode(), source.read_bytes()]
    facts += [path.read_bytes() for path in sorted(ROOT.glob("core/**/*.pxd"))]
    target = ROOT / "build/bench" / hashlib.sha256(b"\0".join(facts)).hexdigest()[:16]
    library = target / f"{name}{suffix}"
    if not library.exists():
        target.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", BUILD, str(source.relative_to(ROOT)), name, str(target)]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
