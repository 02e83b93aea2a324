"""Targets of one class out of K per row, and the class numbers that stand for them."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from sklearn.exceptions import DataConversionWarning

from extremegp.engine.matrices import FloatCSR
from extremegp.errors import DataError, ModelFormatError, SettingsError

ClassKind: TypeAlias = Literal["int", "str", "bool", "float"]
ClassName: TypeAlias = int | str | bool | float

_DTYPES: dict[str, Any] = {"int": np.int64, "str": np.str_, "bool": np.bool_, "float": np.float64}
_TYPES: dict[str, type] = {"int": int, "str": str, "bool": bool, "float": float}
# A NumPy array of strings gives each the room of the longest.
_MAX_NAME_LENGTH = 1000


class ClassSpace:
    """The one-to-one map between K classes and the codes 0 to K - 1.

    Args:
        classes: at least two different integers, strings, booleans or floats of whole numbers, in any order.

    Attributes:
        names: the K classes in increasing order, as plain Python values; strings in the order of their code points.
        kind: "int", "str", "bool" or "float".

    Raises:
        DataError: a class twice, fewer than two, or what `encode_classes` does not take.
    """

    def __init__(self, classes: Any) -> None:
        values, self.kind = _values(classes, "classes")
        self.names: tuple[ClassName, ...] = tuple(sorted(map(_TYPES[self.kind], values.tolist())))
        if len(set(self.names)) < len(self.names):
            twice = next(a for a, b in zip(self.names, self.names[1:], strict=False) if a == b)
            raise DataError(f"the class {twice!r} comes twice; classes must be unique")
        if len(self.names) < 2:
            raise DataError(_one_class(self.names[0]))
        self._codes = {name: code for code, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassSpace) and (self.kind, self.names) == (other.kind, other.names)

    def __hash__(self) -> int:
        return hash((self.kind, self.names))

    def __repr__(self) -> str:
        shown = ", ".join(repr(name) for name in self.names[:3])
        return f"ClassSpace({len(self)} classes: {shown}{', ...' if len(self) > 3 else ''})"

    @property
    def classes(self) -> NDArray[Any]:
        """The K classes in the order of their codes: int64, str, bool or float64."""
        return np.asarray(self.names, dtype=_DTYPES[self.kind])

    def encode(self, y: Any, unknown: Literal["error", "ignore"] = "error", name: str = "y") -> NDArray[np.int64]:
        """The codes of N targets.

        Args:
            y: N classes in any form that `encode_classes` takes; integers and floats of equal value are the same class.
            unknown: what to do with a class that is not in the space: raise, or give it the code -1.
            name: what to call y in messages.

        Raises:
            DataError: y cannot be used, is not of the kind of the classes, or has an unknown class (with its row).
            SettingsError: `unknown` is neither "error" nor "ignore".
        """
        if unknown not in ("error", "ignore"):
            raise SettingsError(f"unknown must be 'error' or 'ignore', not {unknown!r}")
        values, kind = _values(y, name)
        numeric = ("int", "float")
        if kind != self.kind and not (kind in numeric and self.kind in numeric):
            raise DataError(
                f"{name} holds values of the kind {kind!r}, but the classes are of the kind {self.kind!r}, such as "
                f"{self.names[0]!r}; pass the same kind as in training"
            )
        found, inverse = _unique(values, kind)
        codes = np.asarray([self._codes.get(value, -1) for value in found.tolist()], dtype=np.int64)[inverse]
        bad = np.flatnonzero(codes < 0)
        if bad.size and unknown == "error":
            row = int(bad[0])
            raise DataError(
                f"{name} has the class {values[row : row + 1].tolist()[0]!r} at row {row} (counted from 0), which is "
                f"not among the {len(self)} known ones; correct it, or give it the code -1 with unknown='ignore'"
            )
        return codes

    def decode(self, codes: Any) -> NDArray[Any]:
        """The classes of codes, N of them or in any shape.

        Raises:
            DataError: a code outside 0 to K - 1.
        """
        return np.asarray(self.classes[_checked_codes(codes, len(self), least=0)])

    def to_config(self) -> dict[str, Any]:
        """What `from_config` needs, and JSON can hold."""
        return {"kind": self.kind, "names": list(self.names)}

    @classmethod
    def from_config(cls, config: Any) -> ClassSpace:
        """Restore a class space.

        Raises:
            ModelFormatError: `config` is not what `to_config` gives.
        """
        kind, names = (config.get("kind"), config.get("names")) if isinstance(config, dict) else (None, None)
        if not isinstance(kind, str) or kind not in _TYPES or not isinstance(names, list):
            raise ModelFormatError("the stored classes are not a kind and a list of names")
        if any(type(name) is not _TYPES[kind] for name in names):
            raise ModelFormatError(f"the stored classes are not all of their kind {kind!r}")
        try:
            space = cls(names)
        except DataError as error:
            raise ModelFormatError(f"the stored classes are altered: {error}") from error
        if list(space.names) != names:
            raise ModelFormatError("the stored classes are not in increasing order")
        return space


def encode_classes(y: Any, name: str = "y") -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Bring multi-class targets into the one form that the library computes on.

    Args:
        y: N classes, as list, array or pandas Series: integers, strings, booleans, or floats of whole numbers. A column
            vector passes with scikit-learn's warning.
        name: what to call y in messages.

    Returns:
        The codes, N integers from 0 to K - 1; and the K classes in increasing order as int64, str, bool or float64.
        ``ClassSpace(classes)`` keeps them.

    Raises:
        DataError: y is None, empty, of several columns, of continuous numbers, of mixed or other types, has a missing
            value (its row is named), or has fewer than two classes.
    """
    values, kind = _values(y, name)
    classes, codes = _unique(values, kind)
    if len(classes) < 2:
        raise DataError(_one_class(classes.tolist()[0]))
    return codes, classes


