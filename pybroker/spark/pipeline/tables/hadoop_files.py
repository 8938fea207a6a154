"""Files of a table on any file system of Spark's Hadoop: a local disk, HDFS, an object store."""

import json
from typing import TYPE_CHECKING

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.untyped import Document, JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """The few operations that a table needs; names are strings. Failures are Hadoop's, through Py4J."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self._jvm: JavaObject = spark._jvm
        configuration = spark._jsc.hadoopConfiguration()
        self._fs: JavaObject = self._path(root).getFileSystem(configuration)

    def _path(self, name: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(name)

    @property
    def scheme(self) -> str:
        """The kind of file system: file, hdfs, s3a."""
        return str(self._fs.getUri().getScheme())

    def qualified(self, name: str) -> str:
        """Return the name with its file system, as `walk` returns names."""
        return str(self._fs.makeQualified(self._path(name)).toString())

    def local(self, name: str) -> str:
        """Return the path without the file system, for a local or mounted file."""
        return str(self._path(name).toUri().getPath())

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def walk(self, name: str) -> list[tuple[str, int]]:
        """Return (qualified name, bytes) of every file under a directory that readers see, sorted; empty if it does not
        exist.

        Names that Spark's readers skip are left out, such as `_temporary`, for uncommitted files of task attempts."""
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
        """Create a directory and its parents, unless it exists. OSError if the file system refuses."""
        if not self._fs.mkdirs(self._path(name)):
            raise OSError(f"{name} could not be made")

    def move(self, source: str, target: str) -> None:
        """Rename a file, creating its new directory. OSError if the file system refuses."""
        self._fs.mkdirs(self._path(target).getParent())
        if not self._fs.rename(self._path(source), self._path(target)):
            raise OSError(f"{source} could not be renamed to {target}")

    def delete(self, name: str) -> None:
        """Remove a file or a directory with its content; does nothing if it does not exist."""
        self._fs.delete(self._path(name), True)

    def read(self, name: str) -> str:
        stream = self._fs.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def document(self, name: str) -> Document:
        """Read a file of JSON. KafkaError if it is damaged, as after a power failure."""
        try:
            told = json.loads(self.read(name))
        except ValueError as error:
            raise KafkaError(UNKNOWN_SERVER_ERROR, f"{name} is damaged: {error}") from error
        if not isinstance(told, dict):
            raise KafkaError(UNKNOWN_SERVER_ERROR, f"{name} is damaged: it is not a JSON object")
        return told

    def write(self, name: str, text: str) -> None:
        """Write a file atomically: under a temporary name, then renamed."""
        beside = f"{name}.tmp"
        stream = self._fs.create(self._path(beside), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.move(beside, name)


def hidden(name: str) -> bool:
    """True if Spark's readers skip a file or directory of this name; `_x=1` is a value of a column `_x`."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
