"""Builds and loads probe.pyx, the tests' access to core's nogil functions, once for each state of its sources."""

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("probe.pyx")

BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
source, target, sanitize = sys.argv[1:]
flags = ["-O1", "-g", f"-fsanitize={sanitize}"] if sanitize else ["-O1"]
told = {"include_dirs": ["core"], "extra_compile_args": [*flags, "-Wall", "-Wextra"], "extra_link_args": flags}
modules = cythonize(
    [Extension("probe", [source], **told)],
    include_path=["."],
    build_dir=target,
    compiler_directives={"language_level": 3, "boundscheck": False, "cdivision": True},
)
setup(ext_modules=modules, script_args=["-q", "build_ext", "--build-lib", target, "--build-temp", target])
"""


def load() -> ModuleType:
    """Load the probe; build it under build/probe unless this state of its sources was built before."""
    sanitize = os.environ.get("PYBROKER_SANITIZE", "")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    facts = [sanitize.encode(), suffix.encode(), BUILD.encode(), SOURCE.read_bytes()]
    facts += [path.read_bytes() for path in sorted([*ROOT.glob("core/**/*.pxd"), *ROOT.glob("core/**/*.h")])]
    target = ROOT / "build/probe" / hashlib.sha256(b"\0".join(facts)).hexdigest()[:16]
    target.mkdir(parents=True, exist_ok=True)
    library = target / f"probe{suffix}"
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest's workers build at the same time
        if not library.exists():
            command = [sys.executable, "-c", BUILD, str(SOURCE.relative_to(ROOT)), str(target), sanitize]
            # Run the compiler itself without the sanitizer that this process may be preloaded with.
            env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
            built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
            assert built.returncode == 0, built.stdout + built.stderr
    spec = importlib.util.spec_from_file_location("probe", library)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
