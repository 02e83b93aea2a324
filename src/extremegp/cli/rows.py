"""Rows of data, read whole or a block at a time, and how they must fit a model or other data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from extremegp.cli.inputs import CALLED, Inputs, Kind, Source
from extremegp.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.data import ClassSpace, Vocabulary
    from extremegp.estimators import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier


class Rows(NamedTuple):
    """Data as they were read.

    Attributes:
        X: inputs, N x D, or N texts.
        y: N classes, or labels as N lists or N x K; None where they were not asked for.
        feature_names: the names of the D columns, where the source has them.
        n_dropped: rows of the source that were left out, having no label.
        label_names: the names of the K columns of y, where the source has them apart from the labels of rows.
        weights: of the rows, N, where the source has them.
        vocabulary: the subjects that labels are among, if one was named.
        notes: what to tell of the labels, a line each.
        ids: what the rows are called, where the source says so.
    """

    X: Any
    y: Any
    feature_names: list[str] | None = None
    n_dropped: int = 0
    label_names: list[str] | None = None
    weights: NDArray[np.float32] | None = None
    vocabulary: Vocabulary | None = None
    notes: tuple[str, ...] = ()
    ids: list[str] | None = None

    @property
    def n_rows(self) -> int:
        """N."""
        return n_rows_of(self.X)


class Known(NamedTuple):
    """What training fixed, and other data must fit.

    Attributes:
        by: who knows it, for messages.
        inputs: what rows have.
        n_features: D of vectors, if there are any.
        n_labels: K.
        feature_names: the D names of columns, if they have any.
        space: the classes, if every row has one.
        label_names: the names of many labels, if they have any.
    """

    by: str
    inputs: Inputs
    n_features: int | None
    n_labels: int
    feature_names: list[str] | None
    space: ClassSpace | None
    label_names: list[Any] | None = None

    @classmethod
    def of_model(cls, model: LabelTreeGPClassifier | MultiClassGPClassifier | MultiLabelGPClassifier) -> Known:
        """What the model was trained on."""
        from extremegp.data import ClassSpace, LabelSpace

        names, space = getattr(model, "feature_names_in_", None), model.label_space_
        inputs, n_features = _known_inputs(model.features_)
        return cls(
            "the model has",
            inputs,
            n_features,
            model.settings_.n_labels,
            None if names is None else names.tolist(),
            space if isinstance(space, ClassSpace) else None,
            [*space.names] if isinstance(space, LabelSpace) else None,
        )

    @classmethod
    def of_training(cls, rows: Rows, source: Source, space: ClassSpace | None) -> Known:
        """What training on these rows will fix."""
        X: Any = rows.X["vectors"] if isinstance(rows.X, dict) else rows.X
        n_features = None if isinstance(X, list) else X.shape[1]
        # Labels that rows list are told apart by name alone.
        n_labels = len(space) if space is not None else rows.y.shape[1] if hasattr(rows.y, "shape") else 0
        return cls(
            "the training data have", source.inputs, n_features, n_labels, rows.feature_names, space, rows.label_names
        )


def n_rows_of(X: Any) -> int:
    """How many rows inputs have."""
    if isinstance(X, dict):
        X = next(iter(X.values()))
    return len(X) if isinstance(X, list) else X.shape[0]


def some_rows(X: Any, rows: slice) -> Any:
    """Some rows of inputs."""
    return {name: part[rows] for name, part in X.items()} if isinstance(X, dict) else X[rows]


def _known_inputs(features: Any) -> tuple[Inputs, int | None]:
    """What a features step takes, and D of vectors."""
    if features.kind == "blocks":
        return "texts and feature vectors", features.blocks["vectors"].n_features_in
    return ("texts", None) if features.kind == "text" else ("feature vectors", features.n_features_in)


def read(source: Source, *, one_class: bool, known: Known | None = None, labelled: bool = True) -> Rows:
    """Read data in any of the formats, with their labels if `labelled`; `Source.check` has been passed.

    Raises:
        DataError: the data cannot be read, do not fit what is known, or lack labels; names the file.
    """
    from extremegp.data import read_inputs, read_npz, read_sparse, read_table

    path, kind = source.path, source.kind
    if known is not None:
        check_kind(source, known)
    inside = labelled and source.labels is None
    if source.in_records or (kind == "table" and source.columns.labels):
        rows = _read_records(source, one_class, known, labelled)
    elif kind == "array":
        rows = Rows(read_inputs(path), None)
    elif kind == "sparse":
        rows = Rows(read_sparse(path), None)
    elif kind == "npz":
        rows = Rows(*read_npz(path, source.x_key, source.y_key, labels=inside))
    elif kind == "table":
        names = None if known is None else known.feature_names
        # Columns that are known by name leave the labels out by themselves.
        column = source.label_column if labelled or names is None else None
        rows = Rows(*read_table(path, column, names, labels_as_strings=_as_strings(known)))
    else:
        rows = _read_many_labels(source, kind, one_class, known, inside)
    if labelled and source.labels is not None:
        rows = rows._replace(y=_labels_beside(source, rows, one_class, known))
    if known is not None and known.n_features is not None:
        check_width(source, width_of(rows.X), known)
    if not labelled or one_class:
        return rows
    return _reconciled(source, rows if known is None else _with_columns_of(rows, known, source))


def check_kind(source: Source, known: Known) -> None:
    """Refuse feature vectors where texts are needed, and texts where they are not."""
    if source.inputs == known.inputs:
        return
    hints = {
        "texts": "name the columns of a table that have them by --text-column",
        "feature vectors": "leave out --text-column, if there is one",
        "texts and feature vectors": "name vectors beside the texts by --vector-column or --vectors",
    }
    raise DataError(
        f"holds {source.inputs} in {CALLED[source.kind]}, but {known.inputs} are needed, as in training: "
        f"{hints[known.inputs]}",
        path=source.path,
    )


def width_of(X: Any) -> int:
    """D of the vectors among inputs."""
    width: int = (X["vectors"] if isinstance(X, dict) else X).shape[1]
    return width


def _as_strings(known: Known | None) -> bool:
    return known is not None and known.space is not None and known.space.kind == "str"


def _read_records(source: Source, one_class: bool, known: Known | None, labelled: bool) -> Rows:
    """Rows of columns, with the labels or classes that these have, if there are any."""
    from extremegp.cli.records import blocks, inputs_of
    from extremegp.data import TextDataset, classes_of_dataset
    from extremegp.data.records import joined_records

    found = blocks(source, None if known is None else known.feature_names, labelled=labelled)
    records = joined_records([block.records for block in found], classes_as_strings=_as_strings(known))
    X, y = inputs_of(records), records.labels
    if one_class and labelled and source.labels is None:
        y = records.classes
        if y is None:
            if not isinstance(X, list):
                raise DataError("has lists of labels: name the column of classes by --label-column", path=source.path)
            X, y, n_dropped = classes_of_dataset(
                TextDataset(X, records.labels), source.path, first_label=source.first_label
            )
            return Rows(X, y, n_dropped=n_dropped)
    # Of blocks the names are those of the blocks.
    feature_names = records.feature_names if records.texts is None else None
    return Rows(X, y, feature_names, label_names=records.label_names, weights=records.weights, ids=records.ids)


def _labels_beside(source: Source, rows: Rows, one_class: bool, known: Known | None) -> Any:
    """The labels in a file of their own."""
    from extremegp.data import read_label_lists, read_labels

    assert source.labels is not None
    if one_class:
        y: Any = read_labels(source.labels, as_strings=_as_strings(known))
    else:
        y = read_label_lists(source.labels, source.label_separator)
    n_labels = y.shape[0] if hasattr(y, "shape") else len(y)
    if n_labels != rows.n_rows:
        raise DataError(f"has {n_labels} labels, but {source.path} has {rows.n_rows} rows", path=source.labels)
    return y


def _with_columns_of(rows: Rows, known: Known, source: Source) -> Rows:
    """The columns of a matrix of labels in the order that is known, where both have names."""
    names, wanted = rows.label_names, known.label_names
    if names is None or wanted is None or names == wanted or not hasattr(rows.y, "shape"):
        return rows
    if set(names) != set(wanted):
        differ = sorted(map(str, set(names) ^ set(wanted)))
        raise DataError(
            f"has labels of other names than {known.by}: only one of the two has {', '.join(differ[:5])}; give it the "
            "same columns, or convert it by --like with the training data",
            path=source.labels or source.path,
        )
    return rows._replace(y=rows.y[:, [names.index(str(name)) for name in wanted]], label_names=wanted)


def _reconciled(source: Source, rows: Rows) -> Rows:
    """Labels as the vocabulary has them."""
    if source.vocabulary is None:
        return rows
    from extremegp.data import read_vocabulary

    vocabulary, notes = read_vocabulary(source.vocabulary, source.language), []
    if not isinstance(rows.y, list):
        return rows._replace(vocabulary=vocabulary)
    found = vocabulary.reconcile(rows.y)
    for counts, what in (
        (found.unknown, "unknown to the vocabulary, and kept"),
        (found.deprecated, "deprecated, and replaced where the vocabulary says by what, or left out"),
    ):
        if counts:
            examples = ", ".join(str(label) for label in sorted(counts, key=lambda label: -counts[label])[:3])
            notes.append(f"{len(counts)} labels ({sum(counts.values())} times) are {what}: {examples}, ...")
    return rows._replace(y=found.labels, vocabulary=vocabulary, notes=tuple(notes))


def check_width(source: Source, n_features: int, known: Known) -> None:
    """Refuse feature vectors of another length."""
    if n_features != known.n_features:
        raise DataError(f"has {n_features} features, but {known.by} {known.n_features}", path=source.path)


def _read_many_labels(source: Source, kind: Kind, one_class: bool, known: Known | None, inside: bool) -> Rows:
    """A file whose rows may have many labels each; their labels if they are the ones to use."""
    from extremegp.data import TextDataset, classes_of_dataset, read_dataset

    path, many = source.path, inside and not one_class
    sizes: dict[str, int | None] = {}
    if kind == "svmlight" and known is not None:
        sizes = {"n_features": known.n_features, "n_labels": known.n_labels if many else None}
    data = read_dataset(path, kind, **sizes)  # type: ignore[arg-type]
    has_labels = bool(data.labels) if isinstance(data, TextDataset) else bool(data.Y.nnz)
    if source.labels is not None and has_labels and not source.ignore_labels:
        raise DataError(
            f"has labels of its own, and {source.labels} has others: leave out --labels, or say --ignore-labels to "
            "take those of the file alone",
            path=path,
        )
    if isinstance(data, TextDataset) and inside and data.labels is None:
        raise DataError('has no "labels", which training and evaluation need', path=path)
    if inside and one_class:
        X, y, n_dropped = classes_of_dataset(data, path, first_label=source.first_label)
        return Rows(X, y, n_dropped=n_dropped)
    if isinstance(data, TextDataset):
        return Rows(data.texts, data.labels if inside else None)
    if many and known is not None and data.Y.shape[1] != known.n_labels:
        raise DataError(f"has {data.Y.shape[1]} labels, but {known.by} {known.n_labels}", path=path)
    return Rows(data.X, data.Y if inside else None, label_names=data.label_names)


@contextmanager
def naming(source: Source) -> Iterator[None]:
    """Let errors of labels name the file that these are in."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error), path=source.labels or source.path) from error


def class_space(y: Any, source: Source, name: str = "the column of classes") -> ClassSpace:
    """The classes of training data; errors call them `name`, and name the file."""
    from extremegp.data import ClassSpace, encode_classes

    with naming(source):
        return ClassSpace(encode_classes(y, name)[1])


def class_codes(y: NDArray[Any], source: Source, space: ClassSpace) -> NDArray[np.int64]:
    """The classes of other data by their codes, -1 for those never seen in training; errors name the file."""
    with naming(source):
        return space.encode(y, unknown="ignore", name="the column of classes")
