"""What readers of text formats give: blocks of rows, from any place in the file on, and the sizes known at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.engine.matrices import FloatCSR

MAX_COLUMNS = 2**31 - 1


class RowBlock(NamedTuple):
    """Consecutive rows; the columns of a row are sorted and unique, and no value is zero.

    Attributes:
        n_features: stored features of each row.
        features: their columns.
        values: their values.
        n_labels: labels of each row.
        labels: their columns.
        first_labels: the label that the source lists first, -1 where it lists none.
    """

    n_features: NDArray[np.int64]
    features: NDArray[np.int32]
    values: NDArray[np.float32]
    n_labels: NDArray[np.int64]
    labels: NDArray[np.int32]
    first_labels: NDArray[np.int32]

    @classmethod
    def of(cls, X: FloatCSR, Y: FloatCSR, first_labels: NDArray[np.int32]) -> RowBlock:
        """The rows of two matrices without the features of value zero that X stores."""
        lengths = (np.diff(matrix.indptr).astype(np.int64) for matrix in (X, Y))
        columns = (matrix.indices.astype(np.int32, copy=False) for matrix in (X, Y))
        return cls(next(lengths), next(columns), X.data, next(lengths), next(columns), first_labels).without_zeros()

    def without_zeros(self) -> RowBlock:
        """The block without features of value zero."""
        if self.values.all():
            return self
        kept = self.values != 0
        counted = np.concatenate([[0], np.cumsum(kept)])
        ends = np.cumsum(self.n_features)
        n_features = counted[ends] - counted[ends - self.n_features]
        return self._replace(n_features=n_features, features=self.features[kept], values=self.values[kept])


def first_of_rows(values: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.int32]:
    """The first of every row's values, which are indices; -1 where a row has none."""
    firsts = np.append(values, -1)[np.cumsum(lengths) - lengths]
    return np.where(lengths > 0, firsts, -1).astype(np.int32)


class Position(NamedTuple):
    """A place between two lines of a file: bytes of the decompressed content, lines and rows that come before it."""

    offset: int = 0
    line: int = 0
    row: int = 0


BEGINNING = Position()


class Part(NamedTuple):
    """A block of rows, the place after it, and how many bytes of the file on disk were read."""

    rows: RowBlock
    end: Position
    read: int


class Sizes(NamedTuple):
    """What is known once all rows were read.

    Attributes:
        n_features: D.
        n_labels: K.
        first_feature: the number that the first feature has in the blocks, 0 or 1.
    """

    n_features: int
    n_labels: int
    first_feature: int = 0


class RowStream(ABC):
    """A file of rows read in blocks, in bounded memory.

    Attributes:
        n_rows: N, where the file says so at its beginning.
        learnt: what `sizes` needs of the parts so far, as JSON can hold it: set it before reading from the middle.
    """

    n_rows: int | None = None
    learnt: dict[str, Any]

    @abstractmethod
    def parts(self, start: Position = BEGINNING) -> Iterator[Part]:
        """The rows from a place on.

        Raises:
            DataError: the file cannot be read, or breaks its format; names the file and the line.
        """

    @abstractmethod
    def sizes(self) -> Sizes:
        """The sizes of the matrices, once all parts were read.

        Raises:
            DataError: the file does not fit the sizes that were asked for; names the file and the line.
        """


@dataclass(frozen=True, eq=False)
class Dataset:
    """A multi-label data set.

    Attributes:
        X: features, N x D, float32 CSR with sorted unique indices and no stored zeros.
        Y: labels, N x K, float32 CSR of ones with sorted unique indices; rows without labels are kept.
        label_names: the K label names, where the source has them.
        first_labels: of each row the label that the source lists first, -1 where it lists none; None if not known.
    """

    X: FloatCSR
    Y: FloatCSR
    label_names: list[str] | None = None
    first_labels: NDArray[np.int32] | None = None


def assemble(stream: RowStream) -> Dataset:
    """A whole file in memory."""
    blocks = [part.rows for part in stream.parts()]
    sizes = stream.sizes()
    _, features, values, _, labels, first_labels = map(np.concatenate, zip(*blocks, strict=True))
    features -= sizes.first_feature
    return Dataset(
        _csr((block.n_features for block in blocks), features, values, sizes.n_features),
        _csr((block.n_labels for block in blocks), labels, np.ones(len(labels), np.float32), sizes.n_labels),
        first_labels=first_labels,
    )


def _csr(
    lengths: Iterable[NDArray[np.int64]], indices: NDArray[np.int32], data: NDArray[np.float32], n_columns: int
) -> FloatCSR:
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([*lengths]))])
    return csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, n_columns))
