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
from extremegp.engine.lengthscales import Learnt
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.mean import RegressionMean, points_kept
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.regression_variance import RegressionVariance
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import fill, row_block
from extremegp.engine.utilities import Spread, Utilities
from extremegp.training.grids import climbed
from extremegp.training.landmark_trial import log_scores, recorded

FLOORS = (1.0, 2.0, 5.0, 10.0)
SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)
NOISES = (1.0, 3.0)
"""Floors of the link, shares of the variance, and what the noise is multiplied by, that are tried."""
_SLOPES = tuple(0.5 * 1.2**power for power in range(16))
_WIDER = (1.0, 1.2, 1.44)  # slopes beside the best without variance
_FIRST = (1, 8)  # floor and slope that are looked at first
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


def start_on_regression(model: VariationalModel, data: TrainingData, known: VariationalModel | None = None) -> None:
    """Make a model of a regression, in place: fit it, then choose what its link makes of it.

    Slope and floor of the link are those with the highest mean log-likelihood of the training rows, each predicted
    without itself, where the regression is taken to be certain; and so is the noise, on some of the rows. The share of
    the variance is the largest of `SHARES` that comes within a standard error of that: as unsure as the data allow.
    Biases are such that the labels are expected as often as they are where the regression knows nothing.

    Args:
        model: whose latent functions are a `RegressionGP`.
        data: what it is fitted to; its generator decides the rows that are looked at.
        known: a model of such rows whose kernel and noise are taken; None to learn them.
    """
    latents, mixing = cast(RegressionGP, model.latents), cast(IdentityMixing, model.mixing)
    model.likelihood.start(data)
    learnt = _with_noise(model, data) if known is None else _known(known)
    trial = _Trial.of(model, data, latents.fit(data, learnt))
    tried: dict[_Tried, NDArray[np.float64]] = {}
    best = trial.best_link(tried)

    def with_share(share: float) -> tuple[_Tried, NDArray[np.float64]]:
        wider = [_Tried(best.slope * by, best.floor, share) for by in _WIDER]
        of_share = {values: trial.scores(*values) for values in wider}
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


def _known(model: VariationalModel) -> Learnt:
    """Kernel and noise of a model."""
    mean = cast(RegressionGP, model.latents).mean
    return mean.known(float(mean.noise))


def _with_noise(model: VariationalModel, data: TrainingData) -> Learnt:
    """Kernel and noise: what is best for squared errors is too sure of itself for probabilities."""
    latents = cast(RegressionGP, model.latents)
    learnt = latents.mean.learnt(data)
    rows = np.sort(data.rng.choice(data.n_rows, min(_ROWS, data.n_rows), replace=False))
    some = data.some(rows)
    kept, stored = points_kept(some.x, len(rows), latents.mean.blocks)
    mean = RegressionMean(
        kept, stored, some.x.shape[1], latents.n_functions, link=latents.link, blocks=latents.mean.blocks, lone=True
    )
    scores: dict[float, NDArray[np.float64]] = {}
    for factor in NOISES:
        left_out = mean.regress(some, learnt._replace(noise=factor * learnt.noise)).left_out.float()
        fill(latents.mean.frequencies, mean.frequencies.numpy())
        latents.limit_frequencies(some.n_counted)
        trial = _Trial.of(model, some, LeftOut(left_out, torch.zeros(len(rows))))
        tried: dict[_Tried, NDArray[np.float64]] = {}
        scores[factor] = tried[trial.best_link(tried)]
    best = max(scores, key=lambda factor: float(scores[factor].mean()))
    data.selections.append(
        Selection.of(
            "the log-likelihood of some training rows, each left out",
            {"noise_scale": best},
            [((factor,), float(of_rows.mean())) for factor, of_rows in scores.items()],
        )
    )
    return learnt._replace(noise=best * learnt.noise)


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
    predicted = likelihood.conditional(utilities.means()) if certain else likelihood.estimates(utilities)
    return log_scores(recorded(likelihood, predicted), y, classes=likelihood.has_classes)


def far_bias(
    latents: RegressionGP, likelihood: Likelihood, frequencies: NDArray[np.float64], n_rows: int
) -> NDArray[np.float64]:
    """Biases under which labels are expected as often as they are, far from all data.

    Args:
        latents: the regression, with its link set.
        likelihood: of the labels.
        frequencies: of them, K.
        n_rows: N.
    """
    mean, variance = (part[0].double().cpu().numpy() for part in latents.of_prior())
    if not variance.any():
        return likelihood.start_bias(frequencies, n_rows)
    return np.asarray(likelihood.prior_bias(frequencies, n_rows, variance) - mean)


def left_out_utilities(model: VariationalModel, left_out: LeftOut) -> Utilities:
    """The utilities of training rows, as the regression that the model is says without each."""
    mean, variance = cast(RegressionGP, model.latents).of(left_out)
    return Utilities(model.mixing, Marginals(mean, variance))


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

    def best_link(self, tried: dict[_Tried, NDArray[np.float64]]) -> _Tried:
        """Slope and floor for a regression that is certain, and the scores of those that were looked at."""

        def at(place: tuple[int, int]) -> _Tried:
            return _Tried(_SLOPES[place[1]], FLOORS[place[0]], 0.0)

        def score(place: tuple[int, int]) -> float:
            if at(place) not in tried:
                tried[at(place)] = self.scores(*at(place))
            return float(tried[at(place)].mean())

        return at(climbed(score, _FIRST, (len(FLOORS), len(_SLOPES)), 0.0))

    def set(self, slope: float, floor: float, share: float) -> None:
        for name, value in (("slope", slope), ("floor", floor), ("share", share)):
            getattr(self.latents, name).fill_(value)

    def bias(self) -> torch.Tensor:
        """Under which the labels are expected as often as they are, far from all data."""
        return torch.from_numpy(far_bias(self.latents, self.likelihood, self.frequencies, self.n_rows)).float()

    @torch.no_grad()
    def scores(self, slope: float, floor: float, share: float) -> NDArray[np.float64]:
        """Log-likelihoods of the rows, times what they count."""
        self.set(slope, floor, share)
        mixing = IdentityMixing(torch.zeros(self.latents.n_functions), self.bias())
        utilities = Utilities(mixing, Marginals(*self.latents.of(self.left_out)))
        scores = _row_scores(self.likelihood, utilities, self.y, certain=not share)
        return scores if self.weights is None else scores * self.weights / self.weights.mean()
