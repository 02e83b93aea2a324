"""A label for every element of a sequence, each depending on the one before: the linear chain (D 4.1, A.4)."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine import chain
from extremegp.engine.batch import Batch
from extremegp.engine.likelihoods.base import Likelihood, Prediction, log_frequencies
from extremegp.engine.likelihoods.chain_draws import ChainDraws
from extremegp.engine.part import StepSizes
from extremegp.engine.sparse import SparseRows
from extremegp.engine.utilities import Utilities

Transitions = Literal["gaussian", "point", "indexed", "none"]
ChainObjective = Literal["exact", "pseudo-likelihood"]
TRANSITIONS: tuple[str, ...] = get_args(Transitions)
CHAIN_OBJECTIVES: tuple[str, ...] = get_args(ChainObjective)


class LinearChain(Likelihood):
    """p(y | f) of whole sequences, exp(sum_t f_un[t, y_t] + f_bin[y_t-1, y_t]) / Z.

    Args:
        n_labels: V.
        transitions: f_bin. "gaussian" is a V x V Gaussian with a factorised posterior (SDGP1, D 4.5.1), "point" its
            maximum a posteriori with a prior that stays fixed, "indexed" are V^2 more functions of every input (SDGP2,
            D 4.5.2), "none" leaves the labels of a sequence independent.
        objective: the log-likelihood itself, or the piecewise pseudo-likelihood in its place (A.4), which costs V a
            step in place of V^2.
        prior_variance: of every entry of f_bin at the start.
    """

    has_classes = has_sequences = needs_independent = takes_weights = True

    def __init__(
        self,
        n_labels: int,
        *,
        transitions: Transitions = "gaussian",
        objective: ChainObjective = "exact",
        prior_variance: float = 1.0,
    ) -> None:
        super().__init__()
        self.n_labels, self.transitions, self.objective = n_labels, transitions, objective
        self.q_mean: nn.Parameter | None = None
        if transitions in ("gaussian", "point"):
            self.q_mean = nn.Parameter(torch.zeros(n_labels, n_labels))
            learn = transitions == "gaussian"
            self.log_prior_variance = nn.Parameter(torch.tensor(math.log(prior_variance)), requires_grad=learn)
        if transitions == "gaussian":
            self.log_ratio = nn.Parameter(torch.full((n_labels, n_labels), math.log(0.25)))

    def n_utilities(self, n_labels: int) -> int:
        """One for each label and, where transitions are indexed, one for each pair of labels."""
        return n_labels * (1 + n_labels * (self.transitions == "indexed"))

    def start_bias(self, frequencies: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
        """Logarithms of the frequencies about their mean, and 0 for pairs."""
        bias, own = super().start_bias(frequencies, n_rows), log_frequencies(frequencies, n_rows)
        bias[: self.n_labels] = own - own.mean()
        return bias

    def expected_log_prob(self, utilities: Utilities, batch: Batch) -> Float[Tensor, ""]:
        """sum_s w_s E_q[log p(y_s | f)] over the sequences, estimated at draws of the functions: its mean is exact."""
        assert batch.lengths is not None
        # The draws of the latent functions come first; those of f_bin go on from there.
        generator = torch.Generator(batch.x.device).manual_seed(batch.seed)
        f = utilities.draws(batch.lengths, batch.n_draws, generator)
        return batch.sum(self.log_prob(f, codes_of(batch.y), batch.lengths, generator)) / batch.n_draws

    def predict(self, utilities: Utilities) -> Prediction:
        """Of elements one by one there is nothing to say: see `draws_of`.

        Raises:
            TypeError: always.
        """
        raise TypeError("labels of a sequence depend on each other: predict them by sequences")

    def draws_of(
        self, f: Float[Tensor, "R B P"], sequences: slice, lengths: Int[Tensor, " S"], generator: torch.Generator
    ) -> ChainDraws:
        """The chains of S sequences at draws of the functions."""
        unary, transitions = self.potentials(f, lengths, generator)
        return ChainDraws(sequences, lengths, unary, transitions.detach())

    def potentials(
        self, f: Float[Tensor, "R B P"], lengths: Int[Tensor, " S"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "R S T V"], Float[Tensor, "*RST V V"]]:
        """f_un and f_bin at draws of the functions, padded, with f_bin drawn as often."""
        v = self.n_labels
        unary = chain.pad(f[..., :v], lengths)
        if self.transitions == "indexed":
            return unary, chain.pad(f[..., v:].reshape(*f.shape[:-1], v, v), lengths, dim=-3)
        if self.q_mean is None:
            return unary, f.new_zeros(v, v)
        if self.transitions == "point":
            return unary, self.q_mean
        noise = torch.randn(len(f), v, v, generator=generator, device=f.device, dtype=f.dtype)
        return unary, self.q_mean + (0.5 * (self.log_ratio + self.log_prior_variance)).exp() * noise

    def log_prob(
        self,
        f: Float[Tensor, "R B P"],
        labels: Int[Tensor, " B"],
        lengths: Int[Tensor, " S"],
        generator: torch.Generator,
    ) -> Float[Tensor, "R S"]:
        """log p(y | f) of every sequence at draws of the functions, or its pseudo-likelihood, as the objective is.

        Of labels that are not known all are summed over, which pseudo-likelihoods cannot.

        Args:
            f: R draws of the functions at the inputs of S sequences, one after the other.
            labels: their labels, -1 for one that is not known.
            lengths: of the sequences.
            generator: decides the draws of f_bin.
        """
        missing = labels < 0
        if self.transitions == "none":
            own = f.log_softmax(-1).gather(-1, labels.clamp(min=0).expand(len(f), -1).unsqueeze(-1)).squeeze(-1)
            return chain.pad(own.masked_fill(missing, 0.0), lengths, dim=-1).sum(-1)
        unary, transitions = self.potentials(f, lengths, generator)
        if missing.any():
            assert self.objective == "exact", "a pseudo-likelihood of labels that are not known"
            return chain.partial_log_prob(unary, transitions, chain.pad(labels, lengths, dim=-1), lengths)
        score = chain.sequence_log_prob if self.objective == "exact" else chain.piecewise_pseudo_likelihood
        return score(unary, transitions, chain.pad(labels, lengths, dim=-1), lengths)

    def kl(self) -> Tensor | float:
        """KL of the posterior of f_bin from its prior; of a point, 1/2 sum f_bin^2 / prior variance."""
        if self.q_mean is None:
            return 0.0
        energy = self.q_mean.square().sum() * (-self.log_prior_variance).exp()
        if self.transitions == "point":
            return 0.5 * energy
        return 0.5 * ((self.log_ratio.exp() - 1 - self.log_ratio).sum() + energy)

    def step_elements(self, sizes: StepSizes) -> int:
        return 12 * sizes.draws * sizes.rows * self.n_utilities(self.n_labels)


def codes_of(y: SparseRows) -> Int[Tensor, " B"]:
    """The label of every row, -1 where there is none."""
    if len(y.columns) == y.shape[0]:
        return y.columns
    return y.columns.new_full((y.shape[0],), -1).index_copy(0, y.rows, y.columns)
