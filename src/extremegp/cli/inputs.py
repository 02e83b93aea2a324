"""The data of a command: which files they are in, what the options say about them, and one way to read them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.data import ClassSpace
    from extremegp.estimators import MultiClassGPClassifier, MultiLabelGPClassifier

Task: TypeAlias = Literal["multilabel", "multiclass", "sequence"]
FormatName: TypeAlias = Literal["auto", "xc", "svmlight", "jsonl"]
Kind: TypeAlias = Literal["xc", "svmlight", "jsonl", "mapped", "array", "npz", "table"]

FormatOption = Annotated[
    FormatName,
    typer.Option(
        "--format",
        help="Format of text data: 'xc' (a header 'N D K', then rows 'l1,l2 f:v f:v', counted from 0), 'svmlight' "
        "(such rows without header; features count from 1 unless a feature 0 occurs) or 'jsonl' (lines like "
        '{"text": "...", "labels": ["a"]}); \'auto\' looks at the suffix and the first line, and recognises arrays '
        "(.npy, IDX), .npz, tables (.csv, .tsv, .parquet) and folders of `extremegp convert` too. Files may be "
        "compressed (.gz, .bz2, .xz, .zst).",
    ),
]
LabelsOption = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="The class of every row in a file of its own: .npy, IDX, or text with one a line. Labels in DATA are then "
        "ignored.",
    ),
]
XKeyOption = Annotated[
    str | None, typer.Option("--x-key", metavar="NAME", help="The array of an .npz file that has the inputs.")
]
YKeyOption = Annotated[
    str | None, typer.Option("--y-key", metavar="NAME", help="The array of an .npz file that has the classes.")
]
LabelColumnOption = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        metavar="COLUMN",
        help="The column of a table that has the classes, by name or number (from 0, or from the end if negative); the "
        "others are features.",
    ),
]
FirstLabelOption = Annotated[
    bool,
    typer.Option(
        "--first-label",
        help="Of data with several labels per row take the first, in the order of the file, as the class; rows without "
        "labels are left out.",
    ),
]

PER_ROW: dict[Task, str] = {
    "multilabel": "many labels per row",
    "multiclass": "one class per row",
    "sequence": "a label for every token of sequences",
}
_CALLED: dict[Kind, str] = {
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
        return f"{self.path} holds {_CALLED[self.kind]}"

    @property
    def hint(self) -> str:
        """The options that other data of the kind need, for a command to be shown."""
        options = {
            "--labels": self.labels and "TEST_LABELS",
            "--x-key": self.x_key,
            "--y-key": self.y_key,
            "--label-column": self.label_column,
        }
        shown = "".join(f" {option} {shlex.quote(value)}" for option, value in options.items() if value)
        return shown + " --first-label" * self.first_label

    def sign_of_classes(self) -> str | None:
        """What says that every row has one class, if anything does."""
        for option, value in self._of_classes().items():
            if value:
                return f"{option} is for one class per row"
        return None if self.kind in _MANY_LABELS else f"{self.called}, with one class per row"

    def check(self, task: Task, *, because: str, labelled: bool = True) -> None:
        """Refuse options that contradict the task, the format or each other, before anything is read.

        Args:
            task: what the data are for.
            because: what decided that, for messages.
            labelled: whether labels will be read.

        Raises:
            DataError: nothing says where the labels are, or the format has none of the kind.
            SettingsError: options contradict something.
        """
        if task == "multilabel" and labelled:
            sign = self.sign_of_classes()
            if sign is not None:
                raise SettingsError(f"{sign}, but {because}")
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


class Rows(NamedTuple):
    """Data as they were read.

    Attributes:
        X: inputs, N x D, or N texts.
        y: N classes, or labels as N lists or N x K; None where they were not asked for.
        feature_names: the names of the D columns, where the source has them.
        n_dropped: rows of the source that were left out, having no label.
        label_names: the names of the K columns of y, where the source has them apart from the labels of rows.
    """

    X: Any
    y: Any
    feature_names: list[str] | None = None
    n_dropped: int = 0
    label_names: list[str] | None = None


class Known(NamedTuple):
    """What training fixed, and other data must fit.

    Attributes:
        by: who knows it, for messages.
        n_features: D; None for texts.
        n_labels: K.
        feature_names: the D names of columns, if they have any.
        space: the classes, if every row has one.
        label_names: the names of many labels, if they have any.
    """

    by: str
    n_features: int | None
    n_labels: int
    feature_names: list[str] | None
    space: ClassSpace | None
    label_names: list[Any] | None = None

    @classmethod
    def of_model(cls, model: MultiLabelGPClassifier | MultiClassGPClassifier) -> Known:
        from extremegp.data import ClassSpace, LabelSpace

        names, space = getattr(model, "feature_names_in_", None), model.label_space_
        return cls(
            "the model has",
            None if model.features_.kind == "text" else model.settings_.n_features,
            model.settings_.n_labels,
            None if names is None else names.tolist(),
            space if isinstance(space, ClassSpace) else None,
            [*space.names] if isinstance(space, LabelSpace) else None,
        )

    @classmethod
    def of_training(cls, rows: Rows, space: ClassSpace | None) -> Known:
        """What training on these rows will fix."""
        n_features = None if isinstance(rows.X, list) else rows.X.shape[1]
        n_labels = len(space) if space is not None else rows.y.shape[1] if n_features is not None else 0
        return cls("the training data have", n_features, n_labels, rows.feature_names, space, rows.label_names)


def read(source: Source, task: Task, *, known: Known | None = None, labelled: bool = True) -> Rows:
    """Read data in any of the formats; `Source.check` has been passed.

    Args:
        source: where they are.
        task: what they are for: one class per row, or many labels.
        known: what they must fit.
        labelled: whether to read their labels.

    Raises:
        DataError: the data cannot be read, do not fit, or lack labels; names the file.
    """
    from extremegp.data import read_inputs, read_labels, read_npz, read_table

    path, kind = source.path, source.kind
    if known is not None:
        check_kind(source, known)
    inside = labelled and source.labels is None
    as_strings = known is not None and known.space is not None and known.space.kind == "str"
    if kind == "array":
        rows = Rows(read_inputs(path), None)
    elif kind == "npz":
        rows = Rows(*read_npz(path, source.x_key, source.y_key, labels=inside))
    elif kind == "table":
        names = None if known is None else known.feature_names
        # Columns that are known by name leave the labels out by themselves.
        column = source.label_column if labelled or names is None else None
        rows = Rows(*read_table(path, column, names, labels_as_strings=as_strings))
    else:
        rows = _read_many_labels(source, kind, task, known, inside)
    if labelled and source.labels is not None:
        rows = rows._replace(y=read_labels(source.labels, as_strings=as_strings))
        n_rows = len(rows.X) if isinstance(rows.X, list) else rows.X.shape[0]
        if len(rows.y) != n_rows:
            raise DataError(f"has {len(rows.y)} labels, but {path} has {n_rows} rows", path=source.labels)
    if known is not None and known.n_features is not None:
        check_width(source, rows.X.shape[1], known)
    return rows


def check_kind(source: Source, known: Known) -> None:
    """Refuse feature vectors where texts are needed, and texts where they are not.

    Raises:
        DataError: the data are of the other kind; names the file.
    """
    if (source.kind == "jsonl") != (known.n_features is None):
        wanted = "texts (jsonl)" if known.n_features is None else "feature vectors"
        raise DataError(f"holds {_CALLED[source.kind]}, but {wanted} are needed, as in training", path=source.path)


def check_width(source: Source, n_features: int, known: Known) -> None:
    """Refuse feature vectors of another length.

    Raises:
        DataError: the data have another number of features; names the file.
    """
    if n_features != known.n_features:
        raise DataError(f"has {n_features} features, but {known.by} {known.n_features}", path=source.path)


def _read_many_labels(source: Source, kind: Kind, task: Task, known: Known | None, inside: bool) -> Rows:
    """A file whose rows may have many labels each; their labels if they are the ones to use."""
    from extremegp.data import TextDataset, classes_of_dataset, read_dataset

    path, many = source.path, inside and task == "multilabel"
    sizes: dict[str, int | None] = {}
    if kind == "svmlight" and known is not None:
        sizes = {"n_features": known.n_features, "n_labels": known.n_labels if many else None}
    data = read_dataset(path, kind, **sizes)  # type: ignore[arg-type]
    if isinstance(data, TextDataset) and inside and data.labels is None:
        raise DataError('has no "labels", which training and evaluation need', path=path)
    if inside and task == "multiclass":
        X, y, n_dropped = classes_of_dataset(data, path, first_label=source.first_label)
        return Rows(X, y, n_dropped=n_dropped)
    if isinstance(data, TextDataset):
        return Rows(data.texts, data.labels if inside else None)
    if many and known is not None and data.Y.shape[1] != known.n_labels:
        raise DataError(f"has {data.Y.shape[1]} labels, but {known.by} {known.n_labels}", path=path)
    names = data.label_names
    if many and known is not None and None not in (names, known.label_names) and names != known.label_names:
        raise DataError(
            f"has labels of other names than {known.by}; convert it by --like with the training data", path=path
        )
    return Rows(data.X, data.Y if inside else None, label_names=names)


def class_space(y: NDArray[Any], source: Source) -> ClassSpace:
    """The classes of training data.

    Raises:
        DataError: y cannot be used as classes; names the file.
    """
    from extremegp.data import ClassSpace, encode_classes

    try:
        return ClassSpace(encode_classes(y, "the column of classes")[1])
    except DataError as error:
        raise DataError(str(error), path=source.labels or source.path) from error


def class_codes(y: NDArray[Any], source: Source, space: ClassSpace) -> NDArray[np.int64]:
    """The classes of other data by their codes, -1 for those never seen in training.

    Raises:
        DataError: y holds values of another kind than training did; names the file.
    """
    try:
        return space.encode(y, unknown="ignore", name="the column of classes")
    except DataError as error:
        raise DataError(str(error), path=source.labels or source.path) from error
