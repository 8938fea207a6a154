"""Build core under the compiler's sanitizers, each in its own tree, and run core's tests there.

    tools/sanitize.py [address | thread] [pytest arguments]

`address` is AddressSanitizer with UBSan and leak detection, without Python's own allocator, so that every object has
guards; `thread` is ThreadSanitizer. Without a name both run. Without arguments the tests are those of core and of
forks, and the storms: a broker whose connections are reset, whose disks are slow and whose process forks, under real
clients.

A run counts only if it finds the faults planted for it: one in a test's own code, one in core that only a storm shows,
and one of replication (core is built with them first, and again without). It fails if a test fails, or if anything was
reported that involves core: the reports of all processes, children of tests included, are collected in files.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREES = ROOT / "build" / "sanitize"
JOBS = str(os.cpu_count() or 1)

FLAGS = {"address": "address,undefined", "thread": "thread"}
RUNTIMES = {"address": "libasan", "thread": "libtsan"}
TESTS = ["tests/core", "tests/server/test_moved_log_dirs.py", "tests/testing/system/test_forks.py", "tests/storms"]
STORMS = [
    "tests/storms/system/test_storms.py::test_clients_in_a_storm[fast disks]",
    "tests/core/test_plane_life.py::test_a_connection_that_ends_while_it_is_adopted",
    "tests/core/test_fetcher.py::test_what_a_follower_says_that_it_has_is_on_disk",
]
"""The tests that must find the planted faults: the second is a storm of adoptions on one processor."""
STORM_SECONDS = "20"
PLANTED = [
    ("data_plane", "        return id\n", "        return c.id  # planted: its reactor may have freed it\n"),
    (
        "plane/replica/replica_fetcher",
        "    add_i32(&q.refs, 1)\n    add_i32(&f.refs, 1)\n",
        "    add_i32(&f.refs, 1)  # none\n",
    ),
]
"""A module of core each, lines of it, and their replacement, which uses freed memory: from another thread, and in a
partition that nothing holds while it is written to the disk."""
CANARIES = {"address": "step_too_far", "thread": "race"}
# Exit codes are ignored, because a leak outside core would change them; only the reports count.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
    "LSAN_OPTIONS": "exitcode=0",
    "UBSAN_OPTIONS": "halt_on_error=0:print_stacktrace=1",
    # Modules without instrumentation count, too: otherwise everything on the main thread is ignored.
    "TSAN_OPTIONS": "halt_on_error=0:exitcode=0:ignore_noninstrumented_modules=0:die_after_fork=0",
}
COPIED = ("setup.py", "pyproject.toml", "README.md", "core", "pybroker", "tests", "tools")
NOT_COPIED = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
BUILT = {".so", ".c"}


def copy(tree: Path) -> None:
    """Bring the tree up to date; built files stay, unless their source is gone."""
    shutil.rmtree(tree / "tests", ignore_errors=True)
    shutil.rmtree(tree / "pybroker", ignore_errors=True)
    for path in list((tree / "core").rglob("*")):
        source = ROOT / path.relative_to(tree)
        gone = not (source.with_name(path.name.split(".")[0] + ".pyx") if path.suffix in BUILT else source).exists()
        if gone and path.is_file():
            path.unlink()
    tree.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source, target = ROOT / name, tree / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=NOT_COPIED, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)


def build(tree: Path, kind: str) -> None:
    env = os.environ | {"PYBROKER_SANITIZE": FLAGS[kind]}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", JOBS]
    built = subprocess.run(command, cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if built.returncode:
        sys.exit(f"{built.stdout}\nCore did not build with -fsanitize={FLAGS[kind]}: it takes gcc and its sanitizers.")


def runtime(tree: Path, kind: str) -> str:
    """Return the path of the sanitizer's library, as the built modules find it; it must be loaded first."""
    module = next((tree / "core/base").glob("status*.so"))
    listed = subprocess.run(["ldd", str(module)], capture_output=True, text=True).stdout
    found = re.search(rf"{RUNTIMES[kind]}\S* => (/\S+)", listed)
    if found is None:
        sys.exit(f"{module.name} was not linked with {RUNTIMES[kind]}: make sanitize needs gcc, with CC unset or gcc.")
    return found[1]


def same_addresses() -> list[str]:
    """Return the prefix for fixed addresses: older ThreadSanitizers fail on kernels that randomize much of the address
    space."""
    command = ["setarch", "-R"]
    works = shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if works else []


