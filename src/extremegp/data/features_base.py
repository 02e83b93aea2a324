"""What every features step is, and how one is restored."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.sparsefuncs_fast import inplace_csr_row_normalize_l2

from extremegp.engine.blocks import Block
from extremegp.engine.matrices import FloatCSR, FloatMatrix
from extremegp.errors import ModelFormatError

FeatureKind = Literal["raw", "unit", "tfidf", "text", "scale", "root", "standard"]

_KINDS: dict[str, type[Features]] = {}


class Features(ABC):
    """A features step. Made by `make_features`, or from stored state by `Features.from_state`.

    Attributes:
        kind: the name of the step.
        n_features_in: D, the number of columns of the result (and of the input, unless that is text); set by `fit`.
    """

    kind: ClassVar[str]
    n_features_in: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    @abstractmethod
    def fit(self, X: Any) -> Self:
        """Learn the step from training data: an N x D matrix, or N texts for the kind "text".

        Raises:
            DataError: X cannot be used.
        """

    @abstractmethod
    def transform(self, X: Any) -> FloatMatrix:
        """The float32 features of X, N x D: CSR for sparse X and for texts, an array for dense X. X is not changed.

        Raises:
            DataError: X cannot be used, or has not the columns that the step was fitted on.
        """

    @property
    def layout(self) -> tuple[Block, ...]:
        """The blocks of the features; none where all are of one kind."""
        return ()

    def transform_new(self, X: Any, *, stacklevel: int = 2) -> FloatMatrix:
        """What `transform` gives of rows to predict; warns of texts that nothing can be told from.

        Args:
            X: the rows.
            stacklevel: whose line a warning names, as `warnings.warn` takes it.
        """
        x = self.transform(X)
        if n_unknown := self.n_unknown(x):
            warnings.warn(
                f"{n_unknown} of {x.shape[0]} texts have no word that is known from training: nothing can be told from "
                "them, and they all get the same answer",
                UserWarning,
                stacklevel=stacklevel,
            )
        return x

    def n_unknown(self, x: FloatMatrix) -> int:
        """How many rows of features, as `transform` gives them, are of texts without any word that is known."""
        return 0

    def unknown_shares(self, X: Any) -> NDArray[np.float32] | None:
        """What share of the squared norm of every row and block is of features that training did not keep.

        Args:
            X: as `transform` takes it.

        Returns:
            N x n_blocks numbers from 0 to 1; None where all features are known.
        """
        return None

    def rare_columns(self, x: FloatMatrix) -> NDArray[np.int64]:
        """The columns that there would not be if one of the training rows that have them was missing.

        Args:
            x: the features of the training rows.
        """
        return np.zeros(0, dtype=np.int64)

    def names(self) -> list[str] | None:
        """What the features are called; None where they have no names of their own."""
        return None

    def forget_columns(self, columns: NDArray[np.int64]) -> None:  # noqa: B027 (few kinds have names of columns)
        """Leave nothing of what columns are called, such as words of texts that are gone; they stay columns."""

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What `from_state` needs: a configuration that JSON can hold, and arrays by name."""
        return {"kind": self.kind, "n_features": self.n_features_in}, {}

    @staticmethod
    def from_state(config: Any, arrays: dict[str, NDArray[Any]]) -> Features:
        """Restore a fitted step; it transforms to the same bits as the one that was stored.

        Raises:
            ModelFormatError: the state is not what `to_state` gives.
        """
        kind = config.get("kind") if isinstance(config, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ModelFormatError(f"the stored features step has the kind {kind!r}, not one of {', '.join(_KINDS)}")
        n_features = config.get("n_features")
        if not isinstance(n_features, int) or isinstance(n_features, bool) or n_features < 1:
            raise ModelFormatError(f"the stored features step has n_features {n_features!r}, not a positive integer")
        features = _KINDS[kind]()
        features._restore(config, arrays)
        return features

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Set what `fit` sets; `config` has a valid kind and n_features, all else is unchecked."""
        self.n_features_in = config["n_features"]


def stored_column(arrays: dict[str, Any], name: str, n_features: int) -> NDArray[np.float32]:
    stored = arrays.get(name)
    if not isinstance(stored, np.ndarray) or stored.dtype != np.float32 or stored.shape != (n_features,):
        raise ModelFormatError(f"the stored features step has no float32 {name!r} array of {n_features} numbers")
    if not np.isfinite(stored).all():
        raise ModelFormatError(f"the stored features step has a {name!r} array that is not finite")
    return stored


def tfidf(counts: FloatCSR, idf: NDArray[np.float32]) -> FloatCSR:
    """Counts weighed as (1 + ln count) idf, rows scaled to unit norm, in their place.

    It is `sklearn.feature_extraction.text.TfidfTransformer` with sublinear tf, to the bit, without its checks, which of
    one row take longer than the rest.

    Args:
        counts: N x D, each at least 1.
        idf: of the features, D.
    """
    np.log(counts.data, out=counts.data)
    counts.data += 1
    counts.data *= idf[counts.indices]
    inplace_csr_row_normalize_l2(counts)
    return counts


def stored_idf(arrays: dict[str, Any], n_features: int) -> NDArray[Any]:
    idf = arrays.get("idf")
    if not isinstance(idf, np.ndarray) or idf.dtype != np.float32 or idf.shape != (n_features,):
        raise ModelFormatError(f"the stored features step has no float32 'idf' array of {n_features} weights")
    if not (np.isfinite(idf).all() and (idf > 0).all()):
        raise ModelFormatError("the stored features step has idf weights that are not finite and positive")
    return idf
