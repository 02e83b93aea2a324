"""Latents + mixing + likelihood: one bound, one predictive distribution."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from extremegp.latents.base import ConditionedLatents, Latents, Marginals
from extremegp.likelihoods.bernoulli import BernoulliLabels
from extremegp.mixing import FactorMixing
from extremegp.sparse import Inputs, SparseRows


class ELBO(NamedTuple):
    """The evidence lower bound of the whole data set, estimated from a batch: scale * data - kl.

    Attributes:
        data: sum over the batch of E_q[log p(y | f)].
        kl: KL[q || p].
        scale: N / B.
    """

    data: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    scale: float

    @property
    def bound(self) -> Float[Tensor, ""]:
        return self.scale * self.data - self.kl

    def tempered(self, kl_weight: float) -> Float[Tensor, ""]:
        """scale * data - kl_weight * kl: the bound itself at weight 1, a cold posterior below."""
        return self.scale * self.data - kl_weight * self.kl


class VariationalModel(nn.Module):
    """A variational Gaussian process model.

    Args:
        latents: P latent functions and their posterior.
        mixing: from latent functions to utilities.
        likelihood: from utilities to labels.
    """

    def __init__(self, latents: Latents, mixing: FactorMixing, likelihood: BernoulliLabels) -> None:
        super().__init__()
        self.latents, self.mixing, self.likelihood = latents, mixing, likelihood

    def elbo(self, x: Inputs, y: SparseRows, *, n_rows: int) -> ELBO:
        """The bound from a batch of B inputs and their labels, out of `n_rows`; its mean over batches is exact."""
        conditioned = self.latents.condition()
        data = self.likelihood.expected_log_prob(conditioned.marginals(x), self.mixing, y)
        return ELBO(data, conditioned.kl(), n_rows / x.shape[0])

    def utilities(self, conditioned: ConditionedLatents, x: Inputs, labels: slice = slice(None)) -> Marginals:
        """Marginals of the utilities of some labels at B inputs."""
        return self.mixing.utilities(conditioned.marginals(x), labels)
