"""What the closed posterior of a regression is worth as utilities: chosen by what predicts rows that are left out."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.engine.latents import Marginals
from extremegp.engine.latents.regression import LeftOut, RegressionGP
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import fill
from extremegp.engine.utilities import Utilities
from extremegp.training.landmark_trial import log_scores, recorded

FLOORS = (1.0, 2.0, 5.0, 10.0)
SHARES = (1.0, 0.3, 0.1, 0.03, 0.0)
"""Floors of the link, and shares of the variance, that are tried."""
_SLOPES = tuple(0.5 * 1.2**power for power in range(16))
_WIDER = (1.0, 1.2, 1.44)  # slopes beside the best without variance
_ROWS = 2000


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
    scores = tried[best]
    enough = scores.mean() - scores.std() / len(scores) ** 0.5
    for share in SHARES:
        wider = {_Tried(best.slope * by, best.floor, share) for by in _WIDER}
        of_share = {values: tried[values] if values in tried else trial.scores(*values) for values in wider}
        tried |= of_share
        chosen = max(of_share, key=lambda values: float(of_share[values].mean()))
        if of_share[chosen].mean() >= enough:
            break
    trial.set(*chosen)
    fill(mixing.bias, trial.bias().numpy())
    data.selections.append(
        Selection.of(
            "the log-likelihood of training rows that are left out; of shares of the variance, the largest that comes "
            "within a standard error of the best",
            chosen._asdict(),
            [(values, float(scores.mean())) for values, scores in sorted(tried.items())],
        )
    )


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
        applies = data.frequencies if data.propensities is None else data.frequencies / data.propensities
        return cls(
            cast(RegressionGP, model.latents),
            model.likelihood,
            applies,
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
        expectations = (
            self.likelihood.predict(utilities).expectations if share else self.likelihood.conditional(utilities.means())
        )
        expectations = recorded(self.likelihood, expectations)
        scores = log_scores(expectations, self.y, classes=self.likelihood.has_classes)
        return scores if self.weights is None else scores * self.weights / self.weights.mean()
