"""Tables and corpora as streams of rows, to be converted: texts to be counted, or numbers, with their labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix

from extremegp.data.annif import documents, short_texts
from extremegp.data.blocks import BEGINNING, Part, Position, RowBlock, RowStream, Sizes
from extremegp.data.labels import LabelSpace
from extremegp.data.records import RecordColumns, Records, record_blocks
from extremegp.data.text import TextRecords, text_records
from extremegp.errors import DataError

TextFormat: TypeAlias = Literal["jsonl", "annif", "documents", "table"]


@dataclass(frozen=True)
class TextFile:
    """Texts with labels, in any of the formats that have them.

    Attributes:
        path: the file, or folder.
        format: which of them.
        columns: of a table or of JSON lines, which columns hold what.
    """

    path: Path
    format: TextFormat
    columns: RecordColumns | None = None

    @property
    def n_bytes(self) -> int:
        """How much there is to read."""
        if self.format == "documents":
            return sum(path.stat().st_size for path in self.path.glob("*.txt"))
        return self.path.stat().st_size

    def records(self, start: Position = BEGINNING, *, labelled: bool | None = None) -> Iterator[TextRecords]:
        """The texts from a place on, in blocks; `labelled` says whether those before it have labels.

        Raises:
            DataError: the file cannot be read or breaks its format; names the file and the line.
        """
        if self.columns is not None:
            return self._of_columns(start)
        if self.format == "annif":
            return short_texts(self.path, start)
        if self.format == "documents":
            return (records for _, records in documents(self.path, start))
        return text_records(self.path, start, labelled=labelled)

    def _of_columns(self, start: Position) -> Iterator[TextRecords]:
        assert self.columns is not None
        row = start.row
        for block in record_blocks(self.path, self.columns, skip=start.row):
            row += block.n_rows
            if block.texts is None:
                raise DataError("has no texts: name their columns by --text-column", path=self.path)
            labels = None if block.labels is None else [list(map(str, names)) for names in _lists(block)]
            yield TextRecords(block.texts, labels, Position(row, row, row), 0)


class NumberStream(RowStream):
    """A table of numbers with labels as rows.

    Args:
        path: the file.
        columns: which of its columns hold what.
        labels: the K label names; others are left out. By default all that there are, which takes a pass.
    """

    def __init__(self, path: Path, columns: RecordColumns, labels: Sequence[str] | None = None) -> None:
        self._path, self._columns, self._labels = path, columns, labels
        self.learnt = {"n_features": None}

    @cached_property
    def names(self) -> list[str]:
        """The K label names."""
        if self._labels is not None:
            return list(self._labels)
        if self._columns.indicators:
            block = next(record_blocks(self._path, self._columns))
            return list(block.label_names or ())
        found = {
            str(name) for block in record_blocks(self._path, self._columns) for row in _lists(block) for name in row
        }
        if not found:
            raise DataError("no row has any label", path=self._path)
        return sorted(found)

    def parts(self, start: Position = BEGINNING) -> Iterator[Part]:
        space, row = LabelSpace(self.names), start.row
        for block in record_blocks(self._path, self._columns, skip=start.row):
            if block.vectors is None or block.texts is not None:
                raise DataError("has texts and vectors, of which only one kind can be converted", path=self._path)
            row += block.n_rows
            self.learnt["n_features"] = block.vectors.shape[1]
            Y = space.encode([list(map(str, names)) for names in _lists(block)], unknown="ignore")
            firsts = np.asarray([Y.indices[s] if s < e else -1 for s, e in zip(Y.indptr, Y.indptr[1:], strict=False)])
            rows = RowBlock.of(csr_matrix(block.vectors), Y, firsts.astype(np.int32))
            yield Part(rows, Position(row, row, row), 0)

    def sizes(self) -> Sizes:
        assert self.learnt["n_features"] is not None
        return Sizes(self.learnt["n_features"], len(self.names))


def _lists(block: Records) -> list[list[object]]:
    """The labels of rows as lists of names, though columns of 0 and 1 have them."""
    if block.labels is None:
        raise DataError("nothing says which columns have the labels: name them by --labels-column or --label-columns")
    if block.label_names is None:
        return list(block.labels)
    if not np.isin(block.labels, (0, 1)).all():
        raise DataError("label columns with shares between 0 and 1 cannot be converted; train on the table itself")
    return [[block.label_names[column] for column in np.flatnonzero(row)] for row in block.labels]
