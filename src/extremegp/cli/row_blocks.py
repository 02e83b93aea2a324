"""The rows that a command predicts, a block at a time, and how far it is with them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from extremegp.cli.app import say
from extremegp.cli.inputs import Known, Source, Task, check_kind, check_width, read
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
    """

    X: Any
    before: float
    after: float

    @property
    def n_rows(self) -> int:
        return len(self.X) if isinstance(self.X, list) else self.X.shape[0]


def input_blocks(source: Source, task: Task, known: Known) -> Iterator[InputBlock]:
    """The inputs of data without their labels, in bounded memory where the format has rows one after the other.

    Arrays, .npz files and tables are one block. What feature an svmlight file counts from is known at its end only: it
    is parsed twice.

    Args:
        source: where they are; `Source.check` has been passed.
        task: what the model is for.
        known: what the model's training fixed.

    Raises:
        DataError: the data cannot be read or do not fit the model; names the file, and the line if one is to blame.
    """
    check_kind(source, known)
    match source.kind:
        case "xc" | "svmlight":
            blocks = _sparse_blocks(source, known)
        case "jsonl":
            blocks = _text_blocks(source)
        case "mapped":
            blocks = _mapped_blocks(source, known)
        case _:
            blocks = iter([InputBlock(read(source, task, known=known, labelled=False).X, 0.0, 1.0)])
    yield from blocks


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
    from extremegp.data.validation import row_blocks

    X = open_dataset(source.path).X
    check_width(source, X.shape[1], known)
    for rows in row_blocks(X.indptr):
        yield InputBlock(X[rows], rows.start / X.shape[0], rows.stop / X.shape[0])


class RowProgress:
    """A progress bar on a terminal, or a line every ten seconds elsewhere; nothing before two seconds have passed."""

    def __init__(self, quiet: bool, *, patience: float = 2.0, interval: float = 10.0) -> None:
        self._quiet, self._patience, self._interval = quiet, patience, interval
        self._bar: Any = None
        self._start = self._last_line = time.monotonic()

    def show(self, n_rows: int, share: float) -> None:
        """Rows that are done, and their share of all, from 0 to 1."""
        now = time.monotonic()
        if self._quiet or now - self._start < self._patience:
            return
        if sys.stderr.isatty():
            self._show_bar(n_rows, share)
        elif now - self._last_line >= self._interval:
            self._last_line = now
            left = (now - self._start) * (1 - share) / max(share, 1e-9)
            say(f"{n_rows} rows, {100 * share:.0f} %, {left:.0f} s left")

    def _show_bar(self, n_rows: int, share: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        if self._bar is None:
            columns = TextColumn("{task.fields[rows]} rows"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task("predicting", total=1.0, rows=n_rows)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=share, rows=n_rows)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
