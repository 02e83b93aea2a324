"""What to annotate next: rows of a pool, chosen by what a model does not know of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from extremegp.data import FloatMatrix
from extremegp.engine.kept_rows import KeptRows
from extremegp.engine.model import VariationalModel
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.held_rows import HeldRows
from extremegp.label_tree import LabelTreeModel
from extremegp.prediction.pool_covariance import KnownRegression, posterior_covariance
from extremegp.prediction.selection import (
    ANNOTATED_NOISE,
    Selected,
    at_random,
    greedy_log_determinant,
    highest,
    informative,
)
from extremegp.settings.domains import choice, number
from extremegp.settings.model import ModelSettings

SelectedBy = Literal["posterior", "least_confidence", "bald", "random"]
_ROUND, _CANDIDATES, _POWER = 1024, 4096, 0.5
_WITHOUT = 'take by="bald" or by="least_confidence"'


class Doubt(NamedTuple):
    """What is not certain of the labels of some rows, B each.

    Attributes:
        unsure: what "least_confidence" goes by.
        entropy: of the labels, in nats.
    """

    unsure: NDArray[np.float64]
    entropy: NDArray[np.float64]


class SelectsRows:
    """An estimator of rows that says which ones to annotate next."""

    def select(self, X: Any, n: int, by: SelectedBy = "posterior", *, seed: int = 0) -> Selected:
        """Which rows of a pool without labels to annotate next, and in which order.

        Args:
            X: the pool, as in `fit`, without rows that the model has learnt already.
            n: how many rows to choose.
            by: "posterior" chooses rows together, by the log-determinant of the posterior covariance of the pool under
                the regression of the labels, which all labels share: a row that is much like one chosen before adds
                little. What a row adds is weighed by the entropy of its labels and by how much it says of the other
                rows. It looks at 4096 rows of a larger pool, or for more than 1024 rows at twice as many as are chosen,
                drawn at random, and at no more training rows. "bald" chooses rows with the most mutual information
                between labels and utilities, the `epistemic` of `predict_uncertainty`; "least_confidence" those with
                the highest entropies of their labels, of classes those whose most probable class is least probable;
                "random" any.
            seed: decides what is drawn at random; equal seeds choose equal rows.

        Raises:
            SettingsError: an argument is outside its domain, or the model has no regression of the labels that
                "posterior" could go by.
            DataError: X cannot be used, or has fewer than n rows.
        """
        check_is_fitted(self, "model_")
        choice("by", by, get_args(SelectedBy))
        n = number("n", n, low=1, integer=True)
        seed = number("seed", seed, low=0, high=2**32 - 1, integer=True)
        known = self._known_regression() if by == "posterior" else None
        x = self._transform(X)
        if n > x.shape[0]:
            raise DataError(f"{n} rows are to be chosen, but the pool has {x.shape[0]}")
        if by == "random":
            return at_random(x.shape[0], n, seed)
        if known is not None:
            return self._together(known, x, n, np.random.default_rng(seed))
        scores = self._information(x) if by == "bald" else (doubt.unsure for doubt in self._doubts(x))
        return highest(np.concatenate([*scores]), n)

    def _together(self, known: KnownRegression, x: FloatMatrix, n: int, rng: np.random.Generator) -> Selected:
        """In rounds of 1024 rows, each of which has candidates of its own, and knows rows of the rounds before."""
        n_rounds = -(-n // _ROUND)
        most = n_rounds * (_CANDIDATES if n_rounds == 1 else 2 * _ROUND)
        order = rng.permutation(x.shape[0])[:most]
        rounds: list[Selected] = []
        shares = np.array_split(np.arange(n), n_rounds)
        for candidates, share in zip(np.array_split(order, n_rounds), shares, strict=True):
            rows = np.sort(candidates)
            taken = np.concatenate([each.rows for each in rounds]) if rounds else rows[:0]
            part, stands_on = x[rows], known.beside(x, taken, _CANDIDATES // 2 if rounds else _CANDIDATES)
            entropies = np.concatenate([doubt.entropy for doubt in self._doubts(part)])
            covariance = posterior_covariance(stands_on, part)
            weights = entropies * informative(covariance, known.noise) ** _POWER
            found = greedy_log_determinant(covariance, weights, ANNOTATED_NOISE, len(share))
            rounds.append(Selected(rows[found.rows], found.scores))
        return Selected(*map(np.concatenate, zip(*rounds, strict=True)))

    def _information(self, x: FloatMatrix) -> Iterator[NDArray[np.float64]]:
        for _, total, aleatoric, *_ in self._entropies(x):
            yield (total - aleatoric).reshape(len(total), -1).sum(axis=1, dtype=np.float64)

    @abstractmethod
    def _transform(self, X: Any) -> FloatMatrix: ...

    @abstractmethod
    def _doubts(self, x: FloatMatrix) -> Iterator[Doubt]:
        """What is not certain of the labels of rows, a block of them at a time."""

    @abstractmethod
    def _entropies(self, x: FloatMatrix) -> Iterator[tuple[Any, ...]]:
        """Rows, entropies of labels, and what is left of these were the utilities known; a block at a time."""

    @abstractmethod
    def _known_regression(self) -> KnownRegression:
        """The regression whose posterior "posterior" goes by.

        Raises:
            SettingsError: there is none.
        """


def regression_of_trees(model: LabelTreeModel) -> KnownRegression:
    """That of label trees on near rows: on all of them, it has the same kernel and noise."""
    if model.regression is None:
        raise SettingsError(f'by="posterior" goes by the regression of near rows: n_regressed is 0; {_WITHOUT}')
    rows, regression = model.rows, model.regression
    kernel = KeptRows(0, 0, rows.settings.n_features, lone=True)
    kernel.weights.fill_(float(regression.precision))
    return KnownRegression(kernel, float(regression.noise), rows.inputs(), rows.row_weights().astype(np.float64))


def regression_of_functions(
    model: VariationalModel, settings: ModelSettings, held: HeldRows | None, n_rows: int
) -> KnownRegression:
    """The regression that functions are, or that stands beside them.

    Args:
        model: of rows.
        settings: what it is.
        held: the training rows, where the estimator keeps them; else those that the model keeps stand for all.
        n_rows: N.
    """
    latents: Any = model.latents
    mean: Any = latents.mean if settings.is_closed else model.mean_function
    noise = getattr(mean, "noise", None)
    if noise is None:
        raise SettingsError(
            'by="posterior" goes by a regression of the labels, and this model has none (mean_function="zero", latents '
            f"without one, or an earlier version): {_WITHOUT}"
        )
    kernel: KeptRows = mean if model.features is None else model.features.kept
    if held is not None:
        x, _, counts = held.all()
        return KnownRegression(kernel, float(noise), x, counts)
    points: Any = kernel.kept()
    return KnownRegression(kernel, float(noise), points, np.full(points.shape[0], n_rows / points.shape[0]))


def doubt_of_classes(probabilities: NDArray[Any]) -> Doubt:
    """Of one class for each row, from B x K probabilities."""
    p = torch.from_numpy(np.asarray(probabilities, np.float64))
    return Doubt(1 - p.max(dim=1).values.numpy(), torch.special.entr(p).sum(dim=1).numpy())