def run(tree: Path, kind: str, library: str, reports: Path, arguments: list[str]) -> int:
    """Run Python under the sanitizer; its reports, and stderr for UBSan, go to files that begin with `reports`."""
    env = os.environ | {"PYBROKER_SANITIZE": FLAGS[kind], "LD_PRELOAD": library}
    env |= {name: f"{value}:log_path={reports}" for name, value in OPTIONS.items()}
    if kind == "address":
        env["PYTHONMALLOC"] = "malloc"
    command = [*same_addresses(), sys.executable, *arguments]
    with Path(f"{reports}.stderr").open("w") as stderr:
        return subprocess.run(command, cwd=tree, env=env, stderr=stderr).returncode


def findings(reports: Path) -> list[str]:
    """Return the sanitizers' findings: all of them, except leaks that do not begin with an allocation by core.

    (An indirect leak belongs to a direct one; unless that is reported beside it, it is not core's. A forked child,
    which drops its parent's planes, is reported for threads that it does not have, with a note that its leaks may be
    false.)"""
    found = []
    for path in sorted(reports.parent.glob(f"{reports.name}.*")):
        text = path.read_text(errors="replace")
        if re.search(r"ERROR: AddressSanitizer|runtime error:|FATAL:", text):
            found.append(text)
        elif "WARNING: ThreadSanitizer" in text:
            found += [piece for piece in text.split("=" * 18) if re.search(r"\bcore/[\w/]+\.[ch]", piece)]
        elif "was not suspended. False leaks are possible" not in text:
            leaks = [piece for piece in text.split("\n\n") if "Direct leak of" in piece]
            found += [leak for leak in leaks if re.search(r"[#]1 .* \S*core/[\w/]+\.[ch]", leak)]
    return found


def pytest(tree: Path, kind: str, library: str, reports: Path, tests: list[str]) -> tuple[int, list[str]]:
    """Run tests; return the exit code and the findings."""
    command = ["-m", "pytest", "-n", JOBS, "--dist", "loadgroup", "--capture=sys", "--hypothesis-profile=ci"]
    code = run(tree, kind, library, reports, [*command, "-o", "timeout=900", *tests])
    return code, findings(reports)


def rebuild(tree: Path, kind: str, *, planted: bool) -> None:
    """Build core with or without the planted faults, after removing what was built from the modules."""
    for module, line, fault in PLANTED:
        source = tree / "core" / f"{module}.pyx"
        text = source.read_text()
        if text.count(line if planted else fault) == 1:
            source.write_text(text.replace(line, fault) if planted else text.replace(fault, line))
            for path in [source.with_suffix(".c"), *source.parent.glob(f"{source.stem}.*.so")]:
                path.unlink(missing_ok=True)
        elif planted:
            sys.exit(f"{source} does not have exactly one line {line.strip()!r}: plant the fault elsewhere.")
    build(tree, kind)


def sees_faults(tree: Path, kind: str) -> str:
    """Check that the sanitizer finds the planted faults; return its library."""
    print(f"Building core with -fsanitize={FLAGS[kind]}, and with a fault", flush=True)
    rebuild(tree, kind, planted=True)
    library = runtime(tree, kind)
    canary = f"from tests.core import probes; probes.load().{CANARIES[kind]}()"
    run(tree, kind, library, tree / "report-canary", ["-c", canary])
    if not findings(tree / "report-canary"):
        sys.exit(f"The {kind} sanitizer does not find a planted fault: its silence would mean nothing.")
    found = []
    for number, storm in enumerate(STORMS):  # each in a process, which may crash: xdist may wait for a dead worker
        command = ["-m", "pytest", "-p", "no:xdist", "-q", "-o", "timeout=900", storm]
        run(tree, kind, library, tree / f"report-planted-{number}", command)
        found += findings(tree / f"report-planted-{number}")
    for module, _, _ in PLANTED:
        if not any(f"core/{module}." in report for report in found):
            sys.exit(f"The {kind} sanitizer does not find the fault planted in core/{module}.pyx.")
    print(f"{kind}: the planted faults are found", flush=True)
    return library


def sanitize(kind: str, arguments: list[str]) -> bool:
    tree = TREES / kind
    os.environ["PYBROKER_STORM_SECONDS"] = STORM_SECONDS
    copy(tree)
    for old in tree.glob("report-*"):
        old.unlink()
    try:
        library = sees_faults(tree, kind)
    finally:
        rebuild(tree, kind, planted=False)
    code, found = pytest(tree, kind, library, tree / "report-tests", arguments or TESTS)
    print("\n".join(found))
    print(f"{kind}: {len(found)} findings, pytest ended with {code}", flush=True)
    return code == 0 and not found


def main() -> None:
    arguments = sys.argv[1:]
    kinds = [arguments.pop(0)] if arguments and arguments[0] in FLAGS else list(FLAGS)
    sound = [sanitize(kind, arguments) for kind in kinds]
    sys.exit(0 if all(sound) else 1)


if __name__ == "__main__":
    main()
