"""Files of one class a row: labels in a file of their own, and multi-label data whose rows have one label each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.data.arrays import is_array, read_array
from extremegp.data.blocks import Dataset
from extremegp.data.text import TextDataset
from extremegp.engine.matrices import FloatCSR
from extremegp.errors import DataError, located
from extremegp.storage.streams import as_stream, byte_blocks, line_blocks, utf8

# Only what str() would write again, so that the codes "01" and "1" stay two classes.
_CANONICAL_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


class ClassDataset(NamedTuple):
    """Rows of one class each.

    Attributes:
        X: N x D float32 CSR, or N texts.
        y: N classes: label names where the source has them, else label numbers.
        n_dropped: rows of the source that are left out, having no label.
    """

    X: FloatCSR | list[str]
    y: NDArray[Any]
    n_dropped: int


def read_labels(path: str | Path, *, as_strings: bool = False) -> NDArray[Any]:
    """Read a file of labels, one a row: .npy or IDX (see `read_array`), or UTF-8 text with a label a line.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed.
        as_strings: leave the labels of a text file strings, though they may all look like integers.

    Returns:
        N labels. Those of a text file, without blanks around them, are int64 if all are integers as ``str`` writes
        them (so "01" is none), else strings.

    Raises:
        DataError: the file cannot be read, an array is not 1-D, or a line is blank or not UTF-8; names file and line.
    """
    path = Path(path)
    with as_stream(byte_blocks(path)) as stream:
        start = stream.read(4)
    if start == b"PK\3\4":
        raise DataError("is an .npz (zip) file, but labels of their own are a .npy, IDX or text file", path=path)
    if is_array(start):
        array = read_array(path)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise DataError(f"labels must be one a row, but the array has the shape {array.shape}", path=path)
        return array
    labels: list[str] = []
    for number, line in enumerate(as_stream(line_blocks(path)), 1):
        with located(path, number):
            labels.append(utf8(line).strip())
            if not labels[-1]:
                raise DataError("the line is blank; every row needs a label, unless rows have many (--task multilabel)")
    return np.asarray(labels, dtype=object) if as_strings else parse_labels(labels)


def parse_labels(texts: Sequence[str]) -> NDArray[Any]:
    """Labels from text: int64 if all are integers as ``str`` writes them, else an object array of the strings."""
    if all(_CANONICAL_INTEGER.fullmatch(text) for text in texts):
        try:
            return np.asarray([int(text) for text in texts], dtype=np.int64)
        except OverflowError:
            pass
    return np.asarray(texts, dtype=object)


def classes_of_dataset(
    data: Dataset | TextDataset, path: str | Path | None = None, *, first_label: bool = False
) -> ClassDataset:
    """A multi-label data set as one of classes.

    Args:
        data: the data set; texts with labels.
        path: the file it was read from, for messages.
        first_label: what to do with rows that have not exactly one label: raise, or take the first label as the file
            lists them (the lowest label, if the order is not known) and leave out rows without labels.

    Raises:
        DataError: a row has no label or several (the first such row is named); or no row has any.
    """
    if isinstance(data, TextDataset):
        n_labels = np.asarray([len(labels) for labels in data.labels or ()])
    else:
        n_labels = np.diff(data.Y.indptr)
    bad = np.flatnonzero(n_labels != 1)
    if bad.size and not first_label:
        row, found = int(bad[0]), int(n_labels[bad[0]])
        raise DataError(
            f"row {row} (counted from 0) has {found or 'no'} labels, but every row must have exactly one class; "
            "take the first label of each row, and drop rows without any, by first_label=True (--first-label)",
            path=path,
        )
    kept = np.flatnonzero(n_labels)
    if not kept.size:
        raise DataError("no row has a label", path=path)
    n_dropped = len(n_labels) - len(kept)
    if isinstance(data, TextDataset):
        rows = [(text, labels[0]) for text, labels in zip(data.texts, data.labels or (), strict=True) if labels]
        return ClassDataset([text for text, _ in rows], np.asarray([label for _, label in rows], object), n_dropped)
    firsts = data.Y.indices[data.Y.indptr[kept]] if data.first_labels is None else data.first_labels[kept]
    y: NDArray[Any] = firsts.astype(np.int64)
    if data.label_names is not None:
        y = np.asarray(data.label_names, dtype=object)[y]
    return ClassDataset(data.X[kept] if n_dropped else data.X, y, n_dropped)
