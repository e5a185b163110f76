"""The files of a lake in any store that Hadoop knows: `s3a:`, `abfss:`, `hdfs:` and others, through the Java of Spark.

Such a store keeps a file once it is closed; there is nothing more to ask of it. In an object store a move is a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]

from sqlqueue_app.pipeline.errors import PipelineError
from sqlqueue_app.pipeline.storage import lost_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_MISSING = "FileNotFoundException"
_THERE = "FileAlreadyExistsException"


class HadoopStorage:
    """A lake below a URL of Hadoop; what it needs to know of the store stands in the settings of Spark (`spark.hadoop.…`)."""

    def __init__(self, session: SparkSession, url: str) -> None:
        self._url = url.rstrip("/")
        jvm: Any = session._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        configuration = session._jsc.hadoopConfiguration()  # type: ignore[attr-defined,unused-ignore]
        self._files: Any = self._call("open", "", lambda: self._path_of(self._url).getFileSystem(configuration))
        self._root: str = self._files.makeQualified(self._path_of(self._url)).toUri().getPath().rstrip("/")

    @property
    def name(self) -> str:
        """The URL."""
        return self._url

    def url(self, path: str) -> str:
        """Below the URL of the lake."""
        return f"{self._url}/{path}"

    def read(self, path: str) -> str | None:
        """The text."""

        def read() -> str:
            stream = self._files.open(self._path(path))
            try:
                return bytes(stream.readAllBytes()).decode("utf-8")
            finally:
                stream.close()

        return self._call("read", path, read, missing=lambda: None)

    def write_new(self, path: str, text: str) -> bool:
        """By a creation that replaces nothing."""

        def write() -> bool:
            stream = self._files.create(self._path(path), False)
            try:
                stream.write(bytearray(text.encode("utf-8")))
            finally:
                stream.close()
            return True

        def was_there() -> bool:
            if not self._files.exists(self._path(path)):
                raise PipelineError(f"failed to write {path!r} in the lake {self._url}: a file is where a folder should be")
            return False

        return self._call("write", path, write, there=was_there)

    def put(self, source: Path, path: str) -> None:
        """Copied up."""
        self._call(
            "write", path, lambda: self._files.copyFromLocalFile(False, True, self._path_of(source.as_uri()), self._path(path))
        )

    def names(self, path: str) -> list[str]:
        """The names."""
        found = self._call("list", path, lambda: list(self._files.listStatus(self._path(path))), missing=list)
        return sorted(each.getPath().getName() for each in found)

    def sizes(self, path: str) -> dict[str, int]:
        """The files, by their paths below the lake; without those whose names begin with a dot or an underscore."""

        def sizes() -> dict[str, int]:
            found: dict[str, int] = {}
            files = self._files.listFiles(self._path(path), True)
            while files.hasNext():
                each = files.next()
                if not each.getPath().getName().startswith((".", "_")):
                    found[each.getPath().toUri().getPath().removeprefix(f"{self._root}/")] = int(each.getLen())
            return found

        return self._call("list", path, sizes, missing=dict)

    def sync(self, paths: list[str]) -> None:
        """They are there since they were closed."""

    def move(self, source: str, target: str) -> None:
        """`rename`. Where a store copies instead, and was broken off between the copy and the deletion, the rest is done now."""

        def move() -> None:
            old, new = self._path(source), self._path(target)
            if not self._files.exists(old):
                if not self._files.exists(new):
                    raise PipelineError(lost_file(self._url, source, target))
            elif self._files.exists(new):
                self._files.delete(old, False)
            else:
                self._files.mkdirs(new.getParent())
                if not self._files.rename(old, new) and self._files.exists(old):
                    raise PipelineError(f"the store refused to move {source!r} to {target!r} in the lake {self._url}")

        self._call("write", target, move)

    def delete(self, path: str) -> None:
        """With all that is below it."""
        self._call("delete", path, lambda: self._files.delete(self._path(path), True), missing=lambda: False)

    def _path(self, path: str) -> Any:
        return self._path_of(f"{self._url}/{path}")

    def _call(
        self,
        doing: str,
        path: str,
        call: Callable[[], T],
        *,
        missing: Callable[[], T] | None = None,
        there: Callable[[], T] | None = None,
    ) -> T:
        try:
            return call()
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getSimpleName())
            if missing is not None and kind == _MISSING:
                return missing()
            if there is not None and kind == _THERE:
                return there()
            said = str(error.java_exception.getMessage() or kind).strip().splitlines()[0]
            raise PipelineError(f"failed to {doing} {path!r} in the lake {self._url}: {kind}: {said}. Nothing is lost") from None
