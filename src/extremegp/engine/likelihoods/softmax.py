"""The softmax likelihood itself, its expectation estimated from samples: what the bounds are measured against."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.integrals.races import softmax_probabilities
from extremegp.engine.latents.base import Marginals
from extremegp.engine.likelihoods.base import BatchContext, ClassLikelihood
from extremegp.engine.mixing import Mixing
from extremegp.engine.sparse import SparseRows


class SoftmaxMonteCarlo(ClassLikelihood):
    """p(y = c | f) = e^{f_c} / sum_k e^{f_k}, with E log p an average over reparameterised draws of f.

    It is without bias and differentiable. Draws come in antithetic pairs, h and its mirror image in the mean.

    Args:
        n_samples: draws for every instance, an even number; memory is O(n_samples B K).
    """

    def __init__(self, n_samples: int = 8) -> None:
        super().__init__()
        if n_samples < 2 or n_samples % 2:
            raise ValueError(f"samples come in antithetic pairs: n_samples must be even and positive, not {n_samples}")
        self.n_samples = n_samples

    def expected_log_prob(
        self,
        latents: Marginals,
        mixing: Mixing,
        y: SparseRows,
        *,
        label_weights: Float[Tensor, " K"] | None = None,
        context: BatchContext | None = None,
    ) -> Float[Tensor, ""]:
        """The estimate, summed over the batch; the seed of the context decides the draws, 0 without one.

        Raises:
            ValueError: if there are weights: the log of a sum over classes is no sum over classes.
        """
        if label_weights is not None:
            raise ValueError("log softmax is no sum over classes: it cannot be estimated from a sample of them")
        mean = latents.mean
        generator = torch.Generator(mean.device).manual_seed(0 if context is None else context.seed)
        half = torch.randn(self.n_samples // 2, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        f = mixing.sample(latents, torch.cat([half, -half]))
        own = f.gather(2, y.columns.view(1, -1, 1).expand(len(f), -1, 1)).squeeze(2)
        return (own - torch.logsumexp(f, 2)).sum() / self.n_samples

    def probabilities(self, latents: Marginals, mixing: Mixing) -> Float[Tensor, "B K"]:
        """E softmax(f)."""
        return softmax_probabilities(latents, mixing)
