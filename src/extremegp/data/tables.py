"""Tables of one class a row: CSV, TSV and Parquet with numbers for features and a column for the class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from extremegp.data.class_files import parse_labels
from extremegp.data.table_files import Table, listed, open_table

# Numbers as programs write them and float64 holds them; "007" and a key of twenty digits are the names of classes.
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]{0,14})(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def read_table(
    path: str | Path,
    label_column: str | int | None = None,
    feature_names: Sequence[str] | None = None,
    *,
    labels_as_strings: bool = False,
) -> tuple[NDArray[np.float32], NDArray[Any] | None, list[str]]:
    """Read inputs, and labels if wanted, from a table whose first line, or schema, names its columns.

    Args:
        path: a .csv or .tsv file (UTF-8, quoted by ``"``; .gz, .bz2, .xz and .zst are decompressed), or .parquet.
        label_column: the column of the labels, by name; or, if no column is called so, by number, counted from 0 and
            from the end if negative. None if the labels are not wanted.
        feature_names: the columns of the inputs in the order that a model knows; others are ignored. By default all
            columns but the labels (and but an index that pandas stored in Parquet), in the order of the file.
        labels_as_strings: leave the labels of a text table strings, though they may all look like numbers.

    Returns:
        N x D float32; the N labels, or None without `label_column`; and the D feature names. Labels of a text table
        are int64 if all are integers as ``str`` writes them, else float64 if all are numbers that it holds, else
        strings.

    Raises:
        DataError: pandas or pyarrow is not installed; the file cannot be read or is damaged; a column is not there,
            comes twice or has no name; an input is not a number, or outside float32; or a value is missing. Names the
            file, the column and the line or row.
    """
    table = open_table(path)
    label = None if label_column is None else _label_position(table, label_column)
    features = feature_positions(table, [] if label is None else [label], feature_names)
    parts: list[NDArray[np.float32]] = []
    labels: list[NDArray[Any]] = []
    n_read = 0
    with closing(table.chunks(features, [] if label is None else [label])) as frames:
        for frame in frames:
            parts.append(numbers_of(table, frame, features, n_read))
            if label is not None:
                labels.append(classes_of(table, frame, label, n_read))
            n_read += len(frame)
    if not n_read:
        table.fail("the table has no rows")
    names = [table.names[column] for column in features]
    X = np.concatenate(parts)
    if label is None:
        return X, None, names
    y = np.concatenate(labels)
    return X, y if table.delimiter is None or labels_as_strings else parse_classes(y), names


def _label_position(table: Table, label_column: str | int) -> int:
    position = table.position(str(label_column))
    others = [name for column, name in enumerate(table.names) if column != position]
    if (
        table.names[position] != str(label_column)
        and table.delimiter
        and others
        and all(map(_NUMBER.fullmatch, others))
    ):
        table.fail(
            "the first line holds numbers where the names of the columns are expected; put a header before it, or name "
            f"the label column as that line does ({table.names[position]!r}) if it is one"
        )
    return position


def feature_positions(table: Table, taken: Sequence[int], feature_names: Sequence[str] | None = None) -> list[int]:
    """The columns of inputs: those of a model by name, or all that are not taken for something else.

    Raises:
        DataError: there are none, one is missing or has no name, or is taken.
    """
    if feature_names is not None:
        position_of = {name: column for column, name in enumerate(table.names)}
        missing = [name for name in feature_names if name not in position_of]
        if missing:
            table.fail(f"lacks the columns {listed(missing)}; its columns are {listed(table.names)}")
        positions = [position_of[name] for name in feature_names]
        both = next((column for column in taken if column in positions), None)
        if both is not None:
            table.fail(f"the column {table.names[both]!r} cannot be both an input and the label")
        return positions
    kept = ((column, name) for column, name in enumerate(table.names) if name not in table.row_index)
    positions = [column for column, _ in kept if column not in taken]
    if not positions:
        table.fail(f"has no columns of inputs; its columns are {listed(table.names)}")
    unnamed = next((column for column in positions if not table.names[column]), None)
    if unnamed is not None:
        table.fail(f"column {unnamed} (counted from 0) has no name; name it, or remove it if it numbers the rows")
    return positions


def numbers_of(table: Table, frame: Any, features: list[int], n_before: int) -> NDArray[np.float32]:
    """Some columns of consecutive rows as float32, N x D; `n_before` rows came before, for messages.

    Raises:
        DataError: a value is missing, not a number, or outside float32.
    """
    frame = frame[features]
    unusual = [column for column, dtype in zip(features, frame.dtypes, strict=True) if dtype.kind not in "biuf"]
    if unusual:
        frame = frame.copy()
        for column in unusual:
            frame[column] = _numbers(table, frame[column], column, n_before)
    with np.errstate(over="ignore", invalid="ignore"):
        X: NDArray[np.float32] = np.ascontiguousarray(frame.to_numpy(dtype=np.float32))
        # As in `check_inputs`, the sum needs no mask of the size of X.
        if np.isfinite(X.sum(dtype=np.float64)):
            return X
    row, column = np.argwhere(~np.isfinite(X))[0].tolist()
    name, value = table.names[features[column]], float(frame.iloc[row, column])
    if np.isnan(value):
        _refuse_missing(table, name, n_before + row)
    problem = "which is not finite; correct it" if np.isinf(value) else "which is too large for float32; scale it down"
    table.fail_at(n_before + row, f"the column {name!r} has {value}", f", {problem}")


def _numbers(table: Table, values: Any, column: int, n_before: int) -> NDArray[np.float64]:
    """A column that pandas did not take for numbers: some are, such as integers beyond 64 bits."""
    name = table.names[column]
    missing = np.flatnonzero(values.isna())
    if missing.size:
        _refuse_missing(table, name, n_before + int(missing[0]))
    numbers = np.asarray([_number(value) for value in values])
    bad = np.flatnonzero(np.isnan(numbers))
    if bad.size:
        row = int(bad[0])
        shown = str(values.iloc[row])
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        table.fail_at(
            n_before + row,
            f"the column {name!r} has {shown!r}",
            ", which is not a number; correct it, encode the column as numbers, or remove it",
        )
    return numbers


def _number(value: Any) -> float:
    try:
        # Only in Python's own spelling may digits be set apart by underscores.
        return np.nan if "_" in str(value) else float(value)
    except OverflowError:
        return np.inf
    except ValueError:
        return np.nan


def classes_of(table: Table, frame: Any, label: int, n_before: int) -> NDArray[Any]:
    """The classes in a column of consecutive rows, as strings if the table is text.

    Raises:
        DataError: one is missing.
    """
    values = frame[label]
    missing = values.isna()
    if table.delimiter is not None:
        values = values.astype(object).where(~missing, "").map(str.strip)
        missing = values == ""
    rows = np.flatnonzero(missing)
    if rows.size:
        table.fail_at(
            n_before + int(rows[0]),
            f"the label column {table.names[label]!r} has no value",
            "; remove rows without a label first, or say that rows have many by --labels-column",
        )
    return np.asarray(values, dtype=object if table.delimiter is not None else None)


def parse_classes(texts: NDArray[Any]) -> NDArray[Any]:
    """Classes from text: int64 if all are integers as ``str`` writes them, else float64 if all are numbers."""
    labels = parse_labels(texts.tolist())
    if labels.dtype == object and all(map(_NUMBER.fullmatch, texts)):
        return texts.astype(np.float64)
    return labels


def _refuse_missing(table: Table, name: str, row: int) -> NoReturn:
    table.fail_at(row, f"the column {name!r} has no value", "; fill missing values in, or remove such rows, first")
