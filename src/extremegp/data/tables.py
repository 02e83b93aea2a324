"""Tables with named columns: CSV, TSV and Parquet, read by pandas and pyarrow (``pip install 'extremegp[tables]'``)."""

from __future__ import annotations

import csv
import importlib
import io
import re
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from extremegp.data.class_files import parse_labels
from extremegp.errors import DataError
from extremegp.storage.streams import as_stream, base_suffix, line_blocks

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")
TABLE_SUFFIXES = (*_DELIMITERS, *_PARQUET)

_MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None"]
# Numbers as programs write them and float64 holds them; "007" and a key of twenty digits are the names of classes.
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]{0,14})(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_VALUES_AT_A_TIME = 1 << 22


class _Table(NamedTuple):
    """A table whose columns are known, but not read.

    Attributes:
        path: the file.
        names: the names of its columns.
        delimiter: what separates the columns of text; None for Parquet.
        row_index: columns that pandas stored as index of the rows.
    """

    path: Path
    names: list[str]
    delimiter: str | None
    row_index: frozenset[str] = frozenset()

    def fail(self, problem: str) -> NoReturn:
        """Refuse the table as a whole."""
        raise DataError(problem, path=self.path)

    def fail_at(self, row: int, what: str, problem: str) -> NoReturn:
        """Refuse what is in a row, counted from 0 after the header; `problem` goes on after the place."""
        line = None if self.delimiter is None else _line_of_row(self.path, self.delimiter, row)
        where = f" at row {row} (counted from 0)" if line is None else ""
        raise DataError(f"{what}{where}{problem}", path=self.path, line=line)


# The columns of inputs and of labels, by position, to frames of consecutive rows whose columns are named by position.
_Chunks: TypeAlias = Callable[[list[int], int | None], Generator[Any, None, None]]


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
    table, chunks = _open(Path(path))
    label = None if label_column is None else _label_position(table, label_column)
    features = _feature_positions(table, label, feature_names)
    parts: list[NDArray[np.float32]] = []
    labels: list[NDArray[Any]] = []
    n_read = 0
    with closing(chunks(features, label)) as frames:
        for frame in frames:
            parts.append(_inputs(table, frame, features, n_read))
            if label is not None:
                labels.append(_labels(table, frame, label, n_read))
            n_read += len(frame)
    if not n_read:
        table.fail("the table has no rows")
    names = [table.names[column] for column in features]
    X = np.concatenate(parts)
    if label is None:
        return X, None, names
    y = np.concatenate(labels)
    return X, y if table.delimiter is None or labels_as_strings else _parsed(y), names


def _open(path: Path) -> tuple[_Table, _Chunks]:
    suffix = base_suffix(path)
    if suffix in _PARQUET:
        table, chunks = _open_parquet(path)
    elif suffix in _DELIMITERS:
        table, chunks = _open_text(path, _DELIMITERS[suffix])
    else:
        raise DataError(f"not a table by its name, which must end in one of {', '.join(TABLE_SUFFIXES)}", path=path)
    seen: set[str] = set()
    for name in filter(None, table.names):
        if name in seen:
            table.fail(
                f"the column name {name!r} comes twice; rename or remove one, or put the names of the columns into the "
                "first line if it holds data"
            )
        seen.add(name)
    return table, chunks


def _label_position(table: _Table, label_column: str | int) -> int:
    wanted = str(label_column)
    if wanted in table.names:
        return table.names.index(wanted)
    if not re.fullmatch(r"-?[0-9]{1,9}", wanted) or not -len(table.names) <= int(wanted) < len(table.names):
        hint = " (columns of .csv are separated by commas, of .tsv by tabs)" if len(table.names) == 1 else ""
        table.fail(f"has no column {wanted!r}; its columns are {_listed(table.names)}{hint}")
    position = int(wanted) % len(table.names)
    others = [name for column, name in enumerate(table.names) if column != position]
    if table.delimiter and others and all(_NUMBER.fullmatch(name) for name in others):
        table.fail(
            "the first line holds numbers where the names of the columns are expected; put a header before it, or name "
            f"the label column as that line does ({table.names[position]!r}) if it is one"
        )
    return position


def _feature_positions(table: _Table, label: int | None, feature_names: Sequence[str] | None) -> list[int]:
    if feature_names is not None:
        position_of = {name: column for column, name in enumerate(table.names)}
        missing = [name for name in feature_names if name not in position_of]
        if missing:
            table.fail(f"lacks the columns {_listed(missing)}; its columns are {_listed(table.names)}")
        positions = [position_of[name] for name in feature_names]
        if label in positions:
            table.fail(f"the column {table.names[label]!r} cannot be both an input and the label")
        return positions
    positions = [column for column, name in enumerate(table.names) if column != label and name not in table.row_index]
    if not positions:
        table.fail(f"has no columns of inputs; its columns are {_listed(table.names)}")
    unnamed = next((column for column in positions if not table.names[column]), None)
    if unnamed is not None:
        table.fail(f"column {unnamed} (counted from 0) has no name; name it, or remove it if it numbers the rows")
    return positions


def _inputs(table: _Table, frame: Any, features: list[int], n_before: int) -> NDArray[np.float32]:
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


def _numbers(table: _Table, values: Any, column: int, n_before: int) -> NDArray[np.float64]:
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


def _labels(table: _Table, frame: Any, label: int, n_before: int) -> NDArray[Any]:
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
            "; remove rows without a label first",
        )
    return np.asarray(values, dtype=object if table.delimiter is not None else None)


