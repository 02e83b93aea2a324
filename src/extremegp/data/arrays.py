"""Arrays in NumPy's own files (.npy, .npz) and in IDX files, the format of MNIST (http://yann.lecun.com/exdb/mnist).

No file is trusted: nothing is unpickled, and the size that a header states is compared with what the file holds
before memory is taken for it.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.data.validation import check_inputs
from extremegp.engine.matrices import FloatMatrix
from extremegp.errors import DataError, located
from extremegp.storage.streams import COMPRESSED_SUFFIXES, as_stream, byte_blocks, reading

_NPY_START = b"\x93NUM"
_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_DIMENSIONS = 32
_PIECE_BYTES = 1 << 24
# No deflate stream expands further, so a zip entry that states more is made to exhaust memory.
_MAX_DEFLATE_RATIO = 1032
_X_NAMES = ("X", "x", "data", "features")
_Y_NAMES = ("y", "labels", "target", "targets")


class _Layout(NamedTuple):
    """How the bytes after a header make an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool = False

    @property
    def n_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def read_array(path: str | Path) -> NDArray[Any]:
    """Read a .npy or an IDX file, told apart by their first bytes.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed.

    Returns:
        The array in native byte order. That of an uncompressed .npy is mapped from the file, read-only, not read.

    Raises:
        DataError: the file cannot be read, is neither, holds Python objects or records or no numbers at all, or its
            content is shorter or longer than its header says.
    """
    path = Path(path)
    with located(path), as_stream(byte_blocks(path)) as stream:
        start = stream.read(4)
        if start == _NPY_START:
            layout = _npy_layout(stream)
            if path.suffix.lower() not in COMPRESSED_SUFFIXES:
                return _mapped(path)
        elif is_idx(start):
            layout = _idx_layout(start, stream)
        else:
            raise DataError("neither a .npy nor an IDX file, by its first bytes")
        return _read_content(stream, layout)


def read_inputs(path: str | Path) -> FloatMatrix:
    """Read inputs from a .npy or an IDX file: N x D, or N x H x W and so on, which is flattened to N x (H W).

    Returns:
        N x D float32; integers, such as the grey values of images, keep their values. May be read-only.

    Raises:
        DataError: as `read_array` and `check_inputs`, or the array has one dimension; names the file.
    """
    with located(path):
        return _flattened(read_array(path), "the array")


@overload
def read_npz(
    path: str | Path, x_key: str | None = None, y_key: str | None = None, *, labels: Literal[True] = True
) -> tuple[FloatMatrix, NDArray[Any]]: ...
@overload
def read_npz(
    path: str | Path, x_key: str | None = None, y_key: str | None = None, *, labels: bool
) -> tuple[FloatMatrix, NDArray[Any] | None]: ...


def read_npz(
    path: str | Path, x_key: str | None = None, y_key: str | None = None, *, labels: bool = True
) -> tuple[FloatMatrix, NDArray[Any] | None]:
    """Read inputs and labels from two arrays of an .npz file.

    Args:
        path: the file.
        x_key: the name of the inputs. By default, of two arrays of equal length the one that is not 1-D; else the one
            that is called X, x, data or features.
        y_key: the name of the labels. By default the other array of the two; else the one that is called y, labels,
            target or targets.
        labels: whether to read the labels.

    Returns:
        The inputs as `read_inputs` gives them, and the labels with N rows as they are; None for `labels=False`.

    Raises:
        DataError: the file cannot be read or is damaged, an array is not in it (lists those that are), it does not
            tell which arrays are meant, or the two differ in length.
    """
    path = Path(path)
    with _archive(path) as (archive, entries):

        def shape_of(name: str) -> tuple[int, ...]:
            with archive.open(entries[name]) as stream:
                return _entry_layout(stream, entries[name]).shape

        x_name, y_name = _choose(entries, shape_of, x_key, y_key, labels)
        X = _flattened(_read_entry(archive, entries[x_name]), f"the array {x_name!r}")
        y = None if y_name is None else _read_entry(archive, entries[y_name])
    if y is not None and y.shape[:1] != X.shape[:1]:
        raise DataError(
            f"the array {x_name!r} has {X.shape[0]} rows, but {y_name!r} has the shape {y.shape}; "
            "the labels must be one a row",
            path=path,
        )
    return X, y


