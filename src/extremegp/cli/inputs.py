"""The data of a command: which files they are in, and what the options say about them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from extremegp.cli.options import FormatName
from extremegp.cli.pipes import opened
from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    from extremegp.data import RecordColumns, Vocabulary

Kind: TypeAlias = Literal["xc", "svmlight", "jsonl", "mapped", "array", "npz", "sparse", "table", "annif", "documents"]
Inputs: TypeAlias = Literal["texts", "feature vectors", "texts and feature vectors"]

CALLED: dict[Kind, str] = {
    "xc": "sparse rows (xc)",
    "svmlight": "sparse rows (svmlight)",
    "jsonl": "JSON lines",
    "mapped": "a converted data set",
    "array": "an array",
    "npz": "an .npz file",
    "sparse": "a sparse matrix",
    "table": "a table",
    "annif": "texts with subjects (TSV)",
    "documents": "a folder of texts",
}
_LABELS_INSIDE: tuple[Kind, ...] = ("xc", "svmlight", "jsonl", "mapped", "annif", "documents")
_TEXTS: tuple[Kind, ...] = ("jsonl", "annif", "documents")
_WITH_COLUMNS: tuple[Kind, ...] = ("table", "jsonl")


@dataclass(frozen=True)
class Source:
    """Files and options that name data, as the options of the commands do."""

    path: Path
    format: FormatName = "auto"
    labels: Path | None = None
    x_key: str | None = None
    y_key: str | None = None
    label_column: str | None = None
    first_label: bool = False
    separator: str | None = None
    encoding: str | None = None
    text_column: tuple[str, ...] = ()
    vector_column: tuple[str, ...] = ()
    vectors: Path | None = None
    labels_column: str | None = None
    label_columns: tuple[str, ...] = ()
    label_separator: str | None = None
    ignore_labels: bool = False
    id_column: str | None = None
    weight_column: str | None = None
    vocabulary: Path | None = None
    language: str = "en"

    @classmethod
    def of(cls, data: Path, options: Mapping[str, Any]) -> Source:
        """What the options of a command say, by their names; those that it has not are left alone.

        `data` may be "-", for standard input.
        """
        names = {field.name for field in fields(cls)} - {"path"}
        given = {name: value for name, value in options.items() if name in names and value not in (None, ())}
        listed = {name: tuple(value) for name, value in given.items() if isinstance(value, (list, tuple))}
        separators = {
            name: given[name].replace(r"\t", "\t") for name in ("separator", "label_separator") if name in given
        }
        return cls(opened(data, given.get("format", "auto")), **given | listed | separators)

    @cached_property
    def kind(self) -> Kind:
        """The format of the file.

        Raises:
            DataError: it cannot be read, or is not recognised.
        """
        from extremegp.data import recognise_format
        from extremegp.data.annif import is_documents, is_short_texts
        from extremegp.data.arrays import is_array, is_sparse_archive
        from extremegp.data.mapped import is_dataset
        from extremegp.data.table_files import TABLE_SUFFIXES
        from extremegp.storage.streams import as_stream, base_suffix, byte_blocks

        if self.format == "csv" or self.format == "tsv":
            return "table"
        if self.format != "auto":
            return self.format
        if is_dataset(self.path):
            return "mapped"
        if is_documents(self.path):
            return "documents"
        if base_suffix(self.path) in TABLE_SUFFIXES:
            columns = self._of_columns()
            return (
                "annif" if base_suffix(self.path) == ".tsv" and not columns and is_short_texts(self.path) else "table"
            )
        with as_stream(byte_blocks(self.path, block_bytes=1 << 16)) as stream:
            start = stream.read(4)
        if start == b"PK\3\4":
            return "sparse" if is_sparse_archive(self.path) else "npz"
        if is_array(start):
            return "array"
        try:
            return recognise_format(self.path)
        except DataError as error:
            # One with a line is about the format; others are about the file.
            hint = "" if error.line is None else "; tokens in columns are for `extremegp train --task sequence`"
            raise DataError(f"{error}{hint}") from error

    @property
    def inputs(self) -> Inputs:
        """What rows have."""
        if self.kind not in _TEXTS and not self.columns.texts:
            return "feature vectors"
        return "texts and feature vectors" if self.vectors or self.columns.vectors else "texts"

    @property
    def in_records(self) -> bool:
        """Whether rows have more than features, or texts, and labels in their usual places."""
        return self.kind in ("annif", "documents") or bool(self._of_columns() or self.vectors)

    @property
    def has_ids(self) -> bool:
        """Whether rows are called something."""
        from extremegp.data.mapped import IDS

        if self.kind in _WITH_COLUMNS:
            return (self.in_records or self.kind == "table") and self.columns.ids is not None
        return self.kind == "documents" or (self.kind == "mapped" and (self.path / IDS).exists())

    @cached_property
    def columns(self) -> RecordColumns:
        """Which columns of a table, or keys of JSON lines, hold what."""
        from extremegp.data import RecordColumns
        from extremegp.data.annif import CSV_COLUMNS
        from extremegp.data.table_files import open_table

        texts, labels, separator, ids = self.text_column, self.labels_column, self.label_separator, self.id_column
        if self.kind == "table" and not self._of_columns() and self.labels is None and self.label_column is None:
            names = open_table(self.path, self.format).names
            if set(CSV_COLUMNS) <= set(names):
                texts, labels, separator = CSV_COLUMNS[:1], CSV_COLUMNS[1], " "
                ids = "document_id" if "document_id" in names else None
        if self.kind == "jsonl" and not texts:
            texts, labels = ("text",), labels or (None if self.label_columns or self.label_column else "labels")
        if self.labels is not None:
            labels = None if labels == "labels" else labels
        return RecordColumns(
            texts,
            self.vector_column,
            labels,
            separator,
            self.label_columns,
            self.label_column,
            ids,
            self.weight_column,
            vectors_apart=self.vectors is not None,
        )

    @property
    def called(self) -> str:
        """What the data are, for messages."""
        return f"{self.path} holds {CALLED[self.kind]}"

    @property
    def hint(self) -> str:
        """The options that other data of the kind need, for a command to be shown."""
        options: dict[str, Any] = {
            "--labels": self.labels and "TEST_LABELS",
            "--x-key": self.x_key,
            "--y-key": self.y_key,
            "--label-column": self.label_column,
            **{f"--text-column={name}": name for name in self.text_column},
            **{f"--vector-column={name}": name for name in self.vector_column},
            "--vectors": self.vectors and "TEST_VECTORS",
            "--labels-column": self.labels_column,
            **{f"--label-columns={name}": name for name in self.label_columns},
            "--label-separator": self.label_separator and self.label_separator.replace("\t", r"\t"),
            "--separator": self.separator and self.separator.replace("\t", r"\t"),
            "--encoding": None if self.encoding == "utf-8" else self.encoding,
        }
        given = ((option.partition("=")[0], value) for option, value in options.items() if value)
        shown = "".join(f" {option} {shlex.quote(value)}" for option, value in given)
        return shown + " --first-label" * self.first_label

    def at(self, path: Path, labels: Path | None = None, vectors: Path | None = None) -> Source:
        """The same kind of data in another place."""
        return replace(self, path=path, labels=labels, vectors=vectors)

    def read_vocabulary(self) -> Vocabulary | None:
        """What labels are called, if a file says so."""
        from extremegp.data import read_vocabulary

        return None if self.vocabulary is None else read_vocabulary(self.vocabulary, self.language)

    def sign_of_many_labels(self) -> str | None:
        """What says that rows have many labels, where their format does not, if anything does."""
        from extremegp.data.label_lists import holds_matrix

        for option in ("labels_column", "label_columns", "label_separator", "vocabulary"):
            if getattr(self, option):
                return f"--{option.replace('_', '-')} is for many labels per row"
        if self.labels is not None and holds_matrix(self.labels):
            return f"{self.labels} holds a matrix of labels"
        if self.kind == "table" and self.columns.labels:
            return f"{self.called}, with {self.columns.labels} for each text"
        return None

    def sign_of_classes(self) -> str | None:
        """What says that every row has one class, if anything does."""
        for option, value in self._of_classes().items():
            if value:
                return f"{option} is for one class per row"
        return None if self.kind in _LABELS_INSIDE else f"{self.called}, with one class per row"

    def check(self, *, labelled: bool = True) -> None:
        """Refuse options that contradict the format or each other, before anything is read.

        Args:
            labelled: whether labels will be read.

        Raises:
            DataError: nothing says where the labels are, or the format has none of the kind.
            SettingsError: options contradict something.
        """
        self._check_format()
        given = [option for option, value in self._of_labels().items() if value]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(given)} both say which labels rows have: give one of them")
        if self.label_separator is not None and given not in (["--labels"], ["--labels-column"]):
            raise SettingsError("--label-separator goes with --labels-column, or with --labels FILE")
        if self.vectors is not None and self.vector_column:
            raise SettingsError("--vectors and --vector-column both say where vectors are: give one of them")
        if self.vectors is not None and self.inputs == "feature vectors" and not labelled:
            raise SettingsError(f"name the vectors themselves as DATA: {self.vectors}")
        if not labelled or given:
            return
        if self.kind in ("array", "sparse"):
            raise DataError(
                "holds inputs without labels or classes: give them by --labels FILE (.npy, IDX, .npz, or text with a "
                "row a line)",
                path=self.path,
            )
        if self.kind == "table" and not self.columns.labels:
            raise DataError(
                "nothing says which columns have the labels: name them by --label-column (one class per row), "
                "--labels-column (a list of labels) or --label-columns (0 and 1), or give them by --labels FILE",
                path=self.path,
            )

    def _check_format(self) -> None:
        tables = "tables (.csv, .tsv, .parquet) and JSON lines"
        rows: tuple[Kind, ...] = (*_TEXTS, "table")
        fitting: dict[str, tuple[Any, tuple[Kind, ...], str]] = {
            "--x-key": (self.x_key, ("npz",), ".npz files"),
            "--y-key": (self.y_key, ("npz",), ".npz files"),
            "--label-column": (self.label_column, _WITH_COLUMNS, "tables (.csv, .tsv, .parquet)"),
            "--text-column": (self.text_column, _WITH_COLUMNS, tables),
            "--vector-column": (self.vector_column, _WITH_COLUMNS, tables),
            "--labels-column": (self.labels_column, _WITH_COLUMNS, tables),
            "--label-columns": (self.label_columns, _WITH_COLUMNS, tables),
            "--id-column": (self.id_column, _WITH_COLUMNS, tables),
            "--weight-column": (self.weight_column, _WITH_COLUMNS, tables),
            "--vectors": (self.vectors, rows, "texts and tables"),
            "--first-label": (
                self.first_label,
                _LABELS_INSIDE,
                "data with many labels per row (xc, svmlight, jsonl)",
            ),
        }
        for option, (value, kinds, what) in fitting.items():
            if value and self.kind not in kinds:
                raise SettingsError(f"{option} is for {what}, but {self.called}")

    def _of_columns(self) -> bool:
        """Whether options name columns that only records have."""
        named = (self.text_column, self.vector_column, self.labels_column, self.label_columns)
        return any((*named, self.id_column, self.weight_column))

    def _of_labels(self) -> dict[str, Any]:
        many = {"--labels-column": self.labels_column, "--label-columns": self.label_columns}
        return self._of_classes() | many

    def _of_classes(self) -> dict[str, Any]:
        return {
            "--labels": self.labels,
            "--y-key": self.y_key,
            "--label-column": self.label_column,
            "--first-label": self.first_label,
        }
