"""The features step of sequences: from what users hold to one matrix of all tokens, fitted in training."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import diags_array, issparse

from extremegp.data.templates import Template
from extremegp.data.tokens import TokenFeatures, stack_arrays
from extremegp.data.validation import FloatMatrix
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
        self.n_features_in = 0

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

    def _read(self, X: Any) -> tuple[Any, bool]:
        """The sequences, expanded by the template if there is one, and whether they are matrices."""
        if isinstance(X, (str, bytes)) or issparse(X) or not isinstance(X, Iterable):
            return X, False
        if self.template is not None:
            return map(self._expanded, X), False
        X = list(X)
        return X, bool(X) and all(issparse(part) or isinstance(part, np.ndarray) for part in X)

    def _expanded(self, sequence: Any) -> list[list[str]]:
        assert self.template is not None
        unary = self.template.expand(sequence)
        if not self.template.indexed:
            return unary
        return [list(chain(*parts)) for parts in zip(unary, self.template.expand_binary(sequence), strict=True)]

    def _weighted(self, x: FloatMatrix) -> FloatMatrix:
        return (x @ diags_array(self._weights)).tocsr() if issparse(x) else x * self._weights

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What `from_state` needs: a configuration that JSON can hold, and arrays by name."""
        arrays: dict[str, NDArray[Any]] = {"weights": self._weights}
        config: dict[str, Any] = {
            "kind": self.kind,
            "n_features": self.n_features_in,
            "weighting": self.weighting,
            "template": None if self.template is None else str(self.template),
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
        try:
            features = cls(weighting=config.get("weighting"), template=template and Template.parse(template))  # type: ignore[arg-type]
        except (ExtremeGPError, TypeError, AttributeError) as error:
            raise ModelFormatError(f"the stored features step is altered: {error}") from error
        tokens, n_features, weights = config.get("tokens"), config.get("n_features"), arrays.get("weights")
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
        features.n_features_in = n_features
        return features


def _weights(x: FloatMatrix, weighting: Weighting) -> NDArray[np.float32]:
    squares = np.asarray(x.multiply(x).sum(axis=0) if issparse(x) else np.square(x).sum(axis=0), np.float64).ravel()
    weights = np.ones(x.shape[1])
    if weighting == "idf":
        counts = (x.getnnz(axis=0) if issparse(x) else np.count_nonzero(x, axis=0)).astype(np.float64)
        weights = np.log1p(x.shape[0] / np.maximum(counts, 1))
    mean = float(squares @ weights**2) / x.shape[0]
    return np.asarray(weights / np.sqrt(mean) if mean else weights, dtype=np.float32)