def read_sparse(path: str | Path) -> csr_matrix:
    """Read a matrix that `scipy.sparse.save_npz` wrote, in the format CSR.

    Raises:
        DataError: the file cannot be read or is damaged, holds no such matrix, or one of another format.
    """
    path = Path(path)
    with _archive(path) as (archive, entries):
        if not is_sparse(entries):
            raise DataError("holds no matrix of scipy.sparse.save_npz")
        kind = _read_entry(archive, entries["format"]).tolist()
        if kind not in (b"csr", "csr"):
            raise DataError(f"holds a sparse matrix of the format {kind!r}; save it again with X.tocsr()")
        data, indices, indptr, shape = (
            _read_entry(archive, entries[name]) for name in ("data", "indices", "indptr", "shape")
        )
        matrix = csr_matrix((data, indices, indptr), shape=(int(shape[0]), int(shape[1])))
        matrix.check_format(full_check=True)
    return matrix


def is_sparse_archive(path: str | Path) -> bool:
    """Whether a file is one of `scipy.sparse.save_npz`.

    Raises:
        DataError: it cannot be read.
    """
    with as_stream(byte_blocks(path)) as stream:
        if stream.read(4) != b"PK\3\4":
            return False
    with _archive(Path(path)) as (_, entries):
        return is_sparse(entries)


def is_sparse(names: Collection[str]) -> bool:
    """Whether an archive with these arrays is one of `scipy.sparse.save_npz`."""
    return {"data", "indices", "indptr", "shape", "format"} <= set(names)


