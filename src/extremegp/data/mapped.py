"""Data sets in a folder, larger than memory: CSR matrices whose arrays are mapped from files.

``dataset.json`` holds the sizes and is written last: without it a folder is unfinished. Beside it are little-endian
NumPy arrays, of X and of Y ``indptr``, ``indices`` and ``data``, ``first_labels``, and perhaps, one a line,
``labels.txt`` (label names), ``vocabulary.txt`` (the words that features count) and ``ids.txt`` (what rows are called).
Row starts and columns are int32, or int64 in a matrix of 2^31 entries or more, since SciPy computes with one type for
both.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.data.analysis import Analyser
from extremegp.data.blocks import MAX_COLUMNS, Dataset
from extremegp.engine.matrices import FloatCSR, csr_of, first_fault
from extremegp.errors import DataError, SettingsError

FORMAT_VERSION = 1
CONFIG, PROGRESS, LABELS, VOCABULARY = "dataset.json", "progress.json", "labels.txt", "vocabulary.txt"
IDS = "ids.txt"

_MAX_INT32 = 2**31 - 1
HEADER_BYTES = 128
BLOCK_ROWS = 1 << 20
# The types of arrays while they are appended to.
ARRAYS: dict[str, str] = {
    "x_indptr": "<i8",
    "x_indices": "<i4",
    "x_data": "<f4",
    "y_indptr": "<i8",
    "y_indices": "<i4",
    "y_data": "<f4",
    "first_labels": "<i4",
}


class Config(NamedTuple):
    """What ``dataset.json`` says: N, D, K, stored entries of X and of Y, the number that the source gives to its first
    feature, which lists of names there are, and how the words of the vocabulary are found in texts."""

    n_rows: int
    n_features: int
    n_labels: int
    x_nnz: int
    y_nnz: int
    first_feature: int = 0
    label_names: bool = False
    vocabulary: bool = False
    words: dict[str, Any] | None = None

    @property
    def analyser(self) -> Analyser:
        """How the words of the vocabulary are found in texts; of data sets that do not say, as earlier versions did."""
        return Analyser.from_config(self.words or {})


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


def read_ids(folder: str | Path) -> list[str] | None:
    """What the rows of a data set are called, where it says so."""
    folder = Path(folder)
    return read_names(folder, IDS, read_config(folder).n_rows, unique=False) if (folder / IDS).exists() else None


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
    plain_size(path)
    try:
        content = json.loads(path.read_bytes()[: 1 << 16])
        values = [content[name] for name in Config._fields[:-1]]
        version, words = content["format_version"], content.get("words")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"is not what describes a data set ({error!r}); convert it again", path=path) from error
    if version != FORMAT_VERSION:
        raise DataError(f"has format version {version!r}, not {FORMAT_VERSION}; convert the data again", path=path)
    config = Config(*values)._replace(words=words)
    if (
        not all(type(size) is int and 0 <= size < 2**62 for size in config[:6])
        or not all(type(flag) is bool for flag in config[6:8])
        or not _is_analysis(config)
        or config.first_feature > 1
        or min(config[:3]) < 1
        or max(config.n_features, config.n_labels) > MAX_COLUMNS
    ):
        raise DataError("has sizes that no data set has; convert the data again", path=path)
    return config


def _is_analysis(config: Config) -> bool:
    try:
        analyse: Any = config.analyser
    except (SettingsError, TypeError, AttributeError):
        return False
    return isinstance(analyse, Analyser)


def read_names(folder: Path, name: str, count: int, *, unique: bool = True) -> list[str]:
    """A list of names, one a line.

    Raises:
        DataError: the file is missing, not UTF-8, or has not as many (different, if `unique`) names.
    """
    path = folder / name
    plain_size(path)
    try:
        names = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError("is not UTF-8 text; convert the data again", path=path) from error
    n_names = len(set(names)) if unique and len(names) == count else len(names)
    if n_names != count:
        raise DataError(f"has {n_names} different names, but there are {count}; convert again", path=path)
    return names


def npy_header(dtype: str, count: int) -> NDArray[np.uint8]:
    """The beginning of an .npy file, of the same length for any array."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({count},), }}".encode()
    magic = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    return np.frombuffer(magic + text.ljust(HEADER_BYTES - 11) + b"\n", dtype=np.uint8)


def index_type(nnz: int) -> np.dtype[Any]:
    return np.dtype("<i4" if nnz <= _MAX_INT32 else "<i8")


def plain_size(path: Path) -> int:
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
    size = plain_size(path)
    with open(path, "rb") as file:
        header = file.read(HEADER_BYTES)
    # Compared rather than parsed: nothing that a header of another writer says could be of use.
    if header != npy_header(dtype.str, count).tobytes() or size != HEADER_BYTES + count * dtype.itemsize:
        raise DataError(
            f"is not an array of {count} numbers of type {dtype}, as dataset.json says; convert the data again",
            path=path,
        )
    if not count:
        return np.empty(0, dtype)
    array: NDArray[Any] = np.asarray(np.memmap(path, dtype, "r", HEADER_BYTES, (count,)))
    return array


def _matrix(folder: Path, x: str, n_rows: int, n_columns: int, nnz: int) -> FloatCSR:
    dtype = index_type(nnz)
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
    for start in range(0, len(first_labels), BLOCK_ROWS):
        firsts = first_labels[start : start + BLOCK_ROWS]
        starts = Y.indptr[start : start + len(firsts) + 1].astype(np.int64)
        columns = Y.indices[starts[0] : starts[-1]]
        lengths = np.diff(starts)
        matches = columns == np.repeat(firsts, lengths)
        found = np.concatenate([[0], np.cumsum(matches)])[starts - starts[0]]
        if (np.diff(found) != (lengths > 0)).any() or (firsts[lengths == 0] != -1).any():
            raise DataError("holds a label that its row has not", path=folder / "first_labels.npy")
