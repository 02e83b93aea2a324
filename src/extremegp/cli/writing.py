"""The labels of rows in files: the formats that `predict` writes, by suffix."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from extremegp.cli.explaining import as_record, as_text
from extremegp.cli.pipes import STANDARD
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.estimators import Explanation


class Best(NamedTuple):
    """The best labels of some rows.

    Attributes:
        labels: B x k column numbers, best first; -1 where there are fewer.
        probabilities: of these.
        measured: what else is told of every row, B numbers each.
        ids: what the rows are called.
        reasons: of every row why it has its labels, in their order.
    """

    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    measured: NDArray[np.float32] | None = None
    ids: list[str] | None = None
    reasons: list[list[Explanation]] | None = None


class Layout(NamedTuple):
    """What is told of rows and labels beside these.

    Attributes:
        measures: names of what is measured of every row.
        titles: what the K labels are called, where they have names beside what they are.
        has_ids: whether rows have ids.
    """

    measures: Sequence[str] = ()
    titles: Sequence[str] | None = None
    has_ids: bool = False


_TABLES = {".tsv": "\t", ".csv": ","}
MEASURING = (".jsonl", *_TABLES)
"""Suffixes of the formats that have room for what is measured of rows."""
_TEXTS = (*MEASURING, ".txt")


class Target(NamedTuple):
    """Where labels go.

    Attributes:
        path: a file; None for standard output.
        suffix: tells the format.
    """

    path: Path | None
    suffix: str

    @classmethod
    def of(cls, out: Path, to: str = "jsonl") -> Target:
        """What --out and --to say.

        Raises:
            SettingsError: no format has the suffix of the file.
        """
        if out == STANDARD:
            return cls(None, f".{to}")
        from extremegp.storage.streams import base_suffix

        suffix = out.suffix.lower() if out.suffix.lower() == ".npz" else base_suffix(out)
        if suffix not in (*_TEXTS, ".npz") or (suffix == ".npz" and suffix != out.suffix.lower()):
            raise SettingsError(f"--out must end in {', '.join(_TEXTS)} or .npz, or be '-'; it is {out}")
        return cls(out, suffix)


def write(target: Target, blocks: Iterator[Best], names: list[str], layout: Layout) -> int:
    """Write the best labels of all rows and count these; a file appears whole or not at all.

    Args:
        target: where they go.
        blocks: of rows in order.
        names: of the K labels.
        layout: what is told besides.
    """
    if target.suffix == ".npz":
        assert target.path is not None
        return _write_npz(target.path, blocks, len(names))
    if target.path is None:
        return _write_text(sys.stdout.buffer, target.suffix, blocks, names, layout)
    from extremegp.storage.streams import atomic_writer

    with atomic_writer(target.path) as stream:
        return _write_text(stream, target.suffix, blocks, names, layout)


def _write_text(stream: IO[bytes], suffix: str, blocks: Iterator[Best], names: list[str], layout: Layout) -> int:
    n_rows = 0
    if suffix in _TABLES:
        ids, titles = ["id"] * layout.has_ids, ["name"] * (layout.titles is not None)
        header = ("row", *ids, "rank", "label", *titles, "probability", *layout.measures)
        stream.write((_TABLES[suffix].join(header) + "\n").encode())
    for labels, probabilities, measured, ids_of_block, reasons in blocks:
        extra = [[]] * len(labels) if measured is None else measured.tolist()
        for i, values in enumerate(extra):
            pairs = zip(labels[i].tolist(), probabilities[i].tolist(), strict=True)
            ranked = [(label, _rounded(p)) for label, p in pairs if label >= 0]
            by_name = {name: _told(name, value) for name, value in zip(layout.measures, values, strict=True)}
            why = None if reasons is None else reasons[i]
            row = _Row(n_rows, None if ids_of_block is None else ids_of_block[i], ranked, by_name, why)
            stream.write(_lines(suffix, row, names, layout.titles).encode())
            n_rows += 1
    stream.flush()
    return n_rows


class _Row(NamedTuple):
    """A row: its number and id, its best labels with their probabilities, what is measured of it, and why these."""

    number: int
    id: str | None
    ranked: list[tuple[int, float]]
    measured: dict[str, float | bool | None]
    reasons: list[Explanation] | None


def _lines(suffix: str, row: _Row, names: list[str], titles: Sequence[str] | None) -> str:
    """A row in a format of text."""
    called = names if titles is None else titles
    if suffix == ".txt" and row.reasons is not None:
        return as_text(row.number, row.id, row.reasons, [called[label] for label, _ in row.ranked])
    if suffix == ".txt":
        return " ".join(f"{label}:{p:g}" for label, p in row.ranked) + "\n"
    ids = {} if row.id is None else {"id": row.id}
    if suffix == ".jsonl":
        record: dict[str, Any] = {**ids, "labels": [names[label] for label, _ in row.ranked]}
        if titles is not None:
            record["names"] = [titles[label] for label, _ in row.ranked]
        record["probabilities"] = [p for _, p in row.ranked]
        if row.reasons is not None:
            of_labels = [None if titles is None else titles[label] for label, _ in row.ranked]
            record["explanations"] = [as_record(*each) for each in zip(row.reasons, of_labels, strict=True)]
        return json.dumps(record | row.measured, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, delimiter=_TABLES[suffix], lineterminator="\n")
    for rank, (label, p) in enumerate(row.ranked, 1):
        title = [] if titles is None else [titles[label]]
        writer.writerow([row.number, *ids.values(), rank, names[label], *title, p, *row.measured.values()])
    return text.getvalue()


def _told(name: str, value: float) -> float | bool | None:
    """A measure as it is written: none where the model cannot tell."""
    if math.isnan(value):
        return None
    return bool(value) if name == "novel" else _rounded(value)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _write_npz(out: Path, blocks: Iterator[Best], n_labels: int) -> int:
    import numpy as np
    import scipy.sparse

    from extremegp.storage.streams import atomic_writer

    parts = zip(*((best.labels, best.probabilities) for best in blocks), strict=True)
    labels, probabilities = map(np.concatenate, parts)
    stored = labels >= 0
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
    matrix = scipy.sparse.csr_matrix((probabilities[stored], labels[stored], indptr), shape=(len(labels), n_labels))
    matrix.sort_indices()
    with atomic_writer(out) as stream:
        scipy.sparse.save_npz(stream, matrix)
    return len(labels)
