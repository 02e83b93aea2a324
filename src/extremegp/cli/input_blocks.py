"""Inputs without their labels, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from extremegp.cli.inputs import Source
from extremegp.cli.rows import Known, check_kind, check_width, n_rows_of, read, width_of
from extremegp.errors import DataError

if TYPE_CHECKING:
    from extremegp.data import FloatCSR
    from extremegp.data.blocks import RowStream


class InputBlock(NamedTuple):
    """Consecutive rows, with the shares of the data that come before their first and up to their last.

    Attributes:
        X: inputs, B x D, or B texts.
        before: from 0 to 1.
        after: from 0 to 1.
        ids: what the rows are called, where the source says so.
    """

    X: Any
    before: float
    after: float
    ids: list[str] | None = None

    @property
    def n_rows(self) -> int:
        """B."""
        return n_rows_of(self.X)


def input_blocks(source: Source, known: Known, *, one_class: bool) -> Iterator[InputBlock]:
    """The inputs of data without their labels, in bounded memory where the format has rows one after the other.

    Arrays, .npz files and tables are one block. What feature an svmlight file counts from is known at its end only: it
    is parsed twice.

    Raises:
        DataError: the data cannot be read or do not fit the model; names the file, and the line if one is to blame.
    """
    check_kind(source, known)
    if source.in_records or (source.kind == "table" and known.inputs != "feature vectors"):
        yield from _record_blocks(source, known)
        return
    match source.kind:
        case "xc" | "svmlight":
            yield from _sparse_blocks(source, known)
        case "jsonl":
            yield from _text_blocks(source)
        case "mapped":
            yield from _mapped_blocks(source, known)
        case _:
            yield InputBlock(read(source, one_class=one_class, known=known, labelled=False).X, 0.0, 1.0)


def joined(blocks: Iterator[InputBlock]) -> InputBlock:
    """All rows as one block."""
    found = [*blocks]
    ids = None if found[0].ids is None else [name for block in found for name in block.ids or ()]
    return InputBlock(_stacked([block.X for block in found]), 0.0, 1.0, ids)


def _stacked(parts: list[Any]) -> Any:
    import numpy as np
    import scipy.sparse

    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], dict):
        return {name: _stacked([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], list):
        return [text for part in parts for text in part]
    return scipy.sparse.vstack(parts, format="csr") if scipy.sparse.issparse(parts[0]) else np.concatenate(parts)


def _record_blocks(source: Source, known: Known) -> Iterator[InputBlock]:
    from extremegp.cli.records import blocks, inputs_of

    before = 0.0
    for records, after in blocks(source, known.feature_names, labelled=False):
        X = inputs_of(records)
        if known.n_features is not None:
            check_width(source, width_of(X), known)
        yield InputBlock(X, before, after, records.ids)
        before = after


def _sparse_blocks(source: Source, known: Known) -> Iterator[InputBlock]:
    import numpy as np
    from scipy.sparse import csr_matrix

    from extremegp.data.svmlight import SvmlightStream
    from extremegp.data.xc import XCStream

    stream: RowStream
    if source.kind == "xc":
        stream = XCStream(source.path)
    else:
        stream = SvmlightStream(source.path, n_features=known.n_features)
        for _ in stream.parts():
            pass
    sizes, before, n_bytes = stream.sizes(), 0.0, source.path.stat().st_size
    check_width(source, sizes.n_features, known)
    for part in stream.parts():
        rows = part.rows
        after = part.end.row / stream.n_rows if stream.n_rows else min(1.0, part.read / max(1, n_bytes))
        if len(rows.n_features):
            starts = np.concatenate([[0], np.cumsum(rows.n_features)])
            entries = (rows.values, rows.features - np.int32(sizes.first_feature), starts)
            X: FloatCSR = csr_matrix(entries, shape=(len(rows.n_features), sizes.n_features))
            yield InputBlock(X, before, after)
        before = after


def _text_blocks(source: Source) -> Iterator[InputBlock]:
    from extremegp.data.text import text_records

    before, n_bytes, any_text = 0.0, 0, False
    for records in text_records(source.path):
        n_bytes = n_bytes or source.path.stat().st_size
        after = min(1.0, records.read / max(1, n_bytes))
        if records.texts:
            yield InputBlock(records.texts, before, after)
            any_text = True
        before = after
    if not any_text:
        raise DataError("the file has no records, only blank lines", path=source.path)


def _mapped_blocks(source: Source, known: Known) -> Iterator[InputBlock]:
    from extremegp.data import open_dataset
    from extremegp.data.mapped import read_ids
    from extremegp.engine.matrices import row_blocks

    X, ids = open_dataset(source.path).X, read_ids(source.path)
    check_width(source, X.shape[1], known)
    for rows in row_blocks(X.indptr):
        of_block = None if ids is None else ids[rows]
        yield InputBlock(X[rows], rows.start / X.shape[0], rows.stop / X.shape[0], of_block)
