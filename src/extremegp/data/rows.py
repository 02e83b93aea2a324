"""Matrices that are made from mapped ones without a copy in memory: their arrays are on disk too, in unlinked files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremegp.engine.matrices import FloatCSR, csr_of, is_mapped, row_blocks
from extremegp.errors import DataError
from extremegp.storage.streams import write_all


def mapped_blocks(blocks: Iterable[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """An array of all blocks, mapped read-only from a file that vanishes with it.

    Raises:
        DataError: the folder of temporary files has no room for it.
    """
    try:
        # Written rather than mapped: what is mapped kills the process where the disk is full.
        with tempfile.TemporaryFile(buffering=0) as file:
            for block in blocks:
                write_all(file, np.ascontiguousarray(block, dtype))
            count = file.tell() // np.dtype(dtype).itemsize
            if not count:
                return np.empty(0, dtype)
            array: NDArray[Any] = np.asarray(np.memmap(file, dtype, "r", shape=(count,)))
    except OSError as error:
        raise DataError(
            f"{tempfile.gettempdir()}: temporary files of data larger than memory cannot be written: "
            f"{error.strerror or error}; free space there, or set TMPDIR to a folder with more"
        ) from error
    return array


def with_values(X: FloatCSR, weigh: Callable[[FloatCSR], FloatCSR]) -> FloatCSR:
    """X with other values on disk, over the same row starts and columns.

    Args:
        X: mapped from files.
        weigh: gives some rows, which it may change and which store no zeros, their values at the same columns.
    """

    def blocks() -> Iterable[NDArray[np.float32]]:
        for rows in row_blocks(X.indptr):
            start, stop = int(X.indptr[rows.start]), int(X.indptr[rows.stop])
            indptr = X.indptr[rows.start : rows.stop + 1] - X.indptr[rows.start]
            shape = (len(indptr) - 1, X.shape[1])
            block = csr_of(X.data[start:stop].copy(), X.indices[start:stop].copy(), indptr, shape)
            values = np.zeros(stop - start, np.float32)
            stored = block.data != 0
            if not stored.all():
                block.eliminate_zeros()
            values[stored] = weigh(block).data
            yield values

    return csr_of(mapped_blocks(blocks(), np.float32), X.indices, X.indptr, X.shape)


def take_rows(X: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of a matrix, in their order; on disk, if those of X are."""
    if not is_mapped(X):
        return X[rows]
    indptr = np.concatenate([[0], np.cumsum(np.diff(X.indptr)[rows], dtype=np.int64)]).astype(X.indptr.dtype)
    blocks = [rows[block] for block in row_blocks(indptr)]
    data = mapped_blocks((X[block].data for block in blocks), np.float32)
    indices = mapped_blocks((X[block].indices for block in blocks), X.indices.dtype)
    return csr_of(data, indices, indptr, (len(rows), X.shape[1]))
