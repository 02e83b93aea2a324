"""Data sets in a folder, larger than memory: CSR matrices whose arrays are mapped from files.

``dataset.json`` holds the sizes and is written last: without it a folder is unfinished. Beside it are little-endian
NumPy arrays, of X and of Y ``indptr``, ``indices`` and ``data``, ``first_labels``, and perhaps ``labels.txt`` (label
names) and ``vocabulary.txt`` (the words that features count), one a line. Row starts and columns are int32, or int64 in
a matrix of 2^31 entries or more, since SciPy computes with one type for both.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.data.blocks import MAX_COLUMNS, RowBlock
from extremegp.data.labels import LabelSpace, encode_targets
from extremegp.data.validation import FloatCSR, check_inputs, csr_of, first_fault
from extremegp.data.xc import Dataset
from extremegp.errors import DataError
from extremegp.storage.streams import atomic_writer, sync_folder, write_all

FORMAT_VERSION = 1
CONFIG, PROGRESS, LABELS, VOCABULARY = "dataset.json", "progress.json", "labels.txt", "vocabulary.txt"

_MAX_INT32 = 2**31 - 1
_HEADER_BYTES = 128
_BLOCK_ROWS = 1 << 20
# What is appended to; arrays of X and Y as they are on disk at the end are made of them.
_PARTS: dict[str, str] = {
    "x_lengths": "<i8",
    "x_indices": "<i4",
    "x_data": "<f4",
    "y_lengths": "<i8",
    "y_indices": "<i4",
    "y_data": "<f4",
    "first_labels": "<i4",
}
_ARRAYS = ("x_indptr", "x_indices", "x_data", "y_indptr", "y_indices", "y_data", "first_labels")


class Config(NamedTuple):
    """What ``dataset.json`` says: N, D, K, stored entries of X and of Y, the number that the source gives to its first
    feature, and which lists of names there are."""

    n_rows: int
    n_features: int
    n_labels: int
    x_nnz: int
    y_nnz: int
    first_feature: int = 0
    label_names: bool = False
    vocabulary: bool = False


class Done(NamedTuple):
    """How much was appended: rows, and stored entries of X and of Y."""

    n_rows: int = 0
    x_nnz: int = 0
    y_nnz: int = 0

    def counts(self) -> dict[str, int]:
        """The length of every part."""
        of_rows = dict.fromkeys(("x_lengths", "y_lengths", "first_labels"), self.n_rows)
        of_x, of_y = ((f"{x}_indices", f"{x}_data") for x in "xy")
        return of_rows | dict.fromkeys(of_x, self.x_nnz) | dict.fromkeys(of_y, self.y_nnz)


def is_dataset(path: str | Path) -> bool:
    """Whether a path is a folder with a data set, be it unfinished."""
    return any((Path(path) / name).is_file() for name in (CONFIG, PROGRESS))


def open_dataset(path: str | Path, *, n_features: int | None = None, n_labels: int | None = None) -> Dataset:
    """Open a data set that `MappedWriter` or `extremegp convert` wrote, without reading it into memory.

    Nothing in the folder is trusted: sizes are compared before anything is mapped, and all arrays are read through
    once, in blocks. X and Y are then views of the files, which must not change while they are used.

    Args:
        path: the folder.
        n_features: the D of the model that the data are for; the result has D columns. The data may not have more.
        n_labels: the same for the K labels.

    Returns:
        The data set; the arrays of X, Y and first_labels are read-only and mapped from the files.

    Raises:
        DataError: the folder holds no finished data set, or a file in it is missing, of another size, or contradicts
            the others; names the file.
    """
    folder = Path(path)
    config = read_config(folder)
    for found, wanted, what in ((config.n_features, n_features, "features"), (config.n_labels, n_labels, "labels")):
        if wanted is not None and wanted < found:
            raise DataError(
                f"has {found} {what} but the model has {wanted}; use data made with the same {what}", path=folder
            )
    X = _matrix(folder, "x", config.n_rows, n_features or config.n_features, config.x_nnz)
    Y = _matrix(folder, "y", config.n_rows, n_labels or config.n_labels, config.y_nnz)
    first_labels = _mapped(folder / "first_labels.npy", np.dtype("<i4"), config.n_rows)
    _check_labels(folder, Y, first_labels)
    names = read_names(folder, LABELS, config.n_labels) if config.label_names else None
    return Dataset(X, Y, names, first_labels)


def read_config(folder: Path) -> Config:
    """The sizes of a finished data set.

    Raises:
        DataError: the folder holds none, or its sizes are none.
    """
    path = folder / CONFIG
    if not path.exists():
        if (folder / PROGRESS).exists():
            raise DataError("the data set is unfinished: repeat the command that writes it, which resumes", path=folder)
        what = "holds no data set: there is no dataset.json" if folder.is_dir() else "no such folder; check the path"
        raise DataError(what, path=folder)
    _plain_size(path)
    try:
        content = json.loads(path.read_bytes()[: 1 << 16])
        values = [content[name] for name in Config._fields]
        version = content["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"is not what describes a data set ({error!r}); convert it again", path=path) from error
    if version != FORMAT_VERSION:
        raise DataError(f"has format version {version!r}, not {FORMAT_VERSION}; convert the data again", path=path)
    config = Config(*values)
    if (
        not all(type(size) is int and 0 <= size < 2**62 for size in config[:6])
        or not all(type(flag) is bool for flag in config[6:])
        or config.first_feature > 1
        or min(config[:3]) < 1
        or max(config.n_features, config.n_labels) > MAX_COLUMNS
    ):
        raise DataError("has sizes that no data set has; convert the data again", path=path)
    return config


def read_names(folder: Path, name: str, count: int) -> list[str]:
    """A list of names, one a line.

    Raises:
        DataError: the file is missing, not UTF-8, or has not as many different names.
    """
    path = folder / name
    _plain_size(path)
    try:
        names = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError("is not UTF-8 text; convert the data again", path=path) from error
    if len(names) != count or len(set(names)) != count:
        raise DataError(f"has {len(set(names))} different names, but there are {count}; convert again", path=path)
    return names


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
        with self._writing(), ExitStack() as opened:
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
        n_labels = np.diff(y.indptr).astype(np.int64)
        if first_labels is None:
            first_labels = np.full(len(n_labels), -1)
            first_labels[n_labels > 0] = y.indices[y.indptr[:-1][n_labels > 0]]
        self.append_block(
            RowBlock(
                np.diff(x.indptr).astype(np.int64), x.indices, x.data, n_labels, y.indices, first_labels
            ).without_zeros()
        )

    def append_block(self, rows: RowBlock) -> None:
        """Append a block that a reader gives, which is known to be sound.

        Raises:
            DataError: it cannot be written, as on a full disk.
        """
        arrays = (*rows[:5], np.ones(len(rows.labels), np.float32), rows.first_labels)
        with self._writing():
            for (name, dtype), array in zip(_PARTS.items(), arrays, strict=True):
                write_all(self._files[name], np.ascontiguousarray(array, dtype=dtype))
        n_rows, x_nnz, y_nnz = self._done
        self._done = Done(n_rows + len(rows.n_features), x_nnz + len(rows.features), y_nnz + len(rows.labels))

    def flush(self) -> Done:
        """Bring what was appended to the disk.

        Returns:
            What to pass as `done` to go on from here.

        Raises:
            DataError: it cannot be written.
        """
        with self._writing():
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
        first_feature: int = 0,
    ) -> None:
        """Complete the data set. The writer cannot be used after it.

        Args:
            n_features: D; by default that of the X that were appended.
            n_labels: K; by default that of the Y.
            label_names: the names of the K labels.
            vocabulary: the words that the D features count.
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
        with self._writing():
            for x, nnz, first in (("x", done.x_nnz, first_feature), ("y", done.y_nnz, 0)):
                dtype = _index_type(nnz)
                _rewrite(folder, f"{x}_lengths", f"{x}_indptr", dtype, done.n_rows, _Starts())
                if first or dtype != np.int32:
                    _rewrite(folder, f"{x}_indices", f"{x}_indices", dtype, nnz, partial(np.add, -first))
                else:
                    self._complete(f"{x}_indices", nnz)
                self._complete(f"{x}_data", nnz)
            self._complete("first_labels", done.n_rows)
        sizes = (done.n_rows, n_features, n_labels, done.x_nnz, done.y_nnz, first_feature)
        config = Config(*sizes, label_names is not None, vocabulary is not None)
        sync_folder(folder)
        with atomic_writer(folder / CONFIG) as stream:
            stream.write(json.dumps({"format_version": FORMAT_VERSION} | config._asdict(), indent=2).encode() + b"\n")
        self._close()
        for name in (PROGRESS, *(f"{name}.part" for name in _PARTS)):
            (folder / name).unlink(missing_ok=True)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()

    def _start(self) -> None:
        for entry in list(self._folder.iterdir()):
            entry.unlink()
        for name in _PARTS:
            self._files[name] = open(self._folder / f"{name}.part", "xb", buffering=0)  # noqa: SIM115
            write_all(self._files[name], np.zeros(_HEADER_BYTES, np.uint8))

    def _resume(self, done: Done) -> None:
        for name, count in done.counts().items():
            part, array = self._folder / f"{name}.part", self._folder / f"{name}.npy"
            # The end of an earlier attempt may have come as far as giving arrays their names.
            if not part.exists() and array.exists():
                array.rename(part)
            size = _HEADER_BYTES + count * np.dtype(_PARTS[name]).itemsize
            if _plain_size(part) < size:
                problem = "is shorter than the progress of writing says; remove the folder to start anew"
                raise DataError(problem, path=part)
            file = self._files[name] = open(part, "r+b", buffering=0)  # noqa: SIM115 - until `finish`
            file.truncate(size)
            file.seek(size)

    def _complete(self, name: str, count: int) -> None:
        file = self._files[name]
        file.seek(0)
        write_all(file, _header(_PARTS[name], count))
        os.fsync(file.fileno())
        (self._folder / f"{name}.part").replace(self._folder / f"{name}.npy")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"cannot be written: {error.strerror or error}", path=self._folder) from error