@contextmanager
def _archive(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """An .npz file and its arrays by name, whose damage ends in errors of data."""
    try:
        with located(path), reading(path), zipfile.ZipFile(path) as archive:
            yield archive, {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    except DataError:
        raise
    # The errors of zipfile: no zip file or a wrong checksum, damage inside, an encrypted entry, an unknown method.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, struct.error, ValueError, OSError) as error:
        raise DataError(f"not a readable .npz file ({error}); copy or save it again", path=path) from error


def is_idx(start: bytes) -> bool:
    """Whether a file that starts with these four bytes is IDX."""
    return len(start) == 4 and start[:2] == b"\0\0" and start[2] in _IDX_DTYPES and 0 < start[3] <= _MAX_DIMENSIONS


def is_array(start: bytes) -> bool:
    """Whether `read_array` takes a file that starts with these four bytes."""
    return start == _NPY_START or is_idx(start)


def _flattened(array: NDArray[Any], what: str) -> FloatMatrix:
    if array.ndim < 2:
        raise DataError(f"{what} has the shape {array.shape}, but inputs have rows and columns; is it the labels?")
    return check_inputs(array.reshape(len(array), -1), name=what, of_texts="texts with labels are read as JSON lines")


def _idx_layout(start: bytes, stream: IO[bytes]) -> _Layout:
    n_dimensions = start[3]
    sizes = stream.read(4 * n_dimensions)
    if len(sizes) < 4 * n_dimensions:
        raise DataError("the file ends within its header; copy or download it again")
    return _checked(_Layout(np.dtype(_IDX_DTYPES[start[2]]), struct.unpack(f">{n_dimensions}I", sizes)))


def _npy_layout(stream: IO[bytes]) -> _Layout:
    """The layout that a .npy header states, read from after its first four bytes."""
    # Version 3 serves records with names beyond Latin-1 only.
    readers = {b"PY\1\0": np.lib.format.read_array_header_1_0, b"PY\2\0": np.lib.format.read_array_header_2_0}
    reader = readers.get(stream.read(4))
    if reader is None:
        raise DataError("not a .npy file of version 1 or 2; save the array again with numpy.save")
    try:
        shape, fortran_order, dtype = reader(stream)
    # NumPy parses the header as a Python literal.
    except (ValueError, TypeError, EOFError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise DataError(f"has a damaged .npy header: {' '.join(str(error).split())}") from error
    return _checked(_Layout(dtype, shape, fortran_order))


def _checked(layout: _Layout) -> _Layout:
    if layout.dtype.hasobject:
        raise DataError(
            "holds pickled Python objects, which can run any code when they are loaded and are therefore refused; "
            "save numbers or strings (dtype '<U...') instead"
        )
    if layout.dtype.kind == "V":
        raise DataError("holds records; save a plain array of numbers or strings")
    if min(layout.shape, default=1) < 0 or len(layout.shape) > _MAX_DIMENSIONS:
        raise DataError(f"the header states the shape {layout.shape}, which no array has")
    if layout.n_bytes == 0:
        raise DataError(f"the array is empty: its shape is {layout.shape}")
    return layout


def _mapped(path: Path) -> NDArray[Any]:
    """A .npy file whose header has been checked."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OverflowError, OSError) as error:
        raise DataError(f"is shorter than its header says ({error}); copy or save it again") from error
    if array.offset + array.nbytes < path.stat().st_size:
        raise DataError("goes on after the array that its header states; save it again")
    return _finished(array)


def _read_content(stream: IO[bytes], layout: _Layout) -> NDArray[Any]:
    content = bytearray()
    # In pieces: memory grows with what is there, not with what the header states.
    while len(content) < layout.n_bytes:
        piece = stream.read(min(_PIECE_BYTES, layout.n_bytes - len(content)))
        if not piece:
            raise DataError(
                f"the header states {layout.n_bytes} bytes of numbers (shape {layout.shape}), but only {len(content)} "
                "follow; the file is cut short or its header altered"
            )
        content += piece
    if stream.read(1):
        raise DataError(f"goes on after the array of shape {layout.shape} that its header states")
    array = np.frombuffer(content, dtype=layout.dtype)
    return _finished(array.reshape(layout.shape, order="F" if layout.fortran_order else "C"))


def _finished(array: NDArray[Any]) -> NDArray[Any]:
    if not array.dtype.isnative:
        array = np.asarray(array).astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "U":
        # Python refuses to make strings of such code points, deep inside whatever touches them first.
        code_points = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        if code_points.max() > 0x10FFFF:
            raise DataError("holds strings that are not Unicode; the file is damaged")
    return array


def _entry_layout(stream: IO[bytes], entry: zipfile.ZipInfo) -> _Layout:
    """The layout of an array in an .npz file, whose stream is left where its content starts."""
    if entry.file_size > _MAX_DEFLATE_RATIO * entry.compress_size + 1024:
        raise DataError(
            f"{entry.filename!r} states {entry.file_size} bytes, which its {entry.compress_size} compressed bytes "
            "cannot hold; the file is damaged or made to exhaust memory"
        )
    if stream.read(4) != _NPY_START:
        raise DataError(f"{entry.filename!r} in it is not a .npy array")
    layout = _npy_layout(stream)
    if layout.n_bytes != entry.file_size - stream.tell():
        raise DataError(
            f"{entry.filename!r} has {entry.file_size - stream.tell()} bytes of numbers, but its header states "
            f"{layout.n_bytes} (shape {layout.shape}); the file is damaged or altered"
        )
    return layout


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as stream:
        return _read_content(stream, _entry_layout(stream, entry))


def _choose(
    names: Collection[str],
    shape_of: Callable[[str], tuple[int, ...]],
    x_key: str | None,
    y_key: str | None,
    labels: bool,
) -> tuple[str, str | None]:
    """The names of the inputs and of the labels, the latter None if they are not wanted."""
    shown = ", ".join(list(names)[:20]) + (", ..." if len(names) > 20 else "") or "none"
    wanted = {"x": x_key, "y": y_key if labels else None}
    for key in filter(None, wanted.values()):
        if key not in names:
            raise DataError(f"has no array {key!r}; the arrays in it are: {shown}")
    missing = [role for role in wanted if wanted[role] is None and (labels or role == "x")]
    if missing:
        guessed = _guess(names, shape_of)
        for role, known in (("x", _X_NAMES), ("y", _Y_NAMES)):
            found = [name for name in known if name in names]
            if role in missing:
                wanted[role] = guessed.get(role) or (found[0] if len(found) == 1 else None)
                if wanted[role] is None:
                    raise DataError(
                        f"does not tell which array has the {'inputs' if role == 'x' else 'labels'}; name it by "
                        f"{role}_key (--{role}-key); the arrays in it are: {shown}"
                    )
    if wanted["x"] == wanted["y"]:
        raise DataError(f"the array {wanted['x']!r} cannot be both inputs and labels; name two")
    return str(wanted["x"]), wanted["y"]


def _guess(names: Collection[str], shape_of: Callable[[str], tuple[int, ...]]) -> dict[str, str]:
    """Inputs and labels of a file that holds nothing else, where their dimensions tell them apart."""
    if len(names) != 2:
        return {"x": next(iter(names))} if len(names) == 1 else {}
    first, second = sorted(names, key=lambda name: -len(shape_of(name)))
    X_shape, y_shape = shape_of(first), shape_of(second)
    if len(X_shape) >= 2 and len(y_shape) == 1 and X_shape[0] == y_shape[0]:
        return {"x": first, "y": second}
    return {}
