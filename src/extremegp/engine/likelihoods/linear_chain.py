"""A label for every element of a sequence, each depending on the one before: the linear chain (D 4.1, A.4)."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine import chain

Transitions = Literal["gaussian", "point", "indexed", "none"]
ChainObjective = Literal["exact", "pseudo-likelihood"]
TRANSITIONS: tuple[str, ...] = get_args(Transitions)
CHAIN_OBJECTIVES: tuple[str, ...] = get_args(ChainObjective)


class LinearChain(nn.Module):
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

    @property
    def n_functions(self) -> int:
        """How many functions of the inputs the likelihood takes."""
        return self.n_labels * (1 + self.n_labels * (self.transitions == "indexed"))

    def potentials(
        self, f: Float[Tensor, "R B P"], lengths: Int[Tensor, " S"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "R S T V"], Float[Tensor, "R *ST V V"]]:
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

        Args:
            f: R draws of the functions at the inputs of S sequences, one after the other.
            labels: their labels.
            lengths: of the sequences.
            generator: decides the draws of f_bin.
        """
        if self.transitions == "none":
            own = f.log_softmax(-1).gather(-1, labels.expand(len(f), -1).unsqueeze(-1)).squeeze(-1)
            return chain.pad(own, lengths, dim=-1).sum(-1)
        unary, transitions = self.potentials(f, lengths, generator)
        score = chain.sequence_log_prob if self.objective == "exact" else chain.piecewise_pseudo_likelihood
        return score(unary, transitions, chain.pad(labels, lengths, dim=-1), lengths)

    def kl(self) -> Float[Tensor, ""]:
        """KL of the posterior of f_bin from its prior; of a point, 1/2 sum f_bin^2 / prior variance."""
        if self.q_mean is None:
            return torch.zeros(())
        energy = self.q_mean.square().sum() * (-self.log_prior_variance).exp()
        if self.transitions == "point":
            return 0.5 * energy
        return 0.5 * ((self.log_ratio.exp() - 1 - self.log_ratio).sum() + energy)