def one_hot(codes: Any, n_classes: int) -> FloatCSR:
    """The indicator matrix of class codes, N x K float32 CSR of ones; the row of a code -1 is empty.

    Raises:
        DataError: a code outside -1 to K - 1, or codes that are not a 1-D array of integers.
    """
    checked = _checked_codes(codes, n_classes, least=-1)
    if checked.ndim != 1:
        raise DataError(f"codes must be 1-D; their shape is {checked.shape}")
    known = checked >= 0
    indptr = np.concatenate([[0], np.cumsum(known)])
    return csr_matrix((np.ones(indptr[-1], dtype=np.float32), checked[known], indptr), shape=(len(checked), n_classes))


def _checked_codes(codes: Any, n_classes: int, least: int) -> NDArray[np.int64]:
    checked = np.asarray(codes)
    if checked.dtype.kind not in "iu":
        raise DataError(f"codes must be integers, not {checked.dtype}")
    if checked.size and not (least <= checked.min() and checked.max() < n_classes):
        raise DataError(
            f"codes must be {least} to {n_classes - 1}, but they are {checked.min()} to {checked.max()}; "
            "are they of other classes?"
        )
    return checked.astype(np.int64)


def _one_class(only: Any) -> str:
    return f"Classifier can't train when only one class is present: every row is {only!r}; add rows of another class"


