"""The labels of rows in files: the formats that `predict` writes, by suffix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from extremegp.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Best(NamedTuple):
    """The best labels of some rows.

    Attributes:
        labels: B x k column numbers, best first; -1 where there are fewer.
        probabilities: of these.
        measured: what else is told of every row, B numbers each.
    """

    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    measured: NDArray[np.float32] | None = None


_TABLES = {".tsv": "\t", ".csv": ","}
MEASURING = (".jsonl", *_TABLES)
"""Suffixes of the formats that have room for what is measured of rows."""
_TEXTS = (*MEASURING, ".txt")


def suffix_of(out: Path) -> str:
    """The suffix that tells the format of a file, compressed or not.

    Raises:
        SettingsError: no format has it.
    """
    from extremegp.storage.streams import base_suffix

    suffix = out.suffix.lower() if out.suffix.lower() == ".npz" else base_suffix(out)
    if suffix not in (*_TEXTS, ".npz") or (suffix == ".npz" and suffix != out.suffix.lower()):
        raise SettingsError(f"--out must end in {', '.join(_TEXTS)} or .npz; it is {out}")
    return suffix


def write(out: Path, blocks: Iterator[Best], names: list[str], measures: Sequence[str]) -> int:
    """Write the best labels of all rows and count these; the file appears whole or not at all.

    Args:
        out: the file; `suffix_of` has been passed.
        blocks: of rows in order.
        names: of the K labels.
        measures: names of what is measured of every row.
    """
    if suffix_of(out) == ".npz":
        return _write_npz(out, blocks, len(names))
    return _write_text(out, blocks, names, measures)


def _write_text(out: Path, blocks: Iterator[Best], names: list[str], measures: Sequence[str]) -> int:
    from extremegp.storage.streams import atomic_writer

    suffix, n_rows = suffix_of(out), 0
    with atomic_writer(out) as stream:
        if suffix in _TABLES:
            stream.write((_TABLES[suffix].join(("row", "rank", "label", "probability", *measures)) + "\n").encode())
        for labels, probabilities, measured in blocks:
            extra = [[]] * len(labels) if measured is None else measured.tolist()
            for *pair, values in zip(labels.tolist(), probabilities.tolist(), extra, strict=True):
                ranked = [(label, _rounded(p)) for label, p in zip(*pair, strict=True) if label >= 0]
                by_name = dict(zip(measures, map(_rounded, values), strict=True))
                stream.write(_lines(suffix, n_rows, ranked, names, by_name).encode())
                n_rows += 1
    return n_rows


def _lines(suffix: str, row: int, ranked: list[tuple[int, float]], names: list[str], measured: dict[str, float]) -> str:
    """A row, of which labels are ranked with their probabilities, in a format of text."""
    if suffix == ".txt":
        return " ".join(f"{label}:{p:g}" for label, p in ranked) + "\n"
    if suffix == ".jsonl":
        record = {"labels": [names[label] for label, _ in ranked], "probabilities": [p for _, p in ranked]}
        return json.dumps(record | measured, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, delimiter=_TABLES[suffix], lineterminator="\n")
    writer.writerows([row, rank, names[label], p, *measured.values()] for rank, (label, p) in enumerate(ranked, 1))
    return text.getvalue()


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _write_npz(out: Path, blocks: Iterator[Best], n_labels: int) -> int:
    import numpy as np
    import scipy.sparse

    from extremegp.storage.streams import atomic_writer

    parts = zip(*((labels, probabilities) for labels, probabilities, _ in blocks), strict=True)
    labels, probabilities = map(np.concatenate, parts)
    stored = labels >= 0
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
    matrix = scipy.sparse.csr_matrix((probabilities[stored], labels[stored], indptr), shape=(len(labels), n_labels))
    matrix.sort_indices()
    with atomic_writer(out) as stream:
        scipy.sparse.save_npz(stream, matrix)
    return len(labels)
