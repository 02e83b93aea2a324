"""Independent Bernoulli labels with a logistic link (T 4.2-4.3, ML 2-3), all recorded or some of them missing."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.batch import Batch
from extremegp.engine.integrals.logistic import expected_sigmoid, softplus_moments
from extremegp.engine.integrals.races import entropy_parts
from extremegp.engine.likelihoods.base import Likelihood, Prediction, log_odds
from extremegp.engine.mixing import Prior
from extremegp.engine.part import StepSizes, TrainingData
from extremegp.engine.sparse import SparseRows, fill
from extremegp.engine.utilities import Utilities

_MOST_CHUNK = 1 << 20
_PRIOR_STEPS = 60  # of Newton, or of halving an interval where it leaves that


def _moments(
    y: SparseRows, shifts: Float[Tensor, " K"] | None, mean: Tensor, variance: Tensor, labels: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """Of softplus(f) - (1 - y) softplus(f + c), with derivatives by mean and variance."""
    value, dm, dv = softplus_moments(mean, variance)
    if shifts is not None:
        positions, values = _entries(y, labels.start, mean.shape[1])
        absent = 1.0 - values
        shifted_moments = softplus_moments(mean.add_(shifts[labels]), variance)
        for moment, shifted in zip((value, dm, dv), shifted_moments, strict=True):
            flat = shifted.view(-1)
            flat.index_copy_(0, positions, flat.index_select(0, positions) * absent)
            moment.sub_(flat.view_as(moment))
    return value, dm, dv


def _entries(y: SparseRows, start: int, width: int) -> tuple[Int[Tensor, " entries"], Float[Tensor, " entries"]]:
    """Where the stored entries of `width` columns from `start` on lie in those as a dense, flat B x width; and they."""
    by_label = y.transposed
    first, last = (int(by_label.offsets[column]) for column in (start, start + width))
    places = by_label.columns[first:last] * width + by_label.rows[first:last] - start
    return places, by_label.values[first:last]


class BernoulliLabels(Likelihood):
    """y_k = 1 with probability sigma(f_k), independently for every label given the utilities.

    A soft label y in [0, 1] counts as log p(1) with weight y and as log p(0) with weight 1 - y.

    With propensities p_k a label that applies is recorded with probability p_k only (Jain, Prabhu and Varma 2016): y_k
    is what was recorded, 1 with probability p_k sigma(f_k), and sigma(f_k) the probability that label k applies.

    Args:
        propensities: p_k in (0, 1], K; None where every label that applies was recorded. An error of the expectations
            is relative to them, not to the difference of two that a small p_k makes of it: it grows as 1 / p_k.
    """

    labels_independent = sums_over_labels = takes_known_labels = takes_weights = takes_soft_labels = has_prior = True
    has_label_terms = True
    link = "logit"
    propensities: Float[Tensor, " K"] | None

    def __init__(self, propensities: Float[Tensor, " K"] | None = None) -> None:
        super().__init__()
        self.register_buffer("propensities", propensities)

    def start(self, data: TrainingData) -> None:
        if data.propensities is not None:
            assert self.propensities is not None
            fill(self.propensities, data.propensities)

    def start_bias(self, frequencies: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
        return log_odds(frequencies, n_rows)

    @torch.no_grad()
    def prior_bias(
        self, frequencies: NDArray[np.float64], n_rows: int, variances: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        odds, variance = torch.from_numpy(log_odds(frequencies, n_rows)), torch.from_numpy(variances).double()
        # The variance only takes probabilities nearer to one half.
        low, high = odds - 10 * (1 + variance), odds + 10 * (1 + variance)
        bias = odds * (1 + math.pi * variance / 8).sqrt()
        for _ in range(_PRIOR_STEPS):
            _, found, half_slope = softplus_moments(bias, variance)
            gap = torch.logit(found) - odds
            low, high = torch.where(gap > 0, low, bias), torch.where(gap > 0, bias, high)
            newton = bias - gap * found * (1 - found) / (2 * half_slope)
            step = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high)) - bias
            bias = bias + step
            if float(step.abs().max()) < 1e-7:
                break
        return bias.numpy()

    def prior(self, frequencies: NDArray[np.float64], n_rows: int) -> Prior:
        return _Frequencies(torch.from_numpy(log_odds(frequencies, n_rows)).sigmoid())

    def select(self, labels: Int[Tensor, " L"]) -> BernoulliLabels:
        """The likelihood of L of the labels."""
        return type(self)(None if self.propensities is None else self.propensities.index_select(0, labels))

    def expected_log_prob(self, utilities: Utilities, batch: Batch) -> Float[Tensor, ""]:
        """sum_ik w_i E_q[log p(y_ik | f_ik)] over the batch and K labels.

        Without propensities and weights this is sum_ik y_ik E f_ik - sum_ik E softplus(f_ik). With propensities, as
        1 - p sigma(f) is (1 + e^{f + c}) / (1 + e^f) for c = log(1 - p), it is sum_ik y_ik (E f_ik + log p_k) -
        sum_ik E softplus(f_ik) + sum_ik (1 - y_ik) E softplus(f_ik + c_k).
        """
        y, shifts = batch.y, None if self.propensities is None else torch.log1p(-self.propensities)
        softplus = utilities.expectation_sum(partial(_moments, y, shifts), batch.label_weights, batch.weights)
        present = batch.weighted_y
        data = utilities.weighted_mean_sum(present) - softplus
        return data if self.propensities is None else data + present.values @ self.propensities.log()[y.columns]

    def label_terms(
        self, mean: Float[Tensor, "B L"], variance: Float[Tensor, "B L"], y: Float[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        value, by_mean, by_variance = softplus_moments(mean, variance)
        terms = y * mean - value, y - by_mean, -by_variance
        if self.propensities is None:
            return terms
        value, by_mean, by_variance = softplus_moments(mean + torch.log1p(-self.propensities), variance)
        shifted = y * self.propensities.log() + (1 - y) * value, (1 - y) * by_mean, (1 - y) * by_variance
        value, by_mean, by_variance = (one + other for one, other in zip(terms, shifted, strict=True))
        return value, by_mean, by_variance

    def predict(self, utilities: Utilities) -> Prediction:
        mean, variance = utilities.marginals()
        return Prediction(mean, self.of_marginals(mean, variance))

    def entropies(self, utilities: Utilities) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        """Of labels that apply: with p = E sigma(f), E H(sigma(f)) = E softplus(f) - m p - v E sigma'(f).

        H(sigma(f)) is softplus(f) - f sigma(f), and E (f - m) sigma(f) = v E sigma'(f) by Stein's lemma.
        """
        mean, variance = (part.double() for part in utilities.marginals())
        # Entropy is even in f; on the left nothing cancels.
        value, expected, half_slope = softplus_moments(-mean.abs(), variance)
        total = torch.special.entr(expected) + torch.special.entr(1 - expected)
        conditional = value + mean.abs() * expected - 2 * variance * half_slope
        return total, torch.minimum(conditional.clamp(min=0.0), total)

    def of_marginals(self, mean: Float[Tensor, "*S B L"], variance: Float[Tensor, "*S B L"]) -> Float[Tensor, "*S B L"]:
        """E sigma(f_k), the posterior of the utility integrated out (T 4.36): that label k applies, recorded or not."""
        return expected_sigmoid(mean, variance)

    def conditional(self, f: Float[Tensor, "*S B L"]) -> Float[Tensor, "*S B L"]:
        return f.sigmoid()

    def step_elements(self, sizes: StepSizes) -> int:
        # It goes through the labels in pieces.
        return (12 if self.propensities is None else 20) * min(sizes.rows * sizes.labels, _MOST_CHUNK)


class _Frequencies(Prior):
    """Labels that are expected with their frequencies."""

    def __init__(self, wanted: Float[Tensor, " K"]) -> None:
        self.wanted = wanted

    def follow(self, bias: Float[Tensor, " K"], variance: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """A Newton step on the logarithm of the expectation, which is concave in the bias."""
        _, expected, half_slope = softplus_moments(bias, variance)
        wanted = self.wanted.to(bias)
        step = (wanted.log() - expected.log()) * expected / (2 * half_slope).clamp(min=1e-30)
        return bias + step.clamp(-1.0, 1.0)

    def select(self, labels: Int[Tensor, " L"]) -> _Frequencies:
        return _Frequencies(self.wanted.index_select(0, labels.to(self.wanted.device)))


class IndependentClasses(BernoulliLabels):
    """One class out of K by K Bernoulli labels: the class is 1, all others are 0 (T section 4.5.4, MLGPF on MNIST)."""

    has_classes = True
    takes_known_labels = has_prior = has_label_terms = False

    def predict(self, utilities: Utilities) -> Prediction:
        """Mean utilities, and the probabilities of the labels scaled to add up to one."""
        mean, variance = utilities.marginals()
        probabilities = self.of_marginals(mean, variance)
        total = probabilities.sum(1, keepdim=True)
        # Where all of them vanish sigma is the exponential function, whose ratios do not.
        limit = (mean + 0.5 * variance).softmax(1)
        return Prediction(mean, torch.where(total < 1e-30, limit, probabilities / total))

    def entropies(self, utilities: Utilities) -> tuple[Float[Tensor, "B 1"], Float[Tensor, "B 1"]]:
        """Of the class, by draws of the latent functions."""
        total, aleatoric = entropy_parts(utilities, self.conditional)
        return total.unsqueeze(1), aleatoric.unsqueeze(1)

    def conditional(self, f: Float[Tensor, "*S B K"]) -> Float[Tensor, "*S B K"]:
        """The probabilities of known utilities, scaled as in `predict`."""
        return torch.nn.functional.logsigmoid(f).softmax(-1)
