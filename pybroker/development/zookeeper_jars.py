"""The jars of a ZooKeeper server: 4.3 MB that `pybroker zookeeper fetch` takes from a Maven repository, or those that
PySpark includes.

A fetched file is kept only if it has the pinned SHA-256, whichever repository, mirror or proxy it came through.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pybroker.errors import StartError


class Jar(NamedTuple):
    """One published jar; `pattern` matches its file name in any version."""

    group: str
    artifact: str
    version: str
    sha256: str
    length: int

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def pattern(self) -> str:
        return f"{self.artifact}-[0-9]*.jar"

    @property
    def path(self) -> str:
        """The path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file}"


ZOOKEEPER: Final = "3.9.5"
JARS: Final = (
    Jar("org.apache.zookeeper", "zookeeper", ZOOKEEPER,
        "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0", 1_367_207),
    Jar("org.apache.zookeeper", "zookeeper-jute", ZOOKEEPER,
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a", 260_263),
    Jar("org.slf4j", "slf4j-api", "2.0.17",
        "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832", 69_908),
    Jar("io.dropwizard.metrics", "metrics-core", "4.2.37",
        "3c70d19049d10f474ab803706b9c0677bcf5fd9e1afeb4f6c496f62e38b27678", 131_928),
    Jar("org.xerial.snappy", "snappy-java", "1.1.10.8",
        "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc", 2_445_419),
)  # fmt: skip
"""The jars of a server: without metrics-core it does not start, without snappy-java it listens but never serves."""
NETTY: Final = "netty-*.Final.jar"
"""Further jars for TLS, which only PySpark includes."""
FETCH_S_MAX: Final = 600
ANSWER_S_MAX: Final = 30
MAVEN: Final = "mvn"
POM: Final = """<project><modelVersion>4.0.0</modelVersion><groupId>pybroker</groupId><artifactId>zookeeper</artifactId>
<version>1</version><dependencies>{}</dependencies></project>"""
DEPENDENCY: Final = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of fetched jars, below XDG_DATA_HOME or ~/.local/share."""
    data = environment.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data) / "pybroker" / f"zookeeper-{ZOOKEEPER}"


def find_jars(directory: str | None = None, *, with_tls: bool = False) -> list[Path]:
    """Find the jars of a server: in a directory, where `fetch` put them, or where PySpark is installed. Raises
    StartError."""
    place = Path(directory) if directory is not None else _place(with_tls)
    found = []
    for jar in JARS:
        path = max(place.glob(jar.pattern), default=None)
        if path is None:
            raise StartError(f"ZooKeeper not found: {place} has no {jar.pattern}")
        found.append(path)
    if with_tls:
        found += sorted(place.glob(NETTY))
    return found


def _place(with_tls: bool) -> Path:
    if not with_tls and all((home() / jar.file).is_file() for jar in JARS):
        return home()
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise StartError(
            "ZooKeeper not found: `pybroker zookeeper fetch` gets its jars (4.3 MB), or give the directory of its jars "
            "with --jars"
        )
    return Path(spark.origin).parent / "jars"


def fetch(directory: Path, repository: str | None = None) -> list[Path]:
    """Fetch the jars that `directory` lacks, and return the paths of all. Raises StartError.

    `repository` is the URL of a Maven repository, read through the proxies of the environment (HTTPS_PROXY, NO_PROXY);
    without it, Maven fetches them, with the mirrors, proxies and passwords of its own settings."""
    missing = [jar for jar in JARS if not _is(jar, directory / jar.file)]
    if missing:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            if repository is None:
                _by_maven(missing, Path(scratch))
            else:
                _by_url(missing, Path(scratch), repository.rstrip("/"))
            for jar in missing:
                if not _is(jar, Path(scratch) / jar.file):
                    raise StartError(f"{jar.file} is not the published one: its SHA-256 is not {jar.sha256}")
            for jar in missing:
                os.replace(Path(scratch) / jar.file, directory / jar.file)
    return [directory / jar.file for jar in JARS]


def _is(jar: Jar, path: Path) -> bool:
    """True if the file at `path` is this jar."""
    try:
        if path.stat().st_size != jar.length:
            return False
        with open(path, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False


def _by_maven(jars: list[Jar], directory: Path) -> None:
    maven = shutil.which(MAVEN)
    if maven is None:
        raise StartError(
            f"the jars come from a Maven repository, and {MAVEN} is not on PATH: install Maven (Debian, Ubuntu: apt "
            "install maven), or give the URL of a repository with --repository"
        )
    listed = "".join(DEPENDENCY.format(jar.group, jar.artifact, jar.version) for jar in jars)
    (directory / "pom.xml").write_text(POM.format(listed))
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DexcludeTransitive=true", "-DoutputDirectory=."]
    try:
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=FETCH_S_MAX, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise StartError(f"Maven did not fetch the jars within {FETCH_S_MAX} s") from None
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise StartError(f"Maven could not fetch the jars: {said[0] if said else 'it wrote nothing'}")


def _by_url(jars: list[Jar], directory: Path, repository: str) -> None:
    opener = urllib.request.build_opener()
    for jar in jars:
        url = f"{repository}/{jar.path}"
        try:
            with opener.open(url, timeout=ANSWER_S_MAX) as answer:
                content = answer.read(jar.length + 1)
        except (OSError, ValueError) as problem:  # ValueError: this is no URL
            if isinstance(problem, urllib.error.HTTPError):
                problem.close()
            raise StartError(f"{url} could not be read: {problem}") from None
        (directory / jar.file).write_bytes(content)
