"""The storage of a table's files: a local or shared directory, an S3-like store, or any URI of pyarrow."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.untyped import Document

if TYPE_CHECKING:
    from pyarrow import fs

S3_SCHEMES: Final = ("s3", "s3a")
LOCAL_SCHEMES: Final = ("", "file")
# pyarrow's name of an option, and the names of delta-rs and the AWS tools for it, in order of preference.
_S3_OPTIONS: Final = {
    "access_key": ("AWS_ACCESS_KEY_ID",),
    "secret_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint_override": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
}


class TableStorage(NamedTuple):
    """The directory of a table and the options to access it; pickled for the workers.

    root: a path or a URI. options: by delta-rs's names, such as AWS_ENDPOINT_URL."""

    root: str
    options: Mapping[str, str]

    @classmethod
    def of(cls, root: str, given: Mapping[str, str]) -> "TableStorage":
        """Return the storage, with the environment's options where none are given, as the workers' environment may
        differ."""
        names = {name for each in _S3_OPTIONS.values() for name in each} | {"AWS_ALLOW_HTTP"}
        found = {name: os.environ[name] for name in names if name in os.environ} if is_s3(root) else {}
        if scheme(root) == "":
            root = os.path.abspath(root)
        return cls(root.rstrip("/"), found | {_known(name): value for name, value in given.items()})

    def open(self) -> "tuple[fs.FileSystem, str]":
        """Return the file system, and the path of the root in it. KafkaError for a URI that pyarrow does not know."""
        from pyarrow import fs

        if is_s3(self.root):
            url = urlsplit(self.root)
            return fs.S3FileSystem(**self._s3()), f"{url.netloc}{url.path}".rstrip("/")
        if (plain := self.directory) is not None:
            return fs.LocalFileSystem(), plain
        try:
            found, path = fs.FileSystem.from_uri(self.root)
        except (ValueError, OSError, NotImplementedError) as error:
            raise KafkaError(INVALID_CONFIG, f"cannot use a table at {self.root}: {error}") from error
        return found, path.rstrip("/")

    @property
    def directory(self) -> str | None:
        """The path of the root on a local or mounted disk; None if it is elsewhere."""
        if scheme(self.root) not in LOCAL_SCHEMES:
            return None
        return unquote(urlsplit(self.root).path) if scheme(self.root) else self.root

    def library_options(self) -> dict[str, str]:
        """The options for delta-rs, which refuses plain HTTP unless it is allowed."""
        told = dict(self.options)
        if str(self._s3().get("endpoint_override", "")).startswith("http://"):
            told.setdefault("AWS_ALLOW_HTTP", "true")
        return told

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Return the size in bytes of each file under the root, as this process sees it; None for a missing file."""
        found, root = self.open()
        told = found.get_file_info([f"{root}/{name}" for name in names])
        return [info.size if info.is_file else None for info in told]

    def stamp(self, name: str) -> tuple[int, int] | None:
        """Return (bytes, time of the last change in ns) of a file under the root; None if it does not exist."""
        found, root = self.open()
        (info,) = found.get_file_info([f"{root}/{name}"])
        return (info.size, info.mtime_ns) if info.is_file else None

    def delete(self, names: Sequence[str]) -> None:
        """Remove uncommitted files under the root; missing ones are ignored."""
        found, root = self.open()
        for name in names:
            try:
                found.delete_file(f"{root}/{name}")
            except OSError:  # it stays uncommitted, until the format's own maintenance finds it
                continue

    def _s3(self) -> Document:
        made: Document = {}
        for name, known in _S3_OPTIONS.items():
            value = next((self.options[each] for each in known if each in self.options), None)
            if value is not None:
                made[name] = value
        return made


def scheme(root: str) -> str:
    """Return a URI's scheme in lower case; empty for a path."""
    head, colon, _ = root.partition("://")
    if colon:
        return head.lower()
    return "file" if root.startswith("file:") else ""


def is_s3(root: str) -> bool:
    return scheme(root) in S3_SCHEMES


def _known(name: str) -> str:
    """Return the name in upper case: delta-rs takes its names in either case."""
    return name.upper() if name.upper().startswith("AWS_") else name
