"""Rows of data, read whole or a block at a time, and how they must fit a model or other data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from extremegp.cli.inputs import CALLED, Kind, Source
from extremegp.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.data import ClassSpace, FloatCSR
    from extremegp.data.blocks import RowStream
    from extremegp.estimators import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier


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
    def of_model(cls, model: LabelTreeGPClassifier | MultiClassGPClassifier | MultiLabelGPClassifier) -> Known:
        """What the model was trained on."""
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


def read(source: Source, *, one_class: bool, known: Known | None = None, labelled: bool = True) -> Rows:
    """Read data in any of the formats, with their labels if `labelled`; `Source.check` has been passed.

    Raises:
        DataError: the data cannot be read, do not fit what is known, or lack labels; names the file.
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
        rows = _read_many_labels(source, kind, one_class, known, inside)
    if labelled and source.labels is not None:
        rows = rows._replace(y=read_labels(source.labels, as_strings=as_strings))
        n_rows = len(rows.X) if isinstance(rows.X, list) else rows.X.shape[0]
        if len(rows.y) != n_rows:
            raise DataError(f"has {len(rows.y)} labels, but {path} has {n_rows} rows", path=source.labels)
    if known is not None and known.n_features is not None:
        check_width(source, rows.X.shape[1], known)
    return rows


def check_kind(source: Source, known: Known) -> None:
    """Refuse feature vectors where texts are needed, and texts where they are not."""
    if (source.kind == "jsonl") != (known.n_features is None):
        wanted = "texts (jsonl)" if known.n_features is None else "feature vectors"
        raise DataError(f"holds {CALLED[source.kind]}, but {wanted} are needed, as in training", path=source.path)


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
    if isinstance(data, TextDataset) and inside and data.labels is None:
        raise DataError('has no "labels", which training and evaluation need', path=path)
    if inside and one_class:
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


class InputBlock(NamedTuple):
    """Consecutive rows, with the shares of the data that come before their first and up to their last.

    Attributes:
        X: inputs, B x D, or B texts.
        before: from 0 to 1.
        after: from 0 to 1.
    """

    X: Any
    before: float
    after: float

    @property
    def n_rows(self) -> int:
        return len(self.X) if isinstance(self.X, list) else self.X.shape[0]


def input_blocks(source: Source, known: Known, *, one_class: bool) -> Iterator[InputBlock]:
    """The inputs of data without their labels, in bounded memory where the format has rows one after the other.

    Arrays, .npz files and tables are one block. What feature an svmlight file counts from is known at its end only: it
    is parsed twice.

    Raises:
        DataError: the data cannot be read or do not fit the model; names the file, and the line if one is to blame.
    """
    check_kind(source, known)
    match source.kind:
        case "xc" | "svmlight":
            yield from _sparse_blocks(source, known)
        case "jsonl":
            yield from _text_blocks(source)
        case "mapped":
            yield from _mapped_blocks(source, known)
        case _:
            yield InputBlock(read(source, one_class=one_class, known=known, labelled=False).X, 0.0, 1.0)


def joined(blocks: Iterator[InputBlock]) -> InputBlock:
    """All rows as one block."""
    import scipy.sparse

    parts = [block.X for block in blocks]
    if isinstance(parts[0], list):
        return InputBlock([text for part in parts for text in part], 0.0, 1.0)
    return InputBlock(parts[0] if len(parts) == 1 else scipy.sparse.vstack(parts, format="csr"), 0.0, 1.0)


def _sparse_blocks(source: Source, known: Known) -> Iterator[InputBlock]:
    import numpy as np
    from scipy.sparse import csr_matrix

    from extremegp.data.svmlight import SvmlightStream
    from extremegp.data.xc import XCStream

    stream: RowStream
    if source.kind == "xc":
        stream = XCStream(source.path)
    else:
        stream = SvmlightStream(source.path, n_features=known.n_features)
        for _ in stream.parts():
            pass
    sizes, before, n_bytes = stream.sizes(), 0.0, source.path.stat().st_size
    check_width(source, sizes.n_features, known)
    for part in stream.parts():
        rows = part.rows
        after = part.end.row / stream.n_rows if stream.n_rows else min(1.0, part.read / max(1, n_bytes))
        if len(rows.n_features):
            starts = np.concatenate([[0], np.cumsum(rows.n_features)])
            entries = (rows.values, rows.features - np.int32(sizes.first_feature), starts)
            X: FloatCSR = csr_matrix(entries, shape=(len(rows.n_features), sizes.n_features))
            yield InputBlock(X, before, after)
        before = after


def _text_blocks(source: Source) -> Iterator[InputBlock]:
    from extremegp.data.text import text_records

    before, n_bytes, any_text = 0.0, 0, False
    for records in text_records(source.path):
        n_bytes = n_bytes or source.path.stat().st_size
        after = min(1.0, records.read / max(1, n_bytes))
        if records.texts:
            yield InputBlock(records.texts, before, after)
            any_text = True
        before = after
    if not any_text:
        raise DataError("the file has no records, only blank lines", path=source.path)


def _mapped_blocks(source: Source, known: Known) -> Iterator[InputBlock]:
    from extremegp.data import open_dataset
    from extremegp.engine.matrices import row_blocks

    X = open_dataset(source.path).X
    check_width(source, X.shape[1], known)
    for rows in row_blocks(X.indptr):
        yield InputBlock(X[rows], rows.start / X.shape[0], rows.stop / X.shape[0])


def read_given(path: Path, names: list[str], n_rows: int) -> FloatCSR:
    """Known labels, N x K: 1 for present, -1 for absent.

    Raises:
        DataError: the file cannot be read, has another number of rows or labels, or a label that the model lacks.
    """
    from extremegp.data import read_svmlight, read_xc, recognise_format

    kind = recognise_format(path, labels_alone=True)
    if kind == "jsonl":
        known = _read_names(path, {name: column for column, name in enumerate(names)})
    else:
        known = (read_xc(path) if kind == "xc" else read_svmlight(path, n_labels=len(names))).Y
    if known.shape[1] != len(names):
        raise DataError(f"has {known.shape[1]} labels, but the model has {len(names)}", path=path)
    if known.shape[0] != n_rows:
        raise DataError(f"has {known.shape[0]} rows of known labels, but there are {n_rows} rows to predict", path=path)
    return known


def _read_names(path: Path, columns: dict[str, int]) -> FloatCSR:
    import numpy as np
    from scipy.sparse import csr_matrix

    from extremegp.storage.streams import line_blocks

    indices: list[int] = []
    signs: list[float] = []
    indptr = [0]
    lines = (line for block in line_blocks(path) for line in block.split(b"\n")[:-1])
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON: {error}", path=path, line=number) from error
        if not isinstance(record, dict) or "labels" not in record:
            raise DataError('expected an object like {"labels": ["a"], "absent": ["b"]}', path=path, line=number)
        row: dict[int, float] = {}
        for key, sign in (("labels", 1.0), ("absent", -1.0)):
            names = record.get(key, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise DataError(f'"{key}" must be a list of strings such as ["a", "b"]', path=path, line=number)
            for name in names:
                if name not in columns:
                    raise DataError(f"the model has no label {name!r}", path=path, line=number)
                if row.setdefault(columns[name], sign) != sign:
                    raise DataError(f"the label {name!r} is both present and absent", path=path, line=number)
        indices += row
        signs += row.values()
        indptr.append(len(indices))
    known: FloatCSR = csr_matrix((np.array(signs, np.float32), indices, indptr), shape=(len(indptr) - 1, len(columns)))
    return known
