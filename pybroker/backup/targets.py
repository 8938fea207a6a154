"""The place of a backup: a directory, or a prefix in an object store by an address such as s3://bucket/prefix.

Both hold the same files. In a directory a file is written as NAME.tmp and renamed once it is durable. In an object
store a file appears with its last byte; a run that dies may leave one that is cut, which no manifest names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from pybroker import errors, extras
from pybroker.backup.batches import Stream
from pybroker.backup.manifest import BYTES_MAX, NAME, damaged
from pybroker.core import write_atomic
from pybroker.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TEMPORARY: Final = ".tmp"
_LOCK: Final = ".lock"
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_OURS: Final = re.compile(r"\d{20}\.log(?:\.tmp)?")
_NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP)


class TargetFile(Protocol):
    """A file that is being written."""

    def write(self, data: memoryview, /) -> object: ...
    def commit(self) -> None:
        """Give the file its name, durably. OSError."""

    def discard(self) -> None:
        """Leave nothing that the backup would count."""


class Readable(Stream, Protocol):
    """An open file of a backup."""

    def close(self) -> None: ...


class Target(Protocol):
    """The files of a backup. All raise OSError."""

    name: str

    def read_manifest(self) -> bytes | None:
        """The manifest; None if there is none."""

    def write_manifest(self, data: bytes) -> None:
        """Replace the manifest: afterwards it is the new one, or after a failure the old one."""

    def create(self, name: str) -> TargetFile: ...
    def link(self, source: Path, name: str) -> bool:
        """Make `name` a hard link to a local file; False if that is not possible here."""

    def open(self, name: str) -> Readable: ...
    def size(self, name: str) -> int | None:
        """The size of a file; None if there is none."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, if they are there."""

    def keep_only(self, directory: str, names: Collection[str]) -> None:
        """Remove what earlier runs left in a directory of segments, other than these."""

    def close(self) -> None: ...


def open_target(text: str, *, write: bool) -> Target:
    """Open the target that a person named. KafkaError(INVALID_CONFIG) if it cannot be one; OSError."""
    if _ADDRESS.match(text):
        return ObjectTarget(text)
    return DirectoryTarget(Path(text), write=write)


def manifest_bytes(target: Target) -> bytes:
    """The manifest of a backup that must be there. KafkaError(CORRUPT_MESSAGE) if it is not."""
    data = target.read_manifest()
    if data is None:
        raise damaged(f"{target.name} is no backup: it has no {NAME}")
    return data


# -- a directory -------------------------------------------------------------------------------------------------------