def _parsed(texts: NDArray[Any]) -> NDArray[Any]:
    labels = parse_labels(texts.tolist())
    if labels.dtype == object and all(map(_NUMBER.fullmatch, texts)):
        return texts.astype(np.float64)
    return labels


def _refuse_missing(table: _Table, name: str, row: int) -> NoReturn:
    table.fail_at(row, f"the column {name!r} has no value", "; fill missing values in, or remove such rows, first")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")


def _open_text(path: Path, delimiter: str) -> tuple[_Table, _Chunks]:
    pandas = _pandas(path)
    with _explained(path), as_stream(line_blocks(path)) as stream:
        header = pandas.read_csv(stream, sep=delimiter, header=None, nrows=1, dtype=str, keep_default_na=False)
    table = _Table(path, [str(name).strip() for name in header.iloc[0]], delimiter)
    D = len(table.names)

    def chunks(features: list[int], label: int | None) -> Generator[Any, None, None]:
        # Not `usecols`: with it pandas no longer says that a row has too many values.
        with _explained(path), as_stream(line_blocks(path)) as stream:
            yield from pandas.read_csv(
                stream,
                sep=delimiter,
                header=0,
                names=range(D),
                index_col=False,
                dtype={} if label is None else {label: str},
                keep_default_na=False,
                na_values={column: _MISSING for column in range(D) if column != label},
                chunksize=max(1, _VALUES_AT_A_TIME // D),
                low_memory=False,
            )

    return table, chunks


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """The errors of pandas' readers as errors of data."""
    errors = _pandas(path).errors
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", errors.ParserWarning)
            yield
    except errors.EmptyDataError as error:
        raise DataError("the file has only blank lines", path=path) from error
    except errors.ParserWarning as error:
        raise DataError("the rows have more values than the first line has names of columns", path=path) from error
    except errors.ParserError as error:
        problem = " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())
        raise DataError(f"not a table: {problem}", path=path) from error
    except UnicodeDecodeError as error:
        line = next((i for i, line in enumerate(as_stream(line_blocks(path)), 1) if not _is_text(line)), None)
        raise DataError("not UTF-8 text; convert the file to UTF-8", path=path, line=line) from error


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _line_of_row(path: Path, delimiter: str, row: int) -> int | None:
    """The 1-based line where a row starts: quoted values may go over several, and pandas passes over blank ones."""
    text = io.TextIOWrapper(as_stream(line_blocks(path)), encoding="utf-8", errors="replace", newline="")
    reader = csv.reader(text, delimiter=delimiter)
    position, end = -1, 0
    try:
        for values in reader:
            start, end = end + 1, reader.line_num
            if len(values) > 1 or "".join(values).strip():
                if position == row:
                    return start
                position += 1
    except csv.Error:
        pass
    return None


def _open_parquet(path: Path) -> tuple[_Table, _Chunks]:
    pandas, parquet = _pandas(path), _imported("pyarrow.parquet", path)
    with _explained_parquet(path):
        file = parquet.ParquetFile(path)
        schema = file.schema_arrow
        metadata = schema.pandas_metadata
        index = metadata.get("index_columns") if isinstance(metadata, dict) else None
        row_index = (
            frozenset(name for name in index if isinstance(name, str)) if isinstance(index, list) else frozenset()
        )
        table = _Table(path, list(schema.names), None, row_index)

    def chunks(features: list[int], label: int | None) -> Generator[Any, None, None]:
        from pyarrow import types

        for column in features:
            kind = schema.types[column]
            numeric = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
            if not any(check(kind) for check in numeric):
                table.fail(
                    f"the column {table.names[column]!r} is of type {kind}, not numbers; encode it as numbers, or "
                    "remove it"
                )
        columns = features if label is None else [*features, label]
        names = [table.names[column] for column in columns]
        with _explained_parquet(path):
            for batch in file.iter_batches(max(1, _VALUES_AT_A_TIME // len(columns)), columns=names):
                # Strings that are not UTF-8 would fail where they are first looked at.
                batch.validate(full=True)
                frame = batch.select(names).to_pandas(ignore_metadata=True)
                yield frame.set_axis(pandas.Index(columns), axis="columns")

    return table, chunks


@contextmanager
def _explained_parquet(path: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError("no such file; check the path", path=path) from error
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        problem = " ".join(str(error).split())
        raise DataError(f"not a readable Parquet file ({problem}); copy or save it again", path=path) from error


def _pandas(path: Path) -> Any:
    return _imported("pandas", path)


def _imported(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError("tables need pandas and pyarrow: pip install 'extremegp[tables]'", path=path) from error
