"""A likelihood of counts: one file, which imports only from extremegp (and torch)."""

from __future__ import annotations

import numpy as np
import torch

from extremegp.engine.likelihoods import Likelihood, Prediction


class Poisson(Likelihood):
    """y_k ~ Poisson(e^{f_k}), independently for every label given the utilities."""

    labels_independent = sums_over_labels = has_counts = True

    def expected_log_prob(self, utilities, batch):
        """sum_ik w_k (y_ik E f_ik - E e^{f_ik} - log y_ik!)."""

        def rates(mean, variance, labels):
            rate = (mean + 0.5 * variance).exp()
            return rate, rate, 0.5 * rate

        y = batch.y
        return (
            utilities.weighted_mean_sum(y)
            - utilities.expectation_sum(rates, batch.label_weights)
            - torch.lgamma(y.values + 1.0).sum()
        )

    def of_marginals(self, mean, variance):
        return (mean + 0.5 * variance).exp()

    def predict(self, utilities):
        mean, variance = utilities.marginals()
        return Prediction(mean, self.of_marginals(mean, variance))

    def start_bias(self, frequencies, n_rows):
        return np.log(np.maximum(frequencies, 0.5 / n_rows))
