"""Records: texts, vectors, labels, ids and weights of rows, by the names of the columns that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.data.frames import is_missing
from extremegp.data.label_lists import split_labels
from extremegp.data.labels import Label
from extremegp.data.table_files import Table, listed, open_table
from extremegp.data.tables import classes_of, feature_positions, numbers_of, parse_classes
from extremegp.errors import DataError, SettingsError


@dataclass(frozen=True)
class RecordColumns:
    """Which columns of a table hold what, each by name, or by number from 0 where no column is called so.

    Attributes:
        texts: columns of texts, which are joined by a space.
        vectors: one column of lists of numbers, or columns of numbers, of which names may be patterns such as "emb_*".
        labels: the column that lists the labels of a row.
        separator: what stands between labels there, where they are text.
        indicators: columns of 0 and 1, or of shares in between, one for each label; names may be patterns.
        one_class: the column of the class of a row.
        ids: the column of what a row is called.
        weights: the column of the weight of a row.
        vectors_apart: whether vectors are elsewhere, so that columns without a name here are nothing.
    """

    texts: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    labels: str | None = None
    separator: str | None = None
    indicators: tuple[str, ...] = ()
    one_class: str | None = None
    ids: str | None = None
    weights: str | None = None
    vectors_apart: bool = False

    def without_labels(self) -> RecordColumns:
        """The same for data whose labels are not wanted."""
        return RecordColumns(self.texts, self.vectors, ids=self.ids, vectors_apart=self.vectors_apart)


class Records(NamedTuple):
    """Consecutive rows.

    Attributes:
        n_rows: N.
        texts: N texts, where columns of them were named.
        vectors: N x D float32, where columns were named, or no texts were.
        labels: N lists of labels, or N x K float32 of indicators; None where no columns of labels were named.
        label_names: names of the K columns of indicators.
        classes: N classes; None where no column of classes was named.
        ids: what the rows are called.
        weights: of the rows, N.
        feature_names: the columns that vectors are made of, where each is one.
    """

    n_rows: int
    texts: list[str] | None = None
    vectors: NDArray[np.float32] | None = None
    labels: Any = None
    label_names: list[str] | None = None
    classes: NDArray[Any] | None = None
    ids: list[str] | None = None
    weights: NDArray[np.float32] | None = None
    feature_names: list[str] | None = None


def read_records(
    source: Any,
    *,
    text: str | Sequence[str] = (),
    vectors: str | Sequence[str] = (),
    labels: str | None = None,
    label_separator: str | None = None,
    label_columns: str | Sequence[str] = (),
    one_class: str | None = None,
    ids: str | None = None,
    weights: str | None = None,
) -> Records:
    """Read texts or vectors with labels from a table: a file, a data frame, or a data set of Hugging Face's `datasets`.

    Args:
        source: a path of .csv, .tsv, .parquet or .jsonl, as `read_table` takes it; a data frame of pandas, or anything
            with ``to_pandas`` (Polars, Arrow); or a `datasets.Dataset`, whose numbers of class labels become names.
        text: a column of texts, or several, which are joined by a space.
        vectors: a column of lists of numbers; or columns of numbers, of which names may be patterns such as "emb_*".
            By default, where no texts are named, all columns that are nothing else.
        labels: the column with the labels of a row: lists, or texts with `label_separator` between labels.
        label_separator: what stands between labels in texts.
        label_columns: columns of 0 and 1, one for each label; names may be patterns such as "tag_*".
        one_class: instead, the column with the class of a row.
        ids: the column of what rows are called.
        weights: the column of the weights of rows.

    Returns:
        The rows, with what columns were named for: ``fit(records.texts, records.labels)`` and
        ``fit(records.vectors, records.classes)`` take them.

    Raises:
        DataError: a column is not there, or a value is missing or not what its column holds; names the file, the
            column, and the line or row.
        SettingsError: labels are named in two ways.
    """
    columns = RecordColumns(
        _names(text), _names(vectors), labels, label_separator, _names(label_columns), one_class, ids, weights
    )
    return joined_records([*record_blocks(source, columns)])


def record_blocks(
    source: Any, columns: RecordColumns, *, feature_names: Sequence[str] | None = None, skip: int = 0
) -> Iterator[Records]:
    """The rows of a table some at a time; see `read_records`.

    Args:
        source: as there.
        columns: which columns hold what.
        feature_names: the columns of vectors that a model knows, in its order.
        skip: rows to leave out at the beginning.
    """
    if [bool(columns.labels), bool(columns.indicators), bool(columns.one_class)].count(True) > 1:
        raise SettingsError("labels are in one column, or in columns of 0 and 1, or are classes: name one of these")
    reader = _Reader(source if isinstance(source, Table) else open_table(source), columns, feature_names)
    n_read = 0
    with closing(reader.table.chunks(reader.numbers, reader.others)) as frames:
        for frame in frames:
            n_before, n_read = n_read, n_read + len(frame)
            if n_read > skip:
                yield reader.records(frame.iloc[max(0, skip - n_before) :], max(n_before, skip))
    if not n_read:
        reader.table.fail("the table has no rows" if reader.table.path else "has no rows")


def joined_records(blocks: Sequence[Records], *, classes_as_strings: bool = False) -> Records:
    """All rows of some blocks of one source; classes of text tables are what they look like, or left strings."""
    first = blocks[0]
    parsed = _unchanged if classes_as_strings else _with_parsed_classes
    if len(blocks) == 1:
        return parsed(first)

    def joined(name: str) -> Any:
        parts = [getattr(block, name) for block in blocks]
        if parts[0] is None:
            return None
        return [item for part in parts for item in part] if isinstance(parts[0], list) else np.concatenate(parts)

    together = {name: joined(name) for name in ("texts", "vectors", "labels", "classes", "ids", "weights")}
    return parsed(first._replace(n_rows=sum(block.n_rows for block in blocks), **together))


def _unchanged(records: Records) -> Records:
    return records


def _with_parsed_classes(records: Records) -> Records:
    classes = records.classes
    if classes is None or classes.dtype != object or not all(isinstance(value, str) for value in classes):
        return records
    return records._replace(classes=parse_classes(classes))


class _Reader:
    """A table whose columns are told apart."""

    def __init__(self, table: Table, columns: RecordColumns, feature_names: Sequence[str] | None) -> None:
        self.table, self.columns = table, columns
        self.texts = [table.position(name) for name in columns.texts]
        self.labels, self.one_class, self.ids, self.weights = (
            None if name is None else table.position(name)
            for name in (columns.labels, columns.one_class, columns.ids, columns.weights)
        )
        self.indicators = self._matching(columns.indicators)
        vectors = self._matching(columns.vectors)
        self.lists = vectors[0] if len(columns.vectors) == len(vectors) == 1 else None
        single = [self.labels, self.one_class, self.ids, self.weights]
        taken = [*self.texts, *self.indicators, *(column for column in single if column is not None)]
        if len({*taken, *vectors}) < len(taken) + len(vectors):
            twice = next(column for column in taken if [*taken, *vectors].count(column) > 1)
            table.fail(f"the column {table.names[twice]!r} is named for two things; name it for one")
        if not vectors and not self.texts and not columns.vectors_apart:
            vectors = feature_positions(table, taken, feature_names)
        self.vectors = [] if self.lists is not None else vectors

    @property
    def numbers(self) -> list[int]:
        return [*self.vectors, *self.indicators, *([] if self.weights is None else [self.weights])]

    @property
    def others(self) -> list[int]:
        single = (self.labels, self.one_class, self.ids, self.lists)
        return [*self.texts, *(column for column in single if column is not None)]

    @cached_property
    def names_of_labels(self) -> list[str] | None:
        """What numbers of labels stand for, in data sets that say so."""
        return self.table.class_names(self.table.names[self.labels]) if self.labels is not None else None

    def records(self, frame: Any, n_before: int) -> Records:
        table, n_rows = self.table, len(frame)
        texts = [self._text(frame, row, n_before) for row in range(n_rows)] if self.texts else None
        vectors = numbers_of(table, frame, self.vectors, n_before) if self.vectors else None
        if self.lists is not None:
            vectors = self._stacked(frame[self.lists].tolist(), n_before)
        labels: Any = None
        if self.labels is not None:
            labels = [self._labels(cell, n_before + row) for row, cell in enumerate(frame[self.labels].tolist())]
        elif self.indicators:
            labels = numbers_of(table, frame, self.indicators, n_before)
            self._check_indicators(labels, n_before)
        return Records(
            n_rows,
            texts,
            vectors,
            labels,
            [table.names[column] for column in self.indicators] or None,
            None if self.one_class is None else classes_of(table, frame, self.one_class, n_before),
            None if self.ids is None else [str(value) for value in frame[self.ids]],
            None if self.weights is None else numbers_of(table, frame, [self.weights], n_before)[:, 0],
            [table.names[column] for column in self.vectors] or None,
        )

    def _matching(self, wanted: Sequence[str]) -> list[int]:
        """The columns of some names, of which each may be a pattern."""
        found: dict[int, None] = {}
        for name in wanted:
            if name in self.table.names or not set(name) & set("*?["):
                found[self.table.position(name)] = None
                continue
            matching = [i for i, column in enumerate(self.table.names) if fnmatchcase(column, name)]
            if not matching:
                self.table.fail(f"has no columns like {name!r}; its columns are {listed(self.table.names)}")
            found |= dict.fromkeys(matching)
        return list(found)

    def _text(self, frame: Any, row: int, n_before: int) -> str:
        parts = []
        for column in self.texts:
            value = frame[column].iat[row]
            if isinstance(value, str):
                parts.append(value)
            elif not is_missing(value):
                name = self.table.names[column]
                self.table.fail_at(
                    n_before + row,
                    f"the text column {name!r} has a {type(value).__name__}",
                    "; texts are strings",
                )
        return " ".join(filter(None, parts))

    def _labels(self, cell: Any, row: int) -> list[Label]:
        assert self.labels is not None
        try:
            labels = split_labels(cell, self.columns.separator)
        except DataError as error:
            self.table.fail_at(row, f"the column {self.table.names[self.labels]!r}", f": {error}")
        names = self.names_of_labels
        return labels if names is None else [names[label] if isinstance(label, int) else label for label in labels]

    def _stacked(self, cells: list[Any], n_before: int) -> NDArray[np.float32]:
        assert self.lists is not None
        name = self.table.names[self.lists]
        rows: list[NDArray[np.float32]] = []
        for row, cell in enumerate(cells, n_before):
            try:
                values = _numbers_in(cell) if isinstance(cell, str) else cell
                vector = np.asarray(values, dtype=np.float32)
            except (TypeError, ValueError):
                vector = np.empty(0, np.float32)
            if vector.ndim == 0 or not vector.size or not np.isfinite(vector).all():
                self.table.fail_at(row, f"the column {name!r} has no list of finite numbers", "; correct it")
            vector = vector.reshape(-1)
            if rows and len(vector) != len(rows[0]):
                self.table.fail_at(
                    row, f"the column {name!r} has {len(vector)} numbers", f", but {len(rows[0])} in rows before"
                )
            rows.append(vector)
        return np.stack(rows)

    def _check_indicators(self, values: NDArray[np.float32], n_before: int) -> None:
        bad = np.argwhere((values < 0) | (values > 1))
        if bad.size:
            row, column = bad[0].tolist()
            name = self.table.names[self.indicators[column]]
            self.table.fail_at(
                n_before + row, f"the label column {name!r} has {values[row, column]:g}", ", which is not from 0 to 1"
            )


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _numbers_in(cell: str) -> list[float]:
    return [float(part) for part in cell.strip().strip("[]()").replace(",", " ").split()]


def _is_missing(value: Any) -> bool:
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )
