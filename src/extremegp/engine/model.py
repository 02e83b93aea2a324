"""Latents + mixing + likelihood: one bound, one predictive distribution."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.latents.base import ConditionedLatents, Latents, Marginals, functions_of
from extremegp.engine.likelihoods.base import BatchContext, Likelihood
from extremegp.engine.mean import RegressionMean
from extremegp.engine.mixing import IdentityMixing, Mixing
from extremegp.engine.sparse import Inputs, SparseRows


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
        mean_function: added to the utilities; None adds nothing.
    """

    # Of a model of some of the labels: which of the latent functions they have, and by what the KL of those functions
    # stands for that of all.
    _functions: Int[Tensor, " L"] | None = None
    _kl_weight = 1.0

    def __init__(
        self,
        latents: Latents,
        mixing: Mixing,
        likelihood: Likelihood,
        mean_function: RegressionMean | None = None,
    ) -> None:
        super().__init__()
        self.latents, self.mixing, self.likelihood = latents, mixing, likelihood
        self.mean_function = mean_function

    def elbo(
        self,
        x: Inputs,
        y: SparseRows,
        *,
        n_rows: float,
        label_weights: Float[Tensor, " K"] | None = None,
        mean_logits: Float[Tensor, "B K"] | None = None,
        context: BatchContext | None = None,
    ) -> ELBO:
        """The bound from a batch of B inputs and their labels, out of `n_rows`; its mean over batches is exact.

        Args:
            x: the inputs.
            y: their labels that are 1, B x K.
            n_rows: N, or what B rows stand for where rows are not drawn alike.
            label_weights: of the labels in the data term, see `Likelihood.expected_log_prob`.
            mean_logits: what the mean function scales, where it is known; for rows that it was fitted to, its
                predictions without them.
            context: the batch in training.
        """
        conditioned = self.latents.condition()
        latents = self.marginals(conditioned, x, mean_logits)
        data = self.likelihood.expected_log_prob(latents, self.mixing, y, label_weights=label_weights, context=context)
        return ELBO(data, self._kl_weight * conditioned.kl(), n_rows / x.shape[0])

    def restricted(self, labels: Int[Tensor, " L"], *, partial: bool = False) -> VariationalModel:
        """The model of L of the labels: these latent functions, and a mixing with parameters of its own.

        Its mean function still gives all K labels: it needs `mean_logits` of the L.

        Args:
            labels: the labels, ascending.
            partial: where every label has a latent function of its own, leave out those of the other labels, and let
                the KL of the L stand for that of all (T 3.36): without bias if every label is as likely to be among
                the L. The bound then costs nothing more for more labels. Else the KL is that of all functions.
        """
        latents, one_each = self.latents, isinstance(self.mixing, IdentityMixing)
        if one_each and partial:
            latents = functions_of(latents, labels)
        model = VariationalModel(
            latents, self.mixing.restricted(labels), self.likelihood.restricted(labels), self.mean_function
        )
        if one_each and partial:
            model._kl_weight = self.mixing.n_labels / len(labels)
        elif one_each:
            model._functions = labels
        return model

    def marginals(
        self, conditioned: ConditionedLatents, x: Inputs, mean_logits: Float[Tensor, "B K"] | None = None
    ) -> Marginals:
        """Marginals of the latent functions at B inputs, with the offset that the mean function adds to utilities."""
        latents = conditioned.marginals(x, self._functions)
        if self.mean_function is None:
            return latents
        offset = self.mean_function(x) if mean_logits is None else self.mean_function.scaled(mean_logits)
        return latents._replace(offset=offset)

    def utilities(self, conditioned: ConditionedLatents, x: Inputs, labels: slice = slice(None)) -> Marginals:
        """Marginals of the utilities of some labels at B inputs."""
        return self.mixing.utilities(self.marginals(conditioned, x), labels)
