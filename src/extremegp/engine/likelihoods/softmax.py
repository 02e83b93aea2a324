"""The softmax likelihood: its expectation exact for independent utilities, or estimated from samples."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.batch import Batch
from extremegp.engine.integrals.log_sum_exp import expected_log_sum_exp
from extremegp.engine.integrals.races import softmax_probabilities
from extremegp.engine.likelihoods.base import ClassLikelihood, of_classes
from extremegp.engine.part import StepSizes
from extremegp.engine.utilities import Utilities


class SoftmaxMonteCarlo(ClassLikelihood):
    """p(y = c | f) = e^{f_c} / sum_k e^{f_k}, with E log p an average over reparameterised draws of f.

    It is without bias and differentiable. Draws come in antithetic pairs, h and its mirror image in the mean.

    Args:
        n_samples: draws for every instance, an even number; memory is O(n_samples B K).
    """

    step_arrays = 30

    def __init__(self, n_samples: int = 8) -> None:
        super().__init__()
        if n_samples < 2 or n_samples % 2:
            raise ValueError(f"samples come in antithetic pairs: n_samples must be even and positive, not {n_samples}")
        self.n_samples = n_samples

    def expected_log_prob(self, utilities: Utilities, batch: Batch) -> Float[Tensor, ""]:
        """The estimate, summed over the batch; the seed of the batch decides the draws.

        Raises:
            ValueError: if there are weights: the log of a sum over classes is no sum over classes.
        """
        if batch.label_weights is not None:
            raise ValueError("log softmax is no sum over classes: it cannot be estimated from a sample of them")
        mean = utilities.latents.mean
        generator = torch.Generator(mean.device).manual_seed(batch.seed)
        size = self.n_samples // 2, len(mean), utilities.n_noise
        half = torch.randn(*size, generator=generator, dtype=mean.dtype, device=mean.device)
        f = utilities.sample(torch.cat([half, -half]))
        return batch.sum(of_classes(f, batch.y) - torch.logsumexp(f, 2)) / self.n_samples

    def probabilities(self, utilities: Utilities) -> Float[Tensor, "B K"]:
        """E softmax(f)."""
        return softmax_probabilities(utilities)

    def step_elements(self, sizes: StepSizes) -> int:
        # One normaliser serves all classes of a row.
        return super().step_elements(sizes._replace(classes=1))


class Softmax(SoftmaxMonteCarlo):
    """p(y = c | f) = e^{f_c} / sum_k e^{f_k}, with E log p exact for independent utilities.

    Utilities that are mixed of shared latent functions are not independent: their E log p is estimated from samples.

    Args:
        n_samples: draws for every instance in that case, an even number.
    """

    has_prior = True

    def expected_log_prob(self, utilities: Utilities, batch: Batch) -> Float[Tensor, ""]:
        """sum_i w_i (E f_ic - E log sum_k e^{f_ik}), or an estimate of it with draws that the batch's seed decides.

        Raises:
            ValueError: if there are weights: the log of a sum over classes is no sum over classes.
        """
        if batch.label_weights is not None or not utilities.independent:
            return super().expected_log_prob(utilities, batch)
        mean, variance = utilities.marginals()
        return batch.sum(of_classes(mean, batch.y) - expected_log_sum_exp(mean, variance))
