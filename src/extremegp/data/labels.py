"""Label names and the 0/1 matrices that stand for them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix, issparse

from extremegp.data.frames import NUMBERS, is_frame, label_names, lists_of, matrix_of, shortened
from extremegp.engine.matrices import FloatCSR, entry_position, first_fault, is_mapped
from extremegp.errors import DataError, SettingsError

Label: TypeAlias = str | int

_MOST_COUNT = 2**24  # up to which float32 has every integer
_LISTS = (list, tuple, set, frozenset)


class LabelSpace:
    """The one-to-one map between K label names and the columns 0 to K - 1 of an indicator matrix.

    Args:
        names: the K names in column order, strings or integers (1 and "1" differ).

    Attributes:
        names: the K names.
        columns: the column of each name.

    Raises:
        DataError: no names, a name twice, or a name that is neither string nor integer.
    """

    def __init__(self, names: Iterable[Label]) -> None:
        if isinstance(names, (str, bytes)):
            raise DataError(f"label names must be a list of names, not the single string {names!r}; pass [{names!r}]")
        self.names: tuple[Label, ...] = tuple(_label(name) for name in names)
        self.columns = {name: column for column, name in enumerate(self.names)}
        if not self.names:
            raise DataError("there are no labels; at least one row must have one")
        if len(self.columns) < len(self.names):
            twice = next(name for column, name in enumerate(self.names) if self.columns[name] != column)
            raise DataError(f"the label name {twice!r} comes twice; names must be unique")

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[Label]]) -> LabelSpace:
        """The space of all labels in N lists: integers in increasing order, then strings in alphabetical order.

        Raises:
            DataError: a row that is not a list of strings or integers, or no label in any row.
        """
        names = {_label(name) for name in chain.from_iterable(_rows(lists))}
        # Integers and strings do not compare; the leading flag keeps them apart.
        return cls(sorted(names, key=lambda name: (isinstance(name, str), name)))

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSpace) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        shown = ", ".join(repr(name) for name in self.names[:3])
        return f"LabelSpace({len(self)} labels: {shown}{', ...' if len(self) > 3 else ''})"

    def to_config(self) -> list[Label]:
        """The names, as JSON can hold them."""
        return list(self.names)

    def encode(self, lists: Iterable[Iterable[Label]], unknown: Literal["error", "ignore"] = "error") -> FloatCSR:
        """The indicator matrix of N label lists.

        Args:
            lists: the labels of each row, in any order; a label listed twice counts once; a row may be empty.
            unknown: what to do with a label that is not in the space: raise, or leave it out.

        Returns:
            N x K float32 CSR of ones.

        Raises:
            DataError: a row that is not a list of strings or integers, no rows, or an unknown label (with its row).
            SettingsError: `unknown` is neither "error" nor "ignore".
        """
        if unknown not in ("error", "ignore"):
            raise SettingsError(f"unknown must be 'error' or 'ignore', not {unknown!r}")
        indices: list[int] = []
        indptr = [0]
        for row, labels in enumerate(_rows(lists)):
            columns = set()
            for label in labels:
                column = self.columns.get(_label(label))
                if column is not None:
                    columns.add(column)
                elif unknown == "error":
                    raise DataError(
                        f"row {row} has the label {label!r}, which is not among the {len(self)} known ones; "
                        "correct it, or leave unknown labels out with unknown='ignore'"
                    )
            indices += sorted(columns)
            indptr.append(len(indices))
        if len(indptr) == 1:
            raise DataError("there are no rows of labels; pass at least one")
        data = np.ones(len(indices), dtype=np.float32)
        return csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, len(self)))

    def decode(self, Y: Any) -> list[list[Label]]:
        """The label names of the nonzero entries of each row of an N x K matrix, in column order.

        Raises:
            DataError: the matrix has not K columns.
        """
        matrix = csr_matrix(Y, copy=True)
        if matrix.shape[1] != len(self):
            raise DataError(f"the matrix has {matrix.shape[1]} columns but there are {len(self)} labels")
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        names = [self.names[column] for column in matrix.indices]
        return [names[start:end] for start, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)]


def encode_targets(Y: Any, *, counts: bool = False, soft: bool = False) -> tuple[FloatCSR, LabelSpace | None]:
    """Bring multi-label targets into the one form that the library computes on.

    Args:
        Y: N x K indicator of zeros and ones (any scipy sparse format, an array, or a data frame, whose columns
            `frames.label_names` names), or a sequence or column of N lists of label names. Nested Python lists are
            always read as lists of names: give an indicator as array.
        counts: take 0, 1, 2 and so on in place of zeros and ones.
        soft: take numbers from 0 to 1, the probabilities that labels apply, in an indicator.

    Returns:
        The targets as N x K float32 CSR of ones, counts or probabilities, with sorted indices, a copy unless they are
        such a matrix of ones that is mapped from files; and the label names if Y had names.

    Raises:
        DataError: Y is one label per row, not 2-D, without rows or columns, not made of real numbers, or has an entry
            other than 0 and 1, than a count, or than a probability (its row and column are named; in a sparse Y, a
            position stored twice counts as sum).
    """
    if isinstance(Y, (str, bytes, dict)):
        raise DataError(f"Y must be an indicator matrix or a list of label lists, not {type(Y).__name__}")
    lists = lists_of(Y)
    if lists is not None:
        if lists and all(np.ndim(row) == 0 and not isinstance(row, (set, frozenset, dict)) for row in lists):
            raise DataError(_one_label_each())
        refuse_nested_indicator(lists)
        space = LabelSpace.from_lists(lists)
        return space.encode(lists), space
    if is_frame(Y):
        Y = matrix_of(Y, "Y")
    elif not issparse(Y):
        Y = np.asarray(Y)
    if Y.ndim == 1:
        raise DataError(_one_label_each())
    if Y.ndim != 2:
        raise DataError(f"Y must be 2-D (rows x labels); its shape is {Y.shape}")
    return _indicator(Y, counts, soft), None


def _one_label_each() -> str:
    return (
        "Unknown label type: Y has one value per row: that is a multi-class target, of one class per row; for "
        "multi-label targets pass an indicator matrix (rows x labels) or a list of label lists such as [['a', 'b'], []]"
    )


def _indicator(Y: Any, counts: bool, soft: bool) -> FloatCSR:
    if Y.dtype.kind not in "biuf":
        raise DataError(
            f"Unknown label type: Y has dtype {Y.dtype}; an indicator has 0 and 1 as bool, integer or float numbers"
        )
    if Y.ndim != 2 or min(Y.shape) < 1:
        raise DataError(f"Y must have at least one row and one label column; its shape is {Y.shape}")
    if is_mapped(Y) and first_fault(Y, ones=True) is None:
        mapped: FloatCSR = Y
        return mapped
    matrix = csr_matrix(Y, copy=True)
    try:
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"Y is not a valid sparse matrix: {error}") from error
    # Counted in float64, where narrow integers and bool would wrap or saturate.
    matrix = matrix.astype(np.float64)
    matrix.sum_duplicates()
    values = matrix.data
    sound = (values == 0) | (values == 1)
    if counts:
        sound = (values >= 0) & (values <= _MOST_COUNT) & (values == np.floor(values))
    elif soft:
        sound = (values >= 0) & (values <= 1)
    bad = np.flatnonzero(~sound)
    if bad.size:
        row, column = entry_position(matrix, int(bad[0]))
        what = "only 0 and 1, or soft labels between them" if soft else "only 0 and 1"
        what = "counts, 0, 1, 2 and so on" if counts else what
        between = not counts and 0 < matrix.data[bad[0]] < 1
        raise DataError(
            f"Y must hold {what}, but has {matrix.data[bad[0]]:g} at row {row}, column {column} (counted from 0)"
            + ("; soft labels mean nothing here: threshold them, as by Y >= 0.5" if between else "")
        )
    # What single precision does not tell from zero is none.
    matrix = matrix.astype(np.float32)
    matrix.eliminate_zeros()
    return matrix


def check_label_names(Y: Any, space: LabelSpace | None, name: str = "Y") -> None:
    """Refuse a data frame whose columns are not the labels of training in their order, where both have names.

    Raises:
        DataError: they differ; calls the data frame `name`.
    """
    names = label_names(Y)
    if names is None or space is None or names == [*space.names]:
        return
    differ = sorted(map(repr, set(names).symmetric_difference(space.names)))
    raise DataError(
        f"the columns of {name} are not the labels that training had, in their order (classes_): "
        + (f"only one of the two has {shortened(differ)}" if differ else "put them in this order: Y[classes_]")
    )


def refuse_nested_indicator(rows: Sequence[Any], name: str = "Y") -> None:
    """Refuse lists of zeros and ones of one length that no person would write as lists of labels.

    Such a list names no label twice, and the same two labels always in the same order; an indicator of two columns or
    more that is written as nested lists does neither.

    Raises:
        DataError: the lists are an indicator.
    """
    if not all(isinstance(row, (list, tuple, np.ndarray)) for row in rows) or len({len(row) for row in rows}) != 1:
        return
    if not all(isinstance(value, NUMBERS) and value in (0, 1) for row in rows for value in row):
        return
    different = {tuple(map(int, row)) for row in rows}
    if len(rows[0]) > 1 and (len(different) > 1 or any(len(set(row)) < len(row) for row in different)):
        raise DataError(
            f"{name} looks like an indicator matrix written as nested lists, which are read as lists of label names; "
            f"pass numpy.asarray({name}) or a scipy sparse matrix"
        )


def _rows(lists: Iterable[Any]) -> Iterable[Iterable[Label]]:
    if isinstance(lists, (str, bytes)):
        raise DataError(f"expected a list of label lists, not the single string {lists!r}; pass [[{lists!r}]]")
    for row, labels in enumerate(lists):
        if isinstance(labels, (str, bytes)):
            raise DataError(f"row {row} is the bare string {labels!r} where a list of labels is meant: [{labels!r}]")
        if not isinstance(labels, (*_LISTS, np.ndarray)):
            raise DataError(f"row {row} must be a list of labels, not {type(labels).__name__} ({labels!r})")
        yield labels


def _label(name: Any) -> Label:
    if isinstance(name, str):
        return str(name)
    if isinstance(name, (bool, np.bool_)):
        raise DataError(f"a label must be a string or an integer, not the truth value {name}")
    try:
        return operator.index(name)
    except TypeError:
        raise DataError(f"a label must be a string or an integer, not {type(name).__name__} ({name!r})") from None
