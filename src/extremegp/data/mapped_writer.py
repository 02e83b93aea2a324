"""Data sets larger than memory are written row by row, in a form that `open_dataset` maps."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.sparse import csr_matrix

from extremegp.data.analysis import Analyser
from extremegp.data.blocks import RowBlock, first_of_rows
from extremegp.data.labels import LabelSpace, encode_targets
from extremegp.data.mapped import (
    ARRAYS,
    BLOCK_ROWS,
    CONFIG,
    FORMAT_VERSION,
    HEADER_BYTES,
    LABELS,
    PROGRESS,
    VOCABULARY,
    Config,
    index_type,
    npy_header,
    plain_size,
)
from extremegp.data.validation import check_inputs
from extremegp.engine.matrices import FloatCSR
from extremegp.errors import DataError
from extremegp.storage.streams import atomic_writer, sync_folder, write_all, writing


class Done(NamedTuple):
    """How much was appended: rows, and stored entries of X and of Y."""

    n_rows: int = 0
    x_nnz: int = 0
    y_nnz: int = 0

    def counts(self) -> dict[str, int]:
        """The length of every part."""
        n_rows, x_nnz, y_nnz = self
        return dict(zip(ARRAYS, (n_rows + 1, x_nnz, x_nnz, n_rows + 1, y_nnz, y_nnz, n_rows), strict=True))


def write_names(folder: Path, name: str, names: Sequence[str]) -> None:
    """Write what `read_names` reads."""
    with atomic_writer(folder / name) as stream:
        stream.writelines(f"{name}\n".encode() for name in names)


class MappedWriter:
    """Writes a data set for `open_dataset` row by row, in memory that does not grow with it.

    A context manager. Until `finish` the folder is unfinished: what was appended up to the last `flush` can be gone on
    with, whatever ended the writing.

    Args:
        folder: where to write; made if it does not exist.
        done: to go on with an unfinished data set, what a `flush` returned; what was written after it is cut off.

    Raises:
        DataError: the folder cannot be written, holds other things, or has less than `done`.

    Examples:
        >>> import numpy as np, tempfile
        >>> from extremegp.data import MappedWriter, open_dataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with MappedWriter(folder) as writer:
        ...         for _ in range(3):
        ...             writer.append(np.eye(4), np.ones((4, 2)))
        ...         writer.finish()
        ...     open_dataset(folder).X.shape
        (12, 4)
    """

    def __init__(self, folder: str | Path, *, done: Done | None = None) -> None:
        self._folder, self._done = Path(folder), done or Done()
        self._widths = (0, 0)
        self._files: dict[str, Any] = {}
        with writing(self._folder), ExitStack() as opened:
            opened.callback(self._close)
            self._folder.mkdir(exist_ok=True)
            if (self._folder / CONFIG).exists():
                raise DataError("holds a data set already; name a new folder, or remove it", path=folder)
            strange = next((entry for entry in self._folder.iterdir() if not _is_known(entry.name)), None)
            if strange is not None:
                raise DataError(f"holds {strange.name}, which is no part of a data set; name a new folder", path=folder)
            if done is None:
                self._start()
            else:
                self._resume(done)
            opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def append(self, X: Any, Y: Any, first_labels: Any = None) -> None:
        """Append rows.

        Args:
            X: features, B x D, sparse or dense; stored zeros are left out.
            Y: labels, B x K indicator, sparse or dense.
            first_labels: of each row the label that comes first, -1 where there is none; by default the smallest.

        Raises:
            DataError: X or Y cannot be used, their rows or their columns from those before differ, or the disk is full.
        """
        x: FloatCSR = csr_matrix(check_inputs(X))
        y, space = encode_targets(Y)
        if space is not None:
            raise DataError("Y holds label names; pass an indicator: LabelSpace.encode makes it")
        if x.shape[0] != y.shape[0]:
            raise DataError(f"X has {x.shape[0]} rows but Y has {y.shape[0]}; give both the same rows")
        widths = (x.shape[1], y.shape[1])
        if self._widths not in ((0, 0), widths):
            raise DataError(f"X and Y have {widths} columns, but those of earlier rows have {self._widths}")
        self._widths = widths
        if first_labels is None:
            first_labels = first_of_rows(y.indices, np.diff(y.indptr))
        self.append_block(RowBlock.of(x, y, np.asarray(first_labels)))

    def append_block(self, rows: RowBlock) -> None:
        """Append a block that a reader gives, which is known to be sound.

        Raises:
            DataError: it cannot be written, as on a full disk.
        """
        n_rows, x_nnz, y_nnz = self._done
        x_ends, y_ends = x_nnz + np.cumsum(rows.n_features), y_nnz + np.cumsum(rows.n_labels)
        ones = np.ones(len(rows.labels), np.float32)
        arrays = (x_ends, rows.features, rows.values, y_ends, rows.labels, ones, rows.first_labels)
        with writing(self._folder):
            for (name, dtype), array in zip(ARRAYS.items(), arrays, strict=True):
                write_all(self._files[name], np.ascontiguousarray(array, dtype=dtype))
        self._done = Done(n_rows + len(rows.n_features), x_nnz + len(rows.features), y_nnz + len(rows.labels))

    def flush(self) -> Done:
        """Bring what was appended to the disk.

        Returns:
            What to pass as `done` to go on from here.

        Raises:
            DataError: it cannot be written.
        """
        with writing(self._folder):
            for file in self._files.values():
                os.fsync(file.fileno())
        return self._done

    def finish(
        self,
        n_features: int | None = None,
        n_labels: int | None = None,
        *,
        label_names: Sequence[str] | None = None,
        vocabulary: Sequence[str] | None = None,
        analyse: Analyser | None = None,
        first_feature: int = 0,
    ) -> None:
        """Complete the data set. The writer cannot be used after it.

        Args:
            n_features: D; by default that of the X that were appended.
            n_labels: K; by default that of the Y.
            label_names: the names of the K labels.
            vocabulary: the words that the D features count.
            analyse: how these are found in texts, if that is known.
            first_feature: the number that the first feature has in the blocks appended.

        Raises:
            DataError: there are no rows, names do not fit, or the disk is full.
        """
        done, folder = self._done, self._folder
        n_features, n_labels = n_features or self._widths[0], n_labels or self._widths[1]
        if not done.n_rows:
            raise DataError("there are no rows; append at least one", path=folder)
        for name, names, count in ((LABELS, label_names, n_labels), (VOCABULARY, vocabulary, n_features)):
            if names is not None:
                if len(LabelSpace(names)) != count or any("\n" in name for name in names):
                    raise DataError(f"there must be {count} names without line breaks", path=folder / name)
                write_names(folder, name, names)
            else:
                (folder / name).unlink(missing_ok=True)
        self.flush()
        with writing(self._folder):
            for name, count in done.counts().items():
                dtype = np.dtype(ARRAYS[name])
                if dtype.kind == "i" and name != "first_labels":
                    dtype = index_type(done.x_nnz if name[0] == "x" else done.y_nnz)
                self._complete(name, count, dtype, first_feature if name == "x_indices" else 0)
        sizes = (done.n_rows, n_features, n_labels, done.x_nnz, done.y_nnz, first_feature)
        words = None if analyse is None else analyse.to_config()
        config = Config(*sizes, label_names is not None, vocabulary is not None, words)
        sync_folder(folder)
        with atomic_writer(folder / CONFIG) as stream:
            stream.write(json.dumps({"format_version": FORMAT_VERSION} | config._asdict(), indent=2).encode() + b"\n")
        self._close()
        for name in (PROGRESS, *(f"{name}.part" for name in ARRAYS)):
            (folder / name).unlink(missing_ok=True)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()

    def _start(self) -> None:
        for entry in list(self._folder.iterdir()):
            entry.unlink()
        for name in ARRAYS:
            file = self._files[name] = open(self._folder / f"{name}.part", "xb", buffering=0)  # noqa: SIM115
            write_all(file, np.zeros(HEADER_BYTES, np.uint8))
            if name.endswith("_indptr"):
                write_all(file, np.zeros(1, np.int64))

    def _resume(self, done: Done) -> None:
        for name, count in done.counts().items():
            part, array = self._folder / f"{name}.part", self._folder / f"{name}.npy"
            # The end of an earlier attempt may have come as far as giving arrays their names.
            if not part.exists() and array.exists():
                array.rename(part)
            size = HEADER_BYTES + count * np.dtype(ARRAYS[name]).itemsize
            if plain_size(part) < size:
                problem = "is shorter than the progress of writing says; remove the folder to start anew"
                raise DataError(problem, path=part)
            file = self._files[name] = open(part, "r+b", buffering=0)  # noqa: SIM115 - until `finish`
            file.truncate(size)
            file.seek(size)

    def _complete(self, name: str, count: int, dtype: np.dtype[Any], first: int) -> None:
        """Give an array its name and header; numbers are counted from `first`."""
        part, path = self._folder / f"{name}.part", self._folder / f"{name}.npy"
        if dtype == ARRAYS[name] and not first:
            file = self._files[name]
            file.seek(0)
            write_all(file, npy_header(dtype.str, count))
            os.fsync(file.fileno())
            part.replace(path)
            return
        path.unlink(missing_ok=True)
        with open(part, "rb") as source, open(path, "xb", buffering=0) as array:
            write_all(array, npy_header(dtype.str, count))
            source.seek(HEADER_BYTES)
            for start in range(0, count, BLOCK_ROWS):
                block = np.fromfile(source, ARRAYS[name], min(BLOCK_ROWS, count - start))
                write_all(array, np.asarray(block - first, dtype=dtype))
            os.fsync(array.fileno())


def _is_known(name: str) -> bool:
    # What an atomic writer was about to write when it was killed counts as well.
    abandoned = name.startswith(".") and name.endswith(".tmp")
    stem, _, suffix = name.rpartition(".")
    return abandoned or name in (CONFIG, PROGRESS, LABELS, VOCABULARY) or (stem in ARRAYS and suffix in ("part", "npy"))
