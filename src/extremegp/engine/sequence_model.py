"""Latents + linear chain: the bound and the draws of sequences of labels (D chapter 4)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extremegp.engine.latents import Latents
from extremegp.engine.likelihoods.base import BatchContext
from extremegp.engine.likelihoods.linear_chain import LinearChain
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import ELBO
from extremegp.engine.sparse import Inputs, SparseRows


class SequenceModel(nn.Module):
    """A variational model of label sequences: functions of every input, and a chain of labels given them.

    Args:
        latents: P functions, one for each label and, where transitions are indexed, one for each pair of labels.
        mixing: the scale and bias of each; biases are N(0, 4), of which the most probable are found.
        likelihood: from their values to labels.
    """

    _BIAS_VARIANCE = 4.0

    def __init__(self, latents: Latents, mixing: IdentityMixing, likelihood: LinearChain) -> None:
        super().__init__()
        self.latents, self.mixing, self.likelihood = latents, mixing, likelihood

    def elbo(
        self,
        x: Inputs,
        y: SparseRows,
        *,
        n_rows: float,
        label_weights: Float[Tensor, " V"] | None = None,
        mean_logits: Float[Tensor, "B V"] | None = None,
        context: BatchContext | None = None,
    ) -> ELBO:
        """The bound from a batch of sequences, estimated at draws of the functions; its mean is exact.

        Args:
            x: the B inputs of S sequences, one after the other.
            y: their labels, B x V with one entry a row.
            n_rows: what the B rows stand for: N if they were all.
            label_weights: none; chains have no sums over labels to be sampled.
            mean_logits: none; there is no mean function.
            context: the lengths of the sequences, how many draws to take, and what decides them.
        """
        assert label_weights is None
        assert mean_logits is None
        assert context is not None
        assert context.lengths is not None
        generator = torch.Generator(x.device).manual_seed(context.seed)
        conditioned = self.latents.condition(context.seed)
        f = self.mixing.at(conditioned.draws(x, context.lengths, context.n_draws, generator))
        data = self.likelihood.log_prob(f, y.columns, context.lengths, generator)
        kl = conditioned.kl() + self.likelihood.kl() + 0.5 * self.mixing.bias.square().sum() / self._BIAS_VARIANCE
        return ELBO(data.sum() / context.n_draws, kl, n_rows / x.shape[0])
