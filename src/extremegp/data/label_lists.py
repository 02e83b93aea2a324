"""Labels of a row as files write them: a list, or a text with something between the labels."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from extremegp.data.arrays import is_array, is_sparse_archive, read_array, read_sparse
from extremegp.data.frames import is_missing
from extremegp.data.labels import Label
from extremegp.errors import DataError, located
from extremegp.storage.streams import as_stream, byte_blocks, line_blocks, utf8

_SEPARATORS = (";", "|", "\t", ",", " ")
_ROWS_LOOKED_AT = 10_000
# Blanks and commas are in the names of classes too: more of these must have them, and more must be made of few parts.
_SHARE_OF_TEXTS = {" ": 0.5, ",": 0.2}
_TEXTS_PER_PART = {" ": 4, ",": 2}


def split_labels(cell: Any, separator: str | None) -> list[Label]:
    """The labels that a value of a table or a line of a file lists.

    Args:
        cell: a list (also as JSON or Python write it) of strings, integers, or objects with a "uri"; a text; or
            nothing (None, NaN, or blank), for a row without labels.
        separator: what stands between the labels of a text.

    Raises:
        DataError: it is none of these, or a text and nothing says what separates its labels.
    """
    if isinstance(cell, str):
        text = cell.strip()
        if separator is not None:
            return [plain_uri(part) for part in map(str.strip, text.split(separator)) if part]
        if not text:
            return []
        cell = _listed(text)
    elif is_missing(cell):
        return []
    if not isinstance(cell, (list, tuple, set, frozenset, np.ndarray)):
        raise DataError(f"{_short(cell)} is no list of labels")
    return [_label(item) for item in cell]


def plain_uri(text: str) -> str:
    """A URI without the angle brackets that may be around it; other texts as they are."""
    return text[1:-1] if re.fullmatch(r"<[^<>\s]+:[^<>\s]*>", text) else text


def read_label_lists(path: str | Path, separator: str | None = None) -> Any:
    """Read the labels of rows from a file of their own.

    Args:
        path: text with a row a line, as `split_labels` takes it (a blank line is a row without labels); a .npy array
            N x K of 0 and 1; or an .npz that `scipy.sparse.save_npz` wrote, N x K.
        separator: what stands between labels in a line.

    Returns:
        N lists of names, or the N x K matrix.

    Raises:
        DataError: the file cannot be read, or a line is no list of labels; names the file and the line.
    """
    path = Path(path)
    with as_stream(byte_blocks(path)) as stream:
        start = stream.read(4)
    if is_sparse_archive(path):
        return read_sparse(path)
    if is_array(start):
        array = read_array(path)
        if array.ndim != 2:
            raise DataError(
                f"labels of many per row are an array N x K of 0 and 1, but its shape is {array.shape}; for one class "
                "per row say --task multiclass",
                path=path,
            )
        return array
    rows = []
    for number, line in enumerate(as_stream(line_blocks(path)), 1):
        with located(path, number):
            rows.append(split_labels(utf8(line).rstrip("\n"), separator))
    return rows


def holds_matrix(path: str | Path) -> bool:
    """Whether a file is an array of several columns, or a sparse matrix.

    Raises:
        DataError: it cannot be read.
    """
    with as_stream(byte_blocks(path)) as stream:
        start = stream.read(4)
    if not is_array(start):
        return is_sparse_archive(path)
    shape = read_array(path).shape
    return len(shape) == 2 and shape[1] > 1


def sign_of_lists(values: Iterable[Any]) -> str | None:
    """What makes texts that are to be classes look like lists of labels: a value, and what separates its parts.

    Texts of which many have a separator between parts that come again in others are lists rather than names; only the
    first ten thousand are looked at.
    """
    texts = {value for value in islice(values, _ROWS_LOOKED_AT) if isinstance(value, str)}
    lists = [text for text in sorted(texts) if re.fullmatch(r"\[.*\]", text.strip())]
    if lists and 2 * len(lists) > len(texts):
        return f"{_short(lists[0])} is a list"
    for separator in _SEPARATORS:
        several = [text for text in sorted(texts) if separator in text.strip()]
        parts = {part.strip() for text in texts for part in text.split(separator)}
        enough = len(several) >= _SHARE_OF_TEXTS.get(separator, 0.05) * len(texts)
        if several and enough and _TEXTS_PER_PART.get(separator, 1) * len(parts) < len(texts):
            return f"{_short(several[0])} looks like several labels with {separator!r} between them"
    return None


def _listed(text: str) -> Any:
    if text.startswith("["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
        try:
            # Only literals: this runs no code.
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise DataError(f"{_short(text)} is no list of labels such as ['a', 'b']") from None
    found = next((separator for separator in _SEPARATORS if separator in text), ";")
    raise DataError(
        f"{_short(text)} is a text, and nothing says what separates its labels: name it by label_separator "
        f"(--label-separator {found!r}); one that does not occur leaves each text one label"
    )


def _label(item: Any) -> Label:
    if isinstance(item, dict) and isinstance(item.get("uri"), str):
        item = item["uri"]
    if isinstance(item, str):
        return plain_uri(item.strip())
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item)
    raise DataError(f"{_short(item)} is no label; labels are strings or integers")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
