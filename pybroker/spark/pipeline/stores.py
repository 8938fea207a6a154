"""Where the files of a table lie: a local or shared directory, an S3-like store, or what pyarrow knows by its URI."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pybroker.errors import INVALID_CONFIG, KafkaError

if TYPE_CHECKING:
    from pyarrow import fs

S3_SCHEMES: Final = ("s3", "s3a")
LOCAL_SCHEMES: Final = ("", "file")
# What pyarrow calls an option, and the names that delta-rs and the AWS tools have for it, the first of which wins.
_S3_OPTIONS: Final = {
    "access_key": ("AWS_ACCESS_KEY_ID",),
    "secret_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint_override": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
}


class Store(NamedTuple):
    """The directory of a table, with what it takes to get there; pickled for the workers.

    root: a path or a URI. options: by the names that delta-rs has for them, such as AWS_ENDPOINT_URL."""

    root: str
    options: Mapping[str, str]

    @classmethod
    def of(cls, root: str, given: Mapping[str, str]) -> "Store":
        """With the options of the environment where none are given: the workers may have another environment."""
        names = {name for each in _S3_OPTIONS.values() for name in each} | {"AWS_ALLOW_HTTP"}
        found = {name: os.environ[name] for name in names if name in os.environ} if is_s3(root) else {}
        if scheme(root) == "":
            root = os.path.abspath(root)
        return cls(root.rstrip("/"), found | {_known(name): value for name, value in given.items()})

    def open(self) -> "tuple[fs.FileSystem, str]":
        """The file system, and the path of the root in it. KafkaError for a URI that pyarrow does not know."""
        from pyarrow import fs

        if is_s3(self.root):
            url = urlsplit(self.root)
            return fs.S3FileSystem(**self._s3()), f"{url.netloc}{url.path}".rstrip("/")
        if (plain := self.directory) is not None:
            return fs.LocalFileSystem(), plain
        try:
            found, path = fs.FileSystem.from_uri(self.root)
        except (ValueError, OSError, NotImplementedError) as error:
            raise KafkaError(INVALID_CONFIG, f"no table can be at {self.root}: {error}") from error
        return found, path.rstrip("/")

    @property
    def directory(self) -> str | None:
        """The path of the root on a local or mounted disk; None where it is elsewhere."""
        if scheme(self.root) not in LOCAL_SCHEMES:
            return None
        return unquote(urlsplit(self.root).path) if scheme(self.root) else self.root

    def library_options(self) -> dict[str, str]:
        """The options as delta-rs takes them: it refuses plain HTTP unless it is told."""
        told = dict(self.options)
        if str(self._s3().get("endpoint_override", "")).startswith("http://"):
            told.setdefault("AWS_ALLOW_HTTP", "true")
        return told

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """How many bytes each file under the root has, as this process sees it; None where it sees none."""
        found, root = self.open()
        told = found.get_file_info([f"{root}/{name}" for name in names])
        return [info.size if info.is_file else None for info in told]

    def stamp(self, name: str) -> tuple[int, int] | None:
        """(bytes, nanoseconds of its last change) of a file under the root; None if it is not there."""
        found, root = self.open()
        (info,) = found.get_file_info([f"{root}/{name}"])
        return (info.size, info.mtime_ns) if info.is_file else None

    def delete(self, names: Sequence[str]) -> None:
        """Remove files under the root that nobody has committed; those that are not there are passed over."""
        found, root = self.open()
        for name in names:
            try:
                found.delete_file(f"{root}/{name}")
            except OSError:  # it stays invisible, until the format's own means find it
                continue

    def _s3(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, known in _S3_OPTIONS.items():
            value = next((self.options[each] for each in known if each in self.options), None)
            if value is not None:
                made[name] = value
        return made


def scheme(root: str) -> str:
    """Of a URI, in small letters; nothing for a path."""
    head, colon, _ = root.partition("://")
    if colon:
        return head.lower()
    return "file" if root.startswith("file:") else ""


def is_s3(root: str) -> bool:
    return scheme(root) in S3_SCHEMES


def _known(name: str) -> str:
    """delta-rs takes its names in either case."""
    return name.upper() if name.upper().startswith("AWS_") else name