class _NewFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(path.name + _TEMPORARY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(self._temporary, flags, _FILE_MODE), "wb", buffering=0)

    def write(self, data: memoryview) -> None:
        while data:
            data = data[self._file.write(data) :]

    def commit(self) -> None:
        with self._file:
            os.fdatasync(self._file.fileno())
        os.replace(self._temporary, self._path)
        _sync(self._path.parent)

    def discard(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class DirectoryTarget:
    """A backup in a directory, which one run at a time writes to."""

    def __init__(self, root: Path, *, write: bool) -> None:
        self.name = str(root)
        self._root = root
        self._lock = -1
        if write:
            _make(root)
            self._lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self.close()
                raise KafkaError(errors.INVALID_REQUEST, f"another backup to {root} is running") from error

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read_manifest(self) -> bytes | None:
        try:
            with (self._root / NAME).open("rb") as file:
                data = file.read(BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        return _bounded(data, self.name)

    def write_manifest(self, data: bytes) -> None:
        write_atomic(str(self._root / NAME), data)

    def create(self, name: str) -> TargetFile:
        path = self._root / name
        if not path.parent.is_dir():
            _make(path.parent)
        return _NewFile(path)

    def link(self, source: Path, name: str) -> bool:
        path = self._root / name
        if not path.parent.is_dir():
            _make(path.parent)
        path.unlink(missing_ok=True)
        try:
            os.link(source, path, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        _sync(path)  # a broker may not have flushed it yet
        _sync(path.parent)
        return True

    def open(self, name: str) -> Readable:
        return (self._root / name).open("rb", buffering=0)

    def size(self, name: str) -> int | None:
        path = self._root / name
        return path.stat().st_size if path.is_file() else None

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._root / name
            path.unlink(missing_ok=True)
            for directory in (path.parent, path.parent.parent):
                if directory != self._root and self._root in directory.parents:
                    with contextlib.suppress(OSError):  # other files are in it
                        directory.rmdir()

    def keep_only(self, directory: str, names: Collection[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in list((self._root / directory).iterdir()):
                if _OURS.fullmatch(path.name) and path.name not in names:
                    path.unlink()


def _make(directory: Path) -> None:
    """Make a directory with its parents, durably."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    for each in missing:
        _sync(each.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > BYTES_MAX:
        raise damaged(f"the {NAME} of {name} has more than {BYTES_MAX} bytes")
    return data


# -- an object store ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise OSError for each error of pyarrow's own: not all of them are one already."""
    from pyarrow import ArrowException

    try:
        yield
    except ArrowException as error:
        raise OSError(str(error)) from error


class _NewObject:
    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file

    @_as_os_error()
    def write(self, data: memoryview) -> None:
        self._file.write(data)

    @_as_os_error()
    def commit(self) -> None:
        self._file.close()

    def discard(self) -> None:
        with contextlib.suppress(OSError), _as_os_error():
            self._file.close()


class ObjectTarget:
    """A backup in an object store, or another file system that pyarrow knows. Nothing keeps two runs apart."""

    def __init__(self, address: str) -> None:
        try:
            from pyarrow import ArrowException, fs
        except ImportError as error:
            words = f"{address} needs pyarrow: {extras.install('arrow')}"
            raise KafkaError(errors.INVALID_CONFIG, words) from error
        self.name = address
        try:
            self._fs, base = fs.FileSystem.from_uri(address)
        except (ValueError, NotImplementedError) as error:
            raise KafkaError(errors.INVALID_CONFIG, f"{address} is no address of an object store: {error}") from error
        except ArrowException as error:
            raise OSError(str(error)) from error
        if not base:
            raise KafkaError(errors.INVALID_CONFIG, f"{address} names no place in its object store, such as a bucket")
        self._base = base.rstrip("/")
        self._is_file = fs.FileType.File

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

    @_as_os_error()
    def read_manifest(self) -> bytes | None:
        if self.size(NAME) is None:
            return None
        with contextlib.closing(self.open(NAME)) as file:
            return _bounded(file.read(BYTES_MAX + 1), self.name)

    @_as_os_error()
    def write_manifest(self, data: bytes) -> None:
        new = self._path(NAME + _TEMPORARY)
        with self._fs.open_output_stream(new) as file:
            file.write(data)
        self._fs.copy_file(new, self._path(NAME))  # all or nothing; a stream that fails may leave half of an object
        self._fs.delete_file(new)

    @_as_os_error()
    def create(self, name: str) -> TargetFile:
        path = self._path(name)
        if self._fs.type_name == "local":
            self._fs.create_dir(path.rpartition("/")[0])
        return _NewObject(self._fs.open_output_stream(path))

    def link(self, source: Path, name: str) -> bool:
        return False

    @_as_os_error()
    def open(self, name: str) -> Readable:
        opened: Readable = self._fs.open_input_stream(self._path(name))
        return opened

    @_as_os_error()
    def size(self, name: str) -> int | None:
        (info,) = self._fs.get_file_info([self._path(name)])
        return int(info.size) if info.type == self._is_file else None

    @_as_os_error()
    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(self._path(name))

    def keep_only(self, directory: str, names: Collection[str]) -> None:
        """Leave the rest: an object that no manifest names is read by none, and written over."""
