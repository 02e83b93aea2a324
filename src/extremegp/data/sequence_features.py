"""The features step of sequences: from what users hold to one matrix of all tokens, fitted in training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from extremegp.data.frames import is_frame
from extremegp.data.templates import Template
from extremegp.data.tokens import TokenFeatures, stack_arrays, tokens_of
from extremegp.engine.blocks import Block
from extremegp.engine.matrices import FloatMatrix, column_counts, csr_of
from extremegp.errors import DataError, ExtremeGPError, ModelFormatError, SettingsError

Weighting = Literal["none", "idf"]
WEIGHTINGS: tuple[str, ...] = get_args(Weighting)


class SequenceFeatures:
    """Sequences to the features of their tokens, B x D, and the lengths of the sequences.

    Tokens have features by name (mappings or strings, see `TokenFeatures`), numbers (a matrix for every sequence), or,
    with a template, columns of strings that it expands. Expansions of its B lines are features like those of U lines.

    Features are divided by the root of the mean squared length of training rows, which is then one.

    Args:
        template: a CRF++ template, where tokens are rows of columns.
        min_count: as in `TokenFeatures`.
        hash_size: as in `TokenFeatures`.
        weighting: "idf" multiplies a feature that n of N training tokens have by log(1 + N / n) first: what is rare
            says more than what is everywhere.

    Attributes:
        n_features_in: D.
        n_columns: of the rows that a template expands, as the first of training has them; None without one.
    """

    kind = "sequences"

    def __init__(
        self,
        *,
        template: Template | None = None,
        min_count: int = 1,
        hash_size: int | None = None,
        weighting: Weighting = "none",
    ) -> None:
        if weighting not in WEIGHTINGS:
            raise SettingsError(f"weighting must be one of {', '.join(WEIGHTINGS)}; it is {weighting!r}")
        self.template, self.weighting = template, weighting
        self._tokens: TokenFeatures | None = TokenFeatures(min_count, hash_size)
        self._weights = np.ones(0, dtype=np.float32)
        self._by_name: tuple[NDArray[np.float32], dict[str, float], float] | None = None
        self.n_features_in = 0
        self.n_columns: int | None = None

    @property
    def names(self) -> list[str] | None:
        """What the columns are called; None where they have no names."""
        return None if self._tokens is None else self._tokens.names

    def fit_transform(self, X: Any) -> tuple[FloatMatrix, NDArray[np.int64]]:
        """Learn the step from training data, and return their features.

        Raises:
            DataError: X cannot be used.
        """
        X, matrices = self._read(X)
        if matrices or self._tokens is None:
            self._tokens = None
            x, lengths = stack_arrays(X)
        else:
            x, lengths = self._tokens.fit_transform(X)
        self._weights = _weights(x, self.weighting)
        self.n_features_in = x.shape[1]
        return self._weighted(x), lengths

    def transform(self, X: Any) -> tuple[FloatMatrix, NDArray[np.int64]]:
        """The features of other sequences.

        Raises:
            DataError: X cannot be used, or is of another form than in training.
        """
        X, matrices = self._read(X)
        if matrices != (self._tokens is None):
            wanted = "a matrix of numbers" if self._tokens is None else "tokens with features by name"
            raise DataError(f"X must hold {wanted} for every sequence, as in training")
        x, lengths = stack_arrays(X) if self._tokens is None else self._tokens.transform(X)
        if x.shape[1] != self.n_features_in:
            raise DataError(f"X has {x.shape[1]} features a token, but training had {self.n_features_in}")
        return self._weighted(x), lengths

    @property
    def layout(self) -> tuple[Block, ...]:
        """The blocks of the features: there are none."""
        return ()

    def unknown_shares(self, X: Any) -> NDArray[np.float32] | None:
        """What share of the squared norm of every token is of features that training did not keep.

        Args:
            X: as `transform` takes it.

        Returns:
            B x 1 numbers from 0 to 1; None where tokens are numbers or hashed.
        """
        squares = self._squares(X)
        if squares is None:
            return None
        unknown, total = squares
        shares: NDArray[Any] = np.divide(unknown, total, out=np.zeros_like(total), where=total > 0)
        return shares.astype(np.float32)[:, None]

    def unknown_squares(self, X: Any) -> NDArray[np.float32] | None:
        """The squared norm of every token in features that training did not keep.

        Args:
            X: as `transform` takes it.

        Returns:
            B numbers, of features weighted as those that training kept; None where tokens are numbers or hashed.
        """
        squares = self._squares(X)
        return None if squares is None else np.minimum(squares[0], np.finfo(np.float32).max).astype(np.float32)

    def _squares(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Of every token, the squared norm in unknown features and in all."""
        if self._tokens is None or self._tokens.hash_size:
            return None
        weights, largest = self._named_weights()
        squares = []
        for names, values in tokens_of(self._read(X)[0], []):
            own = [
                (name in weights, (value * weights.get(name, largest)) ** 2)
                for name, value in zip(names, values, strict=True)
            ]
            squares.append((sum(square for known, square in own if not known), sum(square for _, square in own)))
        unknown, total = np.array(squares, dtype=np.float64).T
        return unknown, total

    def _named_weights(self) -> tuple[dict[str, float], float]:
        """The weights of features by name, and that of an unknown one: as much as the rarest known one has."""
        if self._by_name is None or self._by_name[0] is not self._weights:
            assert self._tokens is not None
            named = dict(zip(self._tokens.names or (), self._weights.tolist(), strict=True))
            self._by_name = self._weights, named, float(self._weights.max())
        return self._by_name[1:]

    def rare_columns(self, x: FloatMatrix) -> NDArray[np.int64]:
        """The columns that there would not be if one of the training tokens that have them was missing.

        Args:
            x: the features of the training tokens.
        """
        if self._tokens is None or self._tokens.hash_size:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(column_counts(csr_matrix(x)) <= self._tokens.min_count)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Those of earlier versions were pickled without it.
        self.__dict__ |= state | {"_by_name": None}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_by_name": None}

    def _read(self, X: Any) -> tuple[Any, bool]:
        """The sequences, expanded by the template if there is one, and whether they are matrices."""
        if isinstance(X, (str, bytes)) or issparse(X) or not isinstance(X, Iterable):
            return X, issparse(X)
        if is_frame(X):
            raise DataError(
                "X must be a list of sequences, not one data frame: pass one for each sequence, with a row for each of "
                "its tokens"
            )
        X = (np.asarray(part) if is_frame(part) else part for part in X)
        if self.template is not None:
            return (self._expanded(sequence, s) for s, sequence in enumerate(X)), False
        X = list(X)
        return X, bool(X) and all(issparse(part) or isinstance(part, np.ndarray) for part in X)

    def _expanded(self, sequence: Any, s: int) -> list[list[str]]:
        assert self.template is not None
        if isinstance(sequence, (str, bytes, Mapping)) or not isinstance(sequence, Iterable):
            raise DataError(
                f"sequence {s} (counted from 0) must be a list of tokens, rows of columns, not "
                f"{type(sequence).__name__}; for one sequence of tokens pass [tokens]"
            )
        sequence = list(sequence)
        try:
            unary = self.template.expand(sequence)
        except DataError as error:
            raise DataError(f"in sequence {s}, {error}") from None
        self.n_columns = self.n_columns or (len(sequence[0]) if sequence else None)
        if not self.template.indexed:
            return unary
        return [list(chain(*parts)) for parts in zip(unary, self.template.expand_binary(sequence), strict=True)]

    def _weighted(self, x: FloatMatrix) -> FloatMatrix:
        with np.errstate(over="ignore"):
            if issparse(x):
                # A product with a diagonal matrix would leave columns out of order.
                weighted: FloatMatrix = csr_of(x.data * self._weights[x.indices], x.indices, x.indptr, x.shape)
            else:
                weighted = x * self._weights
        if not np.isfinite(weighted.data if issparse(weighted) else weighted).all():
            raise DataError("X has features so much larger than those of training that float32 cannot hold them scaled")
        return weighted

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What `from_state` needs: a configuration that JSON can hold, and arrays by name."""
        arrays: dict[str, NDArray[Any]] = {"weights": self._weights}
        config: dict[str, Any] = {
            "kind": self.kind,
            "n_features": self.n_features_in,
            "weighting": self.weighting,
            "template": None if self.template is None else str(self.template),
            "n_columns": self.n_columns,
            "tokens": None,
        }
        if self._tokens is not None:
            config["tokens"], names = self._tokens.to_state()
            arrays |= names
        return config, arrays

    @classmethod
    def from_state(cls, config: Any, arrays: dict[str, NDArray[Any]]) -> SequenceFeatures:
        """Restore a fitted step; it transforms to the same bits as the one that was stored.

        Raises:
            ModelFormatError: the state is not what `to_state` gives.
        """
        if not isinstance(config, dict) or config.get("kind") != cls.kind:
            raise ModelFormatError("the stored features step is not one of sequences")
        template = config.get("template")
        if not isinstance(template, (str, type(None))):
            raise ModelFormatError(f"the stored features step has a template of the type {type(template).__name__}")
        try:
            features = cls(
                weighting=config.get("weighting"),  # type: ignore[arg-type]
                template=None if template is None else Template.parse(template),
            )
        except ExtremeGPError as error:
            raise ModelFormatError(f"the stored features step is altered: {error}") from error
        tokens, n_features, weights = config.get("tokens"), config.get("n_features"), arrays.get("weights")
        if tokens is None and template is not None:
            raise ModelFormatError("the stored features step has a template, but no features for it to expand to")
        features._tokens = None if tokens is None else TokenFeatures.from_state(tokens, arrays)
        if not isinstance(n_features, int) or isinstance(n_features, bool) or n_features < 1:
            raise ModelFormatError(f"the stored features step has n_features {n_features!r}, not a positive integer")
        if features._tokens is not None and features._tokens.n_features != n_features:
            raise ModelFormatError("the stored features step contradicts itself")
        if weights is None or weights.shape != (n_features,) or weights.dtype != np.float32:
            raise ModelFormatError(f"the stored features step has not {n_features} weights")
        if not np.isfinite(weights).all():
            raise ModelFormatError("the stored features step has weights that are not finite")
        features._weights = weights
        n_columns, least = config.get("n_columns"), None if features.template is None else features.template.n_columns
        if n_columns is not None if least is None else type(n_columns) is not int or n_columns < least:
            raise ModelFormatError(f"the stored features step has n_columns {n_columns!r}, which its template lacks")
        features.n_columns = n_columns
        features.n_features_in = n_features
        return features


def _weights(x: FloatMatrix, weighting: Weighting) -> NDArray[np.float32]:
    # The square of a number of float32 may be too large for float32, or too small.
    if issparse(x):
        squares = np.bincount(x.indices, np.square(x.data, dtype=np.float64), minlength=x.shape[1])
    else:
        squares = np.einsum("nd,nd->d", x, x, dtype=np.float64)
    weights = np.ones(x.shape[1])
    if weighting == "idf":
        # A matrix of the user may store zeros.
        counts = np.bincount(x.indices[x.data != 0], minlength=x.shape[1]) if issparse(x) else (x != 0).sum(axis=0)
        weights = np.log1p(x.shape[0] / np.maximum(counts, 1))
    mean = float(squares @ weights**2) / x.shape[0]
    return np.asarray(np.minimum(weights / np.sqrt(mean or 1.0), np.finfo(np.float32).max), dtype=np.float32)