class _Starts:
    """Lengths of rows to their ends, a block after the other."""

    def __init__(self) -> None:
        self._total = 0

    def __call__(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        ends = self._total + np.cumsum(lengths)
        self._total = int(ends[-1])
        return ends


def _rewrite(
    folder: Path, source: str, target: str, dtype: np.dtype[Any], count: int, change: Callable[[Any], Any]
) -> None:
    """Make an array of a part, in blocks; row starts have a zero before all ends."""
    starts = isinstance(change, _Starts)
    path = folder / f"{target}.npy"
    path.unlink(missing_ok=True)
    with open(folder / f"{source}.part", "rb") as part, open(path, "xb", buffering=0) as array:
        write_all(array, _header(dtype.str, count + starts))
        if starts:
            write_all(array, np.zeros(1, dtype))
        part.seek(_HEADER_BYTES)
        for start in range(0, count, _BLOCK_ROWS):
            block = np.fromfile(part, _PARTS[source], min(_BLOCK_ROWS, count - start))
            write_all(array, np.asarray(change(block), dtype=dtype))
        os.fsync(array.fileno())


def _header(dtype: str, count: int) -> NDArray[np.uint8]:
    """The beginning of an .npy file, of the same length for any array."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({count},), }}".encode()
    magic = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return np.frombuffer(magic + text.ljust(_HEADER_BYTES - 11) + b"\n", dtype=np.uint8)


def _index_type(nnz: int) -> np.dtype[Any]:
    return np.dtype("<i4" if nnz <= _MAX_INT32 else "<i8")


def _is_known(name: str) -> bool:
    parts, arrays = {f"{name}.part" for name in _PARTS}, {f"{name}.npy" for name in _ARRAYS}
    # What an atomic writer was about to write when it was killed counts as well.
    abandoned = name.startswith(".") and name.endswith(".tmp")
    return abandoned or name in parts | arrays | {CONFIG, PROGRESS, LABELS, VOCABULARY}


def _plain_size(path: Path) -> int:
    """The size of a file in the folder; links, devices and the like lead elsewhere or have no end."""
    try:
        status = path.lstat()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}; convert the data again", path=path) from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError("is not a plain file; convert the data again", path=path)
    return status.st_size


def _mapped(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """An array of a file, read-only, if its header and its size are those."""
    size = _plain_size(path)
    with open(path, "rb") as file:
        header = file.read(_HEADER_BYTES)
    # Compared rather than parsed: nothing that a header of another writer says could be of use.
    if header != _header(dtype.str, count).tobytes() or size != _HEADER_BYTES + count * dtype.itemsize:
        raise DataError(
            f"is not an array of {count} numbers of type {dtype}, as dataset.json says; convert the data again",
            path=path,
        )
    if not count:
        return np.empty(0, dtype)
    array: NDArray[Any] = np.asarray(np.memmap(path, dtype, "r", _HEADER_BYTES, (count,)))
    return array


def _matrix(folder: Path, x: str, n_rows: int, n_columns: int, nnz: int) -> FloatCSR:
    dtype = _index_type(nnz)
    indptr = _mapped(folder / f"{x}_indptr.npy", dtype, n_rows + 1)
    indices = _mapped(folder / f"{x}_indices.npy", dtype, nnz)
    data = _mapped(folder / f"{x}_data.npy", np.dtype("<f4"), nnz)
    matrix = csr_of(data, indices, indptr, (n_rows, n_columns))
    fault = first_fault(matrix, zeros=False, ones=x == "y")
    if fault is not None:
        wanted = "1" if x == "y" else "a finite number other than 0"
        name, problem = {
            "indptr": ("indptr", "row starts that do not increase from 0 to the number of entries"),
            "range": ("indices", f"a column outside 0 to {n_columns - 1}, at entry {fault.at}"),
            "order": ("indices", f"columns that do not increase within a row, near row {fault.at}"),
            "value": ("data", f"a value that is not {wanted}, at entry {fault.at}"),
        }[fault.where]
        raise DataError(f"holds {problem}; convert the data again", path=folder / f"{x}_{name}.npy")
    return matrix


def _check_labels(folder: Path, Y: FloatCSR, first_labels: NDArray[np.int32]) -> None:
    """Every first label must be one of its row's."""
    for start in range(0, len(first_labels), _BLOCK_ROWS):
        firsts = first_labels[start : start + _BLOCK_ROWS]
        starts = Y.indptr[start : start + len(firsts) + 1].astype(np.int64)
        columns = Y.indices[starts[0] : starts[-1]]
        lengths = np.diff(starts)
        matches = columns == np.repeat(firsts, lengths)
        found = np.concatenate([[0], np.cumsum(matches)])[starts - starts[0]]
        if (np.diff(found) != (lengths > 0)).any() or (firsts[lengths == 0] != -1).any():
            raise DataError("holds a label that its row has not", path=folder / "first_labels.npy")
