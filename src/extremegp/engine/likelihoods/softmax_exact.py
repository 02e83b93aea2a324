"""The softmax likelihood without sampling, where every class has a latent function of its own."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from extremegp.engine.integrals.log_sum_exp import expected_log_sum_exp
from extremegp.engine.latents.base import Marginals
from extremegp.engine.likelihoods.base import BatchContext
from extremegp.engine.likelihoods.softmax import SoftmaxMonteCarlo
from extremegp.engine.mixing import IdentityMixing, Mixing
from extremegp.engine.sparse import SparseRows


class Softmax(SoftmaxMonteCarlo):
    """p(y = c | f) = e^{f_c} / sum_k e^{f_k}, with E log p exact for independent utilities.

    Utilities that are mixed of shared latent functions are not independent: their E log p is estimated from samples.

    Args:
        n_samples: draws for every instance in that case, an even number.
    """

    def expected_log_prob(
        self,
        latents: Marginals,
        mixing: Mixing,
        y: SparseRows,
        *,
        label_weights: Float[Tensor, " K"] | None = None,
        context: BatchContext | None = None,
    ) -> Float[Tensor, ""]:
        """sum_i E f_ic - E log sum_k e^{f_ik}, or an estimate of it with draws that the context's seed decides.

        Raises:
            ValueError: if there are weights: the log of a sum over classes is no sum over classes.
        """
        if label_weights is not None or not isinstance(mixing, IdentityMixing):
            return super().expected_log_prob(latents, mixing, y, label_weights=label_weights, context=context)
        mean, variance, _ = mixing.utilities(latents)
        return (mean.gather(1, y.columns.unsqueeze(1)).squeeze(1) - expected_log_sum_exp(mean, variance)).sum()
