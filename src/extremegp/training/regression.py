"""What the closed posterior of a regression is worth as utilities: chosen by what predicts rows that are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.latents import Marginals
from extremegp.engine.latents.regression import LeftOut, RegressionGP
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.mean import RegressionMean
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.regression_variance import RegressionVariance
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import fill, row_block
from extremegp.engine.utilities import Spread, Utilities
from extremegp.training.landmark_trial import log_scores, recorded

FLOORS = (1.0, 2.0, 5.0, 10.0)
SHARES = (1.0, 0.3, 0.1, 0.03, 0.0)
"""Floors of the link, and shares of the variance, that are tried."""
_SLOPES = tuple(0.5 * 1.2**power for power in range(16))
_WIDER = (1.0, 1.2, 1.44)  # slopes beside the best without variance
_ROWS, _FEWEST_ROWS, _ELEMENTS, _PIECE = 2000, 200, 1 << 22, 250
_BY = (
    "the log-likelihood of training rows that are left out; of shares of the variance, the largest that comes within a "
    "standard error of the best"
)
Values = TypeVar("Values")


class _Tried(NamedTuple):
    slope: float
    floor: float
    share: float


def start_on_regression(model: VariationalModel, data: TrainingData) -> None:
    """Make a model of a regression, in place: fit it, then choose what its link makes of it.

    Slope and floor of the link are those with the highest mean log-likelihood of the training rows, each predicted
    without itself, where the regression is taken to be certain. The share of the variance is the largest of `SHARES`
    that comes within a standard error of that: as unsure as the data allow. Biases are such that the labels are
    expected as often as they are where the regression knows nothing.

    Args:
        model: whose latent functions are a `RegressionGP`.
        data: what it is fitted to; its generator decides the rows that are looked at.
    """
    latents, mixing = cast(RegressionGP, model.latents), cast(IdentityMixing, model.mixing)
    model.likelihood.start(data)
    left_out = latents.fit(data)
    trial = _Trial.of(model, data, left_out)
    tried = {_Tried(slope, floor, 0.0): trial.scores(slope, floor, 0.0) for floor in FLOORS for slope in _SLOPES}
    best = max(tried, key=lambda values: float(tried[values].mean()))

    def with_share(share: float) -> tuple[_Tried, NDArray[np.float64]]:
        wider = {_Tried(best.slope * by, best.floor, share) for by in _WIDER}
        of_share = {values: tried[values] if values in tried else trial.scores(*values) for values in wider}
        tried.update(of_share)
        return max(of_share.items(), key=lambda item: float(item[1].mean()))

    chosen = _most_unsure(tried[best], with_share)
    trial.set(*chosen)
    fill(mixing.bias, trial.bias().numpy())
    data.selections.append(
        Selection.of(
            _BY,
            chosen._asdict(),
            [(values, float(scores.mean())) for values, scores in sorted(tried.items())],
        )
    )


@torch.no_grad()
def spread_regression(model: VariationalModel, data: TrainingData, mean_logits: NDArray[np.float32]) -> None:
    """Give a trained model the variance of its mean function, in place.

    The share of the variance is the largest of `SHARES` that comes within a standard error of the log-likelihood that
    training rows have, each predicted without itself, where the mean function is taken as known. Labels then have the
    probabilities of their frequencies far from all data.

    Args:
        model: with a mean function that is a regression of the labels and its variance, fitted to the same data.
        data: what it was trained on; its generator decides the rows that are looked at.
        mean_logits: what the mean function said of each of the training rows without the row itself, N x K.
    """
    variance, mean = cast(RegressionVariance, model.regression_variance), cast(RegressionMean, model.mean_function)
    most = max(_FEWEST_ROWS, min(_ROWS, _ELEMENTS // model.mixing.n_utilities))
    rows = np.sort(data.rng.choice(data.n_rows, min(most, data.n_rows), replace=False))
    weights = None if data.weights is None else data.weights[rows]
    pieces = [*_known_rows(model, data, mean_logits, rows)]
    certain = [_row_scores(model.likelihood, utilities, y) for utilities, _, y in pieces]

    def weighed(of_pieces: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        scores = np.concatenate(of_pieces)
        return scores if weights is None else scores * weights / weights.mean()

    def settle(share: float) -> None:
        variance.settle(share, mean)
        model.return_to_frequencies(data)

    tried = {0.0: weighed(certain)}

    def with_share(share: float) -> tuple[float, NDArray[np.float64]]:
        if share not in tried:
            settle(share)
            spread = (model.with_spread(known, Spread(left, variance.scales)) for known, left, _ in pieces)
            tried[share] = weighed(
                [_row_scores(model.likelihood, wide, y) for wide, (_, _, y) in zip(spread, pieces, strict=True)]
            )
        return share, tried[share]

    chosen = _most_unsure(tried[0.0], with_share)
    settle(chosen)
    scores = [((share,), float(of_share.mean())) for share, of_share in sorted(tried.items())]
    data.selections.append(Selection.of(_BY, {"share": chosen}, scores))


def _known_rows(
    model: VariationalModel, data: TrainingData, mean_logits: NDArray[np.float32], rows: NDArray[np.int64]
) -> Iterator[tuple[Utilities, Float[Tensor, " n"], scipy.sparse.csr_matrix]]:
    """The utilities of training rows beside the mean function without each, its variance there, and the labels."""
    variance, like = cast(RegressionVariance, model.regression_variance), model.mixing.bias
    known, conditioned = model.without_regression_variance(), model.latents.condition()
    for start in range(0, len(rows), _PIECE):
        own = rows[start : start + _PIECE]
        x = row_block(data.x, own, dtype=like.dtype, device=like.device)
        utilities = known.utilities(conditioned, x, torch.from_numpy(mean_logits[own]).to(like))
        yield utilities, variance.left_out(x, None if data.weights is None else data.weights[own]), data.y[own]


def _most_unsure(
    certain: NDArray[np.float64], with_share: Callable[[float], tuple[Values, NDArray[np.float64]]]
) -> Values:
    """What comes of the largest share of the variance with which rows are about as likely as without any."""
    enough = certain.mean() - certain.std() / len(certain) ** 0.5
    for share in SHARES:
        chosen, scores = with_share(share)
        if scores.mean() >= enough:
            break
    return chosen


def _row_scores(
    likelihood: Likelihood, utilities: Utilities, y: scipy.sparse.csr_matrix, *, certain: bool = False
) -> NDArray[np.float64]:
    """Log-likelihoods of the labels of every row; of utilities that are certain, those at their means."""
    predicted = likelihood.conditional(utilities.means()) if certain else likelihood.predict(utilities).expectations
    return log_scores(recorded(likelihood, predicted), y, classes=likelihood.has_classes)


class _Trial(NamedTuple):
    """Training rows, as the regression without them has them."""

    latents: RegressionGP
    likelihood: Likelihood
    frequencies: NDArray[np.float64]
    n_rows: int
    left_out: LeftOut
    y: scipy.sparse.csr_matrix
    weights: NDArray[np.float64] | None

    @classmethod
    def of(cls, model: VariationalModel, data: TrainingData, left_out: LeftOut) -> _Trial:
        rows = np.sort(data.rng.choice(data.n_rows, min(_ROWS, data.n_rows), replace=False))
        return cls(
            cast(RegressionGP, model.latents),
            model.likelihood,
            data.applies,
            data.n_counted,
            LeftOut(left_out.mean[rows], left_out.variance[rows]),
            data.y[rows],
            None if data.weights is None else data.weights[rows],
        )

    def set(self, slope: float, floor: float, share: float) -> None:
        for name, value in (("slope", slope), ("floor", floor), ("share", share)):
            getattr(self.latents, name).fill_(value)

    def bias(self) -> torch.Tensor:
        """Under which the labels are expected as often as they are, far from all data."""
        mean, variance = (part[0].double().numpy() for part in self.latents.of_prior())
        bias = self.likelihood.start_bias(self.frequencies, self.n_rows)
        if variance.any():
            bias = self.likelihood.prior_bias(self.frequencies, self.n_rows, variance) - mean
        return torch.from_numpy(bias).float()

    @torch.no_grad()
    def scores(self, slope: float, floor: float, share: float) -> NDArray[np.float64]:
        """Log-likelihoods of the rows, times what they count."""
        self.set(slope, floor, share)
        mixing = IdentityMixing(torch.zeros(self.latents.n_functions), self.bias())
        utilities = Utilities(mixing, Marginals(*self.latents.of(self.left_out)))
        scores = _row_scores(self.likelihood, utilities, self.y, certain=not share)
        return scores if self.weights is None else scores * self.weights / self.weights.mean()
