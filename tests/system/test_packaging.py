"""core is pybroker.core whichever way pybroker came: in place, from a wheel, from an sdist, by an editable install.

An sdist is installed by building a wheel from it, so that one test shows both.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT, tracked
from tools.core_facts import GENERATED

pytestmark = pytest.mark.xdist_group("packaging")

# How it is built does not matter here, so it is built fast.
ENVIRONMENT = {**os.environ, "PYBROKER_OPTIMIZE": "0", "PYTHONDONTWRITEBYTECODE": "1", "PIP_NO_INDEX": "1"}
ENVIRONMENT.pop("PYTHONPATH", None)
PROBE = """
import pathlib, sys
import pybroker, pybroker.core as core
assert core.crc32c(b"123456789") == 0xE3069283
assert "core" not in sys.modules
print(pathlib.Path(pybroker.__file__).parent, pathlib.Path(core.__file__).resolve().parent, sep="\\n")
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """The standard output of a command; its whole output, if it fails, is why the test does."""
    env = ENVIRONMENT | environment
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def places(python: Path, cwd: Path) -> list[Path]:
    """Return the paths at which this Python finds pybroker and its core, once core has computed a CRC."""
    return [Path(line) for line in run(python, "-c", PROBE, cwd=cwd).split()]


class Environment:
    """A virtual environment that borrows what is installed beside pybroker here, so that nothing is downloaded."""

    def __init__(self, path: Path) -> None:
        venv.create(path, with_pip=False)
        self.python = path / "bin" / "python"
        self.script = path / "bin" / "pybroker"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.packages = path / "lib" / version / "site-packages"
        # A path of a .pth file gets no .pth files of its own read: pybroker itself, editable there, is not borrowed.
        (self.packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")

    def install(self, *what: object, **environment: str) -> None:
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--ignore-installed")
        run(self.python, "-m", "pip", "install", *options, *what, cwd=self.packages, **environment)


@pytest.fixture(scope="module")
def names() -> list[str]:
    """Return the files that git tracks or would track, without those of a build, as paths from the root."""
    return [path.relative_to(ROOT).as_posix() for path in tracked()]


@pytest.fixture(scope="module")
def tree(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of this checkout, with what was built in place here."""
    tree = tmp_path_factory.mktemp("tree")
    built = [path for kind in ("*.c", "*.so") for path in (ROOT / "core").rglob(kind)]
    made = [*(path.relative_to(ROOT) for path in built), *GENERATED]
    for name in [*names, "pybroker/core", *made]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    yield tree
    shutil.rmtree(tree)


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", "dist", cwd=tree)
    (made,) = (tree / "dist").glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist, where nothing but the sdist is."""
    place = tmp_path_factory.mktemp("wheel")
    command = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        place,
    )
    run(*command, sdist, cwd=place)
    (made,) = place.glob("*.whl")
    return made


def packaged(names: list[str]) -> set[str]:
    """Return the files that an installed pybroker has by the tree: modules, type stubs, an extension for each .pyx."""
    found = {f"pybroker/{name}" for name in GENERATED}
    for path in map(Path, names):
        if path.parts[0] in ("pybroker", "pyspark_pybroker") and (path.suffix == ".py" or path.name == "py.typed"):
            found.add(str(path))
        elif path.parts[0] == "core" and path.suffix in (".py", ".pyi", ".pxd", ".h"):
            found.add(f"pybroker/{path}")
        elif path.parts[0] == "core" and path.suffix == ".pyx":
            found.add(f"pybroker/{path.parent}/{path.stem}{sysconfig.get_config_var('EXT_SUFFIX')}")
    return found


def test_every_directory_with_modules_is_a_package(names: list[str]) -> None:
    """A directory without __init__.py would be left out of what is built, and found only in the checkout."""
    homes = {Path(name).parent for name in names if name.startswith("pybroker/") and name.endswith(".py")}
    assert not sorted(str(home) for home in homes if f"{home}/__init__.py" not in names)


def test_in_place(tree: Path) -> None:
    """In a checkout that was built in place, pybroker.core is the folder core/."""
    assert places(Path(sys.executable), tree) == [tree / "pybroker", tree / "core"]


def test_core_has_one_name(tree: Path) -> None:
    """`import core` from the root of a checkout is refused: it would be a second copy of every module."""
    done = subprocess.run(
        [sys.executable, "-c", "import core"], cwd=tree, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 1 and "import pybroker.core, not core" in done.stderr


@pytest.mark.long  # all of core is compiled once more
def test_wheel_holds_everything_and_no_source(wheel: Path, names: list[str]) -> None:
    """The wheel has every module and nothing that only a build needs."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == packaged(names)


@pytest.mark.long  # all of core is compiled once more
def test_wheel_has_no_symbols(wheel: Path) -> None:
    """A wheel holds no debug symbols: with them it was four times as large."""
    with zipfile.ZipFile(wheel) as archive:
        extensions = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    assert extensions
    assert not [code for code in extensions if b".symtab" in code or b".debug_info" in code]


@pytest.mark.long  # all of core is compiled once more
def test_wheel_from_sdist(wheel: Path, tmp_path: Path) -> None:
    """The sdist alone builds a wheel; installed from it, core lies inside pybroker, and the command runs."""
    environment = Environment(tmp_path / "venv")
    environment.install(wheel)
    home = environment.packages / "pybroker"
    assert places(environment.python, tmp_path) == [home, home / "core"]
    assert run(environment.script, "version", cwd=tmp_path).startswith("pybroker ")


@pytest.mark.long
def test_sdist_holds_the_tree(sdist: Path, names: list[str]) -> None:
    """The sdist has all that is tracked, but for what belongs to the checkout, and nothing that a build made."""
    with tarfile.open(sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert {name.split("/")[0] for name in set(names) - held} <= {".ci", ".gitignore"}
    assert {name.split("/")[0] for name in held - set(names)} <= {"PKG-INFO", "setup.cfg", "pybroker.egg-info"}


def test_it_is_reproducible(names: list[str], tmp_path: Path) -> None:
    """Two builds of the same sources are the same bytes: in other directories, at other times, in another order of the
    files, under another umask and locale."""
    made = []
    for number, (umask, order) in enumerate([(0o022, 1), (0o077, -1)]):
        place = tmp_path / ("a" * (1 + 30 * number))
        for name in names[::order]:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
            os.utime(place / name, (1_700_000_000 + number,) * 2)
        command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist")
        before = os.umask(umask)
        try:
            # Two extensions stand for all; the comparison of all takes minutes: `make release` makes it.
            few = {"PYBROKER_EXT": "crc32c,cursor", "TZ": f"UTC-{number}", "LC_ALL": "C" if number else "C.UTF-8"}
            run(*command, cwd=place, **few, PYTHONHASHSEED=str(number))
        finally:
            os.umask(before)
        made.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (place / "dist").iterdir()})
    assert len(made[0]) == 2
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("without", "sentence"),
    [
        ("import setuptools.command.sdist, sys; sys.platform = 'darwin'", "pybroker runs on Linux only, and this is "),
        ("import sys; sys.version_info = (3, 10)", "pybroker needs Python 3.11 or newer, and "),
        ("import os; os.environ['CC'] = 'no-such-cc -O2'", "No C compiler: no-such-cc is not on PATH: install it"),
    ],
)
def test_what_is_missing_is_one_sentence(without: str, sentence: str) -> None:
    """On another system, with an old Python or without a compiler the installation from an sdist ends with one
    sentence, as pip shows it, before anything is compiled."""
    start = "import runpy, sys; sys.argv = ['setup.py', 'bdist_wheel']; runpy.run_path('setup.py', run_name='__main__')"
    code = f"{without}; {start}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done
    assert done.stderr.startswith(sentence)


def test_editable(tree: Path, tmp_path: Path) -> None:
    """An editable install finds the checkout and what `make build` compiled there, from anywhere."""
    environment = Environment(tmp_path / "venv")
    environment.install("--editable", tree, PYBROKER_EXT="none")
    assert places(environment.python, tmp_path) == [tree / "pybroker", tree / "core"]
    assert run(environment.script, "version", cwd=tmp_path).startswith("pybroker ")
