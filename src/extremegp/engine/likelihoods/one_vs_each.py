"""One class against each other one: products of pairwise probabilities, logistic or probit."""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.batch import Batch
from extremegp.engine.integrals.logistic import expected_softplus
from extremegp.engine.integrals.probit import expected_log_ndtr
from extremegp.engine.integrals.races import max_probabilities, probit_probabilities, softmax_probabilities
from extremegp.engine.likelihoods.base import ClassEntries, ClassLikelihood
from extremegp.engine.utilities import Utilities


def sum_over_others(
    terms: Float[Tensor, "B K"], classes: Int[Tensor, " B"], label_weights: Float[Tensor, " K"] | None
) -> Float[Tensor, " B"]:
    """sum_{l != c} w_l t_l of every row, c its class; weights are 1 by default."""
    others = terms.scatter(1, classes.unsqueeze(1), 0.0)
    return others.sum(1) if label_weights is None else others @ label_weights


class _Pairwise(ClassLikelihood):
    """log p(y = c | f) = sum_{l != c} log g(f_c - f_l) for a distribution function g."""

    sums_over_labels = True

    def expected_log_prob(self, utilities: Utilities, batch: Batch) -> Float[Tensor, ""]:
        entries = ClassEntries.of(utilities, batch)
        terms = self._pairwise(*entries.utilities.differences(entries.classes))
        return entries.sum(sum_over_others(terms, entries.classes, batch.label_weights))

    @abstractmethod
    def _pairwise(self, mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """E log g(d) for d ~ N(mean, variance)."""


class OneVsEach(_Pairwise):
    """The bound prod_{l != c} sigma(f_c - f_l) on the softmax probability of class c (T 3.3-3.36, X 11).

    It is a sum over pairs of classes in the logarithm, so that a sample of the other classes estimates it without bias.
    """

    def _pairwise(self, mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        return -expected_softplus(-mean, variance)

    def probabilities(self, utilities: Utilities) -> Float[Tensor, "B K"]:
        """Those of the softmax that is bounded (T 3.37)."""
        return softmax_probabilities(utilities)


class ProbitOneVsEach(_Pairwise):
    """prod_{l != c} Phi(f_c - f_l), the one-vs-each bound with a probit link ("GP-HL", X section 4.2).

    It bounds the multinomial probit likelihood P(f_c + e_c > f_l + e_l for all l != c), e_k ~ N(0, 1/2): each pair has
    probability Phi(f_c - f_l), and the events of all pairs, which share e_c, are positively correlated.
    """

    step_arrays = 8

    def conditional(self, f: Float[Tensor, "*S B K"]) -> Float[Tensor, "*S B K"]:
        """The multinomial probit, as `probabilities` without the uncertainty about f."""
        flat = f.flatten(0, -2)
        return probit_probabilities(flat, torch.zeros_like(flat)).view_as(f)

    def _pairwise(self, mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        return expected_log_ndtr(mean, variance)

    def probabilities(self, utilities: Utilities) -> Float[Tensor, "B K"]:
        """Those of the multinomial probit."""
        return max_probabilities(utilities, noise_variance=0.5)
