"""Files of a table, on whatever file system Spark's Hadoop knows: a local disk, HDFS, an object store."""

import json
from typing import TYPE_CHECKING, Any

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files:
    """The few operations that a table needs; names are strings. Failures are Hadoop's, through Py4J."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self._jvm: Any = spark._jvm
        configuration = spark._jsc.hadoopConfiguration()
        self._fs: Any = self._path(root).getFileSystem(configuration)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(name)

    @property
    def scheme(self) -> str:
        """The kind of file system: file, hdfs, s3a."""
        return str(self._fs.getUri().getScheme())

    def qualified(self, name: str) -> str:
        """The name with its file system, as `walk` gives names."""
        return str(self._fs.makeQualified(self._path(name)).toString())

    def local(self, name: str) -> str:
        """The path without the file system: of a file of this machine, or of one that is mounted there."""
        return str(self._path(name).toUri().getPath())

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def walk(self, name: str) -> list[tuple[str, int]]:
        """(qualified name, bytes) of every file under a directory that readers see, sorted; none where there is none.

        Left out is what Spark's readers leave out: such as `_temporary`, where attempts of tasks write that no job has
        committed."""
        if not self.exists(name):
            return []
        files, directories = [], [self._path(name)]
        while directories:
            for status in self._fs.listStatus(directories.pop()):
                path = status.getPath()
                if hidden(str(path.getName())):
                    continue
                if status.isDirectory():
                    directories.append(path)
                else:
                    files.append((str(path.toString()), int(status.getLen())))
        return sorted(files)

    def make(self, name: str) -> None:
        """Make a directory and those above it, unless it is there. OSError if the file system says no."""
        if not self._fs.mkdirs(self._path(name)):
            raise OSError(f"{name} could not be made")

    def move(self, source: str, target: str) -> None:
        """Rename a file, making the directory that it goes to. OSError if the file system says no."""
        self._fs.mkdirs(self._path(target).getParent())
        if not self._fs.rename(self._path(source), self._path(target)):
            raise OSError(f"{source} could not be renamed to {target}")

    def delete(self, name: str) -> None:
        """Remove a file or a directory with all that is in it; nothing if it is not there."""
        self._fs.delete(self._path(name), True)

    def read(self, name: str) -> str:
        stream = self._fs.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def document(self, name: str) -> dict[str, Any]:
        """A file of JSON. KafkaError where it is damaged, as a host that lost its power may leave it."""
        try:
            told = json.loads(self.read(name))
        except ValueError as error:
            raise KafkaError(UNKNOWN_SERVER_ERROR, f"{name} is damaged: {error}") from error
        if not isinstance(told, dict):
            raise KafkaError(UNKNOWN_SERVER_ERROR, f"{name} is damaged: it is no JSON object")
        return told

    def write(self, name: str, text: str) -> None:
        """A file that is there whole or not at all: written beside its name, and renamed."""
        beside = f"{name}.tmp"
        stream = self._fs.create(self._path(beside), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.move(beside, name)


def hidden(name: str) -> bool:
    """Whether Spark's readers pass by a file or directory of this name; `_x=1` is a value of a column `_x`."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
