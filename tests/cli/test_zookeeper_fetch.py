"""`pybroker zookeeper fetch`: from a repository, through a proxy, or by Maven; only the pinned jars are kept."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.development import zookeeper_jars
from pybroker.development.zookeeper_jars import Jar, find_jars
from pybroker.errors import StartError
from tests.cli.conftest import run

CONTENT = {jar.artifact: jar.artifact.encode() * 100 for jar in zookeeper_jars.JARS}


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Jars of a few bytes in place of the real ones, nothing fetched yet, and no PySpark."""
    small = [
        jar._replace(sha256=hashlib.sha256(content).hexdigest(), length=len(content))
        for jar, content in zip(zookeeper_jars.JARS, CONTENT.values(), strict=True)
    ]
    monkeypatch.setattr(zookeeper_jars, "JARS", tuple(small))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A Maven repository with the jars."""
    for jar in zookeeper_jars.JARS:
        path = tmp_path / "repository" / jar.path
        path.parent.mkdir(parents=True)
        path.write_bytes(CONTENT[jar.artifact])
    return tmp_path / "repository"


@pytest.fixture
def served(repository: Path) -> Iterator[tuple[str, list[str]]]:
    """The repository over HTTP: its address, and the targets of all requests."""
    asked: list[str] = []

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *rest: object) -> None:
            super().__init__(*rest, directory=str(repository))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            asked.append(self.path)
            self.path = "/" + (self.path.partition("/maven/")[2] or "nothing")
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_fetched_jars_are_found(served: tuple[str, list[str]]) -> None:
    """Before a fetch the sentence says what to do; after it, the jars are found where the command looks for them."""
    with pytest.raises(StartError, match="ZooKeeper not found: `pybroker zookeeper fetch` gets its jars"):
        find_jars()
    done = run("zookeeper", "fetch", "--repository", f"http://{served[0]}/maven")
    assert done.code == 0, done
    assert done.out == f"ZooKeeper {zookeeper_jars.ZOOKEEPER} is in {zookeeper_jars.home()}\n"
    assert names(find_jars()) == [jar.file for jar in zookeeper_jars.JARS]
    assert sorted(path.name for path in zookeeper_jars.home().iterdir()) == sorted(names(find_jars()))


def test_only_what_is_missing_is_fetched(served: tuple[str, list[str]], tmp_path: Path) -> None:
    where = ("zookeeper", "fetch", "--repository", f"http://{served[0]}/maven/", "--to", tmp_path / "jars")
    assert run(*where).code == 0
    served[1].clear()
    damaged = tmp_path / "jars" / zookeeper_jars.JARS[2].file
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert run(*where).code == 0
    assert served[1] == [f"/maven/{zookeeper_jars.JARS[2].path}"]
    assert names(find_jars(str(tmp_path / "jars"))) == [jar.file for jar in zookeeper_jars.JARS]


@pytest.mark.parametrize("other", [b"", b"?" * 700, b"?" * 5_000])
def test_another_file_is_not_kept(
    served: tuple[str, list[str]], repository: Path, tmp_path: Path, other: bytes
) -> None:
    """A file that is not the pinned one is refused, of any length, and none of the others is kept."""
    jar: Jar = zookeeper_jars.JARS[3]
    (repository / jar.path).write_bytes(other)
    done = run("zookeeper", "fetch", "--repository", f"http://{served[0]}/maven", "--to", tmp_path / "jars")
    assert done.code == 1
    assert done.sentence == f"{jar.file} is not the published one: its SHA-256 is not {jar.sha256}"
    assert not list((tmp_path / "jars").iterdir())


def test_the_proxy_of_the_environment_is_used(served: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{served[0]}")
    assert run("zookeeper", "fetch", "--repository", "http://repository.invalid/maven").code == 0
    assert served[1][0] == f"http://repository.invalid/maven/{zookeeper_jars.JARS[0].path}"


def test_a_repository_on_disk(repository: Path) -> None:
    """Maven's own directory, ~/.m2/repository, is a repository too."""
    assert run("zookeeper", "fetch", "--repository", repository.as_uri()).code == 0
    assert find_jars()


def test_a_repository_without_them(served: tuple[str, list[str]]) -> None:
    """A repository without the jars, one that cannot be reached, and what is no URL are each one sentence."""
    first = zookeeper_jars.JARS[0].path
    for url, why in (
        (f"http://{served[0]}/other", "HTTP Error 404: File not found"),
        ("http://127.0.0.1:1", "<urlopen error [Errno 111] Connection refused>"),
        ("maven", f"unknown url type: 'maven/{first}'"),
    ):
        done = run("zookeeper", "fetch", "--repository", url)
        assert (done.code, done.sentence) == (1, f"{url}/{first} could not be read: {why}")


def test_maven_fetches_them(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --repository Maven copies them, from a project that has just these dependencies."""
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    copies = f"find {repository} -name '*.jar' -exec cp {{}} . \\;"
    maven.write_text(f"#!/bin/sh\ncat pom.xml > {tmp_path}/pom.xml\n{copies}\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:/bin:/usr/bin")
    assert run("zookeeper", "fetch").code == 0
    assert names(find_jars()) == [jar.file for jar in zookeeper_jars.JARS]
    pom = (tmp_path / "pom.xml").read_text()
    for jar in zookeeper_jars.JARS:
        assert f"<artifactId>{jar.artifact}</artifactId><version>{jar.version}</version>" in pom
    maven.write_text("#!/bin/sh\necho '[ERROR] no route to the repository'\nexit 1\n")
    done = run("zookeeper", "fetch", "--to", tmp_path / "jars")
    assert (done.code, done.sentence) == (1, "Maven could not fetch the jars: [ERROR] no route to the repository")


def test_without_maven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("zookeeper", "fetch")
    assert done.code == 1
    assert "mvn is not on PATH: install Maven" in done.sentence and "--repository" in done.sentence
