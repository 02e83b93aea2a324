"""Rows of records: texts, vectors or both, with labels, ids and weights, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from extremegp.cli.inputs import Source
from extremegp.errors import DataError

if TYPE_CHECKING:
    from extremegp.data import Records


class RecordBlock(NamedTuple):
    """Consecutive rows, and the share of the data up to their last.

    Attributes:
        records: the rows.
        after: from 0 to 1.
    """

    records: Records
    after: float


def blocks(source: Source, feature_names: list[str] | None, *, labelled: bool) -> Iterator[RecordBlock]:
    """The rows of a source that is in records, with the vectors beside them.

    Args:
        source: `Source.check` has been passed.
        feature_names: the columns of vectors that a model knows.
        labelled: whether labels and weights are wanted.

    Raises:
        DataError: the data cannot be read, or vectors and rows are not equally many; names the file.
    """
    found = _found(source, feature_names, labelled)
    if source.vectors is None:
        yield from found
        return
    from extremegp.data import read_inputs

    vectors: Any = read_inputs(source.vectors)
    n_rows = 0
    for records, after in found:
        beside = vectors[n_rows : n_rows + records.n_rows]
        n_rows += records.n_rows
        if len(beside) < records.n_rows:
            break
        yield RecordBlock(records._replace(vectors=beside), after)
    if n_rows != len(vectors):
        count = f"{n_rows} rows" if n_rows < len(vectors) else "more rows"
        raise DataError(f"has {len(vectors)} vectors, but {source.path} has {count}", path=source.vectors)


def inputs_of(records: Records) -> Any:
    """Texts, vectors, or both by name, as estimators take them."""
    if records.texts is None:
        return records.vectors
    return records.texts if records.vectors is None else {"text": records.texts, "vectors": records.vectors}


def _found(source: Source, feature_names: list[str] | None, labelled: bool) -> Iterator[RecordBlock]:
    from extremegp.data import RecordColumns, Records
    from extremegp.data.annif import documents, short_texts
    from extremegp.data.records import record_blocks
    from extremegp.data.table_files import open_table

    inside = labelled and source.labels is None
    if source.kind == "annif":
        n_bytes = max(1, source.path.stat().st_size)
        for block in short_texts(source.path, labelled=inside):
            yield RecordBlock(Records(len(block.texts), block.texts, labels=block.labels), block.read / n_bytes)
    elif source.kind == "documents":
        n_bytes = sum(path.stat().st_size for path in source.path.glob("*.txt"))
        for names, block in documents(source.path, labelled=inside):
            records = Records(len(block.texts), block.texts, labels=block.labels, ids=names)
            yield RecordBlock(records, block.read / max(1, n_bytes))
    else:
        columns: RecordColumns = source.columns if labelled else source.columns.without_labels()
        for records in record_blocks(open_table(source.path, source.format), columns, feature_names=feature_names):
            yield RecordBlock(records, 1.0)