def _unique(values: NDArray[Any], kind: ClassKind) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different values in increasing order, and the position of each value among them."""
    if kind != "str":
        classes, inverse = np.unique(values, return_inverse=True)
        return classes, inverse.astype(np.int64)
    texts = values.tolist()
    names = sorted({str(text) for text in texts})
    positions = {text: position for position, text in enumerate(names)}
    longest = max(names, key=len)
    if len(longest) > _MAX_NAME_LENGTH:
        raise DataError(f"the class {longest[:40] + '...'!r} has {len(longest)} characters; is this the label column?")
    # NumPy drops those at the end of a string.
    if any("\0" in name for name in names):
        raise DataError("a class name holds a NUL character; remove it")
    return np.asarray(names, dtype=np.str_), np.fromiter(map(positions.__getitem__, texts), np.int64, len(texts))


def _values(y: Any, name: str) -> tuple[NDArray[Any], ClassKind]:
    """The targets as 1-D array of int64, bool, float64 or, for strings, of str or objects; and their kind."""
    values = _one_dimensional(y, name)
    if values.dtype == object:
        kind = _kind_of_objects(values, name)
        if kind != "str":
            try:
                values = values.astype(_DTYPES[kind])
            except OverflowError as error:
                raise DataError(f"{name} holds integers beyond 64 bits; pass them as strings") from error
    else:
        kinds: dict[str, ClassKind] = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}
        if values.dtype.kind not in kinds:
            hint = "; decode bytes to strings with y.astype(str)" if values.dtype.kind == "S" else ""
            raise DataError(
                f"Unknown label type: {name} has dtype {values.dtype}; classes are integers, strings or booleans{hint}"
            )
        kind = kinds[values.dtype.kind]
    if kind == "int":
        if values.dtype.kind == "u" and int(values.max()) > np.iinfo(np.int64).max:
            raise DataError(f"{name} holds integers beyond 64 bits with sign; pass them as strings")
        values = values.astype(np.int64)
    if kind == "float":
        values = values.astype(np.float64)
        _refuse_continuous(values, name)
    return values, kind


def _one_dimensional(y: Any, name: str) -> NDArray[Any]:
    if y is None:
        raise DataError(f"a classifier requires y to be passed, but the target y is None (as {name})")
    if isinstance(y, (str, bytes, dict, set, frozenset)) or issparse(y):
        raise DataError(f"{name} must be a list or 1-D array of one class a row, not {type(y).__name__}")
    if isinstance(y, (list, tuple)) and not any(isinstance(value, (list, tuple, np.ndarray)) for value in y):
        # NumPy itself would quietly turn [1, "a"] into two strings.
        values = np.fromiter(y, dtype=object, count=len(y))
    else:
        try:
            values = np.asarray(y)
        except ValueError as error:
            raise DataError(f"{name} must be one class a row: {error}") from error
    if values.ndim == 2 and values.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), "
            "for example using ravel().",
            DataConversionWarning,
            stacklevel=4,
        )
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(
            f"{name} should be a 1d array of one class a row, got an array of shape {values.shape} instead; for "
            "several labels a row use MultiLabelGPClassifier"
        )
    if not len(values):
        raise DataError(f"{name} is empty; pass at least one row")
    return values


def _kind_of_objects(values: NDArray[Any], name: str) -> ClassKind:
    kinds = {kind: type_ for type_ in set(map(type, values)) for kind in [_kind_of_type(type_)]}
    if None not in kinds:
        known = {kind for kind in kinds if kind is not None}
        # Integers among floats are what a column of numbers may hold.
        if known == {"int", "float"}:
            return "float"
        if len(known) == 1:
            return known.pop()
    _refuse_objects(values, name)


def _kind_of_type(type_: type) -> ClassKind | None:
    if issubclass(type_, (bool, np.bool_)):
        return "bool"
    if issubclass(type_, Integral):
        return "int"
    if issubclass(type_, (float, np.floating)):
        return "float"
    return "str" if issubclass(type_, str) else None


def _refuse_objects(values: NDArray[Any], name: str) -> NoReturn:
    first: ClassKind | None = None
    for row, value in enumerate(values):
        kind = _kind_of_type(type(value))
        # pandas says NA and NaT; its types are told by name, for it need not be installed.
        if value is None or type(value).__name__ in ("NAType", "NaTType") or (kind == "float" and value != value):
            raise DataError(_missing(name, row))
        where = f"at row {row} (counted from 0)"
        if kind is None:
            raise DataError(
                f"Unknown label type: {name} has a {type(value).__name__} {where}; classes are integers, strings or "
                "booleans"
            )
        first = first or kind
        if kind != first and {kind, first} != {"int", "float"}:
            raise DataError(
                f"Unknown label type: {name} mixes types: {value!r} {where} is of the kind {kind!r}, rows before are "
                f"of the kind {first!r}; make all of them one kind"
            )
    raise AssertionError("the caller found values that do not go together")


def _refuse_continuous(values: NDArray[np.float64], name: str) -> None:
    bad = np.flatnonzero(~(np.isfinite(values) & (np.trunc(values) == values)))
    if not bad.size:
        return
    missing = np.flatnonzero(np.isnan(values))
    if missing.size:
        raise DataError(_missing(name, int(missing[0])))
    row = int(bad[0])
    if np.isinf(values[row]):
        raise DataError(f"{name} contains infinity at row {row} (counted from 0); classes are finite")
    raise DataError(
        f"Unknown label type: continuous: {name} has {values[row]:g} at row {row} (counted from 0). Classes are whole "
        "numbers or strings; bin the values, or pass them as strings if they are names of classes"
    )


def _missing(name: str, row: int) -> str:
    return f"{name} contains NaN or None at row {row} (counted from 0); drop rows without a class first"
