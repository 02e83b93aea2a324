"""Tables with named columns, opened but not read: CSV, TSV, Parquet and JSON lines, data frames and their like.

Text and Parquet are read by pandas and pyarrow (``pip install 'extremegp[tables]'``).
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from extremegp.errors import DataError
from extremegp.storage.streams import as_stream, base_suffix, line_blocks, utf8

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
TABLE_SUFFIXES = (*DELIMITERS, *PARQUET)
JSON_LINES = (".jsonl", ".ndjson")

_MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None"]
_VALUES_AT_A_TIME = 1 << 22
_KEYS_OF = 1000


@runtime_checkable
class Chunks(Protocol):
    """The rows of a table, some at a time."""

    def __call__(self, numbers: Sequence[int], others: Sequence[int]) -> Generator[Any, None, None]:
        """Frames of consecutive rows, whose columns are named by their position.

        Args:
            numbers: columns that hold numbers.
            others: columns to be left as they are: of text tables strings, with "" where nothing is.
        """


class Table:
    """A table whose columns are known, but not read.

    Attributes:
        path: the file; None of what is in memory.
        names: the names of its columns.
        chunks: reads it.
        delimiter: what separates the columns of text; None where rows are not lines.
        row_index: columns that pandas stored as index of the rows.
    """

    def __init__(
        self,
        path: Path | None,
        names: Sequence[str],
        chunks: Chunks,
        *,
        delimiter: str | None = None,
        row_index: frozenset[str] = frozenset(),
    ) -> None:
        self.path, self.names, self.chunks, self.delimiter = path, list(names), chunks, delimiter
        self.row_index = row_index
        seen: set[str] = set()
        for name in filter(None, self.names):
            if name in seen:
                self.fail(
                    f"the column name {name!r} comes twice; rename or remove one, or put the names of the columns into "
                    "the first line if it holds data"
                )
            seen.add(name)

    def position(self, wanted: str) -> int:
        """The column of a name; or, if none is called so, of a number from 0, or from the end if negative.

        Raises:
            DataError: there is no such column.
        """
        if wanted in self.names:
            return self.names.index(wanted)
        if not re.fullmatch(r"-?[0-9]{1,9}", wanted) or not -len(self.names) <= int(wanted) < len(self.names):
            hint = " (columns of .csv are separated by commas, of .tsv by tabs)" if len(self.names) == 1 else ""
            self.fail(f"has no column {wanted!r}; its columns are {listed(self.names)}{hint}")
        return int(wanted) % len(self.names)

    def class_names(self, name: str) -> list[str] | None:
        """What the numbers in a column of labels stand for, where the source says so."""
        return None

    def fail(self, problem: str) -> NoReturn:
        """Refuse the table as a whole."""
        raise DataError(problem if self.path is not None else f"the table {problem}", path=self.path)

    def fail_at(self, row: int, what: str, problem: str) -> NoReturn:
        """Refuse what is in a row, counted from 0 after the header; `problem` goes on after the place."""
        line = self._line_of_row(row)
        where = f" at row {row} (counted from 0)" if line is None else ""
        raise DataError(f"{what}{where}{problem}", path=self.path, line=line)

    def _line_of_row(self, row: int) -> int | None:
        if self.path is None or self.delimiter is None:
            return None
        return _line_of_row(self.path, self.delimiter, row)


def open_table(source: Any, format: str = "auto") -> Table:
    """Open a table.

    Args:
        source: a .csv or .tsv file (UTF-8, quoted by ``"``; .gz, .bz2, .xz and .zst are decompressed), .parquet, or
            .jsonl; a data frame of pandas, or what has ``to_pandas``; or a data set of Hugging Face's `datasets`.
        format: "csv", "tsv" or "jsonl" of a file whose name does not end in that.

    Raises:
        DataError: pandas or pyarrow is not installed, it is none of these, or it cannot be read.
    """
    if not isinstance(source, (str, Path)):
        return _opened(source)
    path = Path(source)
    suffix = base_suffix(path) if format == "auto" else f".{format}"
    if suffix in PARQUET:
        return _open_parquet(path)
    if suffix in DELIMITERS:
        return _open_text(path, DELIMITERS[suffix])
    if suffix in JSON_LINES:
        return _open_json_lines(path)
    raise DataError(f"not a table by its name, which must end in one of {', '.join(TABLE_SUFFIXES)}", path=path)


def listed(names: Sequence[str]) -> str:
    """Names, if they are not too many."""
    return ", ".join(map(repr, names[:20])) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")


def _opened(source: Any) -> Table:
    """What is in memory, or maps its own files."""
    names = getattr(source, "column_names", None)
    if isinstance(names, dict):
        raise DataError(f"the data set has the parts {listed(list(names))}; take one of them, such as data['train']")
    pandas = _imported("pandas", None)
    # Arrow's tables name columns as `datasets` does, and Polars' frames do not; the latter alone has features.
    if not isinstance(source, pandas.DataFrame) and not hasattr(source, "features") and hasattr(source, "to_pandas"):
        source = source.to_pandas()
    if isinstance(source, pandas.DataFrame):
        names = [str(name) for name in source.columns]
    elif not isinstance(names, list):
        raise DataError(f"a {type(source).__name__} is no table; pass the path of one, or a data frame")
    step = max(1, _VALUES_AT_A_TIME // max(1, len(names)))

    def chunks(numbers: Sequence[int], others: Sequence[int]) -> Generator[Any, None, None]:
        columns = [*numbers, *others]
        for start in range(0, len(source), step):
            if isinstance(source, pandas.DataFrame):
                frame = source.iloc[start : start + step, columns]
            else:
                rows = source[start : start + step]
                frame = pandas.DataFrame({name: list(rows[name]) for name in (names[column] for column in columns)})
            yield frame.set_axis(pandas.Index(columns), axis="columns").reset_index(drop=True)

    return _InMemory(source, names, chunks)


class _InMemory(Table):
    """A data frame, or a data set of Hugging Face's `datasets`, which knows names of labels."""

    def __init__(self, source: Any, names: Sequence[str], chunks: Chunks) -> None:
        super().__init__(None, names, chunks)
        self._features = getattr(source, "features", None)

    def class_names(self, name: str) -> list[str] | None:
        described = self._features.get(name) if isinstance(self._features, dict) else None
        # A list of labels describes its elements.
        names = getattr(getattr(described, "feature", described), "names", None)
        return list(names) if isinstance(names, (list, tuple)) else None


def _open_text(path: Path, delimiter: str) -> Table:
    pandas = _imported("pandas", path)
    with _explained(path), as_stream(line_blocks(path)) as stream:
        header = pandas.read_csv(stream, sep=delimiter, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [str(name).strip() for name in header.iloc[0]]
    D = len(names)

    def chunks(numbers: Sequence[int], others: Sequence[int]) -> Generator[Any, None, None]:
        # Not `usecols`: with it pandas no longer says that a row has too many values.
        with _explained(path), as_stream(line_blocks(path)) as stream:
            yield from pandas.read_csv(
                stream,
                sep=delimiter,
                header=0,
                names=range(D),
                index_col=False,
                dtype=dict.fromkeys(others, str),
                keep_default_na=False,
                na_values={column: _MISSING for column in range(D) if column not in others},
                chunksize=max(1, _VALUES_AT_A_TIME // D),
                low_memory=False,
            )

    return Table(path, names, chunks, delimiter=delimiter)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """The errors of pandas' readers as errors of data."""
    errors = _imported("pandas", path).errors
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


def _open_parquet(path: Path) -> Table:
    pandas, parquet = _imported("pandas", path), _imported("pyarrow.parquet", path)
    with _explained_parquet(path):
        file = parquet.ParquetFile(path)
        schema = file.schema_arrow
        metadata = schema.pandas_metadata
        index = metadata.get("index_columns") if isinstance(metadata, dict) else None
        row_index = (
            frozenset(name for name in index if isinstance(name, str)) if isinstance(index, list) else frozenset()
        )

    def chunks(numbers: Sequence[int], others: Sequence[int]) -> Generator[Any, None, None]:
        from pyarrow import types

        for column in numbers:
            kind = schema.types[column]
            numeric = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
            if not any(check(kind) for check in numeric):
                table.fail(
                    f"the column {table.names[column]!r} is of type {kind}, not numbers; encode it as numbers, or "
                    "remove it"
                )
        columns = [*numbers, *others]
        names = [table.names[column] for column in columns]
        with _explained_parquet(path):
            for batch in file.iter_batches(max(1, _VALUES_AT_A_TIME // len(columns)), columns=names):
                # Strings that are not UTF-8 would fail where they are first looked at.
                batch.validate(full=True)
                frame = batch.select(names).to_pandas(ignore_metadata=True)
                yield frame.set_axis(pandas.Index(columns), axis="columns")

    table = Table(path, list(schema.names), chunks, row_index=row_index)
    return table


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


class _JsonLines(Table):
    """A table of a JSON object per line, whose columns are the keys of the first thousand."""

    def _line_of_row(self, row: int) -> int | None:
        assert self.path is not None
        lines = (i for i, line in enumerate(as_stream(line_blocks(self.path)), 1) if line.strip())
        return next((line for position, line in enumerate(lines) if position == row), None)


def _open_json_lines(path: Path) -> Table:
    pandas = _imported("pandas", path)
    keys = {key: None for record in islice(_json_objects(path), _KEYS_OF) for key in record}
    if not keys:
        raise DataError("the file has no records, only blank lines", path=path)

    def frame(rows: list[dict[str, Any]], columns: list[int]) -> Any:
        return pandas.DataFrame({column: [row.get(table.names[column]) for row in rows] for column in columns})

    def chunks(numbers: Sequence[int], others: Sequence[int]) -> Generator[Any, None, None]:
        columns, rows = [*numbers, *others], []
        for record in _json_objects(path):
            rows.append(record)
            if len(rows) * len(columns) >= _VALUES_AT_A_TIME // 64:
                yield frame(rows, columns)
                rows = []
        if rows:
            yield frame(rows, columns)

    table = _JsonLines(path, list(keys), chunks)
    return table


def _json_objects(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(as_stream(line_blocks(path)), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(utf8(line))
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON: {error}", path=path, line=number) from error
        if not isinstance(record, dict):
            raise DataError('expected an object like {"text": "...", "labels": ["a"]}', path=path, line=number)
        yield record


def _imported(name: str, path: Path | None) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError("tables need pandas and pyarrow: pip install 'extremegp[tables]'", path=path) from error
