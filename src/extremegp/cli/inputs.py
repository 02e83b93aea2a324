"""The data of a command: which files they are in, and what the options say about them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from extremegp.cli.options import FormatName
from extremegp.errors import DataError, SettingsError

Kind: TypeAlias = Literal["xc", "svmlight", "jsonl", "mapped", "array", "npz", "table"]

CALLED: dict[Kind, str] = {
    "xc": "sparse rows (xc)",
    "svmlight": "sparse rows (svmlight)",
    "jsonl": "texts (jsonl)",
    "mapped": "a converted data set",
    "array": "an array",
    "npz": "an .npz file",
    "table": "a table",
}
_MANY_LABELS: tuple[Kind, ...] = ("xc", "svmlight", "jsonl", "mapped")


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

    @cached_property
    def kind(self) -> Kind:
        """The format of the file.

        Raises:
            DataError: it cannot be read, or is not recognised.
        """
        from extremegp.data import recognise_format
        from extremegp.data.arrays import is_array
        from extremegp.data.mapped import is_dataset
        from extremegp.data.tables import TABLE_SUFFIXES
        from extremegp.storage.streams import as_stream, base_suffix, byte_blocks

        if self.format != "auto":
            return self.format
        if is_dataset(self.path):
            return "mapped"
        if base_suffix(self.path) in TABLE_SUFFIXES:
            return "table"
        with as_stream(byte_blocks(self.path, block_bytes=1 << 16)) as stream:
            start = stream.read(4)
        if start == b"PK\3\4":
            return "npz"
        if is_array(start):
            return "array"
        try:
            return recognise_format(self.path)
        except DataError as error:
            # One with a line is about the format; others are about the file.
            hint = "" if error.line is None else "; tokens in columns are for `extremegp train --task sequence`"
            raise DataError(f"{error}{hint}") from error

    @property
    def called(self) -> str:
        """What the data are, for messages."""
        return f"{self.path} holds {CALLED[self.kind]}"

    @property
    def hint(self) -> str:
        """The options that other data of the kind need, for a command to be shown."""
        options = {
            "--labels": self.labels and "TEST_LABELS",
            "--x-key": self.x_key,
            "--y-key": self.y_key,
            "--label-column": self.label_column,
            "--separator": self.separator and self.separator.replace("\t", r"\t"),
            "--encoding": None if self.encoding == "utf-8" else self.encoding,
        }
        shown = "".join(f" {option} {shlex.quote(value)}" for option, value in options.items() if value)
        return shown + " --first-label" * self.first_label

    def at(self, path: Path, labels: Path | None = None) -> Source:
        """The same kind of data in another place."""
        return replace(self, path=path, labels=labels)

    def sign_of_classes(self) -> str | None:
        """What says that every row has one class, if anything does."""
        for option, value in self._of_classes().items():
            if value:
                return f"{option} is for one class per row"
        return None if self.kind in _MANY_LABELS else f"{self.called}, with one class per row"

    def check(self, *, labelled: bool = True) -> None:
        """Refuse options that contradict the format or each other, before anything is read.

        Args:
            labelled: whether labels will be read.

        Raises:
            DataError: nothing says where the labels are, or the format has none of the kind.
            SettingsError: options contradict something.
        """
        fitting: dict[str, tuple[Any, tuple[Kind, ...], str]] = {
            "--x-key": (self.x_key, ("npz",), ".npz files"),
            "--y-key": (self.y_key, ("npz",), ".npz files"),
            "--label-column": (self.label_column, ("table",), "tables (.csv, .tsv, .parquet)"),
            "--first-label": (self.first_label, _MANY_LABELS, "data with many labels per row (xc, svmlight, jsonl)"),
        }
        for option, (value, kinds, what) in fitting.items():
            if value and self.kind not in kinds:
                raise SettingsError(f"{option} is for {what}, but {self.called}")
        given = [option for option, value in self._of_classes().items() if value]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(given)} both say which class rows have: give one of them")
        if labelled and not given and self.kind == "array":
            raise DataError(
                "holds inputs without classes: give them by --labels FILE (.npy, IDX, or text with one a line)",
                path=self.path,
            )
        if labelled and not given and self.kind == "table":
            raise DataError(
                "nothing says which column has the classes: name it by --label-column, or give them by --labels FILE",
                path=self.path,
            )

    def _of_classes(self) -> dict[str, Any]:
        return {
            "--labels": self.labels,
            "--y-key": self.y_key,
            "--label-column": self.label_column,
            "--first-label": self.first_label,
        }
