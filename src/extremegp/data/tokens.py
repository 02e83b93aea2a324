"""Sequences of tokens to one matrix of all their tokens."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse, vstack
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction import FeatureHasher

from extremegp.data.frames import NUMBERS
from extremegp.data.validation import check_inputs
from extremegp.engine.matrices import FloatCSR, FloatMatrix, entry_position
from extremegp.errors import DataError, ModelFormatError, SettingsError

_MAX_HASH_SIZE = 2**31 - 1
_MAX_DEPTH = 10
_LARGEST = float(np.finfo(np.float32).max)
_OF_TEXTS = "give tokens as lists of the names of their features"
NOT_SEQUENCES = (str, bytes, Mapping, set, frozenset)


class TokenFeatures:
    """Features of tokens to the columns of a matrix: learnt from training data, or hashed.

    The features of a token are either strings, of value 1 each, or a mapping of names to values, read as
    python-crfsuite reads them: a number is the value of the name (True is 1), a string ``s`` makes the feature
    ``name:s`` of value 1, a list or set of strings one such feature for each, and a mapping has the features of its
    own with ``name:`` before them. An array of numbers, such as a word vector, has a feature for each of its places,
    ``name:0``, ``name:1``, .... Values of the same feature in a token add up; those that are 0 count as absent.

    Args:
        min_count: training tokens that must have a feature; rarer ones are left out.
        hash_size: D for features hashed with a sign (`sklearn.feature_extraction.FeatureHasher`), which need no names;
            None for a column for each name, in the order of the names.

    Raises:
        SettingsError: an option outside its domain, or a `min_count` for hashed features, which are not counted.
    """

    def __init__(self, min_count: int = 1, hash_size: int | None = None) -> None:
        if not _is_count(min_count):
            raise SettingsError(f"min_count must be a positive integer, not {min_count!r}")
        if hash_size is not None and not (_is_count(hash_size) and hash_size <= _MAX_HASH_SIZE):
            raise SettingsError(f"hash_size must be an integer from 1 to {_MAX_HASH_SIZE} or None, not {hash_size!r}")
        if hash_size is not None and min_count > 1:
            raise SettingsError("hashed features are not counted; leave out either min_count or hash_size")
        self.min_count = min_count
        self.hash_size = hash_size
        self._columns: dict[str, int] = {}

    @property
    def n_features(self) -> int:
        """D, the number of columns; 0 before `fit_transform`, unless features are hashed."""
        return self.hash_size or len(self._columns)

    @property
    def names(self) -> list[str] | None:
        """The D names in column order; None if features are hashed."""
        return None if self.hash_size else list(self._columns)

    def fit_transform(self, sequences: Iterable[Iterable[Any]]) -> tuple[FloatCSR, NDArray[np.int64]]:
        """Learn the features of training data, and return them.

        Args:
            sequences: sequences of tokens, read once, so that a generator may expand them as it goes.

        Returns:
            The features of all tokens, one sequence after the other, B x D CSR; and the lengths of the S sequences,
            which add up to B. A token may have none.

        Raises:
            DataError: there are no sequences; a sequence is empty; a token has features of another form, or a value
                that is not finite or outside float32 (sequence, token and feature are named); or no feature occurs in
                `min_count` tokens.
        """
        if self.hash_size:
            return self.transform(sequences)
        lengths: list[int] = []
        columns: defaultdict[str, int] = defaultdict()
        columns.default_factory = columns.__len__
        indices, values, indptr = _entries(tokens_of(sequences, lengths), columns.__getitem__)
        X: FloatCSR = csr_matrix((values, indices, indptr), shape=(len(indptr) - 1, max(1, len(columns))))
        X = _canonical(X, lengths)
        counts = np.bincount(X.indices, minlength=len(columns)).tolist()
        names = sorted(str(name) for name, count in zip(columns, counts, strict=False) if count >= self.min_count)
        if not names:
            raise DataError(
                f"no feature occurs in {self.min_count} tokens (min_count); lower it, or give tokens features"
            )
        X = X[:, np.fromiter(map(columns.__getitem__, names), np.int64, len(names))]
        X.sort_indices()
        self._columns = {name: column for column, name in enumerate(names)}
        return X, np.asarray(lengths, dtype=np.int64)

    def transform(self, sequences: Iterable[Iterable[Any]]) -> tuple[FloatCSR, NDArray[np.int64]]:
        """The features of tokens as `fit_transform` returns them; features that training data had not are left out.

        Raises:
            DataError: as in `fit_transform`.
            sklearn.exceptions.NotFittedError: features are not hashed, and `fit_transform` was not called.
        """
        if not self.n_features:
            raise NotFittedError("these token features are not fitted; call fit_transform first")
        lengths: list[int] = []
        tokens = tokens_of(sequences, lengths)
        if self.hash_size:
            hasher = FeatureHasher(self.hash_size, input_type="pair", dtype=np.float32)
            hashed = hasher.transform(zip(names, values, strict=True) for names, values in tokens)
            return _canonical(csr_matrix(hashed), lengths), np.asarray(lengths, dtype=np.int64)
        known, n_features = self._columns.get, self.n_features
        # A column beyond the last takes what is unknown.
        indices, values, indptr = _entries(tokens, lambda name: known(name, n_features))
        X: FloatCSR = csr_matrix((values, indices, indptr), shape=(len(indptr) - 1, n_features + 1))
        return _canonical(X[:, :-1], lengths), np.asarray(lengths, dtype=np.int64)

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What `from_state` needs: a configuration that JSON can hold, and arrays by name."""
        config = {"min_count": self.min_count, "hash_size": self.hash_size, "n_features": self.n_features}
        if self.hash_size:
            return config, {}
        encoded = [name.encode("utf-8") for name in self._columns]
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return config, {"names": np.frombuffer(b"".join(encoded), dtype=np.uint8), "offsets": offsets}

    @classmethod
    def from_state(cls, config: Any, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Restore fitted token features; they transform to the same bits as those that were stored.

        Raises:
            ModelFormatError: the state is not what `to_state` gives.
        """
        if not isinstance(config, dict):
            raise ModelFormatError("the stored token features have no configuration")
        try:
            features = cls(config.get("min_count"), config.get("hash_size"))  # type: ignore[arg-type]
        except SettingsError as error:
            raise ModelFormatError(f"the stored token features are altered: {error}") from error
        if not features.hash_size:
            names = _stored_names(arrays)
            features._columns = {name: column for column, name in enumerate(names)}
        if not _is_count(config.get("n_features")) or config["n_features"] != features.n_features:
            raise ModelFormatError(
                f"the stored token features are {features.n_features}, not n_features {config.get('n_features')!r}"
            )
        return features


def stack_arrays(sequences: Iterable[Any]) -> tuple[FloatMatrix, NDArray[np.int64]]:
    """Sequences given as matrices of numbers as one matrix of all their tokens.

    Args:
        sequences: S matrices, of T_s tokens x D each: all of them arrays, or all in any scipy sparse format.

    Returns:
        B x D, float32 CSR or array as `check_inputs` makes it; and the lengths T_s, which add up to B.

    Raises:
        DataError: there are no sequences; a sequence is not 2-D, is empty, or is of another kind or width than the
            first; or holds what `check_inputs` refuses. Names the sequence.
        TypeError: a sequence holds objects that are not numbers.
    """
    if issparse(sequences) or isinstance(sequences, NOT_SEQUENCES) or not isinstance(sequences, Iterable):
        raise DataError(f"X must be a list of matrices, one a sequence, not {type(sequences).__name__}")
    matrices: list[Any] = [matrix if issparse(matrix) else _array(matrix, s) for s, matrix in enumerate(sequences)]
    if not matrices:
        raise DataError("there are no sequences; pass at least one")
    sparse, width = issparse(matrices[0]), matrices[0].shape[-1] if matrices[0].ndim else 0
    for s, matrix in enumerate(matrices):
        if matrix.ndim != 2:
            raise DataError(
                f"X[{s}] must be 2-D (tokens x features); its shape is {matrix.shape}. For one sequence pass [X]"
            )
        if issparse(matrix) != sparse:
            raise DataError(f"X[{s}] is {'an array' if sparse else 'sparse'}, but X[0] is not; make all the same kind")
        if not matrix.shape[0]:
            raise DataError(f"X[{s}] has no tokens; leave it and its labels out")
        if matrix.shape[1] != width:
            raise DataError(f"X[{s}] has {matrix.shape[1]} features, but X[0] has {width}; give all the same features")
    try:
        joined = vstack(matrices, format="csr") if sparse else np.concatenate(matrices)
        stacked = check_inputs(joined, of_texts=_OF_TEXTS)
    except (TypeError, ValueError):
        # Only now does it pay to look for the sequence.
        for s, matrix in enumerate(matrices):
            check_inputs(matrix, name=f"X[{s}]", of_texts=_OF_TEXTS)
        raise
    return stacked, np.asarray([matrix.shape[0] for matrix in matrices], dtype=np.int64)


def place_of(row: int, lengths: Any) -> str:
    """Where a token is, by its place among those of all sequences."""
    ends = np.cumsum(lengths)
    s = int(np.searchsorted(ends, row, side="right"))
    return f"token {row - (int(ends[s - 1]) if s else 0)} of sequence {s} (counted from 0)"


def tokens_of(sequences: Any, lengths: list[int]) -> Iterator[tuple[list[str], list[float]]]:
    """Names and values of the features of every token; the length of a sequence is added once it was read."""
    if isinstance(sequences, NOT_SEQUENCES) or not isinstance(sequences, Iterable):
        raise DataError(f"X must be a list of sequences of tokens, not {type(sequences).__name__}")
    for s, sequence in enumerate(sequences):
        if isinstance(sequence, NOT_SEQUENCES) or not isinstance(sequence, Iterable):
            raise DataError(
                f"sequence {s} (counted from 0) must be a list of tokens, not {type(sequence).__name__}; "
                "for one sequence of tokens pass [tokens]"
            )
        length = 0
        for token in sequence:
            try:
                attributes = _attributes(token)
            except DataError as error:
                raise DataError(f"token {length} of sequence {s} (counted from 0) {error}") from None
            yield attributes
            length += 1
        if not length:
            raise DataError(f"sequence {s} (counted from 0) has no tokens; leave it and its labels out")
        lengths.append(length)
    if not lengths:
        raise DataError("there are no sequences; pass at least one")


def _attributes(token: Any) -> tuple[list[str], list[float]]:
    names: list[Any] = []
    values: list[float] = []
    if isinstance(token, Mapping):
        _flatten(token, "", names, values, 1)
    elif isinstance(token, (str, bytes)) or not isinstance(token, Iterable):
        raise DataError(
            f"is of type {type(token).__name__}, not a mapping of its features or a list of their names; a token with "
            "one feature is [name], and a sequence is a list of tokens"
        )
    else:
        names = list(token)
        values = [1.0] * len(names)
    try:
        "".join(names).encode("utf-8")
    except TypeError:
        other = next(name for name in names if not isinstance(name, str))
        raise DataError(f"has a {type(other).__name__} where the name of a feature, a string, is expected") from None
    except UnicodeEncodeError as error:
        raise DataError("has a feature whose name holds half of a surrogate pair; correct or remove it") from error
    return names, values


def _flatten(mapping: Mapping[Any, Any], prefix: str, names: list[str], values: list[float], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise DataError(f"has mappings nested deeper than {_MAX_DEPTH}, under the feature {prefix[:40]!r}")
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise DataError(f"has a feature whose name is a {type(key).__name__} ({key!r}), not a string")
        name = prefix + key
        if isinstance(value, str):
            names.append(f"{name}:{value}")
            values.append(1.0)
        elif isinstance(value, NUMBERS):
            if number := _number(value, name):
                names.append(name)
                values.append(number)
        elif isinstance(value, Mapping):
            _flatten(value, f"{name}:", names, values, depth + 1)
        elif isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "fiub":
            for i, element in enumerate(value.tolist()):
                if number := _number(element, name):
                    names.append(f"{name}:{i}")
                    values.append(number)
        elif isinstance(value, (list, tuple, set, frozenset)):
            for element in value:
                if not isinstance(element, str):
                    raise DataError(f"has a {type(element).__name__} in the list of the feature {name!r}, not a string")
                names.append(f"{name}:{element}")
                values.append(1.0)
        else:
            raise DataError(
                f"has a {type(value).__name__} as value of the feature {name!r}; values are numbers, strings, lists of "
                "strings, arrays of numbers, and mappings of such; leave out what is missing"
            )


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = _LARGEST * 2
    if -_LARGEST <= number <= _LARGEST:
        return number
    what = "NaN" if np.isnan(number) else "an infinity" if np.isinf(number) else "a value too large for float32"
    raise DataError(f"has {what} as value of the feature {name!r}; leave it out, or scale the feature")


def _entries(
    tokens: Iterable[tuple[list[str], list[float]]], column: Callable[[str], int]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Columns, values and row starts of a CSR matrix, in buffers of 12 bytes an entry."""
    indices, values, indptr = array("q"), array("f"), array("q", [0])
    for names, numbers in tokens:
        indices.extend(map(column, names))
        values.extend(numbers)
        indptr.append(len(indices))
    return np.asarray(indices), np.asarray(values), np.asarray(indptr)


def _canonical(X: FloatCSR, lengths: list[int]) -> FloatCSR:
    X.sum_duplicates()
    X.eliminate_zeros()
    bad = np.flatnonzero(~np.isfinite(X.data))
    if bad.size:
        row, _ = entry_position(X, int(bad[0]))
        raise DataError(f"{place_of(row, lengths)} has values of one feature that add up to more than float32 holds")
    return X


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _stored_names(arrays: Mapping[str, Any]) -> list[str]:
    stored, offsets = arrays.get("names"), arrays.get("offsets")
    if not isinstance(stored, np.ndarray) or stored.dtype != np.uint8 or stored.ndim != 1:
        raise ModelFormatError("the stored token features have no 'names' array of bytes")
    if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 2:
        raise ModelFormatError("the stored token features have no int64 'offsets' array")
    if offsets[0] != 0 or offsets[-1] != len(stored) or (offsets[1:] < offsets[:-1]).any():
        raise ModelFormatError("the offsets of the stored token features do not cut their names")
    text = stored.tobytes()
    try:
        names = [text[start:end].decode("utf-8") for start, end in pairwise(offsets.tolist())]
    except UnicodeDecodeError as error:
        raise ModelFormatError("the names of the stored token features are not UTF-8") from error
    if any(name >= following for name, following in pairwise(names)):
        raise ModelFormatError("the names of the stored token features are not in increasing order")
    return names


def _array(matrix: Any, s: int) -> NDArray[Any]:
    try:
        return np.asarray(matrix)
    except ValueError as error:
        raise DataError(f"X[{s}] is not a matrix (tokens x features): {error}") from error
