"""What every likelihood provides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.latents.base import Marginals
from extremegp.engine.mixing import Mixing
from extremegp.engine.sparse import Inputs, SparseRows


class BatchContext(NamedTuple):
    """What else a likelihood may need to know of a batch in training.

    Attributes:
        x: the inputs.
        rows: their numbers among all training rows.
        seed: decides what is drawn at random; it differs from step to step.
        lengths: of the sequences that the rows are, one after the other; None where rows stand alone.
        n_draws: how many draws an expectation without closed form is estimated from.
    """

    x: Inputs
    rows: Int[Tensor, " B"]
    seed: int = 0
    lengths: Int[Tensor, " S"] | None = None
    n_draws: int = 1


class Likelihood(nn.Module, ABC):
    """p(y | f): from utilities to labels."""

    @abstractmethod
    def expected_log_prob(
        self,
        latents: Marginals,
        mixing: Mixing,
        y: SparseRows,
        *,
        label_weights: Float[Tensor, " K"] | None = None,
        context: BatchContext | None = None,
    ) -> Float[Tensor, ""]:
        """sum_i E_q[log p(y_i | f_i)] over the batch, or a lower bound of it.

        Args:
            latents: marginals of the P latent functions at the B inputs.
            mixing: how they become utilities.
            y: the labels that are 1, B x K.
            label_weights: weights of the labels in sums over labels, 1 for every label that some row has; None for 1
                throughout. Weights of the others by which a sample of them stands for all make the sum an estimate.
            context: the batch in training.
        """

    @abstractmethod
    def predict(self, latents: Marginals, mixing: Mixing) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        """Mean utilities, and the probabilities of the labels with the posterior integrated out."""

    def restricted(self, labels: Int[Tensor, " L"]) -> Likelihood:
        """The likelihood of L of the labels; it shares its parameters with this one."""
        return self


class ClassLikelihood(Likelihood):
    """p(y = c | f) for one class c out of K: every row of y has exactly one entry, in the column of its class."""

    def conditional(self, f: Float[Tensor, "*S B K"]) -> Float[Tensor, "*S B K"]:
        """p(y = k | f) of known utilities; of the softmax and its bounds, softmax."""
        return f.softmax(-1)

    @abstractmethod
    def probabilities(self, latents: Marginals, mixing: Mixing) -> Float[Tensor, "B K"]:
        """p(y = k) with the posterior integrated out; rows add up to one."""

    def predict(self, latents: Marginals, mixing: Mixing) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        return mixing.mean_utilities(latents), self.probabilities(latents, mixing)
