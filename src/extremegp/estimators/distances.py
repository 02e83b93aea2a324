"""How far rows are from training rows: what estimators tell new rows by."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from extremegp.data import Features, FloatMatrix
from extremegp.data.sequence_features import SequenceFeatures
from extremegp.errors import SettingsError
from extremegp.prediction.novelty import Novelty


class TellsNovelty:
    """An estimator that tells which rows are new to it.

    Attributes:
        novelty_: the training rows that others are compared with; None in models that earlier versions saved.
    """

    features_: Any
    novelty_: Novelty | None

    @abstractmethod
    def _transform(self, X: Any) -> FloatMatrix:
        """The features of new inputs."""

    def predict_novelty(self, X: Any) -> NDArray[Any]:
        """Whether rows are like the training rows: a p-value for each, N in (0, 1].

        It is the share of training rows that are at least as far from the others as the row is from them, where the row
        counts as one of them. Of rows that come from where the training rows came from, about 1 % have one of 0.01 or
        less. Labels play no part in it. See `Novelty`.

        Args:
            X: as in `fit`.

        Raises:
            DataError: X cannot be used.
            SettingsError: the model is of an earlier version, which kept no distances.
        """
        return self._kept_novelty().p_values(self._transform(X), self.features_.unknown_shares(X))

    def novelty_of(self, X: Any, x: FloatMatrix) -> NDArray[Any]:
        """As `predict_novelty`, of rows X whose features x are known, and NaN where the model cannot tell."""
        if self.novelty_ is None:
            return np.full(x.shape[0], np.nan)
        return self.novelty_.p_values(x, self.features_.unknown_shares(X))

    def _kept_novelty(self) -> Novelty:
        check_is_fitted(self, "model_")
        if self.novelty_ is None:
            raise SettingsError(
                "the model was saved by an earlier version, which kept no distances of training rows: train it again "
                "to tell which rows are new to it"
            )
        return self.novelty_


class TellsTokenNovelty(TellsNovelty):
    """An estimator that tells which tokens of sequences are new to it."""

    def predict_novelty(self, X: Any) -> list[NDArray[np.float64]]:  # type: ignore[override]
        """Whether tokens are like the training tokens: a p-value for each, in (0, 1], an array of T for every sequence.

        It is the share of training tokens that are at least as far from the others as the token is from them. It is
        exact for tokens drawn one by one; those of one sequence are more alike than that. See `Novelty`.

        Args:
            X: as in `fit`.

        Raises:
            DataError: X cannot be used.
            SettingsError: the model is of an earlier version, which kept no distances.
        """
        novelty, X = self._kept_novelty(), read_once(X)
        x, lengths = self.features_.transform(X)
        return np.split(novelty.p_values(x, self.features_.unknown_shares(X)), np.cumsum(lengths)[:-1])


def read_once(X: Any) -> Any:
    """Sequences that may be read more than once."""
    return list(X) if isinstance(X, Iterator) else X


def fit_novelty(features: Features | SequenceFeatures, X: Any, x: FloatMatrix) -> Novelty:
    """The novelty of rows beside training rows.

    Args:
        features: the features step, fitted.
        X: the training rows, or the tokens of sequences, as `fit` was given them.
        x: their features.
    """
    return Novelty.fit(x, features.layout, unknown=features.unknown_shares(X), rare=features.rare_columns(x))
